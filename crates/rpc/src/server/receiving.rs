//! How a serving thread waits for a client: for the next call, the rest of one, or room for
//! replies.
//!
//! Invariant: the time for which a client can hold a thread is bounded. An idle connection has a
//! second, or less if there are many threads. Half a record and untaken replies have a tenth of a
//! second, and only a few threads wait for half records at all. At most one thread polls for calls
//! without sleeping.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use curt_trace::stages::{self, RequestStage};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, sockopt},
};

use super::{
    adaptive_polling::AdaptivePolling,
    connection::{ReadJob, ServerConnection},
    idle_set::IDLE_MAX,
    inner::RpcServerInner,
    sending::SendOutcome,
    worker_pool::PoolPressure,
};
use crate::record::receive_buffer::ReceiveBuffer;

/// How long half a record, or a client that takes no replies, holds a thread.
const REST_OF_RECORD_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an idle connection holds a thread when there are many, or may be no more.
const REST_OF_RECORD_TIMEOUT_WHEN_FULL: Duration = Duration::from_millis(5);

/// How many threads at most wait for the rest of a record. With half a record beyond that the
/// connection is parked at once.
const WAITING_FOR_REST_MAX: usize = 16;

/// How long the rest of a record is still waited for.
pub(super) struct RestOfRecordTimeout {
    /// Whether it is waited for at all.
    any: bool,
    end: Option<Instant>,
}

impl RestOfRecordTimeout {
    pub(super) const fn new(any: bool) -> Self {
        Self { any, end: None }
    }

