//! Locks of fcntl(2) and flock(2).

use std::sync::Arc;

use curt_policy::locks::LocalLockOwner;
use curt_rpc::client::Interrupt;
use curt_types::{ByteRange, LockType};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::{
    locks::{ConflictingLock, LockArguments, LockDone},
    open_file::OpenFile,
    ops::close,
    superblock::Op,
};

/// Requests a lock, after the file's dirty bytes were stored, and passes the result to `done`,
/// perhaps before this returns. An interrupt of the operation ends the wait.
///
/// The result is EAGAIN (another owner has it, and the request does not wait), EINTR, EDEADLK,
/// ENOLCK, EBADF (with NFSv4, if the file is not open for what the lock is for), or an error of the
/// server. After a grant nothing that was cached of the file is used.
pub fn lock(op: &Op<'_>, file: &Arc<OpenFile>, arguments: LockArguments, done: LockDone) {
    if let Err(error) = file.check_lost() {
        return done(Err(error));
    }
    let is_open_for = match arguments.lock_type {
        LockType::Read => file.flags().read,
        LockType::Write => file.flags().write,
    };
    if !is_open_for && op.protocol().locks_by_open_mode() {
        return done(Err(Errno::BADF));
    }
    // A downgrade shows others what was written. What was written without a lock must not hide
    // what others write under theirs.
    if !has_stored_data(op, file) {
        return done(Err(Errno::INTR));
    }
    op.sb.locks.lock(file, arguments, op.interrupt(), done);
}

/// Whether another owner of this mount holds a lock that keeps this one from being placed.
#[must_use]
pub fn is_locked_here(op: &Op<'_>, file: &OpenFile, arguments: &LockArguments) -> bool {
    op.sb.locks.is_locked_here(file, arguments)
}

/// Whether another owner of this mount is unlocking a lock that keeps this one from being placed.
#[must_use]
pub fn is_being_unlocked_here(op: &Op<'_>, file: &OpenFile, arguments: &LockArguments) -> bool {
    op.sb.locks.is_being_unlocked_here(file, arguments)
}

/// Unlocks a range, after the file's dirty bytes were stored, and passes the result to `done`
/// when the server has confirmed it. EIO, once, if a lock was lost; the rest is unlocked then, too.
pub fn unlock(op: &Op<'_>, file: &Arc<OpenFile>, owner: LocalLockOwner, range: ByteRange, done: LockDone) {
    let lost = file.check_lost();
    if !has_stored_data(op, file) {
        unlock_in_background(op, file, owner, range);
        return done(lost.and(Err(Errno::INTR)));
    }
    let locked = Arc::clone(file);
    let done = Box::new(move |result| done(lost.and_then(|()| locked.check_lost()).and(result)));
    op.sb.locks.unlock(file, owner, range, op.interrupt(), done);
}

/// Has what was written stored, so that others see the data once they have the lock.
/// Unstable data could be lost if the server restarts; they would be sent again after the next
/// owner's. False if the caller is interrupted before that.
fn has_stored_data(op: &Op<'_>, file: &OpenFile) -> bool {
    op.sb.core.data.settle_durably(&file.owner, op.interrupt()).is_ok() || !op.interrupt().is_raised()
}

/// Takes the locks of an owner within a range from it now, and unlocks them when its data are
/// stored.
fn unlock_in_background(op: &Op<'_>, file: &Arc<OpenFile>, owner: LocalLockOwner, range: ByteRange) {
    let Some(release) = op.sb.locks.unlock_after_data(file, owner, range) else { return };
    let (plane, locks, file) = (Arc::clone(&op.sb.core.data), Arc::clone(&op.sb.locks), Arc::clone(file));
    op.sb.after_writeback.spawn(Box::new(move || {
        let _ = plane.settle_durably(&file.owner, &Interrupt::never());
        locks.data_written(release);
    }));
}

/// The lock of another owner that keeps this one from being placed, if any.
///
/// # Errors
/// ENOLCK; EINTR; an error of the server.
pub fn test_lock(
    op: &Op<'_>,
    file: &OpenFile,
    arguments: &LockArguments,
) -> Result<Option<ConflictingLock>, Errno> {
    op.sb.locks.test(file, arguments, op.interrupt())
}

/// As [`lock`], but waits for the result.
///
/// # Errors
/// The errors of [`lock`].
pub fn lock_and_wait(op: &Op<'_>, file: &Arc<OpenFile>, arguments: LockArguments) -> Result<(), Errno> {
    wait(|done| lock(op, file, arguments, done))
}

/// As [`unlock`], but waits for the result.
///
/// # Errors
/// EINTR; EIO if the lock was lost; an error of the server.
pub fn unlock_and_wait(
    op: &Op<'_>,
    file: &Arc<OpenFile>,
    owner: LocalLockOwner,
    range: ByteRange,
) -> Result<(), Errno> {
    wait(|done| unlock(op, file, owner, range, done))
}

/// close(2) of one descriptor of the open file by `owner`: writes its data, and then unlocks
/// everything that the owner has locked in the file.
///
/// # Errors
/// The errors of [`close::flush`]. An interrupted caller leaves the rest to the background.
pub fn flush_and_unlock(op: &Op<'_>, file: &Arc<OpenFile>, owner: LocalLockOwner) -> Result<(), Errno> {
    let flushed = close::flush(op, file);
    if !op.sb.locks.holds(file, owner) {
        return flushed;
    }
    if !has_stored_data(op, file) {
        unlock_in_background(op, file, owner, ByteRange::WHOLE);
        return flushed.and(Err(Errno::INTR));
    }
    let unlocked = wait(|done| op.sb.locks.close(file, owner, op.interrupt(), done));
    match (flushed, unlocked) {
        (Ok(()), Err(Errno::INTR)) => Err(Errno::INTR),
        // As in Linux, close(2) does not fail because of a lock.
        (flushed, _) => flushed,
    }
}

/// The result of a request that a thread waits for.
#[derive(Default)]
struct AwaitedResult {
    result: Mutex<Option<Result<(), Errno>>>,
    known: Condvar,
}

/// Waits for a result. An interrupt of the request produces one.
fn wait(begin: impl FnOnce(LockDone)) -> Result<(), Errno> {
    let awaited = Arc::new(AwaitedResult::default());
    let setter = Arc::clone(&awaited);
    begin(Box::new(move |result| {
        *setter.result.lock() = Some(result);
        setter.known.notify_all();
    }));
    let mut result = awaited.result.lock();
    loop {
        if let Some(result) = *result {
            return result;
        }
        awaited.known.wait(&mut result);
    }
}
