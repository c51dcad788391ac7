//! One connection shared by many callers, without a thread.
//!
//! It contains the socket, the waiting calls, and two roles that callers take: reading (one waiting
//! caller reads for all, and passes the role on when its own reply has arrived) and writing (one
//! caller writes; the others pass small records to it). Invariants: if a call waits and no thread
//! reads, one of the waiting callers is awake or being woken; no lock is held while a thread waits;
//! a record that was partly sent is completed even if its caller leaves. Lock order: `state`, then
//! `silence` or the lock of a waiter.
//! `silence` or a waiter's place.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use curt_observe::{events::ShortText, probe};
use curt_sync::Wake;
use curt_xdr::DecodeError;
use parking_lot::{Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, Shutdown},
};

use super::{
    activity::ServerActivity,
    backchannel_queue::{BackchannelAdmission, BackchannelQueue, CALLBACK_MAX},
    connect::KeepAlive,
    outgoing::RecordWriter,
    silence::{LOOK_INTERVAL, Silence},
    statistics::ConnectionStatistics,
    sys,
};
use crate::connection::{reply::CallReply, request::CallError};
use crate::{
    connection::{pending_call::PendingCall, reply_sink::offer, waiter::WakeupFd},
    message::header::{self, MESSAGE_CALL, is_call},
    record::{
        RecordError,
        buffer_pool::BufferPool,
        receive_buffer::{CompleteRecord, ReceiveBuffer},
    },
};

/// Maximum number of receives before replies are delivered, so that a socket that is never empty
/// delays none.
const READS_MAX: usize = 16;

pub(super) struct ClientConnection {
    pub(super) socket: OwnedFd,
    /// Wakes the caller that reads.
    pub(super) read_wakeup: Arc<WakeupFd>,
    /// Wakes a caller that only writes.
    pub(super) write_wakeup: Arc<WakeupFd>,
    state: Mutex<ClientConnectionState>,
    activity: Arc<ServerActivity>,
    pool: Arc<BufferPool>,
    reply_max: usize,
    /// Whether a reply was received on this connection.
    has_replied: AtomicBool,
    keep_alive: KeepAlive,
    /// Set while calls wait and no byte has arrived for some time.
    silence: Mutex<Option<Silence>>,
    /// Whether `silence` is set; read without the lock.
    is_quiet: AtomicBool,
}

pub(super) struct ClientConnectionState {
    pub(super) calls: HashMap<u32, PendingCall>,
    /// Received bytes; the caller that reads takes the buffer out.
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    /// Whether a caller has the writing role.
    pub(super) writing: bool,
    /// Small records and the ends of records, to be written by the writer.
    pub(super) pending: Vec<u8>,
    /// Callers with large records that wait for the writing role.
    pub(super) queue: VecDeque<u32>,
    /// Traffic so far.
    pub(super) statistics: ConnectionStatistics,
    /// Calls of the server that wait to be executed.
    pub(super) callbacks: BackchannelQueue,
    pub(super) closed: bool,
    /// Whether the peer closed the connection.
    pub(super) ended_by_peer: bool,
}

