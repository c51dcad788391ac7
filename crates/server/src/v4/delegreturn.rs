//! DELEGRETURN (RFC 8881 section 18.6).

use curt_proto::nfs4::{DelegreturnArgs4, NfsStat4};
use curt_xdr::Decoder;

use super::{Compound, OpFailure, Outcome, decoded};

/// No delegation is granted: a stateid is of another state, or of none.
pub(super) fn delegreturn<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let DelegreturnArgs4 { stateid } = decoded(arguments)?;
    let stateid = compound.stateid(stateid)?;
    let slot = compound.slot.as_ref().ok_or(OpFailure::Status(NfsStat4::OpNotInSession))?;
    compound.request.service.held.test_stateid(slot.client(), &stateid)?;
    Err(NfsStat4::BadStateid.into())
}
