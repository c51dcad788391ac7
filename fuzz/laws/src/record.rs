//! Record marking: however a stream is split, the records are the same, as defined by the RFC.

use curt_rpc::record::{FRAGMENTS_MAX, MARK_SIZE, RecordAssembler, RecordError, RecordProgress};

/// Maximum record size here: small, so that it is reached.
const LIMIT: usize = 600;
/// The bit of a record's last fragment (RFC 5531 section 11).
const LAST: u32 = 1 << 31;

/// A decoded stream: complete records, and its end.
#[derive(Debug, PartialEq, Eq)]
struct Understood {
    records: Vec<Vec<u8>>,
    error: Option<RecordError>,
}

/// The first byte is the size of the pieces in which the rest is received.
///
/// # Panics
/// If the records depend on the pieces or differ from the record marks.
pub fn record(bytes: &[u8]) {
    let Some((&piece, stream)) = bytes.split_first() else {
        return;
    };
    let understood = in_pieces(stream, usize::from(piece).max(1));
    assert_eq!(understood, by_the_book(stream), "pieces of {piece} bytes");
}

/// As on a connection: received bytes are appended, and decoded after each piece.
fn in_pieces(stream: &[u8], piece: usize) -> Understood {
    let mut understood = Understood { records: Vec::new(), error: None };
    let mut buffer = Vec::new();
    let mut assembly = RecordAssembler::default();
    for bytes in stream.chunks(piece) {
        buffer.extend_from_slice(bytes);
        loop {
            let progress = assembly.advance(&mut buffer, |beginning| {
                assert!(beginning.len() <= LIMIT, "more than the limit was joined");
                LIMIT
            });
            match progress {
                Ok(RecordProgress::Complete { body, consumed }) => {
                    understood.records.push(buffer[MARK_SIZE..MARK_SIZE + body].to_vec());
                    buffer.drain(..consumed);
                    assembly = RecordAssembler::default();
                }
                Ok(RecordProgress::Needs(count)) => {
                    assert!(count > 0, "it waits for nothing");
                    break;
                }
                Err(error) => {
                    understood.error = Some(error);
                    return understood;
                }
            }
        }
    }
    understood
}

/// The reference: decodes the whole stream at once, by the RFC's text and the two limits.
fn by_the_book(mut stream: &[u8]) -> Understood {
    let mut understood = Understood { records: Vec::new(), error: None };
    let (mut body, mut fragments) = (Vec::new(), 0);
    while let Some((mark, rest)) = stream.split_first_chunk::<MARK_SIZE>() {
        let word = u32::from_be_bytes(*mark);
        let length = usize::try_from(word & !LAST).expect("31 bits");
        let total = body.len() + length;
        if total > LIMIT {
            understood.error = Some(RecordError::TooLong { length: total, limit: LIMIT });
            return understood;
        }
        let Some(fragment) = rest.get(..length) else {
            return understood;
        };
        body.extend_from_slice(fragment);
        fragments += 1;
        stream = &rest[length..];
        if word & LAST != 0 {
            understood.records.push(std::mem::take(&mut body));
            fragments = 0;
        } else if fragments == FRAGMENTS_MAX {
            understood.error = Some(RecordError::TooManyFragments);
            return understood;
        }
    }
    understood
}
