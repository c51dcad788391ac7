//! Reassembles the bytes sent to a port: the segments of each connection ordered by sequence
//! number, and the RPC calls in them (RFC 5531 sections 9 and 11).
//!
//! It shares no code with Curt's decoders, with whose counts it is compared.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};

use super::packets::{FlowDirection, TcpSegment};

/// The bit of a record's last fragment.
const LAST: u32 = 0x8000_0000;
/// The first six words of a call: xid, CALL, RPC version, program, version, procedure.
const CALL_WORDS: usize = 6;

/// One direction of a connection, from its start.
struct ReassembledStream<'a> {
    /// The sequence number of the first byte.
    first: u32,
    /// Segments by their distance from the first byte.
    pieces: Vec<(u64, &'a [u8])>,
    /// The distance of the latest segment, near which the next one is.
    latest: u64,
}

impl<'a> ReassembledStream<'a> {
    fn add(&mut self, sequence: u32, payload: &'a [u8]) {
        // Sequence numbers wrap after 4 GiB: a segment is near the previous one.
        let distance = sequence.wrapping_sub(self.first);
        let near = distance.wrapping_sub(low(self.latest)).cast_signed();
        // A keepalive probe may repeat the byte before the first; it contains nothing new.
        let Some(at) = self.latest.checked_add_signed(i64::from(near)) else {
            return;
        };
        self.latest = at;
        self.pieces.push((at, payload));
    }

    /// All bytes; retransmitted ones count once.
    fn bytes(mut self) -> Result<Vec<u8>> {
        self.pieces.sort_by_key(|(at, _)| *at);
        let mut bytes = Vec::new();
        for (at, payload) in self.pieces {
            let there = u64::try_from(bytes.len())?;
            ensure!(at <= there, "{} bytes of a connection were not captured", at - there);
            let known = usize::try_from(there - at)?;
            bytes.extend_from_slice(payload.get(known..).unwrap_or_default());
        }
        Ok(bytes)
    }
}

fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default()
}

/// The bytes sent to `port`, one entry for each connection.
pub(super) fn streams(segments: &[TcpSegment<'_>], port: u16) -> Result<Vec<Vec<u8>>> {
    let mut open: HashMap<FlowDirection, ReassembledStream<'_>> = HashMap::new();
    let mut done = Vec::new();
    for segment in segments.iter().filter(|segment| segment.way.1.1 == port) {
        if segment.syn {
            let first = segment.sequence.wrapping_add(1);
            // A retransmitted SYN opens the same connection.
            if open.get(&segment.way).is_none_or(|stream| stream.first != first) {
                let stream = ReassembledStream { first, pieces: Vec::new(), latest: 0 };
                done.extend(open.insert(segment.way, stream));
            }
        } else if !segment.payload.is_empty() {
            open.get_mut(&segment.way)
                .context("a connection that was open before the capture began")?
                .add(segment.sequence, segment.payload);
        }
    }
    done.extend(open.into_values());
    done.into_iter().map(ReassembledStream::bytes).collect()
}

/// Counts the calls of `program` on one connection, by procedure.
pub(super) fn count_calls(mut bytes: &[u8], program: u32, counts: &mut BTreeMap<u32, u64>) -> Result<()> {
    let mut record = Vec::new();
    while !bytes.is_empty() {
        let mark = word(bytes, 0).context("a record is cut short")?;
        let length = usize::try_from(mark & !LAST)?;
        let fragment = bytes.get(4..4 + length).context("a record is cut short")?;
        record.extend_from_slice(fragment);
        bytes = &bytes[4 + length..];
        if mark & LAST == 0 {
            continue;
        }
        let words: Vec<u32> = (0..CALL_WORDS).map_while(|at| word(&record, at * 4)).collect();
        if let [_, 0, 2, called, _, procedure] = words[..]
            && called == program
        {
            *counts.entry(procedure).or_default() += 1;
        }
        record.clear();
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::packets::{segments, tests::capture};
    use super::*;

    fn call(procedure: u32) -> Vec<u8> {
        [24 | LAST, 9, 0, 2, 100_003, 3, procedure].map(u32::to_be_bytes).concat()
    }

    fn counted(packets: &[(u32, u32, bool, &[u8])]) -> Result<BTreeMap<u32, u64>> {
        let file = capture(packets);
        let mut counts = BTreeMap::new();
        for stream in streams(&segments(&file)?, 2049)? {
            count_calls(&stream, 100_003, &mut counts)?;
        }
        Ok(counts)
    }

    #[test]
    fn segments_out_of_order_and_sent_again_count_once() -> Result<()> {
        let bytes = [call(1), call(3), call(1)].concat();
        // The sequence numbers wrap inside.
        let first = u32::MAX - 30;
        let at = |offset: u32| first.wrapping_add(offset);
        let counts = counted(&[
            (1, first.wrapping_sub(1), true, b""),
            (2, at(50), false, &bytes[50..]),
            (3, at(0), false, &bytes[..20]),
            (4, at(10), false, &bytes[10..50]),
            (5, at(0), false, &bytes[..50]),
            // A probe, one byte before the next one.
            (6, at(83), false, &bytes[83..]),
        ])?;
        assert_eq!(counts, BTreeMap::from([(1, 2), (3, 1)]));
        Ok(())
    }

    #[test]
    fn a_port_that_is_used_again_is_another_connection() -> Result<()> {
        let counts = counted(&[
            (1, 10, true, b""),
            (2, 11, false, &call(6)),
            (3, 5000, true, b""),
            (4, 5001, false, &call(6)),
            (5, 5000, true, b""),
        ])?;
        assert_eq!(counts, BTreeMap::from([(6, 2)]));
        Ok(())
    }

    #[test]
    fn a_gap_is_an_error_and_so_is_half_a_record() {
        let bytes = call(1);
        assert!(counted(&[(1, 10, true, b""), (2, 12, false, &bytes[1..])]).is_err());
        assert!(counted(&[(1, 10, true, b""), (2, 11, false, &bytes[..20])]).is_err());
        assert!(counted(&[(2, 11, false, &bytes)]).is_err(), "it began before the capture");
    }

    #[test]
    fn fragments_are_one_record_and_other_programs_do_not_count() -> Result<()> {
        let whole = call(7);
        let mut bytes = [8_u32.to_be_bytes().as_slice(), &whole[4..12]].concat();
        bytes.extend((16 | LAST).to_be_bytes());
        bytes.extend(&whole[12..]);
        let mut other = call(7);
        other[16..20].copy_from_slice(&100_005_u32.to_be_bytes());
        bytes.extend(other);
        assert_eq!(counted(&[(1, 10, true, b""), (2, 11, false, &bytes)])?, BTreeMap::from([(7, 1)]));
        Ok(())
    }
}
