//! READ, WRITE and COMMIT (RFC 1813 §3.3.6, 3.3.7, 3.3.21).

use std::{sync::Arc, time::Instant};

use curt_proto::nfs3::{
    CommitArguments, CommitOk, Fattr, FileHandle, Outcome, Procedure, ReadArguments, ReadFailed, ReadOk,
    WccData, WriteHead, WriteOk, WriteVerifier,
};
use curt_rpc::client::{CallError, Reply, Taker};
use curt_xdr::decode_all;

use super::{RESULTS_SMALL, answer, ask, nonsense, read_results, send, send_taken};
use crate::{
    data::Shared,
    plan::{Answer, Asker, Attributes, Stability, Wcc, Wire, Written},
};

/// What READ brings besides the data, in bytes: status, attributes, count, end, length.
const READ_HEAD: usize = 4 + 4 + 84 + 4 + 4 + 4;

/// Data shorter than this are copied out of their reply, whose buffer may be much larger, in bytes.
const COPY_MAX: usize = 64 * 1024;

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The bytes: as many as were asked for, or fewer; none only at the end.
    pub bytes: Shared,
    /// The file ends behind them.
    pub end: bool,
}

/// A reply, of which only the data are looked at.
struct ReplyData {
    reply: Reply,
    start: usize,
    length: usize,
}

impl AsRef<[u8]> for ReplyData {
    fn as_ref(&self) -> &[u8] {
        &self.reply.results()[self.start..self.start + self.length]
    }
}

/// Processes a READ's bytes in the receive buffer.
pub trait ReadTaker: Send + Sync {
    /// `bytes` were read; `end` says whether the file ends behind them. Returns `false` to leave them to the caller. As
    /// [`Taker::take`]: on another thread, which must not be kept waiting.
    fn take(&self, about: Option<&Attributes>, sent_at: Instant, bytes: &[u8], end: bool) -> bool;
}

/// Decodes results for a [`ReadTaker`]; a malformed reply is left to the caller.
struct ResultsTaker<T> {
    by: Arc<T>,
    asked: usize,
    sent_at: Instant,
}

impl<T: ReadTaker> Taker for ResultsTaker<T> {
    fn take(&self, results: &[u8]) -> bool {
        let Ok(outcome) = decode_all::<Outcome<ReadOk<'_>, ReadFailed>>(results) else {
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
        self.by.take(about.as_ref(), self.sent_at, bytes, ok.eof)
    }
}

/// Whether a server may answer so: no more than was asked for, as many as it says, and none only at the end.
fn makes_sense(length: usize, end: bool, said: u32, asked: usize) -> bool {
    length <= asked && usize::try_from(said) == Ok(length) && (length > 0 || end || asked == 0)
}

/// As [`read`], but the bytes may be used where they are received: `None` if they were.
///
/// # Errors
/// As [`read`].
pub fn read_by<T: ReadTaker + 'static>(
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
    (offset, count): (u64, u32),
    by: &Arc<T>,
) -> Result<Option<Answer<ReadData, Option<Attributes>>>, CallError> {
    // Not later than the request is: what was known before is never taken for newer than the reply.
    let taker: Arc<dyn Taker> = Arc::new(ResultsTaker {
        by: Arc::clone(by),
        asked: usize::try_from(count).unwrap_or(usize::MAX),
        sent_at: wire.now(),
    });
    ask_to_read(wire, asker, file, (offset, count), Some(&taker))
}

/// READ: up to `count` bytes of a file. `about` is the file.
///
/// # Errors
/// No answer, or one that makes no sense: more bytes than were asked for, or none though the file does not end.
pub fn read(
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
    offset: u64,
    count: u32,
) -> Result<Answer<ReadData, Option<Attributes>>, CallError> {
    let answer = ask_to_read(wire, asker, file, (offset, count), None)?;
    Ok(answer.expect("nobody was there to take it"))
}

fn ask_to_read(
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
    (offset, count): (u64, u32),
    taker: Option<&Arc<dyn Taker>>,
) -> Result<Option<Answer<ReadData, Option<Attributes>>>, CallError> {
    let arguments = ReadArguments {
        file: *file,
        offset,
        count,
    };
    let asked = usize::try_from(count).unwrap_or(usize::MAX);
    let results_max = READ_HEAD.saturating_add(asked).saturating_add(3);
    let bounds: (&[u8], _, _) = (&[], results_max, taker);
    let incoming = send_taken(wire, asker, Procedure::Read, &arguments, bounds)?;
    if incoming.reply.was_taken() {
        return Ok(None);
    }
    let results = incoming.reply.results();
    let outcome: Outcome<ReadOk<'_>, ReadFailed> = read_results(wire, Procedure::Read, results)?;
    let success = |ok: ReadOk<'_>| {
        (
            (ok.data.bytes().len(), ok.eof, ok.count),
            ok.attributes.map(Attributes::from),
        )
    };
    let failure = |failed: ReadFailed| failed.attributes.map(Attributes::from);
    let Answer {
        sent_at,
        repeated_at,
        outcome,
        about,
    } = answer(incoming.sent_at, outcome, success, failure);
    let (length, end) = match outcome {
        Err(status) => {
            return Ok(Some(Answer {
                sent_at,
                repeated_at,
                outcome: Err(status),
                about,
            }));
        }
        Ok((length, end, said)) => {
            if !makes_sense(length, end, said, asked) {
                return Err(nonsense(wire, Procedure::Read, "READ3resok.count", said));
            }
            (length, end)
        }
    };
    // The data come last and are padded to a multiple of four.
    let start = results.len() - length.next_multiple_of(4);
    let data = ReplyData {
        reply: incoming.reply,
        start,
        length,
    };
    let bytes = if length < COPY_MAX {
        Shared::new(data.as_ref().to_vec())
    } else {
        Shared::new(data)
    };
    Ok(Some(Answer {
        sent_at,
        repeated_at,
        outcome: Ok(ReadData { bytes, end }),
        about,
    }))
}

/// WRITE: puts `bytes` at `offset`, as safely as `stability` says or safer. `about` is the file.
///
/// # Errors
/// No answer, or one that makes no sense: more bytes than were sent, or none.
pub fn write(
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
    offset: u64,
    stability: Stability,
    bytes: &[u8],
) -> Result<Answer<Written, Wcc>, CallError> {
    let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let head = WriteHead {
        file: *file,
        offset,
        count,
        stability: stability.into(),
    };
    let incoming = send(wire, asker, Procedure::Write, &head, bytes, RESULTS_SMALL)?;
    let outcome: Outcome<WriteOk, WccData> = read_results(wire, Procedure::Write, incoming.reply.results())?;
    if let Outcome::Ok(ok) = &outcome
        && (ok.count > count || (ok.count == 0 && count > 0))
    {
        return Err(nonsense(wire, Procedure::Write, "WRITE3resok.count", ok.count));
    }
    let success = |ok: WriteOk| {
        let written = Written {
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
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
) -> Result<Answer<WriteVerifier, Wcc>, CallError> {
    let arguments = CommitArguments {
        file: *file,
        offset: 0,
        count: 0,
    };
    let success = |ok: CommitOk| (ok.verifier, ok.wcc.into());
    ask(
        wire,
        asker,
        Procedure::Commit,
        &arguments,
        success,
        |wcc: WccData| wcc.into(),
    )
}

const _: () = assert!(
    READ_HEAD == 4 + 4 + Fattr::ENCODED + 12,
    "attributes are 84 bytes on the wire"
);
