//! LOCK, LOCKT and LOCKU (RFC 8881 sections 18.10 to 18.12): the locks of the table that NLM uses.

use curt_observe::{ServerCounter, probe};
use curt_proto::nfs4::{
    Clientid, LockArgs4, LockDenied, LockType4, Locker, LocktArgs4, LockuArgs4, NfsStat4, OpaqueLimited,
    StateOwner, lock_offset_and_length, lock_range,
};
use curt_types::{Access, ByteRange, LockType};
use curt_xdr::{Decoder, Encode};

use super::{Compound, OpFailure, Outcome, decoded, io};
use crate::ops;
use crate::request::VerifiedHandle;
use crate::service::NfsService;
use crate::state::locks::{LockClient, LockHolder, LockRequest, LockWait};
use crate::state::{Client, LockBasis, LockStateOutcome, LockStateRequest, StateFault, lock_owner};

/// The bytes of [`LockDenied`] with an owner without a name.
const DENIED_MIN: usize = 32;

/// Maximum number of expired clients whose locks are released for one request. If there are more,
/// the client tries again.
const EXPIRED_HOLDERS_MAX: usize = 16;

/// The bytes of a lock. All ranges of 64 bits are supported, so NFS4ERR_BAD_RANGE and
/// NFS4ERR_LOCK_RANGE do not occur.
fn range(offset: u64, length: u64) -> Result<ByteRange, OpFailure> {
    lock_range(offset, length).ok_or(OpFailure::Status(NfsStat4::Inval))
}

pub(super) fn lock<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let LockArgs4 { kind, reclaim, offset, length, locker } = decoded(arguments)?;
    let range = range(offset, length)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::Isdir)?;
    io::check_regular(&mut compound.request, target)?;
    let basis = match &locker {
        Locker::Existing { stateid, .. } => LockBasis::Locks(compound.stateid(*stateid)?),
        // The session's client is the owner's, whatever the owner's client id says.
        Locker::New { open_stateid, owner, .. } => {
            LockBasis::Open { stateid: compound.stateid(*open_stateid)?, owner: owner.owner.bytes() }
        }
    };
    let lock_type = kind.lock_type();
    let (service, slot) = (compound.request.service, compound.slot()?);
    let asked = LockStateRequest { basis, file: target.file_key(), lock_type, is_reclaim: reclaim };
    let blocking = if !kind.waits() || reclaim {
        Blocking::No
    } else if slot.session().takes_callbacks() {
        Blocking::Notified
    } else {
        Blocking::Polled
    };
    let attempt = || try_lock(service, slot.client(), target, &asked, range, blocking);
    let mut outcome = attempt()?;
    for _ in 0..EXPIRED_HOLDERS_MAX {
        match &outcome {
            LockStateOutcome::Conflict(holder) if service.expire_lock_holder(holder)? => outcome = attempt()?,
            LockStateOutcome::Conflict(_) | LockStateOutcome::Granted(_) => break,
        }
    }
    match outcome {
        LockStateOutcome::Granted(stateid) => {
            report(target, range, NfsStat4::Ok);
            service.ask_for_state(slot.client());
            compound.current_stateid = Some(stateid);
            stateid.encode(reply);
            Ok(())
        }
        LockStateOutcome::Conflict(holder) => {
            report(target, range, NfsStat4::Denied);
            service.counters.count(match blocking {
                Blocking::Notified => ServerCounter::LocksBlocked,
                Blocking::Polled | Blocking::No => ServerCounter::LocksDenied,
            });
            denied(compound, &holder, reply)
        }
    }
}

/// How a LOCK that conflicts waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    No,
    /// The client cannot be called back, and polls.
    Polled,
    Notified,
}

