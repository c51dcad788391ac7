//! The events and actions of the lock agent.

use core::time::Duration;

use curt_types::{ByteRange, Fault, LockType};

/// A file, by a number that its caller chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockFileId(pub u64);

/// A caller that waits for an answer. No two requests share a number while one of them, or what is
/// undone because of it, is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequestId(pub u64);

/// An open file description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOpenId(pub u64);

/// The owner of a lock. Locks of one owner do not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalLockOwner {
    /// A process, by fcntl(2) `F_SETLK`; or an open file description, by `F_OFD_SETLK`.
    Posix(u64),
    /// An open file description, by flock(2).
    Flock(u64),
}

impl LocalLockOwner {
    /// The bytes that a request of this owner for `range` is for: all of them for flock(2).
    pub(super) const fn range_of(self, range: ByteRange) -> ByteRange {
        match self {
            Self::Posix(_) => range,
            Self::Flock(_) => ByteRange::WHOLE,
        }
    }
}

/// A lock that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalLockRequest {
    /// The caller.
    pub id: LockRequestId,
    /// The file.
    pub file: LockFileId,
    /// The future owner of the lock.
    pub owner: LocalLockOwner,
    /// The open file description that is used; its last close ends the lock.
    pub open: LockOpenId,
    /// The bytes; for flock(2) always all.
    pub range: ByteRange,
    /// How they will be locked.
    pub lock_type: LockType,
    /// Whether the caller waits (`F_SETLKW`).
    pub wait: bool,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockError {
    /// Another owner has a conflicting lock, and the caller does not wait (EAGAIN).
    Held,
    /// The wait was interrupted (EINTR).
    Interrupted,
    /// To wait would never end (EDEADLK).
    Deadlock,
    /// Too many locks, here or at the server (ENOLCK).
    NoLocks,
    /// The file is not open for what the lock permits (EBADF).
    OpenMode,
    /// The server refused for another reason, or did not answer.
    Failed(Fault),
}

/// The waiters that send requests to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockOrder {
    /// The first waiter of a range; the others wait for it here.
    #[default]
    LocalFirst,
    /// Every waiter (`locks=server-first`): the behaviour of other clients, for comparison.
    ServerFirst,
}

/// How a mount locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockOptions {
    /// The waiters that send requests to the server.
    pub order: LockOrder,
    /// How many consecutive times a lock passes from owner to owner of this mount while the server
    /// keeps it for the first of them (`lockhandoff=N`). No server notifies a client of other
    /// waiters, but one that is fair denies the next LOCK then: what was granted after a denial is
    /// not passed on.
    pub handoffs_max: u32,
}

/// A request to the server, or its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockCallId {
    /// The file.
    pub file: LockFileId,
    /// The request that it is sent for.
    pub request: LockRequestId,
    /// The owner of the lock: the close of an open file may concern several owners.
    pub owner: LocalLockOwner,
}

/// A timer of a call. The latest one of a waiter makes the ones before it ineffective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockTimer {
    /// For which call.
    pub call: LockCallId,
    /// The number of a waiter's timer; 0: a release or a reclaim, which has one at a time.
    pub(super) number: u64,
}

impl LockTimer {
    pub(super) const fn of_repeated(call: LockCallId) -> Self {
        Self { call, number: 0 }
    }
}

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockProcedure {
    /// LOCK.
    Lock {
        /// How.
        lock_type: LockType,
        /// The permitted reaction of the server if others have the bytes.
        wait: LockWait,
    },
    /// LOCK of what was held before the server was restarted.
    Reclaim {
        /// How it was locked.
        lock_type: LockType,
    },
    /// UNLOCK.
    Unlock,
    /// CANCEL of a LOCK that is blocked at the server.
    Cancel {
        /// How it was to be locked.
        lock_type: LockType,
    },
}

/// The permitted reactions of a server to a LOCK for bytes that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockWait {
    /// Only deny it.
    No,
    /// Keep a place in its queue if the request is repeated ([`LockReply::Kept`]). It grants only
    /// what is asked for again.
    Repeat,
    /// Keep the request, and call back when it grants it ([`LockReply::Blocked`]).
    Block,
}

/// A request to the server. Each is answered by one [`LockReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockServerCall {
    /// Identifies the reply. At most one call of an id is in progress.
    pub id: LockCallId,
    /// The owner for the server: that of this mount for which the lock was first granted.
    pub wire_owner: LocalLockOwner,
    /// The bytes.
    pub range: ByteRange,
    /// The procedure of the call.
    pub procedure: LockProcedure,
    /// Whether it undoes a grant without a holder: the caller was interrupted, or the server
    /// granted what was not requested.
    pub is_undo: bool,
}

/// A callback of the server: it has granted a LOCK that was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantedCallback {
    /// The owner, as the server knows it.
    pub wire_owner: LocalLockOwner,
    /// The bytes.
    pub range: ByteRange,
    /// How they are locked.
    pub lock_type: LockType,
    /// The callback came before: the server, or the network, repeats it.
    pub is_repeated: bool,
}

/// The outcome of a [`LockServerCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockReply {
    /// The lock was granted; an UNLOCK or CANCEL is done.
    Granted,
    /// The lock is held by others; a CANCEL came too late.
    Denied,
    /// The lock is held by others; the server will call back. It keeps the request and says that it
    /// has granted it ([`super::LockAgent::granted`]), or only says that it may be asked again
    /// ([`super::LockAgent::available`]).
    Blocked,
    /// As [`Self::Denied`], but the server keeps a place in its queue if the request is repeated
    /// soon: it cannot call back.
    Kept,
    /// The server is in its grace period: try again later.
    Grace,
    /// The server will not do it, and nothing has changed there.
    Refused(LockError),
    /// There is no answer: the server may have done it.
    Unknown(LockError),
}

/// An action after an event; actions are done in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockAction {
    /// Send a request.
    Send(LockServerCall),
    /// Answer a caller. After a grant what is known of the file has expired: others may have
    /// changed it while they held the lock.
    Answer {
        /// The caller.
        request: LockRequestId,
        /// The result of its request.
        result: Result<(), LockError>,
    },
    /// The lock of another owner passes to a caller without a request. Its answer follows.
    HandedOff {
        /// The caller.
        request: LockRequestId,
    },
    /// A lock could not be reclaimed after the server was restarted, or was taken away: it is not
    /// held any more.
    Lost {
        /// The file.
        file: LockFileId,
        /// The former owner of the lock.
        owner: LocalLockOwner,
        /// The bytes.
        range: ByteRange,
        /// How they were locked.
        lock_type: LockType,
    },
    /// Call [`super::LockAgent::timer`] after about this time. The caller adds jitter, so that
    /// clients do not poll in step. A timer that is no longer needed has no effect.
    SetTimer {
        /// Which one.
        timer: LockTimer,
        /// After how long.
        after: Duration,
    },
}

/// Whether a lock could be placed (`F_GETLK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockTest {
    /// No lock of this mount conflicts: TEST has to ask the server, as this owner.
    AskServer(LocalLockOwner),
    /// Another owner of this mount holds this lock.
    Held(LocalLockOwner, ByteRange, LockType),
}