impl ClientConnection {
    pub(super) fn new(
        socket: OwnedFd,
        activity: Arc<ServerActivity>,
        pool: Arc<BufferPool>,
        reply_max: usize,
        keep_alive: KeepAlive,
    ) -> io::Result<Self> {
        Ok(Self {
            socket,
            read_wakeup: Arc::new(WakeupFd::new()?),
            write_wakeup: Arc::new(WakeupFd::new()?),
            state: Mutex::new(ClientConnectionState {
                calls: HashMap::new(),
                receive_buffer: Some(ReceiveBuffer::for_replies(Arc::clone(&pool))),
                writing: false,
                pending: Vec::new(),
                queue: VecDeque::new(),
                statistics: ConnectionStatistics::default(),
                callbacks: BackchannelQueue::default(),
                closed: false,
                ended_by_peer: false,
            }),
            activity,
            pool,
            reply_max,
            has_replied: AtomicBool::new(false),
            keep_alive,
            silence: Mutex::new(None),
            is_quiet: AtomicBool::new(false),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientConnectionState> {
        self.state.lock()
    }

    pub(super) fn activity(&self) -> &ServerActivity {
        &self.activity
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether neither end has closed the connection, also if nobody has noticed that yet.
    fn is_established(&self) -> bool {
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut socket, Some(&Timespec::default()));
        !self.is_closed() && polled.is_ok() && !socket[0].revents().intersects(ended)
    }

    /// The server's address, as long as the connection is established.
    pub(super) fn established_peer(&self) -> Option<SocketAddr> {
        self.peer().filter(|_| self.is_established())
    }

    /// The local address, if known.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        let address = rustix::net::getsockname(&self.socket).ok()?;
        SocketAddr::try_from(address).ok()
    }

    /// Whether the server has replied on this connection.
    pub(super) fn has_replied(&self) -> bool {
        self.has_replied.load(Ordering::Relaxed)
    }

    /// No byte arrived for [`LOOK_INTERVAL`], and calls wait. Called by the caller that reads.
    pub(super) fn quiet(&self, now: Instant) {
        let mut silence = self.silence.lock();
        let silence = silence.get_or_insert_with(|| {
            // If no data are unacknowledged, keepalive probes have to show whether the peer is
            // alive.
            let _slower = self.keep_alive.every(LOOK_INTERVAL).set(&self.socket);
            // Relaxed: only the reader uses it, and that role passes from caller to caller under a
            // lock.
            self.is_quiet.store(true, Ordering::Relaxed);
            Silence::new(now)
        });
        silence.look(now, sys::acknowledgements(&self.socket).as_ref());
    }

    /// Whether to probe the server over a new connection, after `fruitless` new connections without
    /// a reply.
    pub(super) fn is_to_be_probed(&self, now: Instant, fruitless: u32) -> bool {
        let silence = self.silence.lock();
        silence.is_some_and(|silence| silence.is_to_be_probed(now, fruitless))
    }

    /// Whether the peer's kernel has been silent since the last received byte, and calls wait.
    pub(super) fn is_silent(&self) -> bool {
        let has_calls = !self.lock().calls.is_empty();
        has_calls && self.silence.lock().is_some_and(|silence| silence.is_of_kernel())
    }

    /// Ends the silence: a byte arrived.
    fn silence_ends(&self) {
        if self.is_quiet.load(Ordering::Relaxed) {
            self.is_quiet.store(false, Ordering::Relaxed);
            *self.silence.lock() = None;
            let _oftener = self.keep_alive.set(&self.socket);
        }
    }

    /// No call waits any more. The silence of the peer's kernel is kept for the next call.
    pub(super) fn idle(&self) {
        if self.is_quiet.load(Ordering::Relaxed) {
            self.silence.lock().take_if(|silence| !silence.is_of_kernel());
            let _oftener = self.keep_alive.set(&self.socket);
        }
    }

    /// Closes a connection whose peer is silent, for the reason `why`. It sends a reset: a FIN
    /// would wait for an acknowledgement and occupy the port.
    pub(super) fn abandon(&self, why: &str) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO));
        self.lost(why);
    }

    /// The peer's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let address = rustix::net::getpeername(&self.socket).ok()??;
        SocketAddr::try_from(address).ok()
    }

    /// Closes the connection; its callers look for another one.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        if !state.closed {
            state.closed = true;
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            state.wake_all();
        }
    }

    /// Receives available bytes for all callers. Called by the one that holds `receive_buffer`.
    pub(super) fn receive(&self, receive_buffer: &mut ReceiveBuffer) {
        for _ in 0..READS_MAX {
            let room = receive_buffer.room();
            let wanted = room.len();
            match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return self.ended_by_peer("the server closed the connection"),
                Ok((_, count)) => {
                    self.silence_ends();
                    receive_buffer.received(count);
                    let any = self.deliver_all(receive_buffer);
                    if any || count < wanted {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(errno) => return self.failed(errno),
            }
        }
    }

    /// The socket can no longer be used.
    pub(super) fn failed(&self, errno: Errno) {
        let why = errno.to_string();
        match errno {
            Errno::CONNRESET | Errno::PIPE => self.ended_by_peer(&why),
            // The network is silent, or reports that the peer is unreachable.
            _ => self.lost(&why),
        }
    }

    fn ended_by_peer(&self, why: &str) {
        self.lock().ended_by_peer = true;
        self.lost(why);
    }

    /// The connection ended for another reason than a malformed message.
    pub(super) fn lost(&self, why: &str) {
        if !self.is_closed() {
            tracing::info!("connection to server {} lost: {why}", self.activity.server());
            probe!(RpcDisconnect { server: self.activity.server(), reason: why });
        }
        self.close();
    }

    /// Delivers each complete reply to its caller; returns whether there was any.
    fn deliver_all(&self, receive_buffer: &mut ReceiveBuffer) -> bool {
        let (mut any, mut replied, mut too_many) = (false, false, false);
        let mut state = self.lock();
        loop {
            match receive_buffer.complete_record(|beginning| state.limit(beginning, self.reply_max)) {
                Ok(None) => break,
                Ok(Some(record)) => {
                    any = true;
                    let message = receive_buffer.body(record);
                    if !is_call(message) {
                        replied = true;
                        self.deliver(&mut state, receive_buffer, record);
                        continue;
                    }
                    let accepted = state.callbacks.push(message);
                    receive_buffer.skip(record);
                    match accepted {
                        BackchannelAdmission::Queued => {}
                        BackchannelAdmission::NoService => state.statistics.unknown_xids += 1,
                        BackchannelAdmission::TooMany => {
                            too_many = true;
                            break;
                        }
                    }
                }
                Err(error) => {
                    let beginning = header::beginning(receive_buffer.beginning());
                    let reply = beginning.filter(|(_, kind)| *kind != MESSAGE_CALL);
                    if let Some(slot) = reply.and_then(|(xid, _)| state.calls.get_mut(&xid)) {
                        slot.finish(Err(CallError::Malformed(too_long(error))));
                    }
                    drop(state);
                    self.malformed(&error, "; closing the connection");
                    self.close();
                    return true;
                }
            }
        }
        drop(state);
        if replied {
            self.has_replied.store(true, Ordering::Relaxed);
            self.activity.note_reply();
        }
        if too_many {
            self.lost("the server sends more calls than can wait");
        }
        any
    }

    fn deliver(
        &self,
        state: &mut MutexGuard<'_, ClientConnectionState>,
        receive_buffer: &mut ReceiveBuffer,
        record: CompleteRecord,
    ) {
        state.statistics.receives += 1;
        let body = receive_buffer.body(record);
        self.activity.events().received(body.len() + crate::record::MARK_SIZE);
        let xid = body.first_chunk().map(|xid| u32::from_be_bytes(*xid));
        let waiting = xid.and_then(|xid| state.calls.get_mut(&xid));
        // The reply to an interrupted call, the second reply to a call that was sent twice, or a
        // reply with an invalid xid.
        let Some(slot) = waiting.filter(|slot| slot.outcome.is_none()) else {
            state.statistics.unknown_xids += 1;
            return receive_buffer.skip(record);
        };
        slot.received = body.len();
        let outcome = match slot.decode_reply(body) {
            Ok(results_size) => {
                if let Some(sink) = slot.sink.take() {
                    slot.sink_running = true;
                    let results = &body[body.len() - results_size..];
                    let taken = MutexGuard::unlocked(state, || offer(&*sink, results));
                    let Some(slot) = xid.and_then(|xid| state.calls.get_mut(&xid)) else {
                        return receive_buffer.skip(record);
                    };
                    slot.sink_running = false;
                    if taken {
                        receive_buffer.skip(record);
                        return slot.finish(Ok(CallReply::consumed()));
                    }
                }
                let (bytes, _, end) = receive_buffer.take(record);
                Ok(CallReply::pooled(bytes, end - results_size, end, Arc::clone(&self.pool)))
            }
            Err(error) => {
                receive_buffer.skip(record);
                if let CallError::Malformed(defect) = &error {
                    self.malformed(defect, "");
                }
                Err(error)
            }
        };
        if let Some(slot) = xid.and_then(|xid| state.calls.get_mut(&xid)) {
            slot.finish(outcome);
        }
    }

    fn malformed(&self, defect: &dyn std::fmt::Display, consequence: &str) {
        self.activity.events().malformed_reply();
        probe!(RpcMalformed { server: self.activity.server(), reason: ShortText::of(defect).bytes() });
        tracing::warn!("malformed reply from server {}: {defect}{consequence}", self.activity.server());
    }
}

