//! NFS versions 4.1 and 4.2 (RFC 8881, RFC 7862): [`NfsV4`] implements [`Protocol`] by one compound
//! for each intent.
//!
//! `compound` sends a compound until it is answered, `session` has the slots, `recovery` does what
//! the session needs, `open_table` has the opens, `delegation_table` the read delegations,
//! `lock_states` the locks, `callback` answers the server, `maintenance` is for opens, delegations
//! and the lease, `attributes` converts.
//! This file has the compounds of the intents, but for those in `lookup`, `create`, `open`,
//! `fallbacks`, `batch` and `lock`.
//!
//! Attributes that are to show a change come after it; those that label a result (names, rights,
//! data) come before it. So a change of another client between the two is seen as a change later,
//! never missed.

mod attributes;
mod batch;
mod callback;
mod compound;
mod create;
mod delegation_table;
mod fallbacks;
pub mod identity;
mod listing;
mod lock;
mod lock_states;
mod lookup;
mod maintenance;
mod maintenance_tasks;
pub mod mounting;
mod open;
mod open_codec;
mod open_key;
mod open_table;
mod piggybacked;
mod read_results;
mod recovery;
mod results;
mod server_traits;
mod session;

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, Bitmap4, CommitArgs4, CommitOk4, Component, CompoundEncoder, CreateArgs4,
    CreateOk4, CreateType4, GetattrOk4, LinkArgs4, LinkOk4, LinkText, LookupArgs4, Nfs4Operation, NfsStat4,
    NverifyArgs4, ReadArgs4, ReaddirArgs4, ReadlinkOk4, RemoveArgs4, RemoveOk4, RenameArgs4, RenameOk4,
    SetattrArgs4, StableHow4, Stateid, Verifier4, VerifyArgs4, WriteHead4, WriteOk4,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{CallError, Interrupt},
};
use curt_types::{Access, Attributes, Fault, FileHandle, FileKind, SetAttributes, Wcc, WriteVerifier};
use curt_xdr::DecodeError;

use self::{
    attributes::{EncodedAttributes, directory_step, file_step, object_of},
    callback::CallbackService,
    compound::{
        CompoundReply,
        request::{CompoundRequest, RESULTS_NAME, RESULTS_SMALL, get_attributes, put_fh},
    },
    delegation_table::DelegationTable,
    identity::ClientIdentity,
    lock_states::LockStateTable,
    maintenance_tasks::{MaintenanceTasks, TASKS},
    open_key::OpenKey,
    open_table::OpenTable,
    results::{CompoundResultReader, CompoundSink, DecodedReply, created, done, fault, outcome},
    server_traits::{ServerFeature, ServerTraits, suspects_of_open},
    session::SessionMonitor,
};
use super::{
    Answer, CreateRequest, CreatedObject, DelegationEvents, DelegationOperations, FileOperations,
    FsstatReply, LinkAttributes, ListRequest, LookupOpenReply, LookupOpenRequest, LookupReply, NfsReply,
    OpenCaller, OpenExtras, OpenOperations, OpenOwner, OpenReply, Protocol, ReadData, ReadSink, ReaddirPage,
    RenameAttributes, RpcCaller, RpcClient, ShareAccess, WriteReply, WriteRequest, deadline::within,
    read_data::bytes_of,
};
use crate::threads::{Background, separate};

/// NFS version 4.1 or 4.2 in one session.
#[derive(Debug)]
pub struct NfsV4 {
    rpc: Arc<RpcClient>,
    minor_version: u32,
    identity: ClientIdentity,
    /// The credential of the session's own requests.
    machine: RpcCredential,
    /// Requests wait for a server that may get over what is wrong with it.
    is_hard: bool,
    session: Arc<SessionMonitor>,
    /// How many lost connections had been replaced at the last reply.
    replacements: AtomicU64,
    server: ServerTraits,
    opens: OpenTable,
    delegations: Arc<DelegationTable>,
    locks: Arc<LockStateTable>,
    callbacks: Arc<CallbackService>,
    /// Threads for maintenance, apart from those of write-back, which wait for its results.
    background: Arc<dyn Background>,
    this: Weak<Self>,
    /// The mount has ended: no session is created any more but to end this one.
    has_ended: AtomicBool,
    tasks: MaintenanceTasks,
}

