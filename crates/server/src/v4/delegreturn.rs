//! DELEGRETURN (RFC 8881 section 18.6).

use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::{DelegreturnArgs4, NfsStat4};
use curt_xdr::Decoder;

use super::{Compound, Outcome, decoded};

pub(super) fn delegreturn<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let DelegreturnArgs4 { stateid } = decoded(arguments)?;
    let stateid = compound.stateid(stateid)?;
    let slot = compound.slot()?;
    let object = compound.current()?;
    // The pseudo file system has no delegations.
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let service = compound.request.service;
    service.held.return_delegation(slot.client(), &stateid, &target.file_key())?;
    service.counters.count(ServerCounter::DelegationsReturned);
    probe!(NfsdDelegation { fhandle: target.handle_hash(), reason: "returned" });
    Ok(())
}
