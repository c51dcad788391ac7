//! LINK (RFC 8881 section 18.9).

use curt_proto::nfs4::{LinkArgs4, LinkOk4, NfsStat4};
use curt_xdr::{Decoder, Encode};

use super::change::change_info;
use super::{Compound, Outcome, decoded, names};
use crate::ops;

/// The saved file gets a name in the current directory.
pub(super) fn link<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let LinkArgs4 { name } = decoded(arguments)?;
    let (file, directory) = (compound.saved()?, compound.current()?);
    names::check(name.bytes())?;
    names::check_same_tree(&file, &directory)?;
    let (file, directory) = (file.changeable()?, directory.changeable()?);
    let linked = ops::link(&mut compound.request, file, directory, name.bytes());
    if let Err(fault) = linked.value {
        let is_directory = linked.attributes.saved.after.is_some_and(|file| names::is_directory(&file));
        // The kernel refuses directories with EPERM.
        let status = if is_directory { NfsStat4::Isdir } else { fault.into() };
        return Err(status.into());
    }
    LinkOk4 { directory: change_info(&linked.attributes.current) }.encode(reply);
    compound.keep_attributes(linked.attributes.current.after);
    Ok(())
}
