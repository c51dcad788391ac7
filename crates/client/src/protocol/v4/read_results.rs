//! The results of READ, alone or together with other operations.

use std::{sync::Arc, time::Instant};

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, NfsStat4, ReadOk4};
use curt_types::Attributes;
use curt_xdr::DecodeError;

use super::{
    results::{CompoundResultReader, CompoundSink, DecodedReply, fault, optional, outcome},
    session::SessionGeneration,
};
use crate::{
    data::shared_bytes::SharedBytes,
    protocol::{ReadData, ReadSink, read_data::is_valid_length},
};

/// The result of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// This number of bytes, which reach the end of the file or not.
    Data { length: usize, end: bool },
    /// The open does not allow reading.
    Mode,
}

pub(super) fn read_results(
    results: &mut CompoundResultReader<'_>,
    asked: usize,
) -> DecodedReply<ReadOutcome, Option<Attributes>> {
    let about = results.attributes()?;
    let ok = match outcome(results.operations.next::<ReadOk4<'_>>(Nfs4Operation::Read))? {
        Ok(ok) => ok,
        Err(NfsStat4::Openmode) => return Ok((Ok(ReadOutcome::Mode), about)),
        Err(status) => return Ok((Err(fault(status)), about)),
    };
    let length = ok.data.bytes().len();
    // The data are found from the end of the reply.
    let is_last = results.operations.decoder().remaining().is_empty();
    if !is_last || !is_valid_length(length, ok.eof, asked) {
        let value = u32::try_from(length).unwrap_or(u32::MAX);
        return Err(DecodeError::BadValue { name: "READ4resok.data", value });
    }
    Ok((Ok(ReadOutcome::Data { length, end: ok.eof }), about))
}

/// The number of bytes that a READ asks for, as a length.
pub(super) fn as_length(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// The data of a READ that another operation did not need. Its failure says nothing: the reader
/// asks again.
pub(super) fn decode_optional_read(
    results: &mut CompoundResultReader<'_>,
    asked: u32,
) -> Result<Option<ReadData>, DecodeError> {
    let ok: Option<ReadOk4<'_>> = optional(results.operations.next(Nfs4Operation::Read))?;
    let ok = ok.filter(|ok| is_valid_length(ok.data.bytes().len(), ok.eof, as_length(asked)));
    Ok(ok.map(|ok| ReadData { bytes: SharedBytes::new(ok.data.bytes().to_vec()), end: ok.eof }))
}

/// Decodes results for a [`ReadSink`]; anything but data is left to the caller.
pub(super) struct ReadResultsSink {
    pub(super) sink: Arc<dyn ReadSink>,
    pub(super) asked: usize,
    pub(super) sent_at: Instant,
}

impl CompoundSink for ReadResultsSink {
    fn consume(&self, results: CompoundResults<'_>) -> bool {
        let results = &mut CompoundResultReader::new(results, SessionGeneration::default());
        let Ok(about) = results.attributes() else { return false };
        let Ok(Ok(ok)) = results.next::<ReadOk4<'_>>(Nfs4Operation::Read) else { return false };
        let bytes = ok.data.bytes();
        if !is_valid_length(bytes.len(), ok.eof, self.asked) {
            return false;
        }
        self.sink.consume(about.as_ref(), self.sent_at, bytes, ok.eof)
    }
}

#[cfg(test)]
mod tests {
    use curt_proto::nfs4::{AttributeValues, CompoundReplyHeader, Fsid4, Ftype4, ResultHeader};
    use curt_xdr::{Encode, Opaque};

    use super::{super::attributes::OBJECT, *};

    /// A reply with the attributes of a file, and `data`.
    fn reply(data: &[u8], eof: bool) -> Vec<u8> {
        let values = AttributeValues {
            kind: Some(Ftype4::Regular),
            change: Some(1),
            size: Some(4),
            fsid: Some(Fsid4 { major: 7, minor: 0 }),
            fileid: Some(9),
            mode: Some(0o644),
            ..AttributeValues::default()
        };
        let result = |operation| ResultHeader { operation, status: NfsStat4::Ok };
        let mut reply = Vec::new();
        let to = &mut reply;
        let tag = Opaque::new(b"").expect("it is empty");
        CompoundReplyHeader { status: NfsStat4::Ok, tag, results: 2 }.encode(to);
        result(Nfs4Operation::Getattr).encode(to);
        values.encode(OBJECT, to);
        result(Nfs4Operation::Read).encode(to);
        ReadOk4 { eof, data: Opaque::new(data).expect("it is short") }.encode(to);
        reply
    }

    fn read(reply: &[u8], asked: usize) -> Result<ReadOutcome, DecodeError> {
        let mut results = CompoundResultReader::new(
            CompoundResults::new(reply).expect("its header is right"),
            SessionGeneration::default(),
        );
        let (read, about) = read_results(&mut results, asked)?;
        assert_eq!(about.expect("the file has attributes").fileid, 9);
        Ok(read.expect("the READ succeeded"))
    }

    #[test]
    fn a_reply_with_bytes_behind_the_data_or_too_many_data_is_refused() {
        let right = reply(b"data", true);
        assert_eq!(read(&right, 4), Ok(ReadOutcome::Data { length: 4, end: true }));
        assert!(read(&[&right[..], b"more"].concat(), 4).is_err());
        assert!(read(&right, 3).is_err());
        assert!(read(&reply(b"", false), 4).is_err(), "nothing, and not the end");
    }
}
