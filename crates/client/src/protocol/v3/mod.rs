//! NFS version 3 (RFC 1813): [`NfsV3`] implements [`Protocol`] by its procedures.
//!
//! Owns the encoding of arguments and the decoding of results. Requests are retried while the
//! server returns JUKEBOX. A malformed reply is logged once and returned as
//! [`CallError::Malformed`]. Must not know the purpose of a request.
//!
//! If the server does not return the handle of a new object, the name is looked up. An exclusive
//! CREATE stores its verifier in the file's times and sets no attributes, so a SETATTR follows.

mod mount_service;
pub mod mounting;
pub mod nlm;
mod portmap;

#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_policy::locks::{LockError, LockReply};
use curt_proto::nfs3::{
    AccessArguments, AccessOk, CommitArguments, CommitOk, Cookie, CreateArguments, CreateHow, CreateOk,
    CreateVerf3, DirOpArgs, DirectoryEntry, DirectoryEntryPlus, Fattr, Filename, FsProperties,
    FsinfoArguments, FsinfoOk, FsstatOk, LinkArguments, LinkWcc, LookupOk, MkdirArguments, MknodArguments,
    MknodData, NfsFh3, NfsPath, NfsProcedure, NfsResult, NfsStat3, PROGRAM, PathconfOk, ReadArguments,
    ReadFail, ReadOk, ReaddirArguments, ReaddirOk, ReaddirPlusArguments, ReadlinkOk, RenameArguments,
    RenameWcc, SetattrArguments, SymlinkArguments, VERSION, WccData, WriteHead, WriteOk,
};
use curt_rpc::client::{BulkAtEnd, CallArguments, CallError, ReplySink};
use curt_types::{
    Access, Attributes, ByteRange, Fault, FileHandle, FileKind, SetAttributes, SetTime, Wcc, WriteVerifier,
};
use curt_xdr::{Decode, DecodeError, decode_all};

use super::{
    Answer, BatchOperations, CreateRequest, CreatedObject, DelegationOperations, FileOperations, Fsinfo,
    FsstatReply, IsLost, LinkAttributes, ListRequest, LockAnswer, LockEvents, LockMode, LockOperations,
    LockTestReply, LookupReply, NfsReply, OpenCaller, OpenOperations, Pathconf, Protocol, ReadData, ReadSink,
    ReaddirEntry, ReaddirPage, RenameAttributes, RpcCaller, RpcClient, WireLock, WireOwner, WriteReply,
    WriteRequest,
    read_data::{bytes_of, is_valid_length},
    rpc_client::{CallResult, CallSpec},
};
use mount_service::MountService;
use nlm::{NlmCalls, NlmClient};

/// NFS version 3 over one connection.
#[derive(Debug)]
pub struct NfsV3 {
    rpc: Arc<RpcClient>,
    nlm: Option<NlmClient>,
    /// Notified at the end of the mount.
    mount_service: Option<MountService>,
    /// The server does not support READDIRPLUS. Relaxed accesses: no other data depend on it.
    lacks_plus: AtomicBool,
}

/// The server's results for a created object.
#[derive(PartialEq, Eq)]
struct CreateReply {
    handle: Option<FileHandle>,
    attributes: Option<Attributes>,
}

impl Protocol for NfsV3 {
    fn rpc(&self) -> &Arc<RpcClient> {
        &self.rpc
    }

    fn end(&self, limit: Duration) {
        if let Some(service) = &self.mount_service {
            service.unmount(limit);
        }
    }
}

