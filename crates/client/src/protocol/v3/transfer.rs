//! READ and WRITE (RFC 1813, sections 3.3.6 and 3.3.7).

use std::{ops::Range, sync::Arc, time::Instant};

use curt_proto::nfs3::{
    Fattr, NfsProcedure, NfsResult, ReadArguments, ReadFail, ReadOk, WccData, WriteHead, WriteOk,
};
use curt_rpc::client::{CallError, CallReply, ReplySink};
use curt_types::{Attributes, FileHandle, Stability, Wcc};
use curt_xdr::decode_all;

use super::{
    Answer, NfsReply, NfsV3, RESULTS_SMALL, ReadData, ReadSink, RpcCaller, WriteReply, attributes, nfs_fh3,
    reply, wcc,
};
use crate::data::shared_bytes::SharedBytes;

/// Bytes in READ results besides the data: status, attributes, count, eof, length.
const READ_HEAD: usize = 4 + 4 + 84 + 4 + 4 + 4;

/// Data shorter than this, in bytes, are copied out of the receive buffer, which may be much
/// larger.
const COPY_MAX: usize = 64 * 1024;

/// The data of a reply, in the reply's buffer.
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

/// Whether a READ result is valid: not longer than requested, with a matching count, and empty only
/// at end of file.
fn makes_sense(length: usize, end: bool, said: u32, asked: usize) -> bool {
    length <= asked && usize::try_from(said) == Ok(length) && (length > 0 || end || asked == 0)
}

impl NfsV3 {
    /// READ; the data are `None` if `sink` has taken them in the receive buffer. A result that is
    /// longer than requested, or empty before end of file, is malformed.
    pub(super) fn read_to_sink(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let asked = usize::try_from(count).unwrap_or(usize::MAX);
        // A time not later than that of sending: older cached data never count as newer than the
        // reply.
        let sink = sink.map(|sink| {
            Arc::new(ReadResultsSink { sink: Arc::clone(sink), asked, sent_at: self.rpc.now() })
                as Arc<dyn ReplySink>
        });
        let arguments = ReadArguments { file: nfs_fh3(file)?, offset: range.start, count };
        let (procedure, sink) = (NfsProcedure::Read, sink.as_ref());
        let results_max = READ_HEAD.saturating_add(asked).saturating_add(3);
        let incoming = self.send_with_sink(caller, procedure, &arguments, &[], results_max, sink)?;
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
                Ok(ReadData { bytes: data(incoming.reply, length), end })
            }
            Ok((_, _, said)) => return Err(self.invalid_value(procedure, "READ3resok.count", said)),
            Err(fault) => Err(fault),
        };
        Ok(Some(NfsReply { sent_at, lost_at, outcome, attributes }))
    }

    /// WRITE. A reply with a count of zero or above the number of bytes sent is malformed.
    pub(super) fn write_bytes(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        offset: u64,
        stability: Stability,
        bytes: &[u8],
    ) -> Answer<WriteReply, Wcc> {
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let head = WriteHead { file: nfs_fh3(file)?, offset, count, stable: stability.into() };
        let procedure = NfsProcedure::Write;
        let incoming = self.send(caller, procedure, &head, bytes, RESULTS_SMALL)?;
        let outcome: NfsResult<WriteOk, WccData> = self.results(procedure, incoming.reply.results())?;
        if let NfsResult::Ok(ok) = &outcome
            && (ok.count > count || (ok.count == 0 && count > 0))
        {
            return Err(self.invalid_value(procedure, "WRITE3resok.count", ok.count));
        }
        let written = |ok: WriteOk| {
            let written =
                WriteReply { count: ok.count, stability: ok.committed.into(), verifier: ok.verifier.into() };
            (written, ok.wcc.into())
        };
        Ok(reply(&incoming, outcome, written, wcc))
    }
}

/// The data of a READ reply: at the end of the results, padded to a multiple of four bytes.
fn data(reply: CallReply, length: usize) -> SharedBytes {
    let start = reply.results().len() - length.next_multiple_of(4);
    let data = ReadReplyData { reply, start, length };
    if length < COPY_MAX { SharedBytes::new(data.as_ref().to_vec()) } else { SharedBytes::new(data) }
}

const _: () = assert!(READ_HEAD == 4 + 4 + Fattr::ENCODED + 12, "attributes are 84 bytes on the wire");
