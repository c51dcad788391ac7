//! NFS version 3 (RFC 1813): [`NfsV3`] implements [`Protocol`] by its procedures.
//!
//! Owns the encoding of arguments and the decoding of results. Methods of one procedure are here;
//! those with several procedures or more complex results are in `create`, `listing` and `transfer`.
//! Requests are retried while the server returns JUKEBOX. A malformed reply is logged once and
//! returned as [`CallError::Malformed`]. Must not know the purpose of a request.

mod create;
mod listing;
pub mod mounting;
pub mod nlm;
mod transfer;

#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use curt_policy::locks::{LockError, LockReply};
use curt_proto::nfs3::{
    AccessArguments, AccessMask, AccessOk, CommitArguments, CommitOk, DirOpArgs, Fattr, Filename,
    FsProperties, FsinfoArguments, FsinfoOk, FsstatOk, LinkArguments, LinkWcc, LookupOk, NfsFh3,
    NfsProcedure, NfsResult, NfsStat3, PROGRAM, PathconfOk, ReadlinkOk, RenameArguments, RenameWcc,
    SetattrArguments, VERSION, WccData,
};
use curt_rpc::client::{CallError, ReplySink};
use curt_types::{
    Access, Attributes, ByteRange, Fault, FileHandle, SetAttributes, Stability, Wcc, WriteVerifier,
};
use curt_xdr::{Decode, DecodeError, Encode, decode_all};

use super::{
    Answer, CreateRequest, CreatedObject, Fsinfo, FsstatReply, LinkAttributes, ListRequest, LockAnswer,
    LockEvents, LockMode, LookupReply, NfsReply, OpenCaller, Pathconf, Protocol, ReadData, ReadSink,
    ReaddirPage, RemoteLock, RenameAttributes, RpcCaller, RpcClient, WireLock, WireOwner, WriteReply,
    rpc_client::{CallResult, CallSpec},
};
use nlm::{NlmCalls, NlmClient};

/// NFS version 3 over one connection.
#[derive(Debug)]
pub struct NfsV3 {
    rpc: Arc<RpcClient>,
    nlm: Option<NlmClient>,
}

impl Protocol for NfsV3 {
    fn rpc(&self) -> &Arc<RpcClient> {
        &self.rpc
    }

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
        let told = |fattr: Fattr| (fattr.into(), ());
        self.ask(caller, NfsProcedure::Getattr, &object, told, |(): ()| ())
    }

    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>> {
        let arguments = AccessArguments { object: nfs_fh3(object)?, access: AccessMask(rights.bits()) };
        // A reply grants no rights beyond the requested ones.
        let granted = |ok: AccessOk| {
            let granted = Access::from_bits(ok.access.0).common(rights);
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
        let incoming = self.send(caller, procedure, &nfs_fh3(link)?, &[], RESULTS_NAME)?;
        let outcome = self.results(procedure, incoming.reply.results())?;
        let text = |ok: ReadlinkOk<'_>| (ok.target.bytes().into(), attributes(ok.attributes));
        Ok(reply(&incoming, outcome, text, attributes))
    }

    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        self.make(caller, directory, name, new)
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

    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        self.readdir(caller, directory, request)
    }

    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        self.read_to_sink(open.rpc(), file, range, sink)
    }

    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        offset: u64,
        stability: Stability,
        bytes: &[u8],
    ) -> Answer<WriteReply, Wcc> {
        self.write_bytes(open.rpc(), file, offset, stability, bytes)
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

    fn lock(&self, caller: RpcCaller<'_>, file: &FileHandle, lock: &WireLock, mode: LockMode) -> LockAnswer {
        self.nlm(caller).map_or(NO_LOCKS, |(nlm, calls)| nlm.lock(calls, file, lock, mode))
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
    ) -> Result<Result<Option<RemoteLock>, LockError>, CallError> {
        self.nlm(caller).map_or(Ok(Err(LockError::NoLocks)), |(nlm, calls)| nlm.test(calls, file, lock))
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
        Arc::new(Self { rpc, nlm: None })
    }

    /// The same, with locks by `nlm`.
    #[must_use]
    pub fn with_locks(rpc: Arc<RpcClient>, nlm: NlmClient) -> Arc<Self> {
        Arc::new(Self { rpc, nlm: Some(nlm) })
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
        let told = |ok: FsinfoOk| (fsinfo(&ok), ());
        let dropped = |_: Option<Fattr>| ();
        let arguments = FsinfoArguments { root };
        let info = self.ask(caller, NfsProcedure::Fsinfo, &arguments, told, dropped)?;
        let outcome = match info.outcome {
            Ok(limits) => {
                let told = |ok: PathconfOk| (pathconf(&ok), ());
                let paths = self.ask(caller, NfsProcedure::Pathconf, &root, told, dropped)?;
                Ok((limits, paths.outcome.unwrap_or_default()))
            }
            Err(fault) => Err(fault),
        };
        Ok(NfsReply { sent_at: info.sent_at, lost_at: info.lost_at, outcome, attributes: () })
    }

    /// Sends a request that changes one object.
    fn change(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &(dyn Encode + Sync),
    ) -> Answer<(), Wcc> {
        self.ask(caller, procedure, arguments, |data| ((), wcc(data)), wcc)
    }

    /// Sends a request with small results and converts the reply: `success` converts the results of
    /// NFS3_OK, `failure` those of any other status.
    fn ask<T, F, R, A>(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &(dyn Encode + Sync),
        success: impl FnOnce(T) -> (R, A),
        failure: impl FnOnce(F) -> A,
    ) -> Answer<R, A>
    where
        T: for<'a> Decode<'a>,
        F: for<'a> Decode<'a>,
    {
        let incoming = self.send(caller, procedure, arguments, &[], RESULTS_SMALL)?;
        let outcome: NfsResult<T, F> = self.results(procedure, incoming.reply.results())?;
        Ok(reply(&incoming, outcome, success, failure))
    }

    fn send(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &(dyn Encode + Sync),
        bulk: &[u8],
        results_max: usize,
    ) -> Result<CallResult, CallError> {
        self.send_with_sink(caller, procedure, arguments, bulk, results_max, None)
    }

    /// As [`Self::send`], but `sink` may process the results in the receive buffer.
    fn send_with_sink(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &(dyn Encode + Sync),
        bulk: &[u8],
        results_max: usize,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallResult, CallError> {
        let outgoing = CallSpec {
            program: PROGRAM,
            version: VERSION,
            procedure: procedure.number(),
            arguments,
            bulk,
            results_max,
            jukebox: Some(NfsStat3::Jukebox.number()),
            status_at: 0,
            transport: None,
            sink,
        };
        self.rpc.call(caller, outgoing)
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

/// Longest results without data, names or link targets, in bytes: two handles and four sets of
/// attributes.
const RESULTS_SMALL: usize = 1024;

/// Longest results with one name or link target, in bytes.
const RESULTS_NAME: usize = 66 * 1024;

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
