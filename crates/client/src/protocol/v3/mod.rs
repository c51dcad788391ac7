//! NFS version 3 (RFC 1813): one function per procedure.
//!
//! Owns encoding arguments and decoding results. Each function sends one request, repeats it while
//! the server answers JUKEBOX, and returns the results as plain values, failures included. A reply
//! that makes no sense is [`CallError::Malformed`], with one log line. Must not know the purpose of
//! a request.

mod file_system;
mod listing;
mod names;
mod objects;
mod transfer;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Instant};

use curt_proto::nfs3::{NfsFh3, NfsProcedure, NfsResult, NfsStat3, PROGRAM, VERSION};
use curt_rpc::client::{CallError, ReplySink};
use curt_types::{Fault, FileHandle};
use curt_xdr::{Decode, DecodeError, Encode, decode_all};

use super::{
    NfsReply, RpcCaller, RpcClient,
    rpc_client::{CallResult, CallSpec},
};

pub use file_system::{fsinfo, fsstat, pathconf};
pub use listing::{readdir, readdirplus};
pub use names::{create, link, lookup, mkdir, mknod, remove, rename, rmdir, symlink};
pub use objects::{access, getattr, null, readlink, setattr};
pub use transfer::{ReadData, ReadSink, commit, read, read_to_sink, write};

/// Results without data, names or targets are never longer, in bytes: two handles and four sets of
/// attributes.
const RESULTS_SMALL: usize = 1024;

/// Results with one name or target are never longer, in bytes.
const RESULTS_NAME: usize = 66 * 1024;

fn send(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    procedure: NfsProcedure,
    arguments: &(dyn Encode + Sync),
    bulk: &[u8],
    results_max: usize,
) -> Result<CallResult, CallError> {
    send_with_sink(wire, asker, procedure, arguments, bulk, results_max, None)
}

/// As [`send`], but the results may be processed in the receive buffer.
fn send_with_sink(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    procedure: NfsProcedure,
    arguments: &(dyn Encode + Sync),
    bulk: &[u8],
    results_max: usize,
    taker: Option<&Arc<dyn ReplySink>>,
) -> Result<CallResult, CallError> {
    let outgoing = CallSpec {
        program: PROGRAM,
        version: VERSION,
        procedure: procedure.number(),
        arguments,
        bulk,
        results_max,
        jukebox: NfsStat3::Jukebox.number(),
        sink: taker,
    };
    wire.call(asker, outgoing)
}

/// Sends a request whose results are small, and makes an answer of them: `success` of what comes
/// with OK, `failure` of what comes with any other status.
fn ask<T, F, R, A>(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    procedure: NfsProcedure,
    arguments: &(dyn Encode + Sync),
    success: impl FnOnce(T) -> (R, A),
    failure: impl FnOnce(F) -> A,
) -> Result<NfsReply<R, A>, CallError>
where
    T: for<'a> Decode<'a>,
    F: for<'a> Decode<'a>,
{
    let incoming = send(wire, asker, procedure, arguments, &[], RESULTS_SMALL)?;
    let outcome: NfsResult<T, F> = read_results(wire, procedure, incoming.reply.results())?;
    Ok(NfsReply {
        lost_at: incoming.lost_at,
        ..answer(incoming.sent_at, outcome, success, failure)
    })
}

fn read_results<'a, T: Decode<'a>>(
    wire: &RpcClient,
    procedure: NfsProcedure,
    results: &'a [u8],
) -> Result<T, CallError> {
    decode_all(results).map_err(|error| wire.malformed(procedure.name(), error))
}

fn answer<T, F, R, A>(
    sent_at: Instant,
    outcome: NfsResult<T, F>,
    success: impl FnOnce(T) -> (R, A),
    failure: impl FnOnce(F) -> A,
) -> NfsReply<R, A> {
    match outcome.into_result() {
        Ok(value) => {
            let (result, about) = success(value);
            NfsReply {
                sent_at,
                lost_at: None,
                outcome: Ok(result),
                attributes: about,
            }
        }
        Err((status, failed)) => NfsReply {
            sent_at,
            lost_at: None,
            outcome: Err(status.into()),
            attributes: failure(failed),
        },
    }
}

/// The answer to a request that cannot be sent, as a server would give it.
fn refusal<R, A: Default>(wire: &RpcClient, fault: Fault) -> NfsReply<R, A> {
    NfsReply {
        sent_at: wire.now(),
        lost_at: None,
        outcome: Err(fault),
        attributes: A::default(),
    }
}

/// A handle as this version's messages carry it. No server of this version gives a longer one, and
/// none could decode it.
fn nfs_fh3(handle: &FileHandle) -> Result<NfsFh3, CallError> {
    NfsFh3::new(handle.as_bytes()).map_err(|_| CallError::GarbageArguments)
}

/// A value that its type allows and its place does not.
fn invalid_value(wire: &RpcClient, procedure: NfsProcedure, name: &'static str, value: u32) -> CallError {
    wire.malformed(procedure.name(), DecodeError::BadValue { name, value })
}
