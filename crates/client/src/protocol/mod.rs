//! The requests of a client to its server, independent of the protocol version.
//!
//! Owns the boundary between protocol and client: the methods of [`Protocol`] take and return the
//! client's own types and no wire types of a version. [`v3`] implements a method by
//! one or several procedures of NFSv3; a version with COMPOUND may send one.
//! Invariants: whatever a server sends becomes a value or an error, never a panic; `sent_at` of an
//! [`NfsReply`] is a time before the first transmission. Must not know inodes or caches.

mod deadline;
pub mod delegation;
pub mod locking;
pub mod mounting;
pub mod opens;
mod read_data;
pub mod rpc_client;
pub mod v3;
pub mod v4;

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use curt_policy::locks::{LockError, LockReply};
use curt_rpc::{
    auth::RpcCredential,
    client::{CallError, Interrupt},
};
use curt_types::{
    Access, Attributes, ByteRange, CookieVerifier, Device, Fault, FileHandle, FileKind, SetAttributes,
    Stability, Timestamp, Wcc, WriteVerifier,
};

use crate::data::shared_bytes::SharedBytes;

pub use curt_observe::{CompletedRequest, OperationCounters, OperationFigure};
pub use delegation::{DelegationEnd, DelegationEvents, HeldDelegation, LeaseEnd};
pub use locking::*;
pub use opens::*;
pub use rpc_client::{RpcCaller, RpcClient};

/// The result of a request: the server's reply, or why there is none. A reply, also of a refusal,
/// carries `A`, the attributes of the objects concerned.
pub type Answer<T, A> = Result<NfsReply<T, A>, CallError>;

/// The requests of a client. Each method waits for the server's reply; names and handles are those
/// of the server. A method is not a procedure: an exclusive `create` takes two in NFSv3.
///
/// NFSv3 has no OPEN. At open(2) the client sends `attributes` and `access`, which other operations
/// share, and at close(2) nothing. In NFSv4 `ops::open` gets an open by [`Protocol::share_open`],
/// [`Protocol::delay_open`] or [`Protocol::open`], and `ops::close` returns it by
/// [`Protocol::close`]. READ and WRITE use the
/// open that their [`OpenContext::owner`] has of the file.
///
/// Byte-range locks are requested by NLM in NFSv3, and by LOCK, LOCKT and LOCKU in NFSv4. Which of
/// them are requested is decided by [`crate::locks`]. A version without locks refuses all.
///
/// # Errors
/// All methods: there is no reply, or a malformed one.
pub trait Protocol: Send + Sync + fmt::Debug {
    /// The RPC client, with the statistics and the watchers of its requests.
    fn rpc(&self) -> &Arc<RpcClient>;

    /// Whether the server keeps this open file when its last name is removed. Otherwise the client
    /// renames such a file instead (silly rename).
    fn keeps_removed_file(&self, _file: &FileHandle) -> bool {
        false
    }

    /// Adds a user to an open that `owner` still holds of the file with this access. Returns
    /// `false` if [`Protocol::open`] has to be sent first. Sends nothing.
    fn share_open(&self, _file: &FileHandle, _owner: OpenOwner<'_>, _access: ShareAccess) -> bool {
        true
    }

    /// Adds a user for reading to an open that the server need not know yet: it is opened with the
    /// first READ that is sent. Returns `false` if [`Protocol::open`] has to be sent first. Sends
    /// nothing.
    fn delay_open(&self, _file: &FileHandle, _owner: OpenOwner<'_>) -> bool {
        false
    }

