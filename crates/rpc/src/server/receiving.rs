//! How a serving thread waits for a client: for the next call, the rest of a record, or room for
//! replies.
//!
//! Invariant: the time for which a client can block a thread is bounded: a second for an idle
//! connection, or less if there are many threads; a tenth of a second for an incomplete record or
//! unsent replies. Only a few threads wait for incomplete records. At most one thread polls for
//! calls without sleeping.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use curt_observe::stages::{self, RequestStage};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, sockopt},
};

use super::{
    adaptive_polling::AdaptivePolling, connection::ServerConnection, idle_set::IDLE_MAX,
    inner::RpcServerInner, received_bytes::ReceivedBytes, sending::SendOutcome, worker_pool::PoolPressure,
};
use crate::record::receive_buffer::ReceiveBuffer;

/// Maximum time for which a thread waits for the rest of a record, or for a client to receive
/// replies.
const REST_OF_RECORD_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum time for which an idle connection has a thread, if there are many threads or no more can
/// be started.
const REST_OF_RECORD_TIMEOUT_WHEN_FULL: Duration = Duration::from_millis(5);

/// Maximum number of threads that wait for the rest of a record. Beyond it a connection with an
/// incomplete record becomes idle at once.
const WAITING_FOR_REST_MAX: usize = 16;

/// Remaining time of the wait for the rest of a record.
pub(super) struct RestOfRecordTimeout {
    /// Whether to wait at all.
    any: bool,
    end: Option<Instant>,
}

impl RestOfRecordTimeout {
    pub(super) const fn new(any: bool) -> Self {
        Self { any, end: None }
    }

