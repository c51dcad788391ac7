//! Reports the holders of locks and the waiters.

use curt_policy::locks::LocalLockOwner;
use curt_types::{ByteRange, LockType};

use super::MountLocks;
use crate::InodeId;
use std::time::Duration;

/// A lock that is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockReportEntry {
    /// The file.
    pub file: InodeId,
    /// The owner.
    pub owner: LocalLockOwner,
    /// The owner's process; 0 if unknown.
    pub pid: u32,
    /// The bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub lock_type: LockType,
    /// Whether it is held; otherwise it is waited for.
    pub is_held: bool,
    /// For how long.
    pub since: Duration,
}

/// The locks of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountLockReport {
    /// The locks, by file; the holders first, then the waiters in their order.
    pub locks: Vec<LockReportEntry>,
    /// The longest queue of waiters so far.
    pub queue_max: u64,
    /// How often a lock was waited for less than so many microseconds, and not less than the entry
    /// before.
    pub waits: Vec<(u64, u64)>,
    /// The histogram of how long locks were held.
    pub holds: Vec<(u64, u64)>,
}

impl MountLocks {
    /// The locks and waiters at this moment.
    pub(crate) fn report(&self) -> MountLockReport {
        let now = self.core.now();
        let state = self.state.lock();
        let mut locks = Vec::new();
        for (id, file) in state.files.iter() {
            let inode = InodeId(id.0);
            for (owner, ranges) in state.agent.holders(id) {
                let holder = file.holders.get(&owner);
                let (pid, since) = holder.map_or((0, now), |holder| (holder.pid, holder.since));
                let since = now.since(since);
                locks.extend(ranges.iter().map(|(range, lock_type)| LockReportEntry {
                    file: inode,
                    owner,
                    pid,
                    range,
                    lock_type,
                    is_held: true,
                    since,
                }));
            }
            locks.extend(state.agent.waiters(id).map(|waiter| {
                let caller = state.files.caller(waiter.id);
                let pid =
                    caller.and_then(|caller| caller.wanted.as_ref()).map_or(0, |lock| lock.arguments.pid);
                LockReportEntry {
                    file: inode,
                    owner: waiter.owner,
                    pid,
                    range: waiter.range,
                    lock_type: waiter.lock_type,
                    is_held: false,
                    since: caller.map_or(Duration::ZERO, |caller| now.since(caller.since)),
                }
            }));
        }
        let queue_max = state.queue_max as u64;
        drop(state);
        // Stable: holders and waiters of a file stay in their order.
        locks.sort_by_key(|lock| lock.file);
        let [waits, holds] = self.times.counts();
        MountLockReport { locks, queue_max, waits, holds }
    }
}
