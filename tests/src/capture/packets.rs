//! The TCP segments in a pcapng file (draft-ietf-opsawg-pcapng): blocks, Ethernet, IP, TCP.
//!
//! Other packets are skipped; truncated or unknown ones are an error, because the capture is then
//! incomplete.

use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};

/// Block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// The magic number of a section in native byte order, which dumpcap uses.
const NATIVE: u32 = 0x1a2b_3c4d;
/// The link type of Ethernet, also used for loopback and bridges.
const ETHERNET: u16 = 1;
const PROTOCOL_TCP: u8 = 6;

/// A direction of a connection: from, to.
pub(super) type FlowDirection = ((IpAddr, u16), (IpAddr, u16));

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcpSegment<'a> {
    /// The time of capture, in the capture's unit.
    pub(super) time: u64,
    pub(super) way: FlowDirection,
    /// The sequence number of its first byte; for a SYN, the number before.
    pub(super) sequence: u32,
    /// Whether it opens the connection.
    pub(super) syn: bool,
    pub(super) payload: &'a [u8],
}

/// All TCP segments of a capture, ordered by time.
pub(super) fn segments(file: &[u8]) -> Result<Vec<TcpSegment<'_>>> {
    let mut rest = file;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        let (kind, length) = (native(rest, 0)?, native(rest, 4)?);
        let length = usize::try_from(length)?;
        ensure!(length >= 12 && length.is_multiple_of(4), "a block of {length} bytes");
        // The fields around the body: type, length, length.
        let body = rest.get(8..length - 4).context("the capture is cut short")?;
        match kind {
            SECTION => ensure!(native(body, 0)? == NATIVE, "the capture of another byte order"),
            INTERFACE => ensure!(half(body, 0)? == ETHERNET, "a link that is not Ethernet"),
            ENHANCED_PACKET => segments.extend(packet(body)?),
            // Statistics, names and similar.
            _ => {}
        }
        rest = rest.get(length..).context("the capture is cut short")?;
    }
    // Two processors may deliver packets in another order than they were sent.
    segments.sort_by_key(|segment| segment.time);
    Ok(segments)
}

/// The segment in an enhanced packet block: interface, time (two words), captured and original
/// length, bytes.
fn packet(body: &[u8]) -> Result<Option<TcpSegment<'_>>> {
    let time = u64::from(native(body, 4)?) << 32 | u64::from(native(body, 8)?);
    let (captured, original) = (native(body, 12)?, native(body, 16)?);
    ensure!(captured == original, "a packet of {original} bytes was cut to {captured}");
    let bytes = body.get(20..20 + usize::try_from(captured)?).context("a packet is cut short")?;
    // Link addresses, then the protocol.
    let inner = bytes.get(14..).context("no Ethernet")?;
    match big_half(bytes, 12)? {
        0x0800 => version_4(time, inner),
        0x86dd => version_6(time, inner),
        _ => Ok(None),
    }
}

/// RFC 791 section 3.1.
fn version_4(time: u64, bytes: &[u8]) -> Result<Option<TcpSegment<'_>>> {
    if *bytes.get(9).context("no IPv4")? != PROTOCOL_TCP {
        return Ok(None);
    }
    ensure!(big_half(bytes, 6)? & 0x3fff == 0, "a fragment of an IPv4 packet");
    let head = usize::from(bytes[0] & 0xf) * 4;
    let total = usize::from(big_half(bytes, 2)?);
    // Short frames are padded; with segmentation offload the length may be 0.
    let end = if total == 0 { bytes.len() } else { total };
    let address = |at: usize| -> Result<IpAddr> { Ok(<[u8; 4]>::try_from(part(bytes, at, 4)?)?.into()) };
    tcp(time, address(12)?, address(16)?, bytes.get(head..end).context("an IPv4 packet is cut short")?)
        .map(Some)
}

