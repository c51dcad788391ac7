//! NFS version 3 (RFC 1813): one function per procedure, and [`NfsV3`], which carries out a
//! client's intents with them.
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

use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::Arc,
    time::Instant,
};

use curt_proto::nfs3::{NfsFh3, NfsProcedure, NfsResult, NfsStat3, PROGRAM, VERSION, WriteVerifier};
use curt_rpc::client::{CallError, ReplySink};
use curt_types::{Access, Attributes, Fault, FileHandle, FileKind, SetAttributes, SetTime, Stability, Wcc};
use curt_xdr::{Decode, DecodeError, Encode, decode_all};

use super::{
    Answer, CreateRequest, FsstatReply, LinkAttributes, ListRequest, LookupReply, MknodType, NfsReply,
    OpenCaller, Protocol, ReadData, ReadSink, ReaddirPage, RenameAttributes, RpcCaller, RpcClient,
    WriteReply,
    rpc_client::{CallResult, CallSpec},
};

pub use file_system::{fsinfo, fsstat, pathconf};
pub use listing::{readdir, readdirplus};
pub use names::{create, link, lookup, mkdir, mknod, remove, rename, rmdir, symlink};
pub use objects::{access, getattr, null, readlink, setattr};
pub use transfer::{commit, read, write};

/// An object made by CREATE, MKDIR, SYMLINK or MKNOD; who gets no handle has to look the name up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateReply {
    /// Its handle, if the server gave it.
    pub handle: Option<FileHandle>,
    /// Its attributes, if the server gave them.
    pub attributes: Option<Attributes>,
}

/// How CREATE treats a name that exists (RFC 1813 §3.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateSemantics {
    /// Take what is there, set the attributes.
    Unchecked(SetAttributes),
    /// Fail with EXIST.
    Guarded(SetAttributes),
    /// Fail with EXIST unless the same verifier made it: a repeated call succeeds. Attributes have
    /// to be set afterwards.
    Exclusive([u8; 8]),
}

/// NFS version 3 over a connection.
#[derive(Debug)]
pub struct NfsV3 {
    rpc: Arc<RpcClient>,
}

impl NfsV3 {
    /// Over this connection.
    #[must_use]
    pub fn new(rpc: Arc<RpcClient>) -> Arc<Self> {
        Arc::new(Self { rpc })
    }

    /// Makes a file that must be new: the server keeps a verifier with it, by which it knows a call
    /// that is sent twice. The verifier is kept in attributes, which are set afterwards.
    fn create_exclusive(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        set: SetAttributes,
    ) -> Answer<LookupReply, Wcc> {
        // Random, and different for each call: the keys of RandomState are the process's own.
        let verifier = RandomState::new().hash_one((directory.as_bytes(), name, self.rpc.now()));
        let how = CreateSemantics::Exclusive(verifier.to_be_bytes());
        let made = create(&self.rpc, caller, directory, name, &how)?;
        if made.outcome == Err(Fault::Notsupp) {
            let made = create(&self.rpc, caller, directory, name, &CreateSemantics::Guarded(set))?;
            return self.look_up_made(caller, directory, name, made);
        }
        let mut made = self.look_up_made(caller, directory, name, made)?;
        // A second copy is told of no failure of the first.
        made.lost_at = None;
        if let Ok(found) = &mut made.outcome {
            // The server kept the verifier in the times.
            let set = SetAttributes {
                atime: SetTime::ServerTime,
                mtime: SetTime::ServerTime,
                ..set
            };
            let answer = setattr(&self.rpc, caller, &found.handle, &set, None)?;
            match answer.outcome {
                Ok(()) => found.attributes = answer.attributes.after.or(found.attributes),
                // The file was made all the same: nothing is known of the directory.
                Err(fault) => {
                    return Ok(NfsReply {
                        outcome: Err(fault),
                        attributes: Wcc::default(),
                        ..made
                    });
                }
            }
        }
        Ok(made)
    }

    /// Who gets no handle of what it made has to look the name up.
    fn look_up_made(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        made: NfsReply<CreateReply, Wcc>,
    ) -> Answer<LookupReply, Wcc> {
        let outcome = match made.outcome {
            Ok(CreateReply {
                handle: Some(handle),
                attributes,
            }) => Ok(LookupReply { handle, attributes }),
            Ok(CreateReply { handle: None, .. }) => lookup(&self.rpc, caller, directory, name)?.outcome,
            Err(fault) => Err(fault),
        };
        Ok(NfsReply {
            sent_at: made.sent_at,
            lost_at: made.lost_at,
            outcome,
            attributes: made.attributes,
        })
    }
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
        lookup(&self.rpc, caller, directory, name)
    }

    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()> {
        getattr(&self.rpc, caller, object)
    }

    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>> {
        let answer = access(&self.rpc, caller, object, rights.bits())?;
        Ok(NfsReply {
            sent_at: answer.sent_at,
            lost_at: None,
            outcome: answer.outcome.map(Access::from_bits),
            attributes: answer.attributes,
        })
    }

    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc> {
        setattr(&self.rpc, caller, object, set, None)
    }

    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>> {
        readlink(&self.rpc, caller, link)
    }

    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<LookupReply, Wcc> {
        let set = SetAttributes {
            mode: Some(new.mode),
            ..SetAttributes::default()
        };
        let rpc = &self.rpc;
        let special = |node| mknod(rpc, caller, directory, name, node, &set);
        let made = match new.kind {
            FileKind::Regular if new.is_exclusive => {
                return self.create_exclusive(caller, directory, name, set);
            }
            // Guarded, not unchecked: a file that is there already must not be given this mode.
            FileKind::Regular => create(rpc, caller, directory, name, &CreateSemantics::Guarded(set)),
            FileKind::Directory => mkdir(rpc, caller, directory, name, &set),
            FileKind::Symlink => symlink(rpc, caller, directory, name, new.text, &set),
            FileKind::BlockDevice => special(MknodType::Block(new.device)),
            FileKind::CharacterDevice => special(MknodType::Character(new.device)),
            FileKind::Socket => special(MknodType::Socket),
            FileKind::Fifo => special(MknodType::Fifo),
        };
        self.look_up_made(caller, directory, name, made?)
    }

    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        if is_directory {
            rmdir(&self.rpc, caller, directory, name)
        } else {
            remove(&self.rpc, caller, directory, name)
        }
    }

    fn rename(
        &self,
        caller: RpcCaller<'_>,
        from: (&FileHandle, &[u8]),
        to: (&FileHandle, &[u8]),
    ) -> Answer<(), RenameAttributes> {
        rename(&self.rpc, caller, from, to)
    }

    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes> {
        link(&self.rpc, caller, file, directory, name)
    }

    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        let ListRequest {
            cookie,
            verifier,
            size,
            plus,
        } = request;
        let list = if plus { readdirplus } else { readdir };
        list(&self.rpc, caller, directory, cookie, verifier, size)
    }

    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        transfer::read_to_sink(&self.rpc, open.rpc(), file, range.start, count, sink)
    }

    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        offset: u64,
        stability: Stability,
        bytes: &[u8],
    ) -> Answer<WriteReply, Wcc> {
        write(&self.rpc, open.rpc(), file, offset, stability, bytes)
    }

    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc> {
        commit(&self.rpc, open.rpc(), file)
    }

    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>> {
        fsstat(&self.rpc, caller, object)
    }
}

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
