//! NFSv3 (RFC 1813 section 3.3): decodes arguments, resolves handles to targets, calls a verb of
//! [`ops`](crate::ops), and encodes its result.
//!
//! The files are those of the procedures' types in `proto::nfs3::calls`. Every failure whose handle
//! resolves carries attributes. READ, READLINK, READDIR and READDIRPLUS write their results
//! directly into the reply.

mod data;
mod file_system;
mod inode;
mod listing;
mod names;
#[cfg(test)]
mod tests;

use curt_observe::ServerCounter;
use curt_observe::stages::{self, RequestStage};
use curt_proto::Operation;
use curt_proto::nfs3::{
    DirOpArgs, Fattr, NfsFh3, NfsProcedure, NfsResult, NfsStat3, Sattr, TimeHow, WccData,
};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::{Fault, FileHandle, SetAttributes, SetTime, Timestamp};
use curt_xdr::{Decode, Decoder, Encode, decode_all};

use crate::ops::{NamePurpose, OpResult, PostOp, WccOp};
use crate::recalls::WaitedCall;
use crate::replay::{ChangedNames, Execution, ExecutionWindow, Replay};
use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::service::NfsService;

/// The parts of a procedure's results.
type Results<T, F> = Result<NfsResult<T, F>, Refusal>;

/// Answers a call of the program's version 3.
#[inline]
pub(crate) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &mut CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let procedure = NfsProcedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
    service.begin_call(Operation::Nfs3(procedure), context);
    let replay =
        if is_cached(procedure) { Replay::ReplyCache(&service.reply_cache) } else { Replay::Nothing };
    let mut execution = ProcedureCall { service, procedure, call };
    replay.answer(call, context, reply, &mut execution)
}

/// Whether replies to `procedure` are cached: those to non-idempotent calls, and to calls that
/// would undo later changes if they were repeated late (SETATTR of a size, CREATE of an existing
/// file). WRITE and COMMIT can be repeated, and a client sends no other WRITE of a range before it
/// has the result of the first.
const fn is_cached(procedure: NfsProcedure) -> bool {
    matches!(
        procedure,
        NfsProcedure::Setattr
            | NfsProcedure::Create
            | NfsProcedure::Mkdir
            | NfsProcedure::Symlink
            | NfsProcedure::Mknod
            | NfsProcedure::Remove
            | NfsProcedure::Rmdir
            | NfsProcedure::Rename
            | NfsProcedure::Link
    )
}

/// A call of a procedure, executed by the reply cache.
struct ProcedureCall<'r> {
    service: &'r NfsService,
    procedure: NfsProcedure,
    call: &'r CallMessage<'r>,
}

impl Execution for ProcedureCall<'_> {
    #[inline]
    fn run(
        &mut self,
        repeated: Option<ExecutionWindow>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Fault>, CallFailure> {
        let waited = context.resumed::<WaitedCall>();
        let mut request =
            NfsRequest { repeated, ..NfsRequest::new(self.service, &self.call.credential, context) };
        if let Some(waited) = waited {
            request.has_waited(&waited);
        }
        let start = reply.len();
        run(self.procedure, &mut request, self.call.arguments, reply)?;
        if repeated.is_none() && request.wait(&mut None, 0) {
            return Err(CallFailure::NoReply);
        }
        let status = reply.get(start..).and_then(<[u8]>::first_chunk);
        let status = status.and_then(|status| NfsStat3::from_number(u32::from_be_bytes(*status)));
        let failed = status.filter(|status| *status != NfsStat3::Ok);
        if let (Some(status), None) = (failed, repeated) {
            self.count_failure(status);
        }
        Ok(failed.map(Fault::from))
    }

    fn subjects(&self, name: &dyn Fn(&[u8], &[u8]) -> u64) -> ChangedNames {
        let arguments = &mut Decoder::new(self.call.arguments);
        let next = |arguments: &mut Decoder<'_>| {
            let place = arguments.get::<DirOpArgs<'_>>();
            place.map_or(0, |place| name(place.directory.as_bytes(), place.name.bytes()))
        };
        let (created, removed) = match self.procedure {
            NfsProcedure::Create | NfsProcedure::Mkdir | NfsProcedure::Symlink | NfsProcedure::Mknod => {
                (next(arguments), 0)
            }
            NfsProcedure::Link => {
                let _file = arguments.get::<NfsFh3>();
                (next(arguments), 0)
            }
            NfsProcedure::Remove | NfsProcedure::Rmdir => (0, next(arguments)),
            NfsProcedure::Rename => {
                let removed = next(arguments);
                (next(arguments), removed)
            }
            _ => (0, 0),
        };
        ChangedNames { created, removed }
    }
}

impl ProcedureCall<'_> {
    fn count_failure(&self, status: NfsStat3) {
        let special = match status {
            NfsStat3::Stale => Some(ServerCounter::ErrorsStale),
            NfsStat3::Badhandle => Some(ServerCounter::ErrorsBadHandle),
            NfsStat3::Acces | NfsStat3::Perm => Some(ServerCounter::ErrorsAccess),
            NfsStat3::Io | NfsStat3::Serverfault => {
                tracing::warn!(procedure = %self.procedure, status = status.number(), "the file system failed");
                Some(ServerCounter::ErrorsIo)
            }
            _ => None,
        };
        let counters = &self.service.counters;
        counters.count(ServerCounter::Errors);
        if let Some(special) = special {
            counters.count(special);
        }
    }
}

