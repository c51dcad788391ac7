//! READ, WRITE and COMMIT (RFC 1813 §3.3.6, 3.3.7, 3.3.21).

use std::{sync::Arc, time::Instant};

use curt_proto::nfs3::{
    CommitArguments, CommitOk, Fattr, NfsProcedure, NfsResult, ReadArguments, ReadFail, ReadOk, WccData,
    WriteHead, WriteOk, WriteVerifier,
};
use curt_rpc::client::{CallError, CallReply, ReplySink};
use curt_types::{Attributes, FileHandle, Stability, Wcc};
use curt_xdr::decode_all;

use super::{RESULTS_SMALL, answer, ask, invalid_value, nfs_fh3, read_results, send, send_with_sink};
use crate::{
    data::SharedBytes,
    protocol::{NfsReply, ReadData, ReadSink, RpcCaller, RpcClient, WriteReply},
};

/// What READ brings besides the data, in bytes: status, attributes, count, end, length.
const READ_HEAD: usize = 4 + 4 + 84 + 4 + 4 + 4;

/// Data shorter than this are copied out of their reply, whose buffer may be much larger, in bytes.
const COPY_MAX: usize = 64 * 1024;

/// A reply, of which only the data are looked at.
struct ReadReplyData {
    reply: CallReply,
    start: usize,
    length: usize,
}

impl AsRef<[u8]> for ReadReplyData {
    fn as_ref(&self) -> &[u8] {
        &self.reply.results()[self.start..self.start + self.length]
    }
}

/// Decodes results for a [`ReadSink`]; a malformed reply is left to the caller.
struct ReadResultsSink {
    sink: Arc<dyn ReadSink>,
    asked: usize,
    sent_at: Instant,
}

impl ReplySink for ReadResultsSink {
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

/// Whether a server may answer so: no more than was asked for, as many as it says, and none only at
/// the end.
fn makes_sense(length: usize, end: bool, said: u32, asked: usize) -> bool {
    length <= asked && usize::try_from(said) == Ok(length) && (length > 0 || end || asked == 0)
}

/// As [`read`], but the bytes may be used by `sink` where they are received: `None` if they were.
///
/// # Errors
/// As [`read`].
pub(super) fn read_to_sink(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
    offset: u64,
    count: u32,
    sink: Option<&Arc<dyn ReadSink>>,
) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
    // Not later than the request is: what was known before is never taken for newer than the reply.
    let sink = sink.map(|sink| {
        Arc::new(ReadResultsSink {
            sink: Arc::clone(sink),
            asked: usize::try_from(count).unwrap_or(usize::MAX),
            sent_at: wire.now(),
        }) as Arc<dyn ReplySink>
    });
    send_read(wire, asker, file, offset, count, sink.as_ref())
}

/// READ: up to `count` bytes of a file. `about` is the file.
///
/// # Errors
/// No answer, or one that makes no sense: more bytes than were asked for, or none though the file
/// does not end.
pub fn read(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
    offset: u64,
    count: u32,
) -> Result<NfsReply<ReadData, Option<Attributes>>, CallError> {
    let answer = send_read(wire, asker, file, offset, count, None)?;
    Ok(answer.expect("nobody was there to take it"))
}

fn send_read(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
    offset: u64,
    count: u32,
    taker: Option<&Arc<dyn ReplySink>>,
) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
    let arguments = ReadArguments {
        file: nfs_fh3(file)?,
        offset,
        count,
    };
    let asked = usize::try_from(count).unwrap_or(usize::MAX);
    let results_max = READ_HEAD.saturating_add(asked).saturating_add(3);
    let incoming = send_with_sink(
        wire,
        asker,
        NfsProcedure::Read,
        &arguments,
        &[],
        results_max,
        taker,
    )?;
    if incoming.reply.was_consumed() {
        return Ok(None);
    }
    let results = incoming.reply.results();
    let outcome: NfsResult<ReadOk<'_>, ReadFail> = read_results(wire, NfsProcedure::Read, results)?;
    let success = |ok: ReadOk<'_>| {
        (
            (ok.data.bytes().len(), ok.eof, ok.count),
            ok.attributes.map(Attributes::from),
        )
    };
    let failure = |failed: ReadFail| failed.attributes.map(Attributes::from);
    let NfsReply {
        sent_at,
        lost_at,
        outcome,
        attributes: about,
    } = answer(incoming.sent_at, outcome, success, failure);
    let (length, end) = match outcome {
        Err(status) => {
            return Ok(Some(NfsReply {
                sent_at,
                lost_at,
                outcome: Err(status),
                attributes: about,
            }));
        }
        Ok((length, end, said)) => {
            if !makes_sense(length, end, said, asked) {
                return Err(invalid_value(wire, NfsProcedure::Read, "READ3resok.count", said));
            }
            (length, end)
        }
    };
    // The data come last and are padded to a multiple of four.
    let start = results.len() - length.next_multiple_of(4);
    let data = ReadReplyData {
        reply: incoming.reply,
        start,
        length,
    };
    let bytes = if length < COPY_MAX {
        SharedBytes::new(data.as_ref().to_vec())
    } else {
        SharedBytes::new(data)
    };
    Ok(Some(NfsReply {
        sent_at,
        lost_at,
        outcome: Ok(ReadData { bytes, end }),
        attributes: about,
    }))
}

/// WRITE: puts `bytes` at `offset`, as safely as `stability` says or safer. `about` is the file.
///
/// # Errors
/// No answer, or one that makes no sense: more bytes than were sent, or none.
pub fn write(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
    offset: u64,
    stability: Stability,
    bytes: &[u8],
) -> Result<NfsReply<WriteReply, Wcc>, CallError> {
    let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let head = WriteHead {
        file: nfs_fh3(file)?,
        offset,
        count,
        stable: stability.into(),
    };
    let incoming = send(wire, asker, NfsProcedure::Write, &head, bytes, RESULTS_SMALL)?;
    let outcome: NfsResult<WriteOk, WccData> =
        read_results(wire, NfsProcedure::Write, incoming.reply.results())?;
    if let NfsResult::Ok(ok) = &outcome
        && (ok.count > count || (ok.count == 0 && count > 0))
    {
        return Err(invalid_value(
            wire,
            NfsProcedure::Write,
            "WRITE3resok.count",
            ok.count,
        ));
    }
    let success = |ok: WriteOk| {
        let written = WriteReply {
            count: ok.count,
            stability: ok.committed.into(),
            verifier: ok.verifier,
        };
        (written, ok.wcc.into())
    };
    Ok(answer(incoming.sent_at, outcome, success, Wcc::from))
}

/// COMMIT: has all of a file that was written UNSTABLE on disk. `about` is the file.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn commit(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
) -> Result<NfsReply<WriteVerifier, Wcc>, CallError> {
    let arguments = CommitArguments {
        file: nfs_fh3(file)?,
        offset: 0,
        count: 0,
    };
    let success = |ok: CommitOk| (ok.verifier, ok.wcc.into());
    ask(
        wire,
        asker,
        NfsProcedure::Commit,
        &arguments,
        success,
        |wcc: WccData| wcc.into(),
    )
}

const _: () = assert!(
    READ_HEAD == 4 + 4 + Fattr::ENCODED + 12,
    "attributes are 84 bytes on the wire"
);
