//! A call on a connection, from its start to its reply.
//!
//! The caller loops: it checks under the lock whether the call is over, takes the roles that are
//! free, and waits as these roles require. Dropping a [`CallInProgress`] gives the roles back
//! wherever the caller returns.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_sync::Interrupt;
use rustix::event::PollFlags;

use super::{
    connection::{ClientConnection, ClientConnectionState},
    options::Retransmission,
    outgoing::{OutgoingRecord, RecordWriter},
    silence::LOOK_INTERVAL,
    statistics::CallStatistics,
    timer::{CallTimeout, RetransmitTimer},
};
use crate::connection::{reply::CallReply, reply_sink::ReplySink, request::CallError};
use crate::{
    clock::TimeSource,
    connection::{
        pending_call::PendingCall,
        waiter::{CallWaiter, PollOutcome, WakeupFd},
    },
    record::receive_buffer::ReceiveBuffer,
    security::flavor::AuthFlavor,
};
use curt_observe::probe;

/// Records up to this size are copied to the thread that is writing; longer ones wait until the
/// output is free.
const SMALL: usize = 4096;

/// A wait without a deadline ends after this time, to check its condition again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time for which a caller with its reply continues to read for other callers. It is
/// enough for dozens of large replies, so that the hand-over of reading costs little, and short
/// enough not to delay the caller noticeably.
const READ_FOR_OTHERS_MAX: Duration = Duration::from_millis(20);

/// A server that is killed during a call ends the connection within this time after the call was
/// sent: most calls take no longer. A network outage may end connections too, but later.
const PROMPT_END_MAX: Duration = Duration::from_secs(1);

/// The reason why a call leaves a connection.
pub(super) enum CallEnd {
    /// The call is complete.
    Done(Result<CallReply, CallError>),
    /// The connection is lost; the call may be sent again on another one.
    ConnectionLost,
    /// No reply arrived after all retries; the call was removed from the connection.
    TimedOut,
    /// The call has to be sent again with a new credential and verifier; it was removed from the
    /// connection.
    SignAgain,
}

/// The parameters of a call on any connection.
pub(super) struct CallParameters<'a> {
    pub(super) xid: u32,
    pub(super) outgoing: OutgoingRecord<'a>,
    /// Maximum size of the results in bytes.
    pub(super) results_max: usize,
    /// Verifies the reply, if the call has a security context.
    pub(super) flavor: Option<&'a Arc<dyn AuthFlavor>>,
    pub(super) sink: Option<&'a Arc<dyn ReplySink>>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) waiter: &'a Arc<CallWaiter>,
    pub(super) retransmission: Retransmission,
    pub(super) began: Instant,
}

pub(super) struct CallInProgress<'a> {
    connection: &'a ClientConnection,
    xid: u32,
    outgoing: OutgoingRecord<'a>,
    interrupt: &'a Interrupt,
    waiter: &'a CallWaiter,
    retransmission: Retransmission,
    /// Whether no byte of the caller's own record was passed to the writer yet.
    unsent: bool,
    /// Whether each transmission has its own credential and verifier.
    has_context: bool,
    /// Number of replies received when the record was sent.
    replies_at_send: u64,
    /// The start of the call, and its statistics.
    began: Instant,
    statistics: &'a mut CallStatistics,
    receive_buffer: Option<ReceiveBuffer>,
    writing: Option<RecordWriter>,
    /// The time of the caller's own reply, if it continues to read for others.
    reading_for_others_since: Option<Instant>,
}

/// How to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextWait {
    Write,
    Poll,
    Park,
    /// The caller's own call is complete; it reads for others until this time.
    ReadForOthers(Instant),
    /// The reading thread is running the call's sink, which decides the outcome. The caller waits
    /// for its end.
    SinkRunning,
}

impl<'a> CallInProgress<'a> {
    /// Adds the call to the connection. `None` if the connection is closed.
    pub(super) fn start(
        connection: &'a ClientConnection,
        parameters: &CallParameters<'a>,
        statistics: &'a mut CallStatistics,
    ) -> Option<Self> {
        let CallParameters { xid, outgoing, results_max, flavor, sink, interrupt, waiter, .. } = *parameters;
        let CallParameters { retransmission, began, .. } = *parameters;
        let mut state = connection.lock();
        if state.closed {
            return None;
        }
        let call = PendingCall::new(Arc::clone(waiter), results_max, flavor, sink);
        state.calls.insert(xid, call);
        let under_way = state.calls.len();
        state.statistics.note_in_flight(under_way);
        drop(state);
        Some(Self {
            connection,
            xid,
            outgoing,
            interrupt,
            waiter,
            retransmission,
            unsent: true,
            has_context: flavor.is_some(),
            replies_at_send: 0,
            began,
            statistics,
            receive_buffer: None,
            writing: None,
            reading_for_others_since: None,
        })
    }

