//! GETATTR: when attributes are requested from the server. Concurrent operations share one request.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::attributes::{GetattrDecision, decide_getattr};
use curt_rpc::client::Interrupt;
use rustix::io::Errno;

use crate::{
    api::{InodeId, InodeStat},
    data::{DataOwner, ResizeInFlight},
    errno,
    event_fields::{trace_enter, trace_exit},
    inode::{Inode, single_flight::InFlightEnd},
    open_file::OpenFile,
    readdir::prefetch,
    superblock::{Op, Superblock},
};

/// Whether one request may fetch the attributes of sibling objects as well (a listing with
/// attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SiblingAttributes {
    /// If they are expected to be needed.
    IfExpected,
    /// No: attributes fetched for another object are too old for this caller.
    Nothing,
}

/// Revalidates the attributes of an open file if copies of its data may exist outside this client
/// and its attributes have expired; returns whether it sent a request. The
/// [`crate::ChangeObserver`] is notified of a change. Files opened for execution are skipped: they
/// are mapped, and no NFS client revalidates them after the open.
///
/// # Errors
/// The errors of GETATTR; EINTR.
pub fn revalidate_open_file(sb: &Superblock, file: &OpenFile, interrupt: &Interrupt) -> Result<bool, Errno> {
    let options = sb.core.options();
    let flags = file.flags();
    let is_read = flags.read && !flags.execute && !flags.direct;
    // Without an attribute cache each read revalidates.
    if !is_read || !options.attribute_cache {
        return Ok(false);
    }
    let inode = &file.inode;
    let has_copies = inode.data_if_any().is_some_and(|data| data.may_be_copied() && !data.has_unsent());
    let op = &Op::new(sb, file.opener(), interrupt.clone(), sb.core.now());
    if !has_copies || inode.lock().can_be_served(op.time(), &options) {
        return Ok(false);
    }
    let _about = scope::for_object(inode.id().0);
    let _why = scope::with_cause(Cause::Recheck);
    revalidate(op, inode)?;
    Ok(true)
}

/// The attributes of `id`, from the cache if they are valid.
///
/// # Errors
/// The errors of GETATTR; ESTALE if the object is gone; EINTR.
pub fn getattr(op: &Op<'_>, id: InodeId) -> Result<InodeStat, Errno> {
    let inode = op.sb.find_inode(id)?;
    let found = stat(op, &inode).and_then(|found| {
        if found.attributes.nlink == 0 {
            inode.check_name()?;
        }
        Ok(found)
    });
    op.note_path_result(found)
}

pub(crate) fn stat(op: &Op<'_>, inode: &Arc<Inode>) -> Result<InodeStat, Errno> {
    let mut is_settled = false;
    for round in op.rounds() {
        // Data written after the first flush are later than this operation.
        let unsent = !is_settled && inode.has_unsent();
        let now = op.now();
        let locked = inode.lock();
        match decide_getattr(locked.freshness(op.time(), &op.options), unsent, &op.options) {
            GetattrDecision::Serve => {
                let valid =
                    curt_policy::kernel_cache::attribute_lifetime(&locked.attributes, now, &op.options);
                let attributes = inode.attributes_in(&locked).ok_or(Errno::IO)?;
                drop(locked);
                if round == 0 {
                    op.sb.count(ClientCounter::AttrHit);
                }
                inode.note_use();
                return Ok(InodeStat { attributes, valid });
            }
            GetattrDecision::Revalidate => {
                drop(locked);
                revalidate(op, inode)?;
            }
            GetattrDecision::FlushFirst => {
                drop(locked);
                flush_unsent(op, inode)?;
                is_settled = true;
            }
        }
    }
    Err(Errno::IO)
}

/// Writes all dirty data to the server.
pub(crate) fn flush_unsent(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    if !inode.has_unsent() {
        return Ok(());
    }
    let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
    op.sb.core.data.flush_unsent(&owner, op.interrupt()).map_err(errno::of_data)
}