    /// The remaining time. It starts at the first call, however many bytes arrive meanwhile.
    fn left(&mut self, now: Instant) -> Option<Duration> {
        if !self.any {
            return None;
        }
        let end = *self.end.get_or_insert(now + REST_OF_RECORD_TIMEOUT);
        end.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

/// The result of a receive.
pub(super) enum ReceiveOutcome {
    /// Bytes were received, or there is other work.
    Bytes,
    /// Nothing for some time: the connection becomes idle.
    Nothing,
    End,
}

impl RpcServerInner {
    /// Passes a ready idle connection to a thread, unless the received bytes are not a complete
    /// record: incomplete records use no thread, however many clients send them.
    pub(super) fn dispatch_ready(
        self: &Arc<Self>,
        connection: Arc<ServerConnection>,
        mut receive_buffer: ReceiveBuffer,
    ) {
        let stops = self.stopping.load(Ordering::SeqCst);
        if self.stays_unread(&connection) {
            // The client is not to blame for the wait.
            receive_buffer.restart_timeout();
        } else if !stops && !connection.has_backlog() {
            let received = receive_now(&connection, &mut receive_buffer, RecvFlags::DONTWAIT);
            let limit = |_: &[u8]| self.limits.record;
            match received {
                ReceiveOutcome::Nothing => return self.make_idle(&connection, receive_buffer),
                ReceiveOutcome::Bytes => {
                    deliver_replies(&connection, &mut receive_buffer, limit);
                    if receive_buffer.complete_record(limit) == Ok(None) {
                        return self.make_idle(&connection, receive_buffer);
                    }
                }
                // A thread handles the end as well: replies may be unsent.
                ReceiveOutcome::End => {}
            }
        }
        self.dispatch(&connection, receive_buffer);
    }

    /// Whether a ready connection waits for a thread with its bytes in the socket, because many
    /// bytes wait already. The replies that the server's own calls wait for are read all the same.
    fn stays_unread(&self, connection: &ServerConnection) -> bool {
        let client = &connection.client_ref.client;
        self.worker_pool.pressure(&client.quota) == PoolPressure::Short
            && ReceivedBytes::are_many(&self.idle_set.total_usage, client, &self.limits)
            && connection.calls.lock().is_empty()
    }

    pub(super) fn receive(
        &self,
        connection: &ServerConnection,
        receive_buffer: &mut ReceiveBuffer,
        timeout: &mut RestOfRecordTimeout,
        pace: &mut AdaptivePolling,
    ) -> ReceiveOutcome {
        if self.stopping.load(Ordering::SeqCst) {
            return ReceiveOutcome::End;
        }
        // While other threads execute calls of this connection, replies may become unsent at any
        // moment. So the connection becomes idle, where epoll notices this.
        let in_flight = connection.in_flight.load(Ordering::Acquire) > 0;
        if connection.has_backlog() {
            return ReceiveOutcome::Bytes;
        }
        if in_flight {
            return receive_or(connection, receive_buffer, || None);
        }
        if !receive_buffer.is_empty() {
            return self.receive_rest(connection, receive_buffer, timeout);
        }
        match self.worker_pool.pressure(&connection.client_ref.client.quota) {
            PoolPressure::Short => receive_or(connection, receive_buffer, || None),
            PoolPressure::Full => {
                receive_or(connection, receive_buffer, || Some(REST_OF_RECORD_TIMEOUT_WHEN_FULL))
            }
            PoolPressure::None => self.wait_for_next_call(connection, receive_buffer, pace),
        }
    }

    /// Waits for a call in the receive itself, which is fastest; the socket has a receive timeout.
    fn wait_for_next_call(
        &self,
        connection: &ServerConnection,
        receive_buffer: &mut ReceiveBuffer,
        pace: &mut AdaptivePolling,
    ) -> ReceiveOutcome {
        let begin = pace.begin_wait(|| self.clock.now());
        connection.waiting_for_call.store(true, Ordering::SeqCst);
        let received = if self.stopping.load(Ordering::SeqCst) {
            ReceiveOutcome::End
        } else if self.stages.is_due() {
            self.receive_measured(connection, receive_buffer)
        } else {
            match pace.poll_until(begin).map(|end| self.poll_briefly(connection, receive_buffer, end)) {
                None | Some(ReceiveOutcome::Nothing) => {
                    receive_now(connection, receive_buffer, RecvFlags::empty())
                }
                Some(received) => received,
            }
        };
        pace.end_wait(begin, || self.clock.now());
        // Relaxed: a thread that still sees it set shuts down a connection whose reader is about to
        // see that the server stops.
        connection.waiting_for_call.store(false, Ordering::Relaxed);
        received
    }

    /// Tries to receive until `end` without sleeping, unless another thread polls for another
    /// client, or the client runs on the same processor.
    fn poll_briefly(
        &self,
        connection: &ServerConnection,
        receive_buffer: &mut ReceiveBuffer,
        end: Instant,
    ) -> ReceiveOutcome {
        if shares_processor(connection) || self.polling.swap(true, Ordering::Relaxed) {
            return ReceiveOutcome::Nothing;
        }
        let received = loop {
            match receive_now(connection, receive_buffer, RecvFlags::DONTWAIT) {
                ReceiveOutcome::Nothing if self.clock.now() < end => std::hint::spin_loop(),
                received => break received,
            }
        };
        self.polling.store(false, Ordering::Relaxed);
        received
    }

    /// Waits before the receive, so that only work is measured.
    fn receive_measured(
        &self,
        connection: &ServerConnection,
        receive_buffer: &mut ReceiveBuffer,
    ) -> ReceiveOutcome {
        if !wait(connection, PollFlags::IN, IDLE_MAX) {
            return ReceiveOutcome::Nothing;
        }
        stages::begin(&self.stages);
        let received = receive_now(connection, receive_buffer, RecvFlags::DONTWAIT);
        match received {
            ReceiveOutcome::Bytes => stages::proceed(RequestStage::Decode),
            // There is no request: the next one must not get this start time.
            ReceiveOutcome::Nothing | ReceiveOutcome::End => stages::forget(),
        }
        received
    }

    /// Waits for the rest of a record.
    fn receive_rest(
        &self,
        connection: &ServerConnection,
        receive_buffer: &mut ReceiveBuffer,
        timeout: &mut RestOfRecordTimeout,
    ) -> ReceiveOutcome {
        let mut waits = false;
        let received = receive_or(connection, receive_buffer, || {
            let left = timeout.left(self.clock.now())?;
            waits = true;
            let others = self.waiting_for_rest.fetch_add(1, Ordering::Relaxed);
            (others < WAITING_FOR_REST_MAX).then_some(left)
        });
        if waits {
            self.waiting_for_rest.fetch_sub(1, Ordering::Relaxed);
        }
        received
    }

    /// Waits a short time for the client to receive unsent replies; returns whether all were sent.
    pub(super) fn wait_for_room(&self, connection: &ServerConnection) -> bool {
        let timeout = match self.worker_pool.pressure(&connection.client_ref.client.quota) {
            PoolPressure::None => REST_OF_RECORD_TIMEOUT,
            PoolPressure::Full | PoolPressure::Short => REST_OF_RECORD_TIMEOUT_WHEN_FULL,
        };
        let end = self.clock.now() + timeout;
        loop {
            match connection.drain() {
                SendOutcome::All | SendOutcome::Closed => return true,
                SendOutcome::Queued => {
                    if !wait(connection, PollFlags::OUT, self.clock.until(end)) {
                        return false;
                    }
                }
            }
        }
    }
}

/// Delivers the replies at the front of the received bytes to their callers. A reply that matches
/// no call is left to a serving thread, within the client's quota.
fn deliver_replies(
    connection: &ServerConnection,
    receive_buffer: &mut ReceiveBuffer,
    limit: impl Copy + Fn(&[u8]) -> usize,
) {
    while let Ok(Some(record)) = receive_buffer.complete_record(limit) {
        let message = receive_buffer.body(record);
        if !connection.deliver_reply(message) {
            return;
        }
        receive_buffer.skip(record);
    }
}

/// Whether the last segment of a connection was sent, or received by the network's interrupt, on
/// the processor of this thread.
fn shares_processor(connection: &ServerConnection) -> bool {
    let last = sockopt::socket_incoming_cpu(&connection.socket);
    last.is_ok_and(|last| usize::try_from(last) == Ok(rustix::thread::sched_getcpu()))
}

/// Receives available bytes; if there are none, once more after at most the time that `timeout`
/// allows.
fn receive_or(
    connection: &ServerConnection,
    receive_buffer: &mut ReceiveBuffer,
    timeout: impl FnOnce() -> Option<Duration>,
) -> ReceiveOutcome {
    match receive_now(connection, receive_buffer, RecvFlags::DONTWAIT) {
        ReceiveOutcome::Nothing => {}
        received => return received,
    }
    match timeout() {
        Some(timeout) if wait(connection, PollFlags::IN, timeout) => {
            receive_now(connection, receive_buffer, RecvFlags::DONTWAIT)
        }
        _ => ReceiveOutcome::Nothing,
    }
}

/// Receives available bytes, and returns whether there were any. The next receive sees an end of
/// the connection, or an error, again.
pub(super) fn receive_more(connection: &ServerConnection, receive_buffer: &mut ReceiveBuffer) -> bool {
    match rustix::net::recv(&connection.socket, receive_buffer.room(), RecvFlags::DONTWAIT) {
        Ok((_, count)) if count > 0 => {
            receive_buffer.received(count);
            true
        }
        Ok(_) | Err(_) => false,
    }
}

fn receive_now(
    connection: &ServerConnection,
    receive_buffer: &mut ReceiveBuffer,
    flags: RecvFlags,
) -> ReceiveOutcome {
    loop {
        match rustix::net::recv(&connection.socket, receive_buffer.room(), flags) {
            Ok((_, 0)) => {
                if !receive_buffer.is_empty() {
                    connection.log_misbehaviour("the connection ended inside a record");
                }
                return ReceiveOutcome::End;
            }
            Ok((_, count)) => {
                receive_buffer.received(count);
                return ReceiveOutcome::Bytes;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return ReceiveOutcome::Nothing,
            Err(errno) => {
                tracing::debug!("connection from {} lost: {errno}", connection.peer);
                return ReceiveOutcome::End;
            }
        }
    }
}

/// Waits for a socket; returns whether it became ready in time.
fn wait(connection: &ServerConnection, what: PollFlags, longest: Duration) -> bool {
    let Ok(longest) = Timespec::try_from(longest) else {
        return false;
    };
    let sockets = &mut [PollFd::new(&connection.socket, what)];
    rustix::event::poll(sockets, Some(&longest)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_runs_out_however_many_bytes_come() {
        let start = Instant::now();
        assert_eq!(RestOfRecordTimeout::new(false).left(start), None);
        let mut timeout = RestOfRecordTimeout::new(true);
        let step = REST_OF_RECORD_TIMEOUT / 4;
        let left = [0, 1, 3, 4, 5].map(|steps| timeout.left(start + step * steps));
        assert_eq!(left, [Some(step * 4), Some(step * 3), Some(step), None, None]);
    }
}