impl FileOperations for NfsV3 {
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>> {
        let Some(place) = place(directory, name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let found = |ok: LookupOk| {
            let found =
                LookupReply { handle: ok.object.into(), attributes: ok.attributes.map(Attributes::from) };
            (found, attributes(ok.directory))
        };
        self.ask(caller, NfsProcedure::Lookup, &place, found, attributes)
    }

    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()> {
        let object = nfs_fh3(object)?;
        let attributes = |fattr: Fattr| (fattr.into(), ());
        self.ask(caller, NfsProcedure::Getattr, &object, attributes, |(): ()| ())
    }

    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>> {
        let arguments = AccessArguments { object: nfs_fh3(object)?, access: rights.bits() };
        // A reply grants no rights beyond the requested ones.
        let granted = |ok: AccessOk| {
            let granted = Access::from_bits(ok.access).common(rights);
            (granted, attributes(ok.attributes))
        };
        self.ask(caller, NfsProcedure::Access, &arguments, granted, attributes)
    }

    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc> {
        let arguments = SetattrArguments { object: nfs_fh3(object)?, attributes: (*set).into(), guard: None };
        self.change(caller, NfsProcedure::Setattr, &arguments)
    }

    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>> {
        let procedure = NfsProcedure::Readlink;
        let incoming = self.send(caller, procedure, &nfs_fh3(link)?, RESULTS_NAME)?;
        let outcome = self.results(procedure, incoming.reply.results())?;
        let text = |ok: ReadlinkOk<'_>| (ok.target.bytes().into(), attributes(ok.attributes));
        Ok(reply(&incoming, outcome, text, attributes))
    }

    /// CREATE, MKDIR, SYMLINK or MKNOD, and the requests that must follow them.
    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let (Some(place), Ok(target)) = (place(directory, name), NfsPath::new(new.text)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let set = SetAttributes { mode: Some(new.mode), ..SetAttributes::default() };
        let attributes = set.into();
        let node = |what| {
            let arguments = MknodArguments { place, what };
            self.send_create(caller, NfsProcedure::Mknod, &arguments)
        };
        let made = match new.kind {
            FileKind::Regular if new.is_exclusive => {
                return self.make_exclusive(caller, directory, place, set);
            }
            // GUARDED, not UNCHECKED: an existing file must not be changed to this mode.
            FileKind::Regular => self.create_file(caller, place, CreateHow::Guarded(attributes)),
            FileKind::Directory => {
                let arguments = MkdirArguments { place, attributes };
                self.send_create(caller, NfsProcedure::Mkdir, &arguments)
            }
            FileKind::Symlink => {
                let arguments = SymlinkArguments { place, attributes, target };
                self.send_create(caller, NfsProcedure::Symlink, &arguments)
            }
            FileKind::BlockDevice => node(MknodData::BlockDevice(attributes, new.device.into())),
            FileKind::CharacterDevice => node(MknodData::CharacterDevice(attributes, new.device.into())),
            FileKind::Socket => node(MknodData::Socket(attributes)),
            FileKind::Fifo => node(MknodData::Fifo(attributes)),
        };
        self.find_made(caller, directory, place, made?)
    }

    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        let Some(place) = place(directory, name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let procedure = if is_directory { NfsProcedure::Rmdir } else { NfsProcedure::Remove };
        self.change(caller, procedure, &place)
    }

    fn rename(
        &self,
        caller: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes> {
        let (Some(from), Some(to)) = (place(old_directory, old_name), place(new_directory, new_name)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let arguments = RenameArguments { from, to };
        let both = |wcc: RenameWcc| RenameAttributes { from: wcc.from.into(), to: wcc.to.into() };
        let renamed = |wcc| ((), both(wcc));
        self.ask(caller, NfsProcedure::Rename, &arguments, renamed, both)
    }

    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes> {
        let Some(place) = place(directory, name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let file = nfs_fh3(file)?;
        let both = |wcc: LinkWcc| LinkAttributes {
            file: attributes(wcc.attributes),
            directory: wcc.directory.into(),
        };
        let arguments = LinkArguments { file, place };
        let linked = |wcc| ((), both(wcc));
        self.ask(caller, NfsProcedure::Link, &arguments, linked, both)
    }

    fn lists_attributes(&self) -> bool {
        !self.lacks_plus.load(Relaxed)
    }

    /// READDIR or READDIRPLUS. A name that no directory can contain makes the reply malformed.
    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        let (directory, cookie) = (nfs_fh3(directory)?, Cookie(request.cookie));
        let (verifier, count) = (request.verifier.into(), request.size);
        let list = |procedure, arguments: &dyn CallArguments| {
            self.send(caller, procedure, arguments, results_max(count))
        };
        let (procedure, incoming) = if request.plus {
            let arguments = ReaddirPlusArguments {
                directory,
                cookie,
                verifier,
                directory_count: count,
                max_count: count,
            };
            let procedure = NfsProcedure::ReaddirPlus;
            let incoming = list(procedure, &arguments).inspect_err(|error| {
                if matches!(error, CallError::ProcedureUnavailable) {
                    self.note_lack_of_plus();
                }
            });
            (procedure, incoming?)
        } else {
            let arguments = ReaddirArguments { directory, cookie, verifier, count };
            (NfsProcedure::Readdir, list(NfsProcedure::Readdir, &arguments)?)
        };
        let results = incoming.reply.results();
        let (outcome, attributes) = if request.plus {
            self.page(procedure, results, |entry: DirectoryEntryPlus<'_>| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: entry.handle.map(FileHandle::from),
                attributes: attributes(entry.attributes),
            })?
        } else {
            self.page(procedure, results, |entry: DirectoryEntry<'_>| ReaddirEntry {
                fileid: entry.fileid.0,
                name: entry.name.bytes().into(),
                cookie: entry.cookie.0,
                handle: None,
                attributes: None,
            })?
        };
        if request.plus && matches!(outcome, Err(Fault::Notsupp)) {
            self.note_lack_of_plus();
        }
        Ok(NfsReply { sent_at: incoming.sent_at, lost_at: None, outcome, attributes })
    }

    /// READ. A result that is longer than requested, or empty before end of file, is malformed.
    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let asked = usize::try_from(count).unwrap_or(usize::MAX);
        // A time not later than that of sending: older cached data never count as newer than the
        // reply.
        let sink = sink.map(|sink| {
            Arc::new(ReadReplySink { sink: Arc::clone(sink), asked, sent_at: self.rpc.now() })
                as Arc<dyn ReplySink>
        });
        let arguments = ReadArguments { file: nfs_fh3(file)?, offset: range.start, count };
        let (procedure, sink) = (NfsProcedure::Read, sink.as_ref());
        let results_max = READ_HEAD.saturating_add(asked).saturating_add(3);
        let incoming = self.send_with_sink(open.rpc(), procedure, &arguments, results_max, sink)?;
        if incoming.reply.was_consumed() {
            return Ok(None);
        }
        let results = incoming.reply.results();
        let outcome: NfsResult<ReadOk<'_>, ReadFail> = self.results(procedure, results)?;
        let success = |ok: ReadOk<'_>| ((ok.data.bytes().len(), ok.eof, ok.count), attributes(ok.attributes));
        let failure = |failed: ReadFail| attributes(failed.attributes);
        let NfsReply { sent_at, lost_at, outcome, attributes } = reply(&incoming, outcome, success, failure);
        let outcome = match outcome {
            Ok((length, end, said)) if makes_sense(length, end, said, asked) => {
                Ok(ReadData { bytes: bytes_of(incoming.reply, length), end })
            }
            Ok((_, _, said)) => return Err(self.invalid_value(procedure, "READ3resok.count", said)),
            Err(fault) => Err(fault),
        };
        Ok(Some(NfsReply { sent_at, lost_at, outcome, attributes }))
    }