    /// Whether the server may have received the call.
    pub(super) fn was_sent(&self) -> bool {
        !self.unsent || self.writing.as_ref().is_some_and(RecordWriter::own_begun)
    }

    /// Sends the call and waits for the reply. If `patient`, it never returns
    /// [`CallEnd::TimedOut`]. `quiet` is called whenever no byte has arrived for some time.
    pub(super) fn run(&mut self, timer: &mut RetransmitTimer, patient: bool, quiet: &dyn Fn()) -> CallEnd {
        loop {
            let looked = {
                let mut state = self.connection.lock();
                let looked = self.next_wait(&mut state);
                if looked.is_err() {
                    // From here on the results are not used.
                    state.calls.remove(&self.xid);
                }
                looked
            };
            let next = match looked {
                Ok(next) => next,
                Err(end) => return end,
            };
            match next {
                NextWait::ReadForOthers(end) => {
                    let _ = self.poll(end);
                    continue;
                }
                NextWait::SinkRunning => {
                    self.waiter.park(RECHECK_INTERVAL);
                    continue;
                }
                NextWait::Write | NextWait::Poll | NextWait::Park => {}
            }
            // Checked in each iteration: a caller that reads for others may have work after its own
            // deadline.
            if self.clock().now() >= timer.deadline() {
                self.waiter.finish_poll();
                if let Some(end) = self.handle_timeout(timer, patient)
                    && self.withdraw()
                {
                    return end;
                }
                continue;
            }
            match next {
                NextWait::Write => self.write(),
                NextWait::Poll
                    if self.poll(timer.deadline()) == PollOutcome::Quiet && self.receive_buffer.is_some() =>
                {
                    quiet()
                }
                NextWait::Poll => {}
                NextWait::Park | NextWait::ReadForOthers(_) | NextWait::SinkRunning => {
                    self.waiter.park(self.clock().until(timer.deadline()))
                }
            }
        }
    }

    /// Handles a timeout of the call. Returns the reason to leave the connection, if any.
    fn handle_timeout(&mut self, timer: &mut RetransmitTimer, patient: bool) -> Option<CallEnd> {
        match timer.due(self.clock().now()) {
            CallTimeout::NotYet => None,
            CallTimeout::Minor => self.retry(),
            CallTimeout::Major => {
                self.connection.activity().note_timeout(timer.major_timeout());
                if patient { self.retry() } else { Some(CallEnd::TimedOut) }
            }
        }
    }

    /// Removes the call after its timeout. Returns `false` if its reply has arrived since the last
    /// check, or if its sink is running: a sink must not use the results of a failed call.
    fn withdraw(&self) -> bool {
        let mut state = self.connection.lock();
        let waits = |slot: &PendingCall| !slot.sink_running && slot.outcome.is_none();
        let may = state.calls.get(&self.xid).is_none_or(waits);
        if may {
            state.calls.remove(&self.xid);
        }
        may
    }