    /// What is left of it. It starts to run out when this is first called, however many bytes
    /// arrive meanwhile.
    fn left(&mut self, now: Instant) -> Option<Duration> {
        if !self.any {
            return None;
        }
        let end = *self.end.get_or_insert(now + REST_OF_RECORD_TIMEOUT);
        end.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

/// What comes after trying to receive.
pub(super) enum ReceiveOutcome {
    /// There is something to do.
    Bytes,
    /// Nothing for some time: the connection is to be parked.
    Nothing,
    End,
}

impl RpcServerInner {
    /// Gives a parked connection that is ready to a thread, unless what arrived is not a whole
    /// record yet: incomplete records cost no thread, however many clients send them.
    pub(super) fn dispatch_ready(
        self: &Arc<Self>,
        connection: Arc<ServerConnection>,
        mut inbox: ReceiveBuffer,
    ) {
        let stops = self.stopping.load(Ordering::SeqCst);
        if !stops && !connection.has_backlog() {
            let received = receive_now(&connection, &mut inbox, RecvFlags::DONTWAIT);
            let limit = |_: &[u8]| self.limits.record;
            match received {
                ReceiveOutcome::Nothing => return self.make_idle(&connection, inbox),
                ReceiveOutcome::Bytes => {
                    deliver_replies(&connection, &mut inbox, limit);
                    if inbox.complete_record(limit) == Ok(None) {
                        return self.make_idle(&connection, inbox);
                    }
                }
                // The end, too: there may be replies to see off.
                ReceiveOutcome::End => {}
            }
        }
        self.dispatch(ReadJob { connection, inbox });
    }

    pub(super) fn receive(
        &self,
        connection: &ServerConnection,
        inbox: &mut ReceiveBuffer,
        patience: &mut RestOfRecordTimeout,
        pace: &mut AdaptivePolling,
    ) -> ReceiveOutcome {
        if self.stopping.load(Ordering::SeqCst) {
            return ReceiveOutcome::End;
        }
        // While other threads answer calls of this connection, replies may be left unsent at any
        // moment: it is parked, where that is noticed, and not waited for.
        let in_flight = connection.in_flight.load(Ordering::Acquire) > 0;
        if connection.has_backlog() {
            return ReceiveOutcome::Bytes;
        }
        if in_flight {
            return receive_or(connection, inbox, || None);
        }
        if !inbox.is_empty() {
            return self.receive_rest(connection, inbox, patience);
        }
        match self.worker_pool.pressure(&connection.client_ref.client.quota) {
            PoolPressure::Short => receive_or(connection, inbox, || None),
            PoolPressure::Full => receive_or(connection, inbox, || Some(REST_OF_RECORD_TIMEOUT_WHEN_FULL)),
            PoolPressure::None => self.wait_for_next_call(connection, inbox, pace),
        }
    }

    /// Waits for a call in the receive itself, which is fastest; the socket has a timeout for this.
    fn wait_for_next_call(
        &self,
        connection: &ServerConnection,
        inbox: &mut ReceiveBuffer,
        pace: &mut AdaptivePolling,
    ) -> ReceiveOutcome {
        let begin = pace.begin_wait(|| self.clock.now());
        connection.waiting_for_call.store(true, Ordering::SeqCst);
        let received = if self.stopping.load(Ordering::SeqCst) {
            ReceiveOutcome::End
        } else if self.stages.is_due() {
            self.receive_measured(connection, inbox)
        } else {
            match pace
                .poll_until(begin)
                .map(|end| self.poll_briefly(connection, inbox, end))
            {
                None | Some(ReceiveOutcome::Nothing) => receive_now(connection, inbox, RecvFlags::empty()),
                Some(received) => received,
            }
        };
        pace.end_wait(begin, || self.clock.now());
        // Relaxed: who still sees it set ends a connection that is about to see for itself that the
        // server stops.
        connection.waiting_for_call.store(false, Ordering::Relaxed);
        received
    }

    /// Tries to receive until `end`, without sleeping, unless another thread is polling for another
    /// client, or the client needs this processor itself.
    fn poll_briefly(
        &self,
        connection: &ServerConnection,
        inbox: &mut ReceiveBuffer,
        end: Instant,
    ) -> ReceiveOutcome {
        if shares_processor(connection) || self.polling.swap(true, Ordering::Relaxed) {
            return ReceiveOutcome::Nothing;
        }
        let received = loop {
            match receive_now(connection, inbox, RecvFlags::DONTWAIT) {
                ReceiveOutcome::Nothing if self.clock.now() < end => std::hint::spin_loop(),
                received => break received,
            }
        };
        self.polling.store(false, Ordering::Relaxed);
        received
    }

    /// Waits before the receive, so that only work is measured.
    fn receive_measured(&self, connection: &ServerConnection, inbox: &mut ReceiveBuffer) -> ReceiveOutcome {
        if !wait(connection, PollFlags::IN, IDLE_MAX) {
            return ReceiveOutcome::Nothing;
        }
        stages::begin(&self.stages);
        let received = receive_now(connection, inbox, RecvFlags::DONTWAIT);
        match received {
            ReceiveOutcome::Bytes => stages::proceed(RequestStage::Decode),
            // There is no request: the next one must not be taken for it.
            ReceiveOutcome::Nothing | ReceiveOutcome::End => stages::forget(),
        }
        received
    }

    /// Waits for the rest of a record.
    fn receive_rest(
        &self,
        connection: &ServerConnection,
        inbox: &mut ReceiveBuffer,
        patience: &mut RestOfRecordTimeout,
    ) -> ReceiveOutcome {
        let mut waits = false;
        let received = receive_or(connection, inbox, || {
            let left = patience.left(self.clock.now())?;
            waits = true;
            let others = self.waiting_for_rest.fetch_add(1, Ordering::Relaxed);
            (others < WAITING_FOR_REST_MAX).then_some(left)
        });
        if waits {
            self.waiting_for_rest.fetch_sub(1, Ordering::Relaxed);
        }
        received
    }

    /// Waits a little for the client to take unsent replies; returns whether it took all.
    pub(super) fn wait_for_room(&self, connection: &ServerConnection) -> bool {
        let patience = match self.worker_pool.pressure(&connection.client_ref.client.quota) {
            PoolPressure::None => REST_OF_RECORD_TIMEOUT,
            PoolPressure::Full | PoolPressure::Short => REST_OF_RECORD_TIMEOUT_WHEN_FULL,
        };
        let end = self.clock.now() + patience;
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

/// Passes the replies at the front of what was received to their callers. A reply for which nobody
/// waits is left to a serving thread, of which the client has its share.
fn deliver_replies(
    connection: &ServerConnection,
    inbox: &mut ReceiveBuffer,
    limit: impl Copy + Fn(&[u8]) -> usize,
) {
    while let Ok(Some(whole)) = inbox.complete_record(limit) {
        let message = inbox.body(whole);
        if !connection.deliver_reply(message) {
            return;
        }
        inbox.skip(whole);
    }
}

/// Whether what came last over a connection was sent, or received by the network's interrupt, on
/// the processor of this thread.
fn shares_processor(connection: &ServerConnection) -> bool {
    let last = sockopt::socket_incoming_cpu(&connection.socket);
    last.is_ok_and(|last| usize::try_from(last) == Ok(rustix::thread::sched_getcpu()))
}

/// Receives what has arrived; if nothing has, once more after at most the time that `patience`
/// allows.
fn receive_or(
    connection: &ServerConnection,
    inbox: &mut ReceiveBuffer,
    patience: impl FnOnce() -> Option<Duration>,
) -> ReceiveOutcome {
    match receive_now(connection, inbox, RecvFlags::DONTWAIT) {
        ReceiveOutcome::Nothing => {}
        received => return received,
    }
    match patience() {
        Some(patience) if wait(connection, PollFlags::IN, patience) => {
            receive_now(connection, inbox, RecvFlags::DONTWAIT)
        }
        _ => ReceiveOutcome::Nothing,
    }
}

/// Receives what has already arrived, and returns whether there was anything. The end of the
/// connection, or an error, is found again by the next receive.
pub(super) fn receive_more(connection: &ServerConnection, inbox: &mut ReceiveBuffer) -> bool {
    match rustix::net::recv(&connection.socket, inbox.room(), RecvFlags::DONTWAIT) {
        Ok((_, count)) if count > 0 => {
            inbox.received(count);
            true
        }
        Ok(_) | Err(_) => false,
    }
}

fn receive_now(connection: &ServerConnection, inbox: &mut ReceiveBuffer, flags: RecvFlags) -> ReceiveOutcome {
    loop {
        match rustix::net::recv(&connection.socket, inbox.room(), flags) {
            Ok((_, 0)) => {
                if !inbox.is_empty() {
                    connection.log_misbehaviour("the connection ended inside a record");
                }
                return ReceiveOutcome::End;
            }
            Ok((_, count)) => {
                inbox.received(count);
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
        let mut patience = RestOfRecordTimeout::new(true);
        let step = REST_OF_RECORD_TIMEOUT / 4;
        let left = [0, 1, 3, 4, 5].map(|steps| patience.left(start + step * steps));
        assert_eq!(left, [Some(step * 4), Some(step * 3), Some(step), None, None]);
    }
}
