//! The terms of the lock table: files, clients, owners, requests, answers and callbacks.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use curt_types::{ByteRange, FileHandle, LockType};
use curt_vfs::ProcessLock;

/// Maximum size of an owner's name: `oh` of NLM and `lock_owner4.owner` (both 1024 bytes).
pub const OWNER_NAME_MAX: usize = 1024;

pub use crate::state::FileKey as LockFile;

/// A client: the unit of turns, limits and recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockClient {
    /// A host that uses NLM, by the address that its requests come from (an IPv4 address in its
    /// own form, not mapped to IPv6).
    Host(IpAddr),
    /// A client of NFSv4, by its clientid.
    Clientid(u64),
    /// Processes of this machine. Only the holder of a lock that the kernel refused is one.
    Local,
}

/// An owner of locks. Two owners are the same if all fields are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner<'a> {
    /// Its client.
    pub client: LockClient,
    /// `svid` of NLM; 0 in NFSv4; the process id of a local holder.
    pub process: u32,
    /// `oh` of NLM, `lock_owner4.owner` of NFSv4; at most [`OWNER_NAME_MAX`] bytes.
    pub name: &'a [u8],
}

/// The treatment of a request that conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait<'a> {
    /// The request is denied. One that conflicts with no lock, and for which nothing is reserved,
    /// is granted before the waiters.
    No,
    /// The request is denied, and the client will ask again, because it cannot be called. Its turn
    /// is after the waiters.
    Polled,
    /// The request waits, but the client cannot be called and repeats the request. When it is first
    /// and the range is free, that is reserved for the next repetition. It leaves the queue if that
    /// does not come within a few of the client's intervals.
    Repeated {
        /// The handle as the client sent it.
        handle: &'a FileHandle,
    },
    /// The request waits. The lock is granted when it is free, and a callback reports that
    /// (`NLM_GRANTED`).
    Granted {
        /// The handle as the client sent it, for the callback.
        handle: &'a FileHandle,
        /// The address of this server that the request came to, from which the callback is sent.
        /// `None`: by the route.
        local: Option<IpAddr>,
    },
    /// The request waits. A callback reports that the client should request the lock again
    /// (`CB_NOTIFY_LOCK`). It leaves the queue unless it is repeated, see
    /// [`LockTableOptions::poll_max`](super::LockTableOptions::poll_max).
    Notified {
        /// The handle as the client sent it, for the callback.
        handle: &'a FileHandle,
        /// The number of the open on which it is based.
        open: u64,
    },
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest<'a> {
    /// The future owner of the lock.
    pub owner: LockOwner<'a>,
    /// Shared or exclusive.
    pub lock_type: LockType,
    /// The bytes.
    pub range: ByteRange,
    /// The treatment if it conflicts.
    pub wait: LockWait<'a>,
    /// The client held the lock before the server restarted.
    pub reclaim: bool,
}

/// The answer to a request for a lock.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The owner has the lock.
    Granted,
    /// The request waits, see [`LockWait`], for this holder (or for a waiter that is before it).
    Blocked(LockHolder),
    /// The owner has what it had before.
    Denied(LockDenial),
}

/// Why a lock is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockDenial {
    /// The request conflicts with this lock, or with the request of a waiter that is before it.
    Conflict(LockHolder),
    /// Only reclaims are granted during the grace period.
    Grace,
    /// The request is a reclaim, but the grace period is over.
    NoGrace,
    /// The client, or the server, has the maximum number of locks, owners or waiters.
    NoLocks,
}

/// A lock and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The client of the owner.
    pub client: LockClient,
    /// As [`LockOwner::process`].
    pub process: u32,
    /// As [`LockOwner::name`].
    pub name: Arc<[u8]>,
    /// Shared or exclusive.
    pub lock_type: LockType,
    /// The bytes.
    pub range: ByteRange,
}