    /// Checks whether the call is over. If not, takes the roles that are free, and returns how to
    /// wait.
    fn next_wait(&mut self, state: &mut ClientConnectionState) -> Result<NextWait, CallEnd> {
        if let Some(end) = self.reads_for_others_until(state) {
            self.waiter.prepare_poll(self.wakeup());
            return Ok(NextWait::ReadForOthers(end));
        }
        let slot = state.calls.get_mut(&self.xid);
        if slot.as_ref().is_some_and(|slot| slot.sink_running) {
            return Ok(NextWait::SinkRunning);
        }
        if let Some((outcome, received)) = slot.and_then(|slot| Some((slot.outcome.take()?, slot.received))) {
            self.statistics.bytes_received += received as u64;
            self.statistics.restarted = self.statistics.ended_by_peer.is_some_and(|sent| {
                let is_prompt = self.statistics.lost.is_some_and(|lost| lost - sent <= PROMPT_END_MAX);
                is_prompt || self.connection.activity().has_refused_since(self.began + sent)
            });
            if let Some(since) = self.reading_for_others_since.take() {
                self.statistics.reading_for_others += self.clock().since(since);
            }
            return Err(CallEnd::Done(outcome));
        }
        if self.interrupt.is_raised() {
            return Err(CallEnd::Done(Err(CallError::Interrupted)));
        }
        if state.closed {
            if self.statistics.transmissions > 0 {
                self.statistics.lost = Some(self.clock().since(self.began));
                self.statistics.ended_by_peer = state.ended_by_peer.then_some(self.statistics.queued);
            }
            return Err(CallEnd::ConnectionLost);
        }
        if self.become_writer(state) {
            return Ok(NextWait::Write);
        }
        if self.receive_buffer.is_none() {
            self.receive_buffer = state.receive_buffer.take();
        }
        if self.receive_buffer.is_none() && self.writing.is_none() {
            return Ok(NextWait::Park);
        }
        // Called under the lock: any later change of the state signals the descriptor.
        self.waiter.prepare_poll(self.wakeup());
        Ok(NextWait::Poll)
    }

    /// The time until which the caller, whose results were consumed, reads for other calls with
    /// sinks; `None` if it returns now. So one thread and one buffer serve a stream of such
    /// replies, and no thread has to be woken.
    fn reads_for_others_until(&mut self, state: &ClientConnectionState) -> Option<Instant> {
        let slot = state.calls.get(&self.xid);
        let taken = slot.is_some_and(|slot| matches!(&slot.outcome, Some(Ok(reply)) if reply.was_consumed()));
        let needed = self.receive_buffer.is_some() && self.writing.is_none();
        let may = !state.closed && !self.interrupt.is_raised();
        if !(taken && needed && may && state.has_sinks()) {
            return None;
        }
        let now = self.clock().now();
        let end = *self.reading_for_others_since.get_or_insert(now) + READ_FOR_OTHERS_MAX;
        (now < end).then_some(end)
    }

    /// Takes the writing role if it is free and there is output; otherwise makes sure that the
    /// caller's record is written by another thread or queued.
    fn become_writer(&mut self, state: &mut ClientConnectionState) -> bool {
        let nothing_to_write = !self.unsent && state.pending.is_empty();
        if self.writing.is_some() || nothing_to_write {
            return false;
        }
        let small = self.outgoing.len() <= SMALL;
        let may_write = small || state.queue.front().is_none_or(|first| *first == self.xid);
        if !state.writing && may_write {
            state.writing = true;
            state.queue.retain(|xid| *xid != self.xid);
            self.writing = Some(RecordWriter::new(std::mem::take(&mut state.pending), self.unsent));
            return true;
        }
        if self.unsent && small {
            self.outgoing.copy_rest(0, &mut state.pending);
            self.sent(state);
        } else if self.unsent && !state.queue.contains(&self.xid) {
            state.queue.push_back(self.xid);
        }
        false
    }

    /// Records that the record was sent completely. The events may be reported under the lock,
    /// because their receivers only count.
    fn sent(&mut self, state: &mut ClientConnectionState) {
        self.unsent = false;
        self.replies_at_send = state.statistics.receives;
        state.note_sent();
        self.statistics.transmissions += 1;
        self.statistics.bytes_sent += self.outgoing.len() as u64;
        self.statistics.queued = self.clock().since(self.began);
        self.connection.activity().events().sent(self.outgoing.len());
    }

    /// Writes until the socket is full or no output is left; in the latter case gives up the
    /// writing role.
    fn write(&mut self) {
        let connection = self.connection;
        loop {
            let Some(writing) = &mut self.writing else { return };
            match writing.push(&connection.socket, &self.outgoing) {
                Err(errno) => return connection.failed(errno),
                Ok(false) => return,
                Ok(true) => {}
            }
            let own_done = writing.own_done(&self.outgoing);
            let mut state = connection.lock();
            if own_done && self.unsent {
                self.sent(&mut state);
            }
            self.writing = state.next_output();
        }
    }

