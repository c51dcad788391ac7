//! The requests of a client to its server, independent of the protocol version.
//!
//! Owns the boundary between protocol and client: the methods of [`Protocol`] take and return the
//! client's own types ([`values`]) and no wire types of a version. [`v3`] implements a method by
//! one or several procedures of NFSv3; a version with COMPOUND may send one.
//! Invariants: whatever a server sends becomes a value or an error, never a panic; `sent_at` of an
//! [`NfsReply`] is a time before the first transmission. Must not know inodes or caches.

pub mod locking;
pub mod rpc_client;
pub mod v3;
pub mod values;

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Weak},
};

use curt_policy::locks::{LockError, LockReply};
use curt_rpc::client::CallError;
use curt_types::{Access, Attributes, ByteRange, FileHandle, SetAttributes, Stability, Wcc, WriteVerifier};

pub use curt_observe::{CompletedRequest, OperationCounters, OperationFigure};
pub use locking::*;
pub use rpc_client::{RpcCaller, RpcClient};
pub use values::*;

/// The result of a request: the server's reply, or why there is none. A reply, also of a refusal,
/// carries `A`, the attributes of the objects concerned.
pub type Answer<T, A> = Result<NfsReply<T, A>, CallError>;

/// The requests of a client. Each method waits for the server's reply; names and handles are those
/// of the server. A method is not a procedure: an exclusive `create` takes two in NFSv3.
///
/// NFSv3 has no OPEN. At open(2) the client sends `attributes` and `access`, which other operations
/// share, and at close(2) nothing. A version with opens sends OPEN where `ops::open` creates the
/// [`OpenContext`], unless the decision was [`curt_policy::open::OpenServed::Delegated`], and CLOSE
/// where `ops::close` releases it.
///
/// Byte-range locks are requested by NLM in NFSv3, and by LOCK, LOCKT and LOCKU in NFSv4. Which of
/// them are requested is decided by [`crate::locks`]. A version without locks refuses all.
///
/// # Errors
/// All methods: there is no reply, or a malformed one.
pub trait Protocol: Send + Sync + fmt::Debug {
    /// The RPC client, with the statistics and the watchers of its requests.
    fn rpc(&self) -> &Arc<RpcClient>;

    /// Whether the server keeps an open file when its last name is removed. Otherwise the client
    /// renames such a file instead (silly rename).
    fn keeps_removed_files(&self) -> bool {
        false
    }

    /// Looks `name` up in `directory`; returns the attributes of the directory as well.
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>>;

    /// The attributes of an object.
    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()>;

    /// The subset of `rights` that the caller has on an object; returns its attributes as well.
    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>>;

    /// Sets attributes.
    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc>;

    /// The target of a symbolic link; returns the link's attributes as well.
    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>>;

    /// Creates an object under a new name; returns the attributes of the directory.
    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc>;

    /// Removes a name of a directory or of another object; returns the attributes of the directory
    /// that contained it.
    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc>;

    /// Renames an object, replacing an existing target.
    fn rename(
        &self,
        caller: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes>;

    /// Adds a name to a file.
    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes>;

    /// Lists names of a directory; returns its attributes as well.
    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>>;

    /// Reads from a file; returns its attributes as well. The data are `None` if `sink` has taken
    /// them.
    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError>;

    /// Writes `bytes` at `offset` with at least the given stability; returns the file's attributes.
    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        offset: u64,
        stability: Stability,
        bytes: &[u8],
    ) -> Answer<WriteReply, Wcc>;

    /// Commits unstable writes to stable storage; returns the file's attributes.
    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc>;

    /// Locks a range of a file.
    fn lock(&self, _: RpcCaller<'_>, _: &FileHandle, _: &WireLock, _: LockMode) -> LockAnswer {
        Ok(LockReply::Refused(LockError::NoLocks))
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
    fn test_lock(
        &self,
        _: RpcCaller<'_>,
        _: &FileHandle,
        _: &WireLock,
    ) -> Result<Result<Option<RemoteLock>, LockError>, CallError> {
        Ok(Err(LockError::NoLocks))
    }

    /// Nothing of a file is locked any more. Must not wait.
    fn forget_locks(&self, _file: &FileHandle) {}

    /// Owners have no locks any more: their numbers are used for others. Must not wait.
    fn forget_lock_owners(&self, _owners: &[WireOwner]) {}

    /// Asks the server whether its restart is plausible: the connection that locks were requested
    /// over was lost since the restart before.
    fn has_lost_lock_connection(&self, _caller: RpcCaller<'_>) -> bool {
        true
    }

    /// Passes what the server says about locks of its own accord to `events` from now on.
    fn report_lock_events(&self, _events: Weak<dyn LockEvents>) {}

    /// Space of the file system of an object; returns the object's attributes.
    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>>;
}
