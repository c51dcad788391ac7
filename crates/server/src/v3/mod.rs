//! NFSv3: one file per procedure (RFC 1813 section 3.3).
//!
//! Each takes decoded arguments and returns an [`NfsResult`]; READ, READDIR and READDIRPLUS write
//! their results straight into the reply. Every failure whose handle resolves carries attributes. A
//! call that may block says so first
//! ([`Context::may_block`](curt_rpc::server::Context::may_block)). That includes every change,
//! because names and attributes are durable before the reply, but not an unstable WRITE, which only
//! reaches the page cache.

mod access;
mod commit;
mod create;
mod crossing;
mod fsinfo;
mod fsstat;
mod getattr;
pub(crate) mod interrupted;
mod link;
mod listing;
mod lookup;
mod mkdir;
mod mknod;
mod pathconf;
mod read;
mod readdir;
mod readdirplus;
mod readlink;
mod remove;
mod rename;
mod rmdir;
mod setattr;
mod symlink;
#[cfg(test)]
mod tests;
mod write;

use curt_proto::nfs3::{CreateOk, NfsProcedure, NfsResult, NfsStat3, WccData};
use curt_rpc::server::CallFailure;
use curt_trace::stages::{self, RequestStage};
use curt_vfs::WccResult;
use curt_xdr::{Decode, Encode, decode_all};

use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::status;

/// Runs one procedure and appends its results.
pub(crate) fn call(
    procedure: NfsProcedure,
    request: &mut NfsRequest<'_, '_>,
    arguments: &[u8],
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    match procedure {
        NfsProcedure::Null => decoded::<()>(arguments),
        NfsProcedure::Getattr => finish(getattr::run(request, decoded(arguments)?), reply),
        NfsProcedure::Setattr => finish(setattr::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Lookup => finish(lookup::run(request, decoded(arguments)?), reply),
        NfsProcedure::Access => finish(access::run(request, decoded(arguments)?), reply),
        NfsProcedure::Readlink => readlink::run(request, decoded(arguments)?, reply),
        NfsProcedure::Read => read::run(request, decoded(arguments)?, reply),
        NfsProcedure::Write => finish(write::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Create => finish(create::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Mkdir => finish(mkdir::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Symlink => finish(symlink::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Mknod => finish(mknod::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Remove => finish(remove::run(request, decoded(arguments)?), reply),
        NfsProcedure::Rmdir => finish(rmdir::run(request, decoded(arguments)?), reply),
        NfsProcedure::Rename => finish(rename::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Link => finish(link::run(request, &decoded(arguments)?), reply),
        NfsProcedure::Readdir => readdir::run(request, &decoded(arguments)?, reply),
        NfsProcedure::ReaddirPlus => readdirplus::run(request, &decoded(arguments)?, reply),
        NfsProcedure::Fsstat => finish(fsstat::run(request, decoded(arguments)?), reply),
        NfsProcedure::Fsinfo => finish(fsinfo::run(request, decoded(arguments)?), reply),
        NfsProcedure::Pathconf => finish(pathconf::run(request, decoded(arguments)?), reply),
        NfsProcedure::Commit => finish(commit::run(request, decoded(arguments)?), reply),
    }
}

fn decoded<'a, T: Decode<'a>>(arguments: &'a [u8]) -> Result<T, CallFailure> {
    decode_all(arguments).map_err(|_| CallFailure::GarbageArguments)
}

/// Appends an outcome; a refusal by status carries no attributes, because the handle did not
/// resolve.
fn finish<T: Encode, F: Encode + Default>(
    result: Result<NfsResult<T, F>, Refusal>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    stages::proceed(RequestStage::Encode);
    match result {
        Ok(outcome) => outcome.encode(reply),
        Err(Refusal::Status(status)) => NfsResult::<T, F>::Failed(status, F::default()).encode(reply),
        Err(Refusal::Call(failure)) => return Err(failure),
    }
    Ok(())
}

/// The results of CREATE, MKDIR, SYMLINK and MKNOD.
fn created(
    directory: &VerifiedHandle<'_>,
    name: &[u8],
    changed: WccResult<curt_vfs::CreatedNode>,
) -> NfsResult<CreateOk, WccData> {
    let wcc = directory.wcc(changed.before, changed.after);
    match changed.value {
        Ok(made) => {
            let (object, attributes) = directory.child_handle(&made.node, name);
            NfsResult::Ok(CreateOk {
                object: Some(object),
                attributes: Some(attributes),
                directory: wcc,
            })
        }
        Err(error) => NfsResult::Failed(status::of_error(error), wcc),
    }
}

/// The results of REMOVE and RMDIR.
fn removed(directory: &VerifiedHandle<'_>, changed: WccResult<()>) -> NfsResult<WccData, WccData> {
    let wcc = directory.wcc(changed.before, changed.after);
    match changed.value {
        Ok(()) => NfsResult::Ok(wcc),
        Err(error) => NfsResult::Failed(status::of_error(error), wcc),
    }
}

/// A failure of a change that was not begun, with the unchanged directory's attributes.
fn not_begun<T>(directory: &VerifiedHandle<'_>, status: NfsStat3) -> Result<NfsResult<T, WccData>, Refusal> {
    Ok(NfsResult::Failed(status, directory.unchanged_wcc()))
}