impl ClientConnectionState {
    /// A record was passed to the socket or to the writer.
    pub(super) fn note_sent(&mut self) {
        self.statistics.sent(self.queue.len(), self.calls.len());
    }

    /// Maximum length of the reply that begins with these bytes.
    fn limit(&self, beginning: &[u8], reply_max: usize) -> usize {
        match header::beginning(beginning) {
            Some((_, MESSAGE_CALL)) if self.callbacks.has_service() => CALLBACK_MAX.min(reply_max),
            None | Some((_, MESSAGE_CALL)) => reply_max,
            Some((xid, _)) => {
                let call = self.calls.get(&xid);
                call.map_or(reply_max, |call| call.reply_max().min(reply_max))
            }
        }
    }

    /// Whether a waiting call has a sink.
    pub(super) fn has_sinks(&self) -> bool {
        let mut slots = self.calls.values();
        slots.any(|slot| slot.sink.is_some() && slot.outcome.is_none())
    }

    /// Wakes one caller for each role that is free and needed. Called whenever a caller leaves or
    /// gives up a role.
    pub(super) fn wake_next_owners(&self) {
        if self.closed {
            return;
        }
        let unread = self.receive_buffer.is_some();
        let unwritten = !self.writing && (!self.pending.is_empty() || !self.queue.is_empty());
        if !unread && !unwritten {
            return;
        }
        let first_in_queue = self.queue.front().and_then(|xid| self.calls.get(xid));
        if unwritten && let Some(slot) = first_in_queue {
            slot.waiter.wake();
            return;
        }
        // The woken caller takes all free roles.
        if let Some(slot) = self.calls.values().find(|slot| slot.outcome.is_none()) {
            slot.waiter.wake();
        } else if unwritten {
            self.callbacks.wake();
        }
    }

    fn wake_all(&self) {
        for slot in self.calls.values() {
            slot.waiter.wake();
        }
        self.callbacks.wake();
    }

    /// The next output of the writer; `None` if it gives up its role.
    pub(super) fn next_output(&mut self) -> Option<RecordWriter> {
        if self.pending.is_empty() {
            self.writing = false;
            if !self.queue.is_empty() {
                self.wake_next_owners();
            }
            return None;
        }
        Some(RecordWriter::new(std::mem::take(&mut self.pending), false))
    }
}

fn too_long(error: RecordError) -> DecodeError {
    match error {
        RecordError::TooLong { length, limit } => {
            DecodeError::TooLong { length: saturate(length), limit: saturate(limit) }
        }
        RecordError::TooManyFragments => {
            DecodeError::BadValue { name: "fragments", value: crate::record::FRAGMENTS_MAX }
        }
    }
}

fn saturate(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
