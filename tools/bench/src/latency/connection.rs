//! The measuring client: one thread, prepared calls, and one send for all that can be sent. Its
//! cost is small and the same for every server.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use curt_rpc::record::MARK_SIZE;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};

use super::operations::{PreparedCalls, ReplyChecks, slot_of};

/// Size of the buffer for replies in bytes: those of all slots for the longest listing, or one READ
/// of the maximum size and its head.
const INPUT_BYTES: usize = 2 << 20;
/// Maximum time without a reply, in seconds.
const SILENCE_MAX: u64 = 30;

/// A connection, its calls, and the check of the replies.
pub(crate) struct LatencyConnection {
    stream: TcpStream,
    pub(super) calls: PreparedCalls,
    checks: ReplyChecks,
    output: Vec<u8>,
    /// The slots of the calls in the output.
    prepared: Vec<usize>,
    input: Vec<u8>,
    filled: usize,
    slots: Vec<SentCall>,
    waiting: usize,
    left: usize,
}

/// A call in progress.
#[derive(Clone, Copy)]
struct SentCall {
    /// Its xid; 0: none.
    number: u32,
    sent: Instant,
    /// The time of the last call.
    took: Duration,
}

impl LatencyConnection {
    pub(crate) fn new(stream: TcpStream, calls: PreparedCalls, checks: ReplyChecks) -> Self {
        let none = SentCall { number: 0, sent: Instant::now(), took: Duration::ZERO };
        let (slots, output, prepared) = (vec![none; calls.slots_count()], Vec::new(), Vec::new());
        let input = vec![0; INPUT_BYTES];
        Self { stream, calls, checks, output, prepared, input, filled: 0, slots, waiting: 0, left: 0 }
    }

    /// Makes the calls of these slots, with `interval` between them if there is one. Returns the
    /// time of each.
    pub(crate) fn times(
        &mut self,
        slots: impl Iterator<Item = usize> + Clone,
        interval: Option<Duration>,
    ) -> Result<Vec<Duration>> {
        self.left = 0;
        for slot in slots.clone() {
            if let Some(interval) = interval.filter(|_| self.waiting > 0) {
                self.send()?;
                std::thread::sleep(interval);
            }
            self.call(slot);
        }
        self.send()?;
        self.receive_all(&mut Vec::new())?;
        Ok(slots.map(|slot| self.slots[slot].took).collect())
    }

    #[inline]
    fn call(&mut self, slot: usize) {
        self.slots[slot].number = self.calls.put(slot, &mut self.output);
        self.prepared.push(slot);
        self.waiting += 1;
    }

    /// Sends the prepared calls; their times begin here.
    fn send(&mut self) -> Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        self.prepared.drain(..).for_each(|slot| self.slots[slot].sent = now);
        self.stream.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    fn receive_all(&mut self, latencies: &mut Vec<u32>) -> Result<()> {
        while self.waiting > 0 {
            self.receive(RecvFlags::empty(), latencies)?;
        }
        Ok(())
    }

    /// Receives replies, checks them, and sends as many calls again.
    fn receive(&mut self, flags: RecvFlags, latencies: &mut Vec<u32>) -> Result<()> {
        let received = match rustix::net::recv(&self.stream, &mut self.input[self.filled..], flags) {
            Ok((_, 0)) => bail!("the server closed the connection"),
            Ok((_, received)) => received,
            Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Ok(()),
            Err(Errno::AGAIN) => bail!("the server has not replied for {SILENCE_MAX} s"),
            Err(errno) => return Err(errno.into()),
        };
        let now = Instant::now();
        self.filled += received;
        let mut at = 0;
        while self.filled - at >= MARK_SIZE {
            let length = record_length(&self.input[at..at + MARK_SIZE])?;
            if self.filled - at < length {
                break;
            }
            let record = &self.input[at..at + length];
            let number = number_at(record);
            let slot = slot_of(number);
            let asked = self.slots.get_mut(slot).context("a reply to no call")?;
            ensure!(asked.number == number && number != 0, "a reply to no call");
            asked.number = 0;
            asked.took = now.duration_since(asked.sent);
            latencies.push(u32::try_from(asked.took.as_nanos()).unwrap_or(u32::MAX));
            self.checks.check(number, record)?;
            self.waiting -= 1;
            at += length;
            if self.left > 0 {
                self.left -= 1;
                self.call(slot);
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        self.send()
    }
}

/// Makes `operations` calls, spread evenly over the connections. Returns the time of each in
/// nanoseconds, and the total time.
pub(super) fn run(connections: &mut [LatencyConnection], operations: usize) -> Result<(Vec<u32>, Duration)> {
    let (each, mut latencies) = (operations / connections.len(), Vec::with_capacity(operations));
    let start = Instant::now();
    for connection in connections.iter_mut() {
        let first = each.min(connection.slots.len());
        connection.left = each - first;
        (0..first).for_each(|slot| connection.call(slot));
        connection.send()?;
    }
    match connections {
        [connection] => connection.receive_all(&mut latencies)?,
        connections => receive_from_all(connections, &mut latencies)?,
    }
    Ok((latencies, start.elapsed()))
}

fn receive_from_all(connections: &mut [LatencyConnection], latencies: &mut Vec<u32>) -> Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, connection) in connections.iter().enumerate() {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&set, connection.stream.as_fd(), data, epoll::EventFlags::IN)?;
    }
    let timeout = Timespec::try_from(Duration::from_secs(SILENCE_MAX))?;
    let mut events = Vec::with_capacity(connections.len());
    while connections.iter().any(|connection| connection.waiting > 0) {
        events.clear();
        match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(0) => bail!("the server has not replied for {SILENCE_MAX} s"),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in &events {
            connections[usize::try_from(event.data.u64())?].receive(RecvFlags::DONTWAIT, latencies)?;
        }
    }
    Ok(())
}

/// The length of the record that begins with this record mark, mark included.
fn record_length(mark: &[u8]) -> Result<usize> {
    let mark = u32::from_be_bytes(mark.try_into()?);
    ensure!(mark >> 31 == 1, "a reply of more than one fragment");
    let length = MARK_SIZE + usize::try_from(mark & 0x7fff_ffff)?;
    ensure!((2 * MARK_SIZE..=INPUT_BYTES).contains(&length), "a reply of {length} bytes");
    Ok(length)
}

/// The xid of a call or a reply.
#[inline]
fn number_at(record: &[u8]) -> u32 {
    u32::from_be_bytes([record[4], record[5], record[6], record[7]])
}

/// Prepares a connection for short calls and replies. On one machine both ends send without pacing,
/// as `curt serve` does by itself: the echo and the floor do it too, so that they remain the lower
/// limit.
pub(super) fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    if stream.peer_addr()?.ip().is_loopback() {
        // Ignored where the kernel has no such option.
        let _same = sockopt::set_tcp_congestion(stream, "reno");
    }
    Ok(())
}

pub(crate) fn connect(address: impl ToSocketAddrs) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    prepare(&stream)?;
    let timeout = Some(Duration::from_secs(SILENCE_MAX));
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    Ok(stream)
}

/// Makes one call alone. Returns its whole reply record, record mark included.
pub(super) fn exchange(stream: &mut TcpStream, call: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(call)?;
    let mut reply = vec![0; MARK_SIZE];
    stream.read_exact(&mut reply)?;
    reply.resize(record_length(&reply)?, 0);
    stream.read_exact(&mut reply[MARK_SIZE..])?;
    Ok(reply)
}