/// Bytes of a READ reply beside the data.
const READ_HEAD: usize = RESULTS_SMALL;

/// An entry with attributes is larger than one of READDIRPLUS by this part: 220 bytes instead of
/// 176.
const ENTRY_PLUS_PART: u32 = 4;

impl NfsV4 {
    /// NFS version 4 over the connection of `rpc`, whose calls of the server `callbacks` answers.
    fn new(
        rpc: Arc<RpcClient>,
        minor_version: u32,
        identity: ClientIdentity,
        machine: RpcCredential,
        is_hard: bool,
        callbacks: Arc<CallbackService>,
        background: &Arc<dyn Background>,
    ) -> Arc<Self> {
        let session = callbacks.sessions();
        let delegations = callbacks.delegations();
        session.lock().lease_end = Arc::clone(delegations.lease());
        Arc::new_cyclic(|this: &Weak<Self>| {
            let returner = Weak::clone(this);
            delegations.set_must_return(Box::new(move || {
                if let Some(this) = returner.upgrade() {
                    this.return_delegations();
                }
            }));
            let reducer = Weak::clone(this);
            callbacks.set_slots_recalled(Box::new(move || {
                if let Some(this) = reducer.upgrade() {
                    this.report_slots();
                }
            }));
            Self {
                rpc,
                minor_version,
                identity,
                machine,
                is_hard,
                session,
                replacements: AtomicU64::new(0),
                server: ServerTraits::default(),
                opens: OpenTable::default(),
                delegations,
                locks: callbacks.locks(),
                callbacks,
                background: separate(background, TASKS),
                this: Weak::clone(this),
                has_ended: AtomicBool::new(false),
                tasks: MaintenanceTasks::default(),
            }
        })
    }

    /// Sends a compound with small results and judges them.
    fn ask<T, A: Default>(
        &self,
        request: &CompoundRequest<'_>,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Answer<T, A> {
        let answer = self.send(request).and_then(|reply| {
            let answer = self.answered(&reply, judge);
            if let (Some(opens), Err(_)) = (request.opens, &answer) {
                self.abandon(opens());
            }
            answer
        });
        if let (Some(opening), Err(_)) = (request.opening, &answer) {
            opening.lose_reply(request.caller.credential);
        }
        answer
    }

    /// Judges the results of a reply.
    fn answered<T, A: Default>(
        &self,
        reply: &CompoundReply,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Answer<T, A> {
        let (outcome, attributes) = self.judged(reply, judge)?;
        let (sent_at, lost_at) = (reply.call.sent_at, reply.call.lost_at);
        Ok(NfsReply { sent_at, lost_at, outcome, attributes })
    }

    fn judged<T, A: Default>(
        &self,
        reply: &CompoundReply,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Result<(Result<T, Fault>, A), CallError> {
        if let Some(status) = reply.refused() {
            return Ok((Err(fault(status)), A::default()));
        }
        let results = self.decoded(reply.results())?;
        self.decoded(judge(&mut CompoundResultReader::new(results, reply.generation())))
    }

    /// A local refusal, for a request that cannot be encoded.
    fn refusal<R, A: Default>(&self, fault: Fault) -> NfsReply<R, A> {
        NfsReply { sent_at: self.rpc.now(), lost_at: None, outcome: Err(fault), attributes: A::default() }
    }

    /// REMOVE removes objects of all types, so the type is compared before, unless it is known.
    fn remove_compared(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        is_directory: Option<bool>,
    ) -> Answer<(), Wcc> {
        let directory_type = EncodedAttributes::directory_type();
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            if let Some(is_directory) = is_directory {
                operations.bare(Nfs4Operation::Savefh);
                operations.push(&LookupArgs4 { name });
                if is_directory {
                    operations.push(&VerifyArgs4 { attributes: directory_type.fattr() });
                } else {
                    operations.push(&NverifyArgs4 { attributes: directory_type.fattr() });
                }
                operations.bare(Nfs4Operation::Restorefh);
            }
            operations.push(&RemoveArgs4 { name });
            get_attributes(operations, attributes::OBJECT);
        };
        let required = if is_directory.is_some() { 5 } else { 1 };
        let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::Remove, required, &append);
        self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            if let Some(is_directory) = is_directory {
                let compare = if is_directory { Nfs4Operation::Verify } else { Nfs4Operation::Nverify };
                done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
                done!(results.pass(Nfs4Operation::Lookup), Wcc::default());
                done!(compared(results, compare), Wcc::default());
                done!(results.pass(Nfs4Operation::Restorefh), Wcc::default());
            }
            let ok: RemoveOk4 = done!(results.next(Nfs4Operation::Remove), Wcc::default());
            Ok((Ok(()), directory_step(Some(ok.directory), results.attributes()?)))
        })
    }

    /// SETATTR, by the stateid of an open, or of a lock of what may be cut off, if the file is open
    /// for writing.
    fn set_by(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        set: &SetAttributes,
        open: Option<&OpenKey>,
    ) -> Answer<(), Wcc> {
        let encoded = EncodedAttributes::new(set);
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            if open.is_none() {
                put_fh(operations, object);
            }
            get_attributes(operations, attributes::CHANGE);
            operations.push(&SetattrArgs4 { stateid, attributes: encoded.fattr() });
            get_attributes(operations, attributes::OBJECT);
        };
        let required = if open.is_some() { 1 } else { 2 };
        let request = CompoundRequest {
            open: open.map(|key| (key, ShareAccess::Write)),
            ..CompoundRequest::non_idempotent(caller, Nfs4Operation::Setattr, required, &append)
        };
        let reply = self.send_io(&request, set.size.unwrap_or(0)..u64::MAX)?;
        self.answered(&reply, |results| {
            if open.is_none() {
                done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            }
            let before = results.change()?;
            let _: Bitmap4 = done!(results.next(Nfs4Operation::Setattr), Wcc::default());
            Ok((Ok(()), file_step(before, results.attributes()?)))
        })
    }
}

