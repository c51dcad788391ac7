//! CLOSE and OPEN_DOWNGRADE (RFC 8881 sections 18.2 and 18.18).

use curt_proto::nfs4::{CloseArgs4, NfsStat4, OpenDowngradeArgs4, Stateid};
use curt_xdr::{Decoder, Encode};

use super::open::share_mode;
use super::{Compound, OpFailure, Outcome, decoded};

pub(super) fn close<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let CloseArgs4 { stateid, .. } = decoded(arguments)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let stateid = compound.exact_stateid(stateid)?;
    let slot = compound.slot.as_ref().ok_or(OpFailure::Status(NfsStat4::OpNotInSession))?;
    // The last one may free a removed file.
    compound.request.context.may_block();
    compound.request.service.held.close(slot.client(), &stateid, &target.file_key())?;
    // Nothing is open any more: a stateid that is never valid says so (RFC 8881 section 18.2.4).
    compound.current_stateid = None;
    Stateid::INVALID.encode(reply);
    Ok(())
}

pub(super) fn open_downgrade<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let OpenDowngradeArgs4 { stateid, share_access, share_deny, .. } = decoded(arguments)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let mode = share_mode(share_access, share_deny)?;
    let stateid = compound.exact_stateid(stateid)?;
    let slot = compound.slot.as_ref().ok_or(OpFailure::Status(NfsStat4::OpNotInSession))?;
    let held = &compound.request.service.held;
    let stateid = held.open_downgrade(slot.client(), &stateid, &target.file_key(), mode)?;
    compound.current_stateid = Some(stateid);
    stateid.encode(reply);
    Ok(())
}