    /// WRITE. A reply with a count of zero or above the number of bytes sent is malformed.
    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc> {
        let WriteRequest { offset, stability, bytes, set: _, is_lost } = write;
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let head = WriteHead { file: nfs_fh3(file)?, offset, count, stable: stability.into() };
        let procedure = NfsProcedure::Write;
        let arguments = BulkAtEnd { head: &head, bytes };
        let spec = call_spec(procedure, &arguments, RESULTS_SMALL);
        let incoming = self.rpc.call_until_lost(open.rpc(), spec, is_lost)?;
        let outcome: NfsResult<WriteOk, WccData> = self.results(procedure, incoming.reply.results())?;
        if let NfsResult::Ok(ok) = &outcome
            && (ok.count > count || (ok.count == 0 && count > 0))
        {
            return Err(self.invalid_value(procedure, "WRITE3resok.count", ok.count));
        }
        let written = |ok: WriteOk| {
            let (stability, verifier) = (ok.committed.into(), ok.verifier.into());
            let written = WriteReply { count: ok.count, stability, verifier, set: None };
            (written, ok.wcc.into())
        };
        Ok(reply(&incoming, outcome, written, wcc))
    }

    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc> {
        let arguments = CommitArguments { file: nfs_fh3(file)?, offset: 0, count: 0 };
        let committed = |ok: CommitOk| (ok.verifier.into(), ok.wcc.into());
        self.ask(open.rpc(), NfsProcedure::Commit, &arguments, committed, wcc)
    }

    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>> {
        let object = nfs_fh3(object)?;
        let space = |ok: FsstatOk| {
            let space = FsstatReply {
                total_bytes: ok.total_bytes,
                free_bytes: ok.free_bytes,
                available_bytes: ok.available_bytes,
                total_files: ok.total_files,
                free_files: ok.free_files,
                available_files: ok.available_files,
                invariant_seconds: ok.invariant_seconds,
            };
            (space, attributes(ok.attributes))
        };
        self.ask(caller, NfsProcedure::Fsstat, &object, space, attributes)
    }
}

