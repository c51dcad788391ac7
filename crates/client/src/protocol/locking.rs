//! The values of requests for byte-range locks, independent of a protocol version.

use std::hash::{DefaultHasher, Hasher as _};

use curt_policy::locks::{LockError, LockReply};
use curt_rpc::client::CallError;
use curt_types::{ByteRange, FileHandle, LockType};

/// An owner of locks, as the server knows it: a number that is unique in a mount. NLM sends it as
/// `svid` and `oh`, NFSv4 as a lock owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireOwner(pub u32);

/// Owners of one mount at one time. Further ones get ENOLCK.
pub const LOCK_OWNERS_MAX: u32 = 1 << 16;

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
    /// The caller waits. The server may keep the request, and call back when it grants it
    /// ([`LockReply::Blocked`]), or keep its place until it is repeated ([`LockReply::Kept`]).
    Block,
    /// The lock was held before the server restarted.
    Reclaim,
}

/// Identifies a callback of a server: one that is sent again has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallbackId(pub u64);

impl CallbackId {
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
    /// That of a test which the server does not do for the same reason as a LOCK.
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

/// Receives what a server says about locks of its own accord.
pub trait LockEvents: Send + Sync {
    /// The server has granted a LOCK that it had blocked. Returns whether this is confirmed to the
    /// server.
    fn granted(&self, file: &FileHandle, lock: &WireLock, callback: CallbackId) -> bool;

    /// The server is said to have restarted: it has forgotten all locks. This is checked before
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
