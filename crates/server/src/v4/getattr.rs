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
    let wanted = RequestedAttributes::new(attributes, compound.minor_version)?;
    let known = compound.kept_attributes();
    let (object, request) = compound.current_in_request()?;
    let known = known.map_or_else(|| names::attributes(request, object), Ok)?;
    attributes::append(request, object, Some(known), wanted, reply)?;
    compound.keep_attributes(Some(known));
    Ok(())
}