    /// Opens a file, which [`Protocol::share_open`] then finds. Returns the subset of `rights` that
    /// the owner has, and the file's attributes; with `read` perhaps also as many of the file's
    /// first bytes, which are of this state of the file.
    fn open(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        _owner: OpenOwner<'_>,
        _access: ShareAccess,
        rights: Access,
        _read: Option<u32>,
    ) -> Answer<OpenReply, Option<Attributes>> {
        let answer = self.access(caller, file, rights)?;
        let outcome = answer.outcome.map(|granted| OpenReply { granted, data: None });
        let NfsReply { sent_at, lost_at, attributes, .. } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome, attributes })
    }

    /// Ends the use of an open. Must not wait: the server learns of it with a later request.
    fn close(&self, _file: &FileHandle, _owner: u32, _access: ShareAccess) {}

    /// Ends all opens and the client's state at the server, for at most `limit`: the mount ends.
    fn end(&self, _limit: Duration) {}

    /// Looks `name` up in `directory`; returns the attributes of the directory as well.
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>>;

    /// As [`Protocol::find`], with what an open of a file that is found needs beside, if that takes
    /// no further request.
    fn find_to_open(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        _beside: LookupToOpen<'_>,
    ) -> Answer<FoundToOpen, Option<Attributes>> {
        let answer = self.find(caller, directory, name)?;
        let NfsReply { sent_at, lost_at, outcome, attributes } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome: outcome.map(FoundToOpen::from), attributes })
    }

    /// Reports delegations to `events` from now on. `origin` is that of the mount's moments.
    fn report_delegations(&self, _events: Weak<dyn DelegationEvents>, _origin: Instant) {}

    /// Whether the server is asked for delegations. If not, those that are held are returned.
    fn allow_delegations(&self, _are_allowed: bool) {}

    /// Whether the server is expected to delegate a file that is opened for reading.
    fn expects_delegations(&self) -> bool {
        false
    }

    /// The file is about to be changed by this client: its delegation is returned with the next
    /// request. Sends nothing.
    fn give_up_delegation(&self, _file: &FileHandle) {}

    /// Looks paths up, given by their components, from `from`; with `read` also reads that many
    /// bytes of each file. Returns the results of the first of them, at least one; `None` if this
    /// takes a request for each name.
    fn find_paths(
        &self,
        _caller: RpcCaller<'_>,
        _from: &FileHandle,
        _paths: &[Vec<&[u8]>],
        _read: Option<u32>,
    ) -> Option<Answer<Vec<Result<PathReply, Fault>>, ()>> {
        None
    }

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

    /// Removes names of objects that are not directories. Returns the results of the first of them,
    /// at least one; `None` if each takes a request.
    fn remove_names(
        &self,
        _caller: RpcCaller<'_>,
        _directory: &FileHandle,
        _names: &[&[u8]],
    ) -> Option<Answer<Vec<Result<(), Fault>>, Wcc>> {
        None
    }

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

    /// Whether the server lists attributes with names. It may say only when it is asked for them
    /// that it does not.
    fn lists_attributes(&self) -> bool {
        true
    }

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

/// The attributes in a RENAME reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameAttributes {
    /// The directory of the old name.
    pub from: Wcc,
    /// The directory of the new name.
    pub to: Wcc,
}

/// The attributes in a LINK reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAttributes {
    /// The file after the operation.
    pub file: Option<Attributes>,
    /// The directory of the new name.
    pub directory: Wcc,
}

/// An object that was created. An error says that it was created, but that a later request about it
/// failed: its LOOKUP where the reply had no handle, or the SETATTR after an exclusive CREATE.
pub type CreatedObject = Result<LookupReply, Fault>;

/// An object that was found or created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupReply {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes, if the server returned them.
    pub attributes: Option<Attributes>,
}

/// What is wanted beside the look-up of a file that is opened next.
#[derive(Clone, Copy, Debug)]
pub struct LookupToOpen<'a> {
    /// The rights that are asked about.
    pub rights: Access,
    /// The number of bytes.
    pub read: u32,
    /// The file is opened for reading, to get a delegation.
    pub open: Option<OpenOwner<'a>>,
}

/// The object of a name, and what an open needs.
#[derive(Clone, Debug)]
pub struct FoundToOpen {
    /// The object.
    pub found: LookupReply,
    /// The rights that the caller has.
    pub granted: Option<Access>,
    /// The file's first bytes.
    pub data: Option<ReadData>,
    /// It was opened.
    pub was_opened: bool,
    /// The delegation, before the attributes, the rights and the data were read.
    pub delegation: Option<Arc<HeldDelegation>>,
}

impl From<LookupReply> for FoundToOpen {
    fn from(found: LookupReply) -> Self {
        Self { found, granted: None, data: None, was_opened: false, delegation: None }
    }
}

/// The object of a path, and its first bytes if it is a file and they were read.
#[derive(Clone, Debug)]
pub struct PathReply {
    /// The object.
    pub found: LookupReply,
    /// The bytes.
    pub data: Option<ReadData>,
}

/// The result of an open.
#[derive(Clone, Debug)]
pub struct OpenReply {
    /// The rights that the opener has.
    pub granted: Access,
    /// The file's first bytes, if the server returned them.
    pub data: Option<ReadData>,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Bytes written: from 1 to the number sent (a larger count is an EIO).
    pub count: u32,
    /// The stability of the write; at least the requested one.
    pub stability: Stability,
    /// Changes when the server may have lost unstable writes.
    pub verifier: WriteVerifier,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirEntry {
    /// The fileid.
    pub fileid: u64,
    /// The name: bytes without `/` and NUL, not empty.
    pub name: Box<[u8]>,
    /// The cookie at which the listing continues after this entry.
    pub cookie: u64,
    /// Its handle, if the reply contains it.
    pub handle: Option<FileHandle>,
    /// Its attributes, if the reply contains them.
    pub attributes: Option<Attributes>,
}

/// The entries in one READDIR or READDIRPLUS reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirPage {
    /// The cookie verifier for the next request.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub names: Vec<ReaddirEntry>,
    /// The last entry ends the listing.
    pub end: bool,
}