impl BatchOperations for NfsV3 {}

impl OpenOperations for NfsV3 {
    fn set_through_open(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        set: &SetAttributes,
        is_lost: IsLost<'_>,
    ) -> Answer<(), Wcc> {
        let procedure = NfsProcedure::Setattr;
        let arguments = SetattrArguments { object: nfs_fh3(file)?, attributes: (*set).into(), guard: None };
        let spec = call_spec(procedure, &arguments, RESULTS_SMALL);
        let incoming = self.rpc.call_until_lost(open.rpc(), spec, is_lost)?;
        let outcome = self.results(procedure, incoming.reply.results())?;
        Ok(reply(&incoming, outcome, |data| ((), wcc(data)), wcc))
    }
}

impl DelegationOperations for NfsV3 {}

impl LockOperations for NfsV3 {
    fn lock(&self, open: OpenCaller<'_>, file: &FileHandle, lock: &WireLock, mode: LockMode) -> LockAnswer {
        self.nlm(open.rpc()).map_or(NO_LOCKS, |(nlm, calls)| nlm.lock(calls, file, lock, mode))
    }

    fn lock_requests_sent_again(&self) -> Option<u64> {
        self.nlm.as_ref().map(|nlm| nlm.sent_again())
    }

    fn unlock(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: WireOwner,
        range: ByteRange,
    ) -> LockAnswer {
        self.nlm(caller).map_or(NO_LOCKS, |(nlm, calls)| nlm.unlock(calls, file, owner, range))
    }

    fn cancel_lock(&self, caller: RpcCaller<'_>, file: &FileHandle, lock: &WireLock) -> LockAnswer {
        self.nlm(caller).map_or(NO_LOCKS, |(nlm, calls)| nlm.cancel(calls, file, lock))
    }

    fn test_lock(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        lock: &WireLock,
    ) -> Result<LockTestReply, CallError> {
        let refused = Ok(LockTestReply::Refused(LockError::NoLocks));
        self.nlm(caller).map_or(refused, |(nlm, calls)| nlm.test(calls, file, lock))
    }

    fn forget_locks(&self, file: &FileHandle) {
        if let Some(nlm) = &self.nlm {
            nlm.host().forget_file(file);
        }
    }

    fn forget_lock_owners(&self, owners: &[WireOwner]) {
        if let Some(nlm) = &self.nlm {
            nlm.host().forget_owners(owners);
        }
    }

    fn lock_server_interval(&self) -> Option<Duration> {
        self.nlm.as_ref().map(|_| nlm::LOOK_INTERVAL)
    }

    fn has_lost_lock_connection(&self, caller: RpcCaller<'_>) -> bool {
        self.nlm(caller).is_none_or(|(nlm, calls)| nlm.has_lost_connection(calls))
    }

    fn report_lock_events(&self, events: Weak<dyn LockEvents>) {
        if let Some(nlm) = &self.nlm {
            nlm.report(events);
        }
    }
}

/// The reply of a mount without NLM.
const NO_LOCKS: LockAnswer = Ok(LockReply::Refused(LockError::NoLocks));

impl NfsV3 {
    /// NFS version 3 over the connection of `rpc`.
    #[must_use]
    pub fn new(rpc: Arc<RpcClient>) -> Arc<Self> {
        Self::of(rpc, None, None)
    }

    /// NFSv3 with locks by `nlm`.
    #[must_use]
    pub fn with_locks(rpc: Arc<RpcClient>, nlm: NlmClient) -> Arc<Self> {
        Self::of(rpc, Some(nlm), None)
    }

    fn of(rpc: Arc<RpcClient>, nlm: Option<NlmClient>, mount_service: Option<MountService>) -> Arc<Self> {
        Arc::new(Self { rpc, nlm, mount_service, lacks_plus: AtomicBool::new(false) })
    }