    fn clock(&self) -> &'a TimeSource {
        self.connection.activity().clock()
    }

    fn wakeup(&self) -> &'a Arc<WakeupFd> {
        if self.receive_buffer.is_some() {
            &self.connection.read_wakeup
        } else {
            &self.connection.write_wakeup
        }
    }

    /// Waits for the socket, and reads or writes.
    fn poll(&mut self, deadline: Instant) -> PollOutcome {
        // Final check: from now on `raise` signals the descriptor.
        if self.interrupt.is_raised() {
            self.waiter.finish_poll();
            return PollOutcome::Woken;
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.receive_buffer.is_some());
        events.set(PollFlags::OUT, self.writing.is_some());
        let longest = self.clock().until(deadline).min(LOOK_INTERVAL);
        let polled = self.waiter.poll(&self.connection.socket, events, self.wakeup(), longest);
        if polled == PollOutcome::Ready {
            if let Some(receive_buffer) = &mut self.receive_buffer {
                self.connection.receive(receive_buffer);
            }
            self.write();
        }
        polled
    }

    /// Sends the call again on the same connection, if this is useful and allowed. TCP loses
    /// nothing, so only a server that has replied to other calls since can have dropped the call. A
    /// call with a context leaves to get a new verifier, because the server drops a sequence number
    /// that it has seen (RFC 2203 section 5.3.3.1).
    fn retry(&mut self) -> Option<CallEnd> {
        if self.retransmission == Retransmission::ConnectionLoss {
            return None;
        }
        let answers_others = self.connection.lock().statistics.receives > self.replies_at_send;
        if !self.unsent && self.writing.is_none() && answers_others {
            self.unsent = !self.has_context;
            self.connection.activity().events().retransmitted();
            probe!(RpcRetransmit {
                xid: self.xid,
                server: self.connection.activity().server(),
                reason: "no reply"
            });
            return self.has_context.then_some(CallEnd::SignAgain);
        }
        None
    }
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.lock();
        state.calls.remove(&self.xid);
        state.queue.retain(|xid| *xid != self.xid);
        if let Some(writing) = self.writing.take() {
            let mut rest = writing.leave(&self.outgoing);
            rest.append(&mut state.pending);
            state.pending = rest;
            state.writing = false;
        }
        if let Some(receive_buffer) = self.receive_buffer.take() {
            state.receive_buffer = Some(receive_buffer);
        }
        if state.calls.is_empty() {
            self.connection.idle();
        }
        state.wake_next_owners();
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{
        super::{activity::ServerActivity, connect::KeepAlive, events::NoTransportEvents},
        *,
    };
    use crate::{clock::TimeSource, record::buffer_pool::BufferPool};

    struct Nobody;

    impl ReplySink for Nobody {
        fn consume(&self, _: &[u8]) -> bool {
            unreachable!("no reply comes")
        }
    }

    #[test]
    fn a_call_whose_time_is_over_leaves_only_if_its_reply_is_nowhere() {
        let (near, _far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("there are sockets");
        let activity =
            Arc::new(ServerActivity::new("nobody".into(), TimeSource::System, Arc::new(NoTransportEvents)));
        let keep_alive = KeepAlive { interval: Duration::from_secs(60), count: 3 };
        let connection =
            ClientConnection::new(near, activity, Arc::new(BufferPool::new(1)), 1 << 20, keep_alive)
                .expect("there are descriptors");
        let (interrupt, waiter) = (Interrupt::never(), CallWaiter::current());
        let (sink, mut statistics): (Arc<dyn ReplySink>, _) = (Arc::new(Nobody), CallStatistics::default());
        let parameters = CallParameters {
            xid: 7,
            outgoing: OutgoingRecord::new([&[0; 4], &[], &[], &[]]),
            results_max: 1 << 20,
            flavor: None,
            sink: Some(&sink),
            interrupt: &interrupt,
            waiter: &waiter,
            retransmission: Retransmission::Timeout,
            began: Instant::now(),
        };
        let call = CallInProgress::start(&connection, &parameters, &mut statistics);
        let call = call.expect("the connection is open");
        let change = |change: &dyn Fn(&mut PendingCall)| {
            change(connection.lock().calls.get_mut(&7).expect("it has not left"));
        };
        // The reply arrived after the last check, and the reading thread passed it to the sink.
        change(&|slot| slot.sink_running = true);
        assert!(!call.withdraw());
        change(&|slot| {
            slot.sink_running = false;
            slot.outcome = Some(Ok(CallReply::consumed()));
        });
        assert!(!call.withdraw(), "it succeeded");
        change(&|slot| slot.outcome = None);
        assert!(call.withdraw());
        assert!(connection.lock().calls.is_empty(), "a reply that comes now is nobody's");
    }
}
