//! Byte-range locks, independent of a protocol version.

use std::{
    hash::{DefaultHasher, Hasher as _},
    sync::Weak,
    time::Duration,
};

use curt_policy::locks::{LockError, LockReply};
use curt_rpc::client::CallError;
use curt_types::{ByteRange, FileHandle, LockType};

use super::{OpenCaller, RpcCaller};

/// Byte-range locks: by NLM in NFSv3, and by LOCK, LOCKT and LOCKU in NFSv4. Which of them are
/// requested is decided by [`crate::locks`]. A version without locks refuses all.
pub trait LockOperations {
    /// Whether a file can be locked only as it is open: for reading, or for writing.
    fn locks_by_open_mode(&self) -> bool {
        false
    }

    /// The longest time after which a lock that is [`LockReply::Blocked`] is requested again.
    fn blocked_lock_wait_max(&self) -> Duration {
        Duration::MAX
    }

    /// Locks a range of a file.
    fn lock(&self, _: OpenCaller<'_>, _: &FileHandle, _: &WireLock, _: LockMode) -> LockAnswer {
        Ok(LockReply::Refused(LockError::NoLocks))
    }

    /// How many requests about locks were sent more than once so far; `None`: the server executes
    /// each once.
    fn lock_requests_sent_again(&self) -> Option<u64> {
        None
    }

    /// Unlocks a range of a file, in whatever way it is locked.
    fn unlock(&self, _: RpcCaller<'_>, _: &FileHandle, _: WireOwner, _: ByteRange) -> LockAnswer {
        Ok(LockReply::Refused(LockError::NoLocks))
    }

    /// Withdraws a request for a lock that the server has blocked.
    fn cancel_lock(&self, _: RpcCaller<'_>, _: &FileHandle, _: &WireLock) -> LockAnswer {
        Ok(LockReply::Refused(LockError::NoLocks))
    }

    /// The lock of another client that conflicts with this one, if any.
    fn test_lock(&self, _: RpcCaller<'_>, _: &FileHandle, _: &WireLock) -> Result<LockTestReply, CallError> {
        Ok(LockTestReply::Refused(LockError::NoLocks))
    }

    /// Nothing of a file is locked any more. Must not wait.
    fn forget_locks(&self, _file: &FileHandle) {}

    /// Owners have no locks any more: their numbers are used for others. Must not wait.
    fn forget_lock_owners(&self, _owners: &[WireOwner]) {}

    /// How often a server that has locks of this mount is looked at for a restart
    /// ([`Self::has_lost_lock_connection`]). `None`: the protocol notices it.
    fn lock_server_interval(&self) -> Option<Duration> {
        None
    }

    /// Asks the server whether its restart is plausible: the connection that locks were requested
    /// over was lost since the restart before.
    fn has_lost_lock_connection(&self, _caller: RpcCaller<'_>) -> bool {
        true
    }

    /// Passes callbacks of the server about locks to `events` from now on.
    fn report_lock_events(&self, _events: Weak<dyn LockEvents>) {}
}

/// An owner of locks, as the server knows it: a number that is unique in a mount. NLM sends it as
/// `svid` and `oh`, NFSv4 as a lock owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireOwner(pub u32);

/// Owners of one mount at one time. Further ones get ENOLCK. The number after those of the owners
/// is for tests.
pub const LOCK_OWNERS_MAX: u32 = (1 << 16) - 1;

/// A lock as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLock {
    /// Its owner.
    pub owner: WireOwner,
    /// The bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub lock_type: LockType,
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// The server replies at once.
    Try,
    /// The caller waits, but the server may not keep the request: it is repeated. The server may
    /// keep its place meanwhile ([`LockReply::Kept`]).
    Repeat,
    /// The caller waits. The server may keep the request, and call back when it grants it
    /// ([`LockReply::Blocked`]), or keep its place until it is repeated ([`LockReply::Kept`]).
    Block,
    /// The lock was held before the server restarted.
    Reclaim,
}

/// Identifies a callback of a server: one that is sent again has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockCallbackId(pub u64);

impl LockCallbackId {
    /// The number of a callback with this cookie. Two with one number only cost a request.
    #[must_use]
    pub fn of_cookie(cookie: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(cookie);
        Self(hasher.finish())
    }
}

/// The reply to a request that changes a lock.
pub type LockAnswer = Result<LockReply, CallError>;

/// A lock that another client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteLock {
    /// The bytes.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub lock_type: LockType,
}

/// The reply to a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTestReply {
    /// The lock could be placed.
    Free,
    /// This lock keeps it from being placed.
    Held(RemoteLock),
    /// The server is in its grace period: try again later.
    Grace,
    /// The server will not say.
    Refused(LockError),
}

impl LockTestReply {
    /// The reply to a test that the server refuses as it refuses a LOCK.
    pub(crate) const fn of_refusal(reply: LockReply) -> Self {
        match reply {
            LockReply::Grace => Self::Grace,
            LockReply::Refused(error) | LockReply::Unknown(error) => Self::Refused(error),
            LockReply::Granted | LockReply::Denied | LockReply::Kept | LockReply::Blocked => {
                Self::Refused(LockError::NoLocks)
            }
        }
    }
}

/// Receives a server's callbacks about locks.
pub trait LockEvents: Send + Sync {
    /// The server has granted a LOCK that it had blocked. Returns whether this is confirmed to the
    /// server.
    fn granted(&self, file: &FileHandle, lock: &WireLock, callback: LockCallbackId) -> bool;

    /// The server reportedly has restarted: it has lost all locks. This is checked before
    /// locks are reclaimed.
    fn server_restarted(&self);

    /// Callbacks may have been lost.
    fn callbacks_lost(&self);

    /// A lock that this owner was denied may be free: it is requested again. Returns whether
    /// anybody waits for it.
    fn notified(&self, file: &FileHandle, owner: WireOwner) -> bool;

    /// A lock was reclaimed after a restart of the server.
    fn reclaimed(&self, file: &FileHandle, range: ByteRange);

    /// The server holds what this owner has locked in a range no more.
    fn lost(&self, file: &FileHandle, owner: WireOwner, range: ByteRange);
}
