//! REMOVE (RFC 8881 section 18.25).

use curt_proto::nfs4::{RemoveArgs4, RemoveOk4};
use curt_types::Fault;
use curt_xdr::{Decoder, Encode};

use super::change::change_info;
use super::{Compound, Outcome, decoded, names};
use crate::ops::{self, NamePurpose};

/// Removes a name of any type; a directory has to be empty.
pub(super) fn remove<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let RemoveArgs4 { name } = decoded(arguments)?;
    let object = compound.current()?;
    names::check(name.bytes())?;
    let directory = object.changeable()?;
    let mut remove = |purpose| ops::remove(&mut compound.request, directory, name.bytes(), purpose);
    let mut removed = remove(NamePurpose::Remove);
    if removed.value == Err(Fault::Isdir) {
        removed = remove(NamePurpose::RemoveDirectory);
    }
    removed.value?;
    RemoveOk4 { directory: change_info(&removed.attributes) }.encode(reply);
    compound.keep_attributes(removed.attributes.after);
    Ok(())
}
