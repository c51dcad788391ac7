//! FREE_STATEID (RFC 8881 section 18.38).

use curt_proto::nfs4::FreeStateidArgs4;
use curt_xdr::Decoder;

use super::operation_outcome::decoded;
use super::{Compound, Outcome};

pub(super) fn free_stateid<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let asked: FreeStateidArgs4 = decoded(arguments)?;
    let stateid = compound.stateid(asked.stateid)?;
    compound.request.service.held.free_stateid(compound.slot()?.client(), &stateid)?;
    Ok(())
}
