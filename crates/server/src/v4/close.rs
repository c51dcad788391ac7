//! CLOSE and OPEN_DOWNGRADE (RFC 8881 sections 18.2 and 18.18).

use curt_proto::nfs4::{CloseArgs4, NfsStat4, OpenDowngradeArgs4, Stateid};
use curt_xdr::{Decoder, Encode};

use super::open::share_mode;
use super::{Compound, Outcome, decoded};
use crate::ops;
use crate::request::VerifiedHandle;

pub(super) fn close<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let CloseArgs4 { stateid, .. } = decoded(arguments)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let stateid = compound.exact_stateid(stateid)?;
    let slot = compound.slot()?;
    let pin = compound.request.service.held.close_pinned(slot.client(), &stateid, &target.file_key())?;
    if pin.is_some() && is_removed(compound, target) {
        // The blocks of the file are freed.
        compound.request.context.may_block();
    }
    drop(pin);
    // Nothing is open any more: the reply has an invalid stateid (RFC 8881 section 18.2.4).
    compound.current_stateid = None;
    Stateid::INVALID.encode(reply);
    Ok(())
}

/// Whether a file has no name any more, as far as is known without waiting.
fn is_removed(compound: &mut Compound<'_, '_>, target: &VerifiedHandle<'_>) -> bool {
    ops::getattr(&mut compound.request, target).map_or(true, |status| status.nlink == 0)
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
    let slot = compound.slot()?;
    let held = &compound.request.service.held;
    let stateid = held.open_downgrade(slot.client(), &stateid, &target.file_key(), mode)?;
    compound.current_stateid = Some(stateid);
    stateid.encode(reply);
    Ok(())
}