    /// Records that the server does not support READDIRPLUS, which is optional (RFC 1813, section
    /// 3.3.17).
    fn note_lack_of_plus(&self) {
        if !self.lacks_plus.swap(true, Relaxed) {
            tracing::info!("the server has no READDIRPLUS: directories are listed without attributes");
        }
    }

    fn nlm<'a>(&'a self, caller: RpcCaller<'a>) -> Option<(&'a NlmClient, NlmCalls<'a>)> {
        Some((self.nlm.as_ref()?, NlmCalls { rpc: &self.rpc, caller }))
    }

    /// FSINFO and PATHCONF of the root, for a mount. Some servers do not support PATHCONF for all
    /// file systems; its values are zeros then.
    ///
    /// # Errors
    /// There is no reply, or a malformed one.
    pub fn limits(&self, caller: RpcCaller<'_>, root: &FileHandle) -> Answer<(Fsinfo, Pathconf), ()> {
        let root = nfs_fh3(root)?;
        let limits = |ok: FsinfoOk| (fsinfo(&ok), ());
        let dropped = |_: Option<Fattr>| ();
        let arguments = FsinfoArguments { root };
        let info = self.ask(caller, NfsProcedure::Fsinfo, &arguments, limits, dropped)?;
        let outcome = match info.outcome {
            Ok(limits) => {
                let path_limits = |ok: PathconfOk| (pathconf(&ok), ());
                let paths = self.ask(caller, NfsProcedure::Pathconf, &root, path_limits, dropped)?;
                Ok((limits, paths.outcome.unwrap_or_default()))
            }
            Err(fault) => Err(fault),
        };
        Ok(NfsReply { sent_at: info.sent_at, lost_at: info.lost_at, outcome, attributes: () })
    }

    /// Creates a file with a verifier, by which the server recognises a retransmission.
    fn make_exclusive(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        place: DirOpArgs<'_>,
        set: SetAttributes,
    ) -> Answer<CreatedObject, Wcc> {
        // Random, and different for each call: the keys of RandomState are the process's own.
        let seed = (directory.as_bytes(), place.name.bytes(), self.rpc.now());
        let verifier = CreateVerf3(RandomState::new().hash_one(seed).to_be_bytes());
        let made = self.create_file(caller, place, CreateHow::Exclusive(verifier))?;
        if made.outcome == Err(Fault::Notsupp) {
            let made = self.create_file(caller, place, CreateHow::Guarded(set.into()))?;
            return self.find_made(caller, directory, place, made);
        }
        let mut made = self.find_made(caller, directory, place, made)?;
        // A retransmission of an exclusive CREATE does not fail because of the first copy.
        made.lost_at = None;
        if let Ok(created) = &mut made.outcome
            && let Ok(found) = created
        {
            // The server kept the verifier in the times.
            let set = SetAttributes { atime: SetTime::ServerTime, mtime: SetTime::ServerTime, ..set };
            let answer = self.set(caller, &found.handle, &set)?;
            match answer.outcome {
                Ok(()) => found.attributes = answer.attributes.after.or(found.attributes),
                Err(fault) => *created = Err(fault),
            }
        }
        Ok(made)
    }

    fn create_file(
        &self,
        caller: RpcCaller<'_>,
        place: DirOpArgs<'_>,
        how: CreateHow,
    ) -> Answer<CreateReply, Wcc> {
        self.send_create(caller, NfsProcedure::Create, &CreateArguments { place, how })
    }

    fn send_create(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &dyn CallArguments,
    ) -> Answer<CreateReply, Wcc> {
        let made = |ok: CreateOk| {
            let handle = ok.object.map(FileHandle::from);
            (CreateReply { handle, attributes: attributes(ok.attributes) }, ok.directory.into())
        };
        self.ask(caller, procedure, arguments, made, wcc)
    }

    /// The object created at `place`, which is looked up if the server returned no handle.
    fn find_made(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        place: DirOpArgs<'_>,
        made: NfsReply<CreateReply, Wcc>,
    ) -> Answer<CreatedObject, Wcc> {
        let outcome = match made.outcome {
            Ok(CreateReply { handle: Some(handle), attributes }) => {
                Ok(Ok(LookupReply { handle, attributes }))
            }
            Ok(CreateReply { handle: None, .. }) => {
                Ok(self.find(caller, directory, place.name.bytes())?.outcome)
            }
            Err(fault) => Err(fault),
        };
        Ok(NfsReply { sent_at: made.sent_at, lost_at: made.lost_at, outcome, attributes: made.attributes })
    }

    fn page<'a, E: Decode<'a>>(
        &self,
        procedure: NfsProcedure,
        results: &'a [u8],
        listed: impl Fn(E) -> ReaddirEntry,
    ) -> Result<(Result<ReaddirPage, Fault>, Option<Attributes>), CallError> {
        match self.results(procedure, results)? {
            NfsResult::<ReaddirOk<'a, E>, Option<Fattr>>::Ok(ok) => {
                let about = attributes(ok.attributes);
                let page = page(ok, listed).map_err(|error| self.malformed(procedure, error))?;
                Ok((Ok(page), about))
            }
            NfsResult::Failed(status, fattr) => Ok((Err(status.into()), attributes(fattr))),
        }
    }

    /// Sends a request that changes one object.
    fn change(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &dyn CallArguments,
    ) -> Answer<(), Wcc> {
        self.ask(caller, procedure, arguments, |data| ((), wcc(data)), wcc)
    }

    /// Sends a request with small results and converts the reply: `success` converts the results of
    /// NFS3_OK, `failure` those of any other status.
    fn ask<T, F, R, A>(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &dyn CallArguments,
        success: impl FnOnce(T) -> (R, A),
        failure: impl FnOnce(F) -> A,
    ) -> Answer<R, A>
    where
        T: for<'a> Decode<'a>,
        F: for<'a> Decode<'a>,
    {
        let incoming = self.send(caller, procedure, arguments, RESULTS_SMALL)?;
        let outcome: NfsResult<T, F> = self.results(procedure, incoming.reply.results())?;
        Ok(reply(&incoming, outcome, success, failure))
    }

    fn send(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &dyn CallArguments,
        results_max: usize,
    ) -> Result<CallResult, CallError> {
        self.send_with_sink(caller, procedure, arguments, results_max, None)
    }

    /// As [`Self::send`], but `sink` may process the results in the receive buffer.
    fn send_with_sink(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &dyn CallArguments,
        results_max: usize,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallResult, CallError> {
        self.rpc.call(caller, CallSpec { sink, ..call_spec(procedure, arguments, results_max) })
    }

    fn results<'a, T: Decode<'a>>(&self, procedure: NfsProcedure, results: &'a [u8]) -> Result<T, CallError> {
        decode_all(results).map_err(|error| self.malformed(procedure, error))
    }

    fn malformed(&self, procedure: NfsProcedure, error: DecodeError) -> CallError {
        self.rpc.malformed(procedure.name(), error)
    }

    /// The error for a value that is valid for its type but not in this field.
    fn invalid_value(&self, procedure: NfsProcedure, name: &'static str, value: u32) -> CallError {
        self.malformed(procedure, DecodeError::BadValue { name, value })
    }

    /// A local refusal, for a request that cannot be encoded.
    fn refusal<R, A: Default>(&self, fault: Fault) -> NfsReply<R, A> {
        NfsReply { sent_at: self.rpc.now(), lost_at: None, outcome: Err(fault), attributes: A::default() }
    }
}

