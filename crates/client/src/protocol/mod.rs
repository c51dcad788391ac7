//! What a client wants of its server, and how a protocol version asks for it.
//!
//! Owns the boundary between protocol and client: [`Protocol`] is a client's intents in its own
//! types ([`values`]). Of a version's wire types only verifiers pass it. [`v3`] carries an intent
//! out by one or several procedures of NFSv3; a version with compounds may send one.
//! Invariants: whatever a server sends becomes a value or an error, never a panic; `sent_at` of an
//! [`NfsReply`] was taken before its first transmission. Must not know inodes or caches.

pub mod rpc_client;
pub mod v3;
pub mod values;

use std::{fmt, ops::Range, sync::Arc};

use curt_rpc::client::CallError;
use curt_types::{Access, Attributes, FileHandle, SetAttributes, Stability, Wcc};

pub use curt_observe::{CompletedRequest, OperationCounters as Statistics, OperationFigure};
pub use curt_proto::nfs3::{CookieVerifier, WriteVerifier};
pub use rpc_client::{RpcCaller, RpcClient};
pub use values::*;

/// What came of an intent: the server's reply, or why there is none. A reply says `A` of the
/// objects concerned, refusals included.
pub type Answer<T, A> = Result<NfsReply<T, A>, CallError>;

/// The intents of a client. Each method waits for the server's answer; names and handles are those
/// of the server. No intent is a procedure: NFSv3 takes two for an exclusive `create`.
///
/// NFSv3 has no opens. What it sends at open(2) are `attributes` and `access`, which other
/// operations share, and nothing at close(2). A version with opens sends OPEN where `ops::open`
/// makes the [`OpenContext`], unless the decision was [`curt_policy::open::OpenServed::Delegated`],
/// and CLOSE where `ops::close` releases it. Byte-range locks are to be asked for by an intent, too
/// (NLM, or LOCK of NFSv4); what is granted goes into [`curt_policy::LockingState`].
///
/// # Errors
/// All methods: there is no answer, or none that makes sense.
pub trait Protocol: Send + Sync + fmt::Debug {
    /// The connection, with the figures of its requests and those who watch them.
    fn rpc(&self) -> &Arc<RpcClient>;

    /// Whether a server keeps a file that is open here when its last name is removed. Where it does
    /// not, the client gives such a file another name instead (silly rename).
    fn keeps_removed_files(&self) -> bool {
        false
    }

    /// What `name` in `directory` leads to; says the attributes of the directory.
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>>;

    /// The attributes of an object.
    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()>;

    /// Which of `rights` the caller has on an object; says its attributes.
    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>>;

    /// Sets attributes.
    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc>;

    /// The text of a symbolic link; says its attributes.
    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>>;

    /// Makes an object under a new name; says the attributes of the directory.
    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc>;

    /// Removes a name, that of a directory or any other; says the attributes of the directory that
    /// holds it.
    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc>;

    /// Moves a name (each is a directory and a name in it), over another one if need be.
    fn rename(
        &self,
        caller: RpcCaller<'_>,
        from: (&FileHandle, &[u8]),
        to: (&FileHandle, &[u8]),
    ) -> Answer<(), RenameAttributes>;

    /// Gives a file one more name.
    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes>;

    /// Names of a directory; says its attributes.
    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>>;

    /// Bytes of a file; says its attributes. `None` if `sink` has taken them.
    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError>;

    /// Puts `bytes` at `offset`, as durably as `stability` says or more; says the file's
    /// attributes.
    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        offset: u64,
        stability: Stability,
        bytes: &[u8],
    ) -> Answer<WriteReply, Wcc>;

    /// Makes all that was written durable; says the file's attributes.
    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc>;

    /// Space of the file system that an object is in; says the object's attributes.
    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>>;
}
