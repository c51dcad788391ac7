//! GETATTR (RFC 8881 section 18.7).

use curt_proto::nfs4::GetattrArgs4;
use curt_xdr::Decoder;

use super::attributes::{self, RequestedAttributes};
use super::{Compound, Outcome, decoded, names};

pub(super) fn getattr<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let GetattrArgs4 { attributes } = decoded(arguments)?;
    let object = compound.current()?;
    let wanted = RequestedAttributes::new(attributes, compound.minor_version)?;
    let known = match compound.kept_attributes() {
        Some(known) => known,
        None => names::attributes(&mut compound.request, &object)?,
    };
    compound.keep_attributes(Some(known));
    attributes::append(&mut compound.request, &object, Some(known), wanted, reply)
}
