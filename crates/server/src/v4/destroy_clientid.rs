//! DESTROY_CLIENTID (RFC 8881 section 18.50).

use curt_proto::nfs4::DestroyClientidArgs4;
use curt_xdr::Decoder;

use super::operation_outcome::decoded;
use super::{Compound, Outcome};

pub(super) fn destroy_clientid<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let asked: DestroyClientidArgs4 = decoded(arguments)?;
    // The client leaves the list on stable storage.
    compound.request.context.may_block();
    let service = compound.request.service;
    service.held.destroy_clientid(asked.clientid)?;
    service.release_departing();
    Ok(())
}