fn call_spec(procedure: NfsProcedure, arguments: &dyn CallArguments, results_max: usize) -> CallSpec<'_> {
    CallSpec {
        program: PROGRAM,
        version: VERSION,
        procedure: procedure.number(),
        arguments,
        results_max,
        jukebox: Some(NfsStat3::Jukebox.number()),
        status_at: 0,
        transport: None,
        operation: None,
        sink: None,
    }
}

/// Longest results without data, names or link targets, in bytes: two handles and four sets of
/// attributes.
const RESULTS_SMALL: usize = 1024;

/// Longest results with one name or link target, in bytes.
const RESULTS_NAME: usize = 66 * 1024;

/// Bytes by which results may exceed the requested size: the Linux server ends a reply after the
/// entry that exceeds it.
const EXCESS_MAX: usize = 4096;

/// Longest results accepted if `count` bytes are requested.
fn results_max(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_add(EXCESS_MAX)
}

fn page<'a, E: Decode<'a>>(
    ok: ReaddirOk<'a, E>,
    listed: impl Fn(E) -> ReaddirEntry,
) -> Result<ReaddirPage, DecodeError> {
    let mut entries = ok.entries;
    let mut names = Vec::new();
    for entry in entries.by_ref() {
        let name = listed(entry?);
        if name.name.is_empty() || name.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            let length = u32::try_from(name.name.len()).unwrap_or(u32::MAX);
            return Err(DecodeError::BadValue { name: "a name of so many bytes", value: length });
        }
        names.push(name);
    }
    let end = entries.eof().ok_or(DecodeError::Short)?;
    Ok(ReaddirPage { verifier: ok.verifier.into(), names, end, granted: None })
}

