//! Byte-range locks: the kernel's arguments and replies in terms of the client.

use curt_client as client;
use curt_fuse as fuse;
use curt_types::{ByteRange, LockType};
use rustix::io::Errno;

/// The largest offset of a file; in locks: up to the end, however far it moves.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A lock that a program requests; for an unlock the type has no meaning. The kernel does not show
/// locks of open file descriptions (F_OFD_SETLK) from those of processes; their owners differ.
pub(super) fn lock_arguments(lock: &fuse::LkIn, wait: bool) -> Result<client::LockArguments, Errno> {
    let fuse::LockRange { start, end, kind, pid } = lock.range;
    let last = if end >= OFFSET_MAX { u64::MAX } else { end };
    let owner = if lock.flock {
        client::LocalLockOwner::Flock(lock.owner)
    } else {
        client::LocalLockOwner::Posix(lock.owner)
    };
    let lock_type = if kind == fuse::LockKind::Read { LockType::Read } else { LockType::Write };
    let range = ByteRange::new(start, last).ok_or(Errno::INVAL)?;
    Ok(client::LockArguments { owner, pid, range, lock_type, wait })
}

/// The reply to GETLK: the conflicting lock, or that there is none.
pub(super) fn lock_range(found: Option<&client::ConflictingLock>, asked: fuse::LockRange) -> fuse::LockRange {
    let Some(found) = found else {
        return fuse::LockRange { kind: fuse::LockKind::Unlock, ..asked };
    };
    let kind = match found.lock_type {
        LockType::Read => fuse::LockKind::Read,
        LockType::Write => fuse::LockKind::Write,
    };
    let offset = |offset: u64| offset.min(OFFSET_MAX);
    let (start, end) = (offset(found.range.first()), offset(found.range.last()));
    fuse::LockRange { start, end, kind, pid: found.pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_to_the_end_of_the_file_reaches_the_last_offset_of_the_protocol() {
        let range = |start, end| fuse::LockRange { start, end, kind: fuse::LockKind::Read, pid: 9 };
        let asked = |start, end| {
            let lock = fuse::LkIn { fh: fuse::FuseFh(1), owner: 5, range: range(start, end), flock: false };
            lock_arguments(&lock, true).map(|lock| (lock.range.first(), lock.range.last()))
        };
        assert_eq!(asked(3, 7), Ok((3, 7)));
        assert_eq!(asked(3, OFFSET_MAX), Ok((3, u64::MAX)));
        assert_eq!(asked(OFFSET_MAX, OFFSET_MAX), Ok((OFFSET_MAX, u64::MAX)));
        assert_eq!(asked(7, 3), Err(Errno::INVAL));
        let found = client::ConflictingLock { range: ByteRange::WHOLE, lock_type: LockType::Read, pid: 9 };
        assert_eq!(lock_range(Some(&found), range(3, 7)), range(0, OFFSET_MAX));
        let none = fuse::LockRange { kind: fuse::LockKind::Unlock, ..range(3, 7) };
        assert_eq!(lock_range(None, range(3, 7)), none);
    }
}