/// RFC 8200 section 3; extension headers do not occur between local programs.
fn version_6(time: u64, bytes: &[u8]) -> Result<Option<TcpSegment<'_>>> {
    if *bytes.get(6).context("no IPv6")? != PROTOCOL_TCP {
        return Ok(None);
    }
    let length = usize::from(big_half(bytes, 4)?);
    let end = if length == 0 { bytes.len() } else { 40 + length };
    let address = |at: usize| -> Result<IpAddr> { Ok(<[u8; 16]>::try_from(part(bytes, at, 16)?)?.into()) };
    tcp(time, address(8)?, address(24)?, bytes.get(40..end).context("an IPv6 packet is cut short")?).map(Some)
}

/// RFC 9293 section 3.1.
fn tcp(time: u64, from: IpAddr, to: IpAddr, bytes: &[u8]) -> Result<TcpSegment<'_>> {
    let head = usize::from(bytes.get(12).context("no TCP")? >> 4) * 4;
    Ok(TcpSegment {
        time,
        way: ((from, big_half(bytes, 0)?), (to, big_half(bytes, 2)?)),
        sequence: u32::from_be_bytes(part(bytes, 4, 4)?.try_into()?),
        syn: bytes.get(13).context("no TCP")? & 2 != 0,
        payload: bytes.get(head..).context("a TCP segment is cut short")?,
    })
}

fn part(bytes: &[u8], at: usize, length: usize) -> Result<&[u8]> {
    let Some(part) = bytes.get(at..at + length) else {
        bail!("{} bytes where {} were due", bytes.len(), at + length);
    };
    Ok(part)
}

fn native(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_ne_bytes(part(bytes, at, 4)?.try_into()?))
}

fn half(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_ne_bytes(part(bytes, at, 2)?.try_into()?))
}

fn big_half(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_be_bytes(part(bytes, at, 2)?.try_into()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(12 + body.len().next_multiple_of(4)).expect("a short block");
        let mut bytes = [kind.to_ne_bytes(), length.to_ne_bytes()].concat();
        bytes.extend(body);
        bytes.resize(8 + body.len().next_multiple_of(4), 0);
        bytes.extend(length.to_ne_bytes());
        bytes
    }

    /// A packet with `payload`, padded like short frames.
    fn packet_of(time: u32, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        let total = u16::try_from(20 + 24 + payload.len()).expect("a short packet");
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(700_u16.to_be_bytes());
        frame.extend(2049_u16.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        // 24 bytes of header: it ends with a four-byte option.
        frame.extend([0, 0, 0, 0, 6 << 4, flags, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        frame.extend(payload);
        frame.resize(frame.len().max(60), 0);
        let length = u32::try_from(frame.len()).expect("a short frame");
        let mut body = [0, 0, time, length, length].map(u32::to_ne_bytes).concat();
        body.extend(frame);
        body
    }

    /// A capture of one interface with these packets: time, sequence number, whether SYN, payload.
    pub(crate) fn capture(packets: &[(u32, u32, bool, &[u8])]) -> Vec<u8> {
        let mut file = block(SECTION, &[&NATIVE.to_ne_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
        file.extend(block(INTERFACE, &[1, 0, 0, 0, 0, 0, 4, 0]));
        for &(time, sequence, syn, payload) in packets {
            let flags = if syn { 2 } else { 16 };
            file.extend(block(ENHANCED_PACKET, &packet_of(time, sequence, flags, payload)));
        }
        file
    }

    #[test]
    fn segments_come_in_the_order_of_their_times_and_without_padding() -> Result<()> {
        let file = capture(&[(7, 101, false, b"later"), (5, 100, true, b"")]);
        let found = segments(&file)?;
        assert_eq!(found.len(), 2);
        assert!(found[0].syn && found[0].payload.is_empty() && found[0].sequence == 100);
        assert!(!found[1].syn && found[1].payload == b"later" && found[1].way.1.1 == 2049);
        Ok(())
    }

    #[test]
    fn a_capture_that_was_cut_is_an_error() {
        let file = capture(&[(5, 100, true, b"")]);
        assert!(segments(&file[..file.len() - 4]).is_err());
        let mut cut = packet_of(1, 1, 16, b"12345678");
        cut[16] += 1;
        assert!(packet(&cut).is_err(), "more bytes were sent than captured");
    }
}