/// Bytes in READ results besides the data: status, attributes, count, eof, length.
const READ_HEAD: usize = 4 + 4 + 84 + 4 + 4 + 4;

/// Decodes results for a [`ReadSink`]; a malformed reply is left to the caller.
struct ReadReplySink {
    sink: Arc<dyn ReadSink>,
    asked: usize,
    sent_at: Instant,
}

impl ReplySink for ReadReplySink {
    fn consume(&self, results: &[u8]) -> bool {
        let Ok(outcome) = decode_all::<NfsResult<ReadOk<'_>, ReadFail>>(results) else {
            return false;
        };
        let Ok(ok) = outcome.into_result() else {
            return false;
        };
        let bytes = ok.data.bytes();
        if !makes_sense(bytes.len(), ok.eof, ok.count, self.asked) {
            return false;
        }
        let about = ok.attributes.map(Attributes::from);
        self.sink.consume(about.as_ref(), self.sent_at, bytes, ok.eof)
    }
}

/// Whether a READ result is valid, with a matching count.
fn makes_sense(length: usize, end: bool, said: u32, asked: usize) -> bool {
    is_valid_length(length, end, asked) && usize::try_from(said) == Ok(length)
}

const _: () = assert!(READ_HEAD == 4 + 4 + Fattr::ENCODED + 12, "attributes are 84 bytes on the wire");

fn reply<T, F, R, A>(
    incoming: &CallResult,
    outcome: NfsResult<T, F>,
    success: impl FnOnce(T) -> (R, A),
    failure: impl FnOnce(F) -> A,
) -> NfsReply<R, A> {
    let (outcome, attributes) = match outcome.into_result() {
        Ok(value) => {
            let (result, attributes) = success(value);
            (Ok(result), attributes)
        }
        Err((status, failed)) => (Err(status.into()), failure(failed)),
    };
    NfsReply { sent_at: incoming.sent_at, lost_at: incoming.lost_at, outcome, attributes }
}

/// A handle in NFSv3 encoding. The error cannot occur with handles from an NFSv3 server, which have
/// at most 64 bytes.
fn nfs_fh3(handle: &FileHandle) -> Result<NfsFh3, CallError> {
    NfsFh3::new(handle.as_bytes()).map_err(|_| CallError::GarbageArguments)
}

/// A name in a directory; `None` if it cannot be encoded.
fn place<'a>(directory: &FileHandle, name: &'a [u8]) -> Option<DirOpArgs<'a>> {
    Some(DirOpArgs { directory: nfs_fh3(directory).ok()?, name: Filename::new(name).ok()? })
}

fn attributes(fattr: Option<Fattr>) -> Option<Attributes> {
    fattr.map(Attributes::from)
}

fn wcc(data: WccData) -> Wcc {
    data.into()
}

fn fsinfo(ok: &FsinfoOk) -> Fsinfo {
    Fsinfo {
        read_max: ok.rtmax,
        read_preferred: ok.rtpref,
        read_multiple: ok.rtmult,
        write_max: ok.wtmax,
        write_preferred: ok.wtpref,
        write_multiple: ok.wtmult,
        listing_preferred: ok.dtpref,
        file_size_max: ok.maxfilesize,
        time_step: ok.time_delta.into(),
        links: ok.properties.contains(FsProperties::LINK),
        symlinks: ok.properties.contains(FsProperties::SYMLINK),
        homogeneous: ok.properties.contains(FsProperties::HOMOGENEOUS),
        sets_times: ok.properties.contains(FsProperties::CANSETTIME),
    }
}

fn pathconf(ok: &PathconfOk) -> Pathconf {
    Pathconf {
        links_max: ok.link_max,
        name_max: ok.name_max,
        no_truncation: ok.no_truncation,
        chown_restricted: ok.chown_restricted,
        case_insensitive: ok.case_insensitive,
        case_preserving: ok.case_preserving,
    }
}