/// Writes all dirty data before a SETATTR of the size; while the result is held, no WRITE beyond
/// `size` is in flight.
pub(crate) fn begin_resize(op: &Op<'_>, inode: &Arc<Inode>, size: u64) -> Result<ResizeInFlight, Errno> {
    let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
    op.sb.core.data.begin_resize(&owner, size, op.interrupt()).map_err(errno::of_data)
}

/// Requests attributes, or waits for a request in flight. The caller then decides again, since the
/// attributes may still be too old for this operation.
pub(crate) fn revalidate(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    revalidate_with(op, inode, SiblingAttributes::IfExpected)
}

/// As [`revalidate`]; `siblings` says whether sibling attributes may be requested as well.
pub(crate) fn revalidate_with(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    siblings: SiblingAttributes,
) -> Result<(), Errno> {
    let mut owner = match op.sb.getattrs_in_flight.join(inode.id()) {
        Ok(flight) => {
            op.sb.count(ClientCounter::AttrShared);
            return match flight.wait(op.interrupt()) {
                Some(InFlightEnd::Done) => Ok(()),
                Some(InFlightEnd::Silent) => {
                    fall_back_to_cache(op);
                    Ok(())
                }
                None => Err(Errno::INTR),
            };
        }
        Err(owner) => owner,
    };
    if inode.lock().attributes.newest().is_none() {
        op.sb.count(ClientCounter::AttrInvalidated);
        let _why = scope::with_default_cause(Cause::AttributesUnknown);
        return send_getattr(op, inode);
    }
    op.sb.count(ClientCounter::AttrExpired);
    let _why = scope::with_default_cause(Cause::AttributesExpired);
    if with_softreval(op, |op| ask_again(op, inode, siblings))?.is_none() {
        owner.end = InFlightEnd::Silent;
    }
    Ok(())
}

/// Sends GETATTR and applies the reply.
pub(crate) fn send_getattr(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let reason = scope::current().cause.unwrap_or(Cause::AttributesUnknown);
    trace_enter!(inode.event_fields(), NfsRevalidateInodeEnter { reason: reason.name() });
    let answer = send_getattr_untraced(op, inode);
    trace_exit!(inode.event_fields(), NfsRevalidateInodeExit { error: errno::event_status(&answer) });
    answer
}

fn send_getattr_untraced(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let answer = op.protocol().attributes(op.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
    match answer.outcome {
        Ok(attributes) => {
            let _ = inode.absorb(&attributes, op.sb.core.moment(answer.sent_at));
            Ok(())
        }
        Err(status) => Err(inode.note_failed_status(status)),
    }
}

/// Revalidates cached data. `None`: the server did not respond within the time of `softreval`, so
/// this operation uses the cached data.
pub(crate) fn with_softreval<T>(
    op: &Op<'_>,
    ask: impl FnOnce(&Op<'_>) -> Result<T, Errno>,
) -> Result<Option<T>, Errno> {
    let Some(patience) = op.sb.soft_revalidation.as_ref().filter(|_| !op.uses_cache.get()) else {
        return ask(op).map(Some);
    };
    let wait = patience.begin(op.interrupt());
    let soft = Op::new(op.sb, Arc::clone(&op.identity), wait.interrupt.clone(), op.began);
    match ask(&soft) {
        Err(Errno::INTR) if !op.interrupt().is_raised() => {
            fall_back_to_cache(op);
            Ok(None)
        }
        result => result.map(Some),
    }
}

fn fall_back_to_cache(op: &Op<'_>) {
    op.uses_cache.set(true);
    op.sb.count(ClientCounter::SoftRevalidation);
}

/// Requests expired attributes, possibly together with those of other objects in the directory.
fn ask_again(op: &Op<'_>, inode: &Arc<Inode>, siblings: SiblingAttributes) -> Result<(), Errno> {
    match siblings {
        SiblingAttributes::IfExpected if prefetch::refresh_directory_of(op, inode)? => Ok(()),
        SiblingAttributes::IfExpected | SiblingAttributes::Nothing => send_getattr(op, inode),
    }
}