/// Executes one procedure and appends its results.
fn run(
    procedure: NfsProcedure,
    request: &mut NfsRequest<'_, '_>,
    arguments: &[u8],
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    match procedure {
        NfsProcedure::Null => decoded::<()>(arguments),
        NfsProcedure::Getattr => finish(inode::getattr(request, decoded(arguments)?), reply),
        NfsProcedure::Setattr => finish(inode::setattr(request, &decoded(arguments)?), reply),
        NfsProcedure::Lookup => finish(names::lookup(request, decoded(arguments)?), reply),
        NfsProcedure::Access => finish(inode::access(request, decoded(arguments)?), reply),
        NfsProcedure::Readlink => inode::readlink(request, decoded(arguments)?, reply),
        NfsProcedure::Read => data::read(request, decoded(arguments)?, reply),
        NfsProcedure::Write => finish(data::write(request, &decoded(arguments)?), reply),
        NfsProcedure::Create => finish(names::create(request, &decoded(arguments)?), reply),
        NfsProcedure::Mkdir => finish(names::mkdir(request, &decoded(arguments)?), reply),
        NfsProcedure::Symlink => finish(names::symlink(request, &decoded(arguments)?), reply),
        NfsProcedure::Mknod => finish(names::mknod(request, &decoded(arguments)?), reply),
        NfsProcedure::Remove => {
            finish(names::remove(request, decoded(arguments)?, NamePurpose::Remove), reply)
        }
        NfsProcedure::Rmdir => {
            finish(names::remove(request, decoded(arguments)?, NamePurpose::RemoveDirectory), reply)
        }
        NfsProcedure::Rename => finish(names::rename(request, &decoded(arguments)?), reply),
        NfsProcedure::Link => finish(names::link(request, &decoded(arguments)?), reply),
        NfsProcedure::Readdir => listing::readdir(request, &decoded(arguments)?, reply),
        NfsProcedure::ReaddirPlus => listing::readdirplus(request, &decoded(arguments)?, reply),
        NfsProcedure::Fsstat => finish(file_system::fsstat(request, decoded(arguments)?), reply),
        NfsProcedure::Fsinfo => finish(file_system::fsinfo(request, decoded(arguments)?), reply),
        NfsProcedure::Pathconf => finish(file_system::pathconf(request, decoded(arguments)?), reply),
        NfsProcedure::Commit => finish(data::commit(request, decoded(arguments)?), reply),
    }
}

fn decoded<'a, T: Decode<'a>>(arguments: &'a [u8]) -> Result<T, CallFailure> {
    decode_all(arguments).map_err(|_| CallFailure::GarbageArguments)
}

/// Appends results; a refusal carries no attributes, because the handle did not resolve.
fn finish<T: Encode, F: Encode + Default>(
    results: Results<T, F>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    stages::proceed(RequestStage::Encode);
    match results {
        Ok(results) => results.encode(reply),
        Err(Refusal::Fault(fault)) => NfsResult::<T, F>::Failed(fault.into(), F::default()).encode(reply),
        Err(Refusal::Call(failure)) => return Err(failure),
    }
    Ok(())
}

/// The results of a verb: `wire` converts the attributes to wire types, and `ok` combines them with
/// the value.
#[inline]
fn results<T, A, R, W>(
    result: OpResult<T, A>,
    wire: impl FnOnce(A) -> W,
    ok: impl FnOnce(T, W) -> R,
) -> NfsResult<R, W> {
    let attributes = wire(result.attributes);
    match result.value {
        Ok(value) => NfsResult::Ok(ok(value, attributes)),
        Err(fault) => NfsResult::Failed(fault.into(), attributes),
    }
}

/// The results of a query.
#[inline]
fn post_op<T, R>(result: PostOp<T>, ok: impl FnOnce(T, Option<Fattr>) -> R) -> NfsResult<R, Option<Fattr>> {
    results(result, |attributes| attributes.map(Fattr::from), ok)
}

/// The results of a change.
#[inline]
fn wcc<T, R>(result: WccOp<T>, ok: impl FnOnce(T, WccData) -> R) -> NfsResult<R, WccData> {
    results(result, WccData::from, ok)
}

/// The results of a change that arguments of this version make impossible. A read-only export takes
/// precedence.
fn not_begun<T>(target: &VerifiedHandle<'_>, fault: Fault) -> NfsResult<T, WccData> {
    let fault = target.writable().err().unwrap_or(fault);
    wcc(target.not_begun::<T>(fault), |value, _| value)
}

/// For procedures for which the RFC lists `NFS3ERR_INVAL` for any object of another type,
/// directories included.
fn on_data<T, A>(result: OpResult<T, A>) -> OpResult<T, A> {
    OpResult {
        value: result.value.map_err(|fault| match fault {
            Fault::Isdir => Fault::Inval,
            fault => fault,
        }),
        ..result
    }
}

/// A handle of this server as a wire type.
pub(crate) fn wire_handle(handle: &FileHandle) -> NfsFh3 {
    NfsFh3::new(handle.as_bytes()).expect("ours have at most 64 bytes")
}

/// The attributes to be set.
fn set_attributes(set: &Sattr) -> Result<SetAttributes, Fault> {
    Ok(SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time(set.atime)?,
        mtime: set_time(set.mtime)?,
    })
}

fn set_time(set: TimeHow) -> Result<SetTime, Fault> {
    Ok(match set {
        TimeHow::DontChange => SetTime::Keep,
        TimeHow::SetToServerTime => SetTime::ServerTime,
        TimeHow::SetToClientTime(time) => SetTime::Time(timestamp(time)?),
    })
}

/// A time from a client; one with a second or more of nanoseconds is invalid.
fn timestamp(time: curt_proto::nfs3::NfsTime) -> Result<Timestamp, Fault> {
    if time.nanoseconds >= 1_000_000_000 {
        return Err(Fault::Inval);
    }
    Ok(time.into())
}