impl ReaddirPage {
    /// The approximate bytes of the names in a reply with attributes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        /// An entryplus3 apart from name and handle: fileid, cookie, attributes, lengths (RFC 1813,
        /// section 3.3.17).
        const ENTRY: usize = 124;
        /// A handle that the reply does not contain.
        const HANDLE: usize = 36;
        let names = self.names.iter().map(|listed| {
            let handle = listed.handle.as_ref().map_or(HANDLE, |handle| handle.as_bytes().len());
            ENTRY + handle + listed.name.len().next_multiple_of(4)
        });
        u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
    }
}

/// Space of a file system (RFC 1813, section 3.3.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsstatReply {
    /// Total bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes available to the caller.
    pub available_bytes: u64,
    /// Total files.
    pub total_files: u64,
    /// Free files.
    pub free_files: u64,
    /// Files available to the caller.
    pub available_files: u64,
    /// Seconds for which the values are not expected to change.
    pub invariant_seconds: u32,
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

/// The object to be created under a name that must not exist.
#[derive(Clone, Copy, Debug)]
pub struct CreateRequest<'a> {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// The target of a symbolic link.
    pub text: &'a [u8],
    /// The major and minor numbers of a device.
    pub device: Device,
    /// For a regular file: exclusive creation, by which the server recognises a retransmission.
    pub is_exclusive: bool,
    /// The open that a version with opens gets with the creation of a regular file; `None`: for
    /// writing by nobody, and closed at once.
    pub open: Option<NewOpen<'a>>,
}

impl<'a> CreateRequest<'a> {
    /// An empty file.
    #[must_use]
    pub fn file(mode: u32) -> Self {
        Self {
            kind: FileKind::Regular,
            mode,
            text: &[],
            device: Device::default(),
            is_exclusive: false,
            open: None,
        }
    }

    /// An empty directory.
    #[must_use]
    pub fn directory(mode: u32) -> Self {
        Self { kind: FileKind::Directory, ..Self::file(mode) }
    }

    /// A symbolic link with the target `text`.
    #[must_use]
    pub fn symlink(text: &'a [u8]) -> Self {
        Self { kind: FileKind::Symlink, text, ..Self::file(0o777) }
    }

    /// A device with these numbers, a FIFO or a socket.
    #[must_use]
    pub fn node(kind: FileKind, device: Device, mode: u32) -> Self {
        Self { kind, device, ..Self::file(mode) }
    }
}

/// The arguments of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// The cookie to continue after; 0 for the beginning.
    pub cookie: u64,
    /// The cookie verifier.
    pub verifier: CookieVerifier,
    /// Longest results, in bytes.
    pub size: u32,
    /// With handles and attributes (READDIRPLUS).
    pub plus: bool,
}

/// The opener of a file, which each READ, WRITE and COMMIT carries. NFSv3 has no OPEN: it uses the
/// credential only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenContext {
    /// The opener: the client's number for a user with its groups.
    pub owner: u32,
    /// The opener's credential.
    pub credential: Arc<RpcCredential>,
}

/// The open file of a request, and the interrupt that cancels it.
#[derive(Clone, Copy, Debug)]
pub struct OpenCaller<'a> {
    /// The open file.
    pub open: &'a OpenContext,
    /// Cancels the wait.
    pub interrupt: &'a Interrupt,
}

impl<'a> OpenCaller<'a> {
    /// The caller of the same request without the open.
    #[must_use]
    pub fn rpc(&self) -> RpcCaller<'a> {
        RpcCaller { credential: &self.open.credential, interrupt: self.interrupt }
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The data: up to the number of bytes requested; empty only at end of file.
    pub bytes: SharedBytes,
    /// The data reach end of file.
    pub end: bool,
}

/// Processes the data of a READ in the receive buffer.
pub trait ReadSink: Send + Sync {
    /// Receives the data; `end` is set at end of file. Returns `false` to leave the data to the
    /// caller. Called on another thread and must not block, as
    /// [`curt_rpc::client::ReplySink::consume`].
    fn consume(&self, about: Option<&Attributes>, sent_at: Instant, bytes: &[u8], end: bool) -> bool;
}