impl Protocol for NfsV4 {
    fn rpc(&self) -> &Arc<RpcClient> {
        &self.rpc
    }

    fn server(&self) -> (String, Vec<&'static str>) {
        self.server.report()
    }

    fn end(&self, limit: Duration) {
        self.has_ended.store(true, Relaxed);
        self.delegations.allow(false);
        within(limit, &Interrupt::never(), |ends| {
            if let Err(error) = self.destroy(ends) {
                tracing::debug!(%error, "the session is not destroyed");
            }
        });
    }
}

impl FileOperations for NfsV4 {
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>> {
        let answer = self.find_with_open(caller, directory, name, None)?;
        let NfsReply { sent_at, lost_at, outcome, attributes } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome: outcome.map(|found| found.found), attributes })
    }

    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Getattr, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), ());
            let ok: GetattrOk4<'_> = done!(results.next(Nfs4Operation::Getattr), ());
            Ok((Ok(object_of(&ok.attributes)?), ()))
        })
    }

    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
            operations.push(&AccessArgs4 { access: rights.bits() });
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Access, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: AccessOk4 = done!(results.next(Nfs4Operation::Access), about);
            Ok((Ok(Access::from_bits(ok.access).common(rights)), about))
        })
    }

    /// If the size is set, the stateid is the anonymous one, which respects the denials of others.
    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc> {
        self.set_by(caller, object, set, None)
    }

    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, link);
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Readlink);
        };
        let request = CompoundRequest::idempotent(caller, Nfs4Operation::Readlink, &append);
        self.ask(&CompoundRequest { results_max: RESULTS_NAME, ..request }, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: ReadlinkOk4<'_> = done!(results.next(Nfs4Operation::Readlink), about);
            Ok((Ok(ok.target.bytes().into()), about))
        })
    }

    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let (Ok(name), Ok(text)) = (Component::new(name), LinkText::new(new.text)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let kind = match new.kind {
            FileKind::Regular => return self.create_file_as_accepted(caller, directory, name, new),
            FileKind::Directory => CreateType4::Directory,
            FileKind::Symlink => CreateType4::Symlink(text),
            FileKind::BlockDevice => CreateType4::BlockDevice(new.device.into()),
            FileKind::CharacterDevice => CreateType4::CharacterDevice(new.device.into()),
            FileKind::Socket => CreateType4::Socket,
            FileKind::Fifo => CreateType4::Fifo,
        };
        let encoded =
            EncodedAttributes::new(&SetAttributes { mode: Some(new.mode), ..SetAttributes::default() });
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            operations.bare(Nfs4Operation::Savefh);
            operations.push(&CreateArgs4 { kind, name, attributes: encoded.fattr() });
            operations.bare(Nfs4Operation::Getfh);
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Create, 2, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
            let ok: CreateOk4 = done!(results.next(Nfs4Operation::Create), Wcc::default());
            let created = created(results, false, |_| {})?;
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(created), directory_step(Some(ok.directory), results.attributes()?)))
        })
    }

    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        match Component::new(name) {
            Ok(name) => self.remove_as_accepted(caller, directory, name, is_directory),
            Err(_) => Ok(self.refusal(Fault::Nametoolong)),
        }
    }

    fn rename(
        &self,
        caller: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes> {
        let (Ok(from), Ok(to)) = (Component::new(old_name), Component::new(new_name)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, old_directory);
            operations.bare(Nfs4Operation::Savefh);
            put_fh(operations, new_directory);
            operations.push(&RenameArgs4 { from, to });
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        let nothing = RenameAttributes::default();
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Rename, 3, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            done!(results.pass(Nfs4Operation::Savefh), nothing);
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            let ok: RenameOk4 = done!(results.next(Nfs4Operation::Rename), nothing);
            let to = directory_step(Some(ok.target), results.attributes()?);
            results.pass(Nfs4Operation::Restorefh)?.ok();
            let from = directory_step(Some(ok.source), results.attributes()?);
            Ok((Ok(()), RenameAttributes { from, to }))
        })
    }

    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes> {
        let Ok(name) = Component::new(name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.bare(Nfs4Operation::Savefh);
            put_fh(operations, directory);
            operations.push(&LinkArgs4 { name });
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        let nothing = LinkAttributes::default();
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Link, 3, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            done!(results.pass(Nfs4Operation::Savefh), nothing);
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            let ok: LinkOk4 = done!(results.next(Nfs4Operation::Link), nothing);
            let directory = directory_step(Some(ok.directory), results.attributes()?);
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(()), LinkAttributes { file: results.attributes()?, directory }))
        })
    }

    fn lists_with_rights(&self) -> bool {
        true
    }

    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        let dots = matches!(request.cookie, 0 | listing::DOT_COOKIE | listing::DOTDOT_COOKIE);
        let asked = if request.plus { attributes::ENTRY_PLUS } else { attributes::ENTRY };
        // The caller counts in bytes of NFSv3.
        let size = if request.plus {
            request.size.saturating_add(request.size / ENTRY_PLUS_PART)
        } else {
            request.size
        };
        let arguments = ReaddirArgs4 {
            cookie: if dots { 0 } else { request.cookie },
            verifier: if dots { Verifier4::default() } else { request.verifier.into() },
            directory_count: size,
            max_count: size,
            attributes: asked,
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            get_attributes(operations, attributes::OBJECT);
            if let Some(rights) = request.rights {
                operations.push(&AccessArgs4 { access: rights.bits() });
            }
            let most = self.session.lock().read_max();
            operations.push(&ReaddirArgs4 { max_count: size.min(most), ..arguments });
            if dots {
                operations.bare(Nfs4Operation::Lookupp);
                get_attributes(operations, attributes::FILEID);
            }
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let question = CompoundRequest::idempotent(caller, Nfs4Operation::Readdir, &append);
        // The root of all has no parent, which is no failure of the listing: READDIR must not be
        // executed again for it.
        let required = Some(2 + u32::from(request.rights.is_some()));
        let results_max = size.saturating_add(RESULTS_SMALL);
        let question = CompoundRequest { required, results_max, ..question };
        self.ask(&question, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let mut granted = None;
            if let Some(rights) = request.rights {
                let ok: AccessOk4 = done!(results.next(Nfs4Operation::Access), about);
                granted = Some(Access::from_bits(ok.access).common(rights));
            }
            match outcome(results.operations.status(Nfs4Operation::Readdir).and_then(
                |status| match status {
                    NfsStat4::Ok => Ok(()),
                    status => Err(curt_proto::nfs4::ResultError::Failed(status)),
                },
            ))? {
                Ok(()) => {}
                // A cookie that is no longer valid.
                Err(NfsStat4::NotSame) => return Ok((Err(Fault::BadCookie), about)),
                Err(status) => return Ok((Err(fault(status)), about)),
            }
            let mut page = ReaddirPage { granted, ..listing::page(results, asked)? };
            if dots {
                let own = about.map_or(0, |about| about.fileid);
                listing::add_dots(&mut page, request.cookie, own, listing::parent(results));
            }
            Ok((Ok(page), about))
        })
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
        let asked = read_results::as_length(count);
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            get_attributes(operations, attributes::OBJECT);
            let count = count.min(self.session.lock().read_max());
            operations.push(&ReadArgs4 { stateid, offset: range.start, count });
        };
        // A time not later than that of sending: older cached data never count as newer than the
        // reply.
        let sink = sink.map(|sink| {
            Arc::new(read_results::ReadResultsSink { sink: Arc::clone(sink), asked, sent_at: self.rpc.now() })
                as Arc<dyn CompoundSink>
        });
        let request = CompoundRequest {
            open: Some((&key, ShareAccess::Read)),
            results_max: READ_HEAD.saturating_add(asked).saturating_add(3),
            sink: sink.as_ref(),
            ..CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Read, &append)
        };
        let mut reply = self.send_io(&request, range.clone())?;
        if reply.call.reply.was_consumed() {
            return Ok(None);
        }
        let mut judged = self.judged(&reply, |results| read_results::read_results(results, asked))?;
        if judged.0 == Ok(read_results::ReadOutcome::Mode) {
            // Opened for writing only: the anonymous stateid reads what the caller's rights allow.
            let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
                put_fh(operations, file);
                append(operations, stateid);
            };
            reply = self.send(&CompoundRequest {
                open: None,
                lock: None,
                sink: None,
                append: &append,
                ..request
            })?;
            judged = self.judged(&reply, |results| {
                done!(results.pass(Nfs4Operation::Putfh), None);
                read_results::read_results(results, asked)
            })?;
        }
        let (outcome, attributes) = judged;
        let (sent_at, lost_at) = (reply.call.sent_at, reply.call.lost_at);
        let outcome = match outcome {
            Ok(read_results::ReadOutcome::Data { length, end }) => {
                Ok(ReadData { bytes: bytes_of(reply.call.reply, length), end })
            }
            Ok(read_results::ReadOutcome::Mode) => Err(Fault::Acces),
            Err(fault) => Err(fault),
        };
        Ok(Some(NfsReply { sent_at, lost_at, outcome, attributes }))
    }

    /// WRITE, and a SETATTR if attributes are set. A reply with a count of zero or above the number
    /// of bytes sent is malformed.
    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc> {
        let WriteRequest { offset, stability, bytes, set, is_lost } = write;
        let Ok(length) = u32::try_from(bytes.len()) else {
            return Ok(self.refusal(Fault::Fbig));
        };
        // The session that is used at last can be smaller than the one of now.
        let sent = AtomicU32::new(length);
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        let stable = StableHow4::from(stability);
        let encoded = set.map(EncodedAttributes::new);
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            get_attributes(operations, attributes::CHANGE);
            let count = length.min(self.session.lock().write_max());
            sent.store(count, Relaxed);
            operations.push_write(&WriteHead4 { stateid, offset, stable, count });
            if let Some(encoded) = &encoded {
                let stateid = Stateid::ANONYMOUS;
                operations.push(&SetattrArgs4 { stateid, attributes: encoded.fattr() });
            }
            get_attributes(operations, attributes::OBJECT);
        };
        // A repeated WRITE writes the same bytes, so the server need not keep its reply.
        let request = match set {
            None => CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Write, &append),
            Some(_) => CompoundRequest::non_idempotent(open.rpc(), Nfs4Operation::Write, 2, &append),
        };
        let open = Some((&key, ShareAccess::Write));
        let request = CompoundRequest { open, data: bytes, is_lost: Some(is_lost), ..request };
        let reply = self.send_io(&request, offset..offset.saturating_add(length.into()))?;
        self.answered(&reply, |results| {
            let before = results.change()?;
            let ok: WriteOk4 = done!(results.next(Nfs4Operation::Write), Wcc::default());
            let sent = sent.load(Relaxed);
            if ok.count > sent || (ok.count == 0 && sent > 0) || ok.committed < stable {
                return Err(DecodeError::BadValue { name: "WRITE4resok", value: ok.count });
            }
            let set = match set {
                None => None,
                Some(_) => Some(results.next::<Bitmap4>(Nfs4Operation::Setattr)?.map(|_| ())),
            };
            let (stability, verifier) = (ok.committed.into(), ok.verifier.into());
            let written = WriteReply { count: ok.count, stability, verifier, set };
            Ok((Ok(written), file_step(before, results.attributes()?)))
        })
    }

    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.push(&CommitArgs4 { offset: 0, count: 0 });
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Commit, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            let ok: CommitOk4 = done!(results.next(Nfs4Operation::Commit), Wcc::default());
            Ok((Ok(ok.verifier.into()), Wcc { before: None, after: results.attributes()? }))
        })
    }

    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
            get_attributes(operations, attributes::SPACE);
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Getattr, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: GetattrOk4<'_> = done!(results.next(Nfs4Operation::Getattr), about);
            let values = attributes::values(&ok.attributes, attributes::SPACE)?;
            Ok((Ok(attributes::space(&values)), about))
        })
    }
}

