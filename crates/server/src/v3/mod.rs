//! NFSv3: one file per procedure (RFC 1813 section 3.3).
//!
//! Each takes decoded arguments and returns an [`Outcome`]; READ, READDIR and READDIRPLUS write their results straight
//! into the reply. Every failure whose handle resolves carries attributes. A call that may block says so first
//! ([`Context::may_block`](curt_rpc::server::Context::may_block)). That includes every change, because names and attributes are
//! durable before the reply, but not an unstable WRITE, which only reaches the page cache.

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

use curt_proto::nfs3::{Created, Outcome, Procedure, Status, WccData};
use curt_rpc::server::CallFailure;
use curt_trace::stages::{self, Stage};
use curt_vfs::Changed;
use curt_xdr::{Decode, Encode, decode_all};

use crate::request::{Refusal, Request, Target};
use crate::status;

/// Runs one procedure and appends its results.
pub(crate) fn call(
    procedure: Procedure,
    request: &mut Request<'_, '_>,
    arguments: &[u8],
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    match procedure {
        Procedure::Null => decoded::<()>(arguments),
        Procedure::Getattr => finish(getattr::run(request, decoded(arguments)?), reply),
        Procedure::Setattr => finish(setattr::run(request, &decoded(arguments)?), reply),
        Procedure::Lookup => finish(lookup::run(request, decoded(arguments)?), reply),
        Procedure::Access => finish(access::run(request, decoded(arguments)?), reply),
        Procedure::Readlink => readlink::run(request, decoded(arguments)?, reply),
        Procedure::Read => read::run(request, decoded(arguments)?, reply),
        Procedure::Write => finish(write::run(request, &decoded(arguments)?), reply),
        Procedure::Create => finish(create::run(request, &decoded(arguments)?), reply),
        Procedure::Mkdir => finish(mkdir::run(request, &decoded(arguments)?), reply),
        Procedure::Symlink => finish(symlink::run(request, &decoded(arguments)?), reply),
        Procedure::Mknod => finish(mknod::run(request, &decoded(arguments)?), reply),
        Procedure::Remove => finish(remove::run(request, decoded(arguments)?), reply),
        Procedure::Rmdir => finish(rmdir::run(request, decoded(arguments)?), reply),
        Procedure::Rename => finish(rename::run(request, &decoded(arguments)?), reply),
        Procedure::Link => finish(link::run(request, &decoded(arguments)?), reply),
        Procedure::Readdir => readdir::run(request, &decoded(arguments)?, reply),
        Procedure::ReaddirPlus => readdirplus::run(request, &decoded(arguments)?, reply),
        Procedure::Fsstat => finish(fsstat::run(request, decoded(arguments)?), reply),
        Procedure::Fsinfo => finish(fsinfo::run(request, decoded(arguments)?), reply),
        Procedure::Pathconf => finish(pathconf::run(request, decoded(arguments)?), reply),
        Procedure::Commit => finish(commit::run(request, decoded(arguments)?), reply),
    }
}

fn decoded<'a, T: Decode<'a>>(arguments: &'a [u8]) -> Result<T, CallFailure> {
    decode_all(arguments).map_err(|_| CallFailure::GarbageArguments)
}

/// Appends an outcome; a refusal by status carries no attributes, because the handle did not resolve.
fn finish<T: Encode, F: Encode + Default>(
    result: Result<Outcome<T, F>, Refusal>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    stages::proceed(Stage::Encode);
    match result {
        Ok(outcome) => outcome.encode(reply),
        Err(Refusal::Status(status)) => Outcome::<T, F>::Failed(status, F::default()).encode(reply),
        Err(Refusal::Call(failure)) => return Err(failure),
    }
    Ok(())
}

/// The results of CREATE, MKDIR, SYMLINK and MKNOD.
fn created(
    directory: &Target<'_>,
    name: &[u8],
    changed: Changed<curt_vfs::Created>,
) -> Outcome<Created, WccData> {
    let wcc = directory.wcc(changed.before, changed.after);
    match changed.value {
        Ok(made) => {
            let (object, attributes) = directory.introduce(&made.node, name);
            Outcome::Ok(Created {
                object: Some(object),
                attributes: Some(attributes),
                directory: wcc,
            })
        }
        Err(error) => Outcome::Failed(status::of_error(error), wcc),
    }
}

/// The results of REMOVE and RMDIR.
fn removed(directory: &Target<'_>, changed: Changed<()>) -> Outcome<WccData, WccData> {
    let wcc = directory.wcc(changed.before, changed.after);
    match changed.value {
        Ok(()) => Outcome::Ok(wcc),
        Err(error) => Outcome::Failed(status::of_error(error), wcc),
    }
}

/// A failure of a change that was not begun, with the unchanged directory's attributes.
fn not_begun<T>(directory: &Target<'_>, status: Status) -> Result<Outcome<T, WccData>, Refusal> {
    Ok(Outcome::Failed(status, directory.unchanged()))
}
