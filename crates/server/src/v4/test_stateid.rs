//! TEST_STATEID (RFC 8881 section 18.48).

use curt_proto::nfs4::{NfsStat4, TestStateidArgs4};
use curt_xdr::{Decoder, Encode};

use super::operation_outcome::{OpFailure, decoded};
use super::{Compound, Outcome};

pub(super) fn test_stateid<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: TestStateidArgs4 = decoded(arguments)?;
    let held = &compound.request.service.held;
    let slot = compound.slot()?;
    u32::try_from(asked.stateids.len()).unwrap_or_default().encode(reply);
    for stateid in asked.stateids.iter() {
        let tested = held.test_stateid(slot.client(), stateid).map_err(OpFailure::from);
        tested.map_or_else(OpFailure::status, |()| NfsStat4::Ok).encode(reply);
    }
    Ok(())
}