impl OpenOperations for NfsV4 {
    fn keeps_removed_file(&self, file: &FileHandle) -> bool {
        self.opens.is_preserved(file)
    }

    fn share_open(&self, file: &FileHandle, owner: OpenOwner<'_>, access: ShareAccess) -> bool {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let is_opened = self.server.has(ServerFeature::OpenByHandle);
        self.opens.share(&key, access)
            || !is_opened && self.opens.use_unopened(&key, owner.credential, access)
    }

    fn open(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        wanted: OpenExtras<'_>,
    ) -> Answer<OpenReply, Option<Attributes>> {
        self.server.as_accepted(suspects_of_open, |used| {
            if used.has(ServerFeature::OpenByHandle) {
                let open = || self.open_by_handle(caller, file, owner, access, wanted, used);
                return self.as_session_allows(open);
            }
            let answer = self.access(caller, file, wanted.rights)?;
            let outcome = answer.outcome.map(OpenReply::from);
            let NfsReply { sent_at, lost_at, attributes, .. } = answer;
            Ok(NfsReply { sent_at, lost_at, outcome, attributes })
        })
    }

    fn set_through_open(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        set: &SetAttributes,
    ) -> Answer<(), Wcc> {
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        self.set_by(open.rpc(), file, set, Some(&key))
    }

