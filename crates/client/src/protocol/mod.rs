//! The requests of a client to its server, independent of the protocol version.
//!
//! Owns the boundary between protocol and client: the methods of [`Protocol`] take and return the
//! client's own types and no wire types of a version. They are divided by role: [`FileOperations`],
//! [`BatchOperations`], [`OpenOperations`], [`DelegationOperations`] and [`LockOperations`]. [`v3`]
//! implements a method by one or several procedures of NFSv3; a version with COMPOUND may send one.
//! An implementation decides which requests it sends for an intent, and how it recovers.
//! Invariants: whatever a server sends becomes a value or an error, never a panic; `sent_at` of an
//! [`NfsReply`] is a time before the first transmission. Must not know inodes or caches.

mod batch_operations;
mod deadline;
pub mod delegation_operations;
mod file_operations;
pub mod lock_operations;
pub mod mounting;
pub mod open_operations;
mod read_data;
pub mod rpc_client;
pub mod v3;
pub mod v4;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use curt_rpc::client::CallError;
use curt_types::{Fault, Timestamp};

pub use batch_operations::{BatchOperations, PathReply};
pub use curt_observe::{CompletedRequest, OperationCounters, OperationFigure};
pub use delegation_operations::{
    DelegationEnd, DelegationEvents, DelegationOperations, HeldDelegation, LeaseEnd,
};
pub use file_operations::{
    CreateRequest, CreatedObject, FileOperations, FsstatReply, IsLost, LinkAttributes, ListRequest,
    LookupReply, ReadData, ReadSink, ReaddirEntry, ReaddirPage, RenameAttributes, WriteReply, WriteRequest,
};
pub use lock_operations::{
    LOCK_OWNERS_MAX, LockAnswer, LockCallbackId, LockEvents, LockMode, LockOperations, LockTestReply,
    RemoteLock, WireLock, WireOwner,
};
pub use open_operations::{
    LookupOpenReply, LookupOpenRequest, NewOpen, OpenCaller, OpenContext, OpenExtras, OpenOperations,
    OpenOwner, OpenReply, ShareAccess, SiblingOpenRequest,
};
pub use rpc_client::{RpcCaller, RpcClient};

/// The result of a request: the server's reply, or why there is none. A reply, also of a refusal,
/// carries `A`, the attributes of the objects concerned.
pub type Answer<T, A> = Result<NfsReply<T, A>, CallError>;

/// A protocol version: what a client needs from a server. A version without opens, delegations,
/// locks or compounds implements the traits of these with their default methods.
pub trait Protocol:
    FileOperations
    + BatchOperations
    + OpenOperations
    + DelegationOperations
    + LockOperations
    + Send
    + Sync
    + fmt::Debug
{
    /// The RPC client, with the statistics and the watchers of its requests.
    fn rpc(&self) -> &Arc<RpcClient>;

    /// The server's name and version, and what it refuses, as far as that is known.
    fn server(&self) -> (String, Vec<&'static str>) {
        (String::new(), Vec::new())
    }

    /// Ends all opens and the client's state at the server, for at most `limit`: the mount ends.
    fn end(&self, _limit: Duration) {}
}

/// The reply to a call that the server executed: its result, and the attributes of the objects
/// concerned, which a refusal may carry as well.
#[derive(Clone, Copy, Debug)]
pub struct NfsReply<T, A> {
    /// When the call was first sent; the age of the attributes counts from it.
    pub sent_at: Instant,
    /// If the call was retransmitted to a restarted server: the time by which an earlier copy was
    /// executed, if it was.
    pub lost_at: Option<Instant>,
    /// The result, or the status of a refusal.
    pub outcome: Result<T, Fault>,
    /// Attributes of the objects concerned.
    pub attributes: A,
}

/// Limits and preferences of a server (RFC 1813, section 3.3.19). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fsinfo {
    /// Maximum READ size.
    pub read_max: u32,
    /// Preferred READ size.
    pub read_preferred: u32,
    /// READ sizes should be multiples of this.
    pub read_multiple: u32,
    /// Maximum WRITE size.
    pub write_max: u32,
    /// Preferred WRITE size.
    pub write_preferred: u32,
    /// WRITE sizes should be multiples of this.
    pub write_multiple: u32,
    /// Preferred READDIR size.
    pub listing_preferred: u32,
    /// Maximum file size.
    pub file_size_max: u64,
    /// Granularity of timestamps.
    pub time_step: Timestamp,
    /// Hard links are supported.
    pub links: bool,
    /// Symbolic links are supported.
    pub symlinks: bool,
    /// PATHCONF is the same for all objects of the file system.
    pub homogeneous: bool,
    /// SETATTR can set times.
    pub sets_times: bool,
}

/// The longest name of programs and kernels, in bytes (Linux: NAME_MAX).
const NAME_MAX: u32 = 255;

/// Limits as for pathconf(3) (RFC 1813, section 3.3.20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pathconf {
    /// Maximum number of hard links to one object.
    pub links_max: u32,
    /// Maximum length of a name in bytes; 0 if the server did not return it. See
    /// [`Pathconf::longest_name`].
    pub name_max: u32,
    /// Longer names are refused, not truncated.
    pub no_truncation: bool,
    /// Only the superuser may change the owner of files.
    pub chown_restricted: bool,
    /// Names that differ only in case are equal.
    pub case_insensitive: bool,
    /// The case of names is preserved.
    pub case_preserving: bool,
}

impl Pathconf {
    /// The longest name that is sent, in bytes. Ganesha 4.3 returns 1024 whatever the file system
    /// supports; as in Linux, no name is longer than NAME_MAX.
    #[must_use]
    pub const fn longest_name(&self) -> u32 {
        match self.name_max {
            1..NAME_MAX => self.name_max,
            0 | NAME_MAX.. => NAME_MAX,
        }
    }
}
