//! GET_DIR_DELEGATION (RFC 8881 section 18.39). Directories are delegated without notifications: a
//! change of a name by others recalls the delegation before.

use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::{Bitmap4, GetDirDelegationArgs4, GetDirDelegationOk4, NfsStat4, Verifier4};
use curt_types::FileKind;
use curt_xdr::{Decoder, Encode};

use super::{Compound, Object, Outcome, decoded};
use crate::ops;
use crate::state::{DelegationRequest, LocalChanges};

pub(super) fn get_dir_delegation<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let _: GetDirDelegationArgs4 = decoded(arguments)?;
    let object = compound.current()?;
    let unavailable = GetDirDelegationOk4::Unavailable(false);
    if matches!(object, Object::Pseudo(_)) {
        unavailable.encode(reply);
        return Ok(());
    }
    let target = object.exported_or(NfsStat4::Notdir)?;
    let status = ops::getattr(&mut compound.request, target)?;
    if status.kind != FileKind::Directory {
        return Err(NfsStat4::Notdir.into());
    }
    let client = compound.slot()?.client();
    if !client.is_recorded() || !client.may_have_delegations() {
        compound.request.context.may_block();
    }
    let (service, slot) = (compound.request.service, compound.slot()?);
    service.begin_open(slot.client(), false)?;
    if !service.grants_directory_delegations() || !slot.session().takes_callbacks() {
        unavailable.encode(reply);
        return Ok(());
    }
    let asked = DelegationRequest {
        file: target.file_key(),
        handle: target.handle(),
        granted_by: slot.call(),
        reclaim: None,
        // The kernel does not report changes of names before they are made.
        local: LocalChanges::Ignored,
    };
    let delegated = service.delegate(slot.client(), asked);
    service.ask_for_state(slot.client());
    let Ok(stateid) = delegated else {
        unavailable.encode(reply);
        return Ok(());
    };
    service.counters.count(ServerCounter::DelegationsGranted);
    probe!(NfsdDelegation { fhandle: target.handle_hash(), reason: "granted" });
    GetDirDelegationOk4::Granted {
        verifier: Verifier4::default(),
        stateid,
        notification_types: Bitmap4::EMPTY,
        child_attributes: Bitmap4::EMPTY,
        directory_attributes: Bitmap4::EMPTY,
    }
    .encode(reply);
    compound.current_stateid = Some(stateid);
    Ok(())
}