    fn delay_open(&self, file: &FileHandle, owner: OpenOwner<'_>) -> bool {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        self.opens.use_unopened(&key, owner.credential, ShareAccess::Read)
    }

    fn close(&self, file: &FileHandle, owner: u32, access: ShareAccess) {
        let key = OpenKey { file: file.clone(), owner };
        if self.opens.release(&key, access, self.rpc.now()) {
            self.close_when_due(&key);
        }
        self.tidy_locks(file);
    }

    fn find_to_open(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        request: LookupOpenRequest<'_>,
    ) -> Answer<LookupOpenReply, Option<Attributes>> {
        self.find_with_open(caller, directory, name, Some(request))
    }
}

impl DelegationOperations for NfsV4 {
    fn report_delegations(&self, events: Weak<dyn DelegationEvents>, origin: Instant) {
        self.delegations.report(events, origin);
    }

    fn allow_delegations(&self, are_allowed: bool) {
        self.delegations.allow(are_allowed);
    }

    fn delegations(&self) -> usize {
        self.delegations.held()
    }

    fn expects_delegations(&self) -> bool {
        self.delegations.is_expected(|| self.rpc.now()) && self.session.lock().has_callbacks()
    }

    fn give_up_delegation(&self, file: &FileHandle) {
        self.delegations.give_up(file);
    }
}

/// The comparison of an object's type before its removal.
fn compared(
    results: &mut CompoundResultReader<'_>,
    compare: Nfs4Operation,
) -> Result<Result<(), Fault>, DecodeError> {
    Ok(outcome(results.operations.next::<()>(compare))?.map_err(|status| match status {
        NfsStat4::NotSame => Fault::Notdir,
        NfsStat4::Same => Fault::Isdir,
        status => fault(status),
    }))
}