/// One attempt of a LOCK.
fn try_lock(
    service: &NfsService,
    client: &Client,
    target: &VerifiedHandle<'_>,
    asked: &LockStateRequest<'_>,
    range: ByteRange,
    blocking: Blocking,
) -> Result<LockStateOutcome, OpFailure> {
    let LockStateRequest { lock_type, is_reclaim: reclaim, .. } = *asked;
    let mut opened = None;
    loop {
        let mut must_open = false;
        let outcome = service.held.lock(client, asked, |owner, open| {
            let wait = match blocking {
                Blocking::Notified => LockWait::Notified { handle: target.handle(), open },
                Blocking::Polled => LockWait::Polled,
                Blocking::No => LockWait::No,
            };
            let request = LockRequest { owner: *owner, lock_type, range, wait, reclaim };
            let locked = service.locks.lock_with(
                &asked.file,
                &request,
                client.peer,
                &mut opened,
                service.clock.now(),
            )?;
            must_open = locked.is_none();
            locked.ok_or(OpFailure::Status(NfsStat4::Delay))
        });
        if !must_open {
            return outcome;
        }
        // No state is locked, because opening may wait for a disk.
        if !service.locks.has_share_left(client.peer) {
            return Err(StateFault::TooManyLocks.into());
        }
        opened = Some(service.locks.kernel_locks(target, client.peer)?);
    }
}

fn report(target: &VerifiedHandle<'_>, range: ByteRange, status: NfsStat4) {
    probe!(NfsdLockDone {
        fhandle: target.handle_hash(),
        lock_first: range.first(),
        lock_last: range.last(),
        pid: 0_u32,
        reason: status.name().as_bytes()
    });
}

/// Encodes the lock that conflicts. A name for which the reply, or the session's cache of replies,
/// has no room is left out, because the client can do without it.
fn denied(compound: &Compound<'_, '_>, holder: &LockHolder, reply: &mut Vec<u8>) -> Outcome {
    let has_room = compound.room(reply) >= DENIED_MIN + holder.name.len().next_multiple_of(4);
    let name = if has_room { &*holder.name } else { &[] };
    let (offset, length) = lock_offset_and_length(holder.range);
    LockDenied {
        offset,
        length,
        kind: match holder.lock_type {
            LockType::Read => LockType4::Read,
            LockType::Write => LockType4::Write,
        },
        owner: StateOwner {
            clientid: match holder.client {
                LockClient::Clientid(client) => Clientid(client),
                // The owner is none of NFSv4.
                LockClient::Host(_) | LockClient::Local => Clientid(0),
            },
            owner: OpaqueLimited::new(name).unwrap_or_default(),
        },
    }
    .encode(reply);
    Err(OpFailure::WithBody(NfsStat4::Denied))
}

pub(super) fn lockt<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let LocktArgs4 { kind, offset, length, owner } = decoded(arguments)?;
    let range = range(offset, length)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::Isdir)?;
    io::check_regular(&mut compound.request, target)?;
    // Holders of locks are shown only to callers that may use the file.
    let asked = Access::READ.with(Access::MODIFY);
    let granted = ops::access(&mut compound.request, target, asked).value?;
    if !granted.contains(Access::READ) && !granted.contains(Access::MODIFY) {
        return Err(NfsStat4::Access.into());
    }
    let service = compound.request.service;
    // Locks that are not reclaimed yet are not known.
    if service.is_in_grace() {
        return Err(StateFault::Grace.into());
    }
    let owner = lock_owner(compound.slot()?.client().id, owner.owner.bytes());
    let test = || service.locks.test(target, &owner, kind.lock_type(), range);
    let mut holder = test()?;
    for _ in 0..EXPIRED_HOLDERS_MAX {
        match &holder {
            Some(other) if service.expire_lock_holder(other)? => holder = test()?,
            Some(_) | None => break,
        }
    }
    holder.map_or(Ok(()), |holder| denied(compound, &holder, reply))
}

pub(super) fn locku<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let LockuArgs4 { stateid, offset, length, .. } = decoded(arguments)?;
    let range = range(offset, length)?;
    let object = compound.current()?;
    let target = object.exported_or(NfsStat4::BadStateid)?;
    let stateid = compound.stateid(stateid)?;
    let (service, slot) = (compound.request.service, compound.slot()?);
    let stateid = service.held.unlock(slot.client(), &stateid, &target.file_key(), |owner| {
        service.locks.unlock(&target.file_key(), owner, range, service.clock.now())
    })?;
    report(target, range, NfsStat4::Ok);
    compound.current_stateid = Some(stateid);
    stateid.encode(reply);
    Ok(())
}