impl LockHolder {
    /// Whether it is exclusive.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        matches!(self.lock_type, LockType::Write)
    }

    /// The lock of a process of this machine.
    pub fn of_process(lock: ProcessLock) -> Self {
        Self {
            client: LockClient::Local,
            process: lock.process,
            name: Arc::default(),
            lock_type: lock.lock_type,
            range: lock.range,
        }
    }
}

/// The outcome of a CANCEL.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The request has left the queue, or its grant, which the client had not confirmed, has been
    /// taken back.
    Cancelled,
    /// No such request waits.
    NotWaiting,
}

/// Identifies a callback, as its cookie does. Unique over all files of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallbackId(
    /// Its number.
    pub u64,
);

/// The event that a callback reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackStyle {
    /// The lock has been granted.
    Granted,
    /// The lock may be requested again.
    Notified,
}

/// A callback to be sent.
#[derive(Clone, Debug)]
pub struct LockCallback {
    /// Its number.
    pub id: CallbackId,
    /// The event that it reports.
    pub style: CallbackStyle,
    /// The handle of the request.
    pub handle: FileHandle,
    /// The address of this server that the request came to, see [`LockWait::Granted`].
    pub local: Option<IpAddr>,
    /// The lock and its owner.
    pub lock: LockHolder,
    /// 0 for the first transmission. A retransmission has the same id.
    pub attempt: u32,
}

/// How a client answered a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackAnswer {
    /// The callback was received.
    Accepted {
        /// The time from the call to its answer.
        round_trip: Duration,
    },
    /// The client does not want the lock (`LCK_DENIED` or another refusal of its own), or has
    /// accepted an earlier transmission.
    Refused,
    /// This transmission cannot have reached the client: it has no port, or refuses connections.
    Undelivered,
    /// The callback may have been received, but no answer has come. Grants are retransmitted.
    Unanswered,
}

/// A lock of a file, in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The lock.
    pub lock: LockHolder,
    /// Whether it waits; it is held otherwise.
    pub waits: bool,
}

/// Numbers of the table as they are, and totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTableCounts {
    /// Files with locks or waiters.
    pub files: u64,
    /// Locks.
    pub locks: u64,
    /// Owners with locks or waiters; one that has some in several tables counts once for each.
    pub owners: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// The largest number of waiters of one file since the start.
    pub waiters_max: u64,
    /// Requests granted, at once or by a callback.
    pub granted: u64,
    /// Requests denied because of a conflict.
    pub denied: u64,
    /// Requests that had to wait.
    pub blocked: u64,
    /// Requests denied because of a limit.
    pub limited: u64,
    /// Waiting requests that were cancelled.
    pub cancelled: u64,
    /// Callbacks, retransmissions included.
    pub callbacks: u64,
    /// Grants taken back because the client refused or cancelled them, or could not be reached.
    pub taken_back: u64,
    /// Reservations that expired.
    pub expired: u64,
}

impl LockTableCounts {
    /// The numbers with their names.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("files", self.files),
            ("locks", self.locks),
            ("owners", self.owners),
            ("waiters", self.waiters),
            ("waiters_max", self.waiters_max),
            ("granted", self.granted),
            ("denied", self.denied),
            ("blocked", self.blocked),
            ("limited", self.limited),
            ("cancelled", self.cancelled),
            ("callbacks", self.callbacks),
            ("taken_back", self.taken_back),
            ("expired", self.expired),
        ]
    }

    /// The sum of the numbers of two tables with different files.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            files: self.files + other.files,
            locks: self.locks + other.locks,
            owners: self.owners + other.owners,
            waiters: self.waiters + other.waiters,
            waiters_max: self.waiters_max.max(other.waiters_max),
            granted: self.granted + other.granted,
            denied: self.denied + other.denied,
            blocked: self.blocked + other.blocked,
            limited: self.limited + other.limited,
            cancelled: self.cancelled + other.cancelled,
            callbacks: self.callbacks + other.callbacks,
            taken_back: self.taken_back + other.taken_back,
            expired: self.expired + other.expired,
        }
    }
}
