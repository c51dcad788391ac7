//! What a caller does on a connection from sending its call to leaving with the reply.
//!
//! One loop: look (under the lock) whether it is over, take every role that is free, then wait the way the roles want.
//! Dropping a [`Turn`] gives the roles back, at whatever point the caller leaves.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::PollFlags;

use super::{
    CallError, Interrupt, Journey, Reply, Taker,
    connection::{Connection, Slot, State},
    outgoing::{Outgoing, Writing},
    timer::{Due, Timer},
    waiter::{Polled, Waiter},
};
use crate::inbox::Inbox;
use curt_trace::probe;

/// Records up to this size are given to whoever is writing, by a copy; longer ones wait for the output.
const SMALL: usize = 4096;

/// A wait that has no deadline is interrupted after this time, to check whether to go on.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a caller that has its reply reads on for others, at most: dozens of large replies, beside which handing the reading
/// over costs nothing, and no delay that a program notices.
const STAY_MAX: Duration = Duration::from_millis(20);

/// Why a call ended on this connection.
pub(super) enum End {
    /// It is over.
    Over(Result<Reply, CallError>),
    /// The connection is gone; the call may be sent again on another.
    Lost,
    /// All retries are over and no reply came; the call has left the connection.
    Expired,
}

pub(super) struct Turn<'a> {
    connection: &'a Connection,
    xid: u32,
    outgoing: Outgoing<'a>,
    interrupt: &'a Interrupt,
    waiter: &'a Waiter,
    /// Whether nothing of the caller's own record has been given to the writer yet.
    unsent: bool,
    /// How many replies had come when the record was sent.
    replies_at_send: u64,
    /// When the call began, and its statistics.
    began: Instant,
    journey: &'a mut Journey,
    inbox: Option<Inbox>,
    writing: Option<Writing>,
    /// Since when this caller has had its own reply, if it stays to read for others.
    stays_since: Option<Instant>,
}

/// How to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Write,
    Poll,
    Park,
    /// The caller's own call is over; it reads on for others until then.
    Stay(Instant),
    /// The reading thread is running the call's taker, which decides the outcome, however long it takes.
    InHand,
}

impl<'a> Turn<'a> {
    /// Joins the connection. `None` if it is closed.
    pub(super) fn join(
        connection: &'a Connection,
        xid: u32,
        outgoing: Outgoing<'a>,
        (results_max, taker): (usize, Option<&Arc<dyn Taker>>),
        (interrupt, waiter): (&'a Interrupt, &'a Arc<Waiter>),
        (began, journey): (Instant, &'a mut Journey),
    ) -> Option<Self> {
        let mut state = connection.lock();
        if state.closed {
            return None;
        }
        let slot = Slot {
            waiter: Arc::clone(waiter),
            results_max,
            received: 0,
            taker: taker.cloned(),
            in_hand: false,
            outcome: None,
        };
        state.calls.insert(xid, slot);
        let under_way = state.calls.len();
        state.traffic.under_way(under_way);
        drop(state);
        Some(Self {
            connection,
            xid,
            outgoing,
            interrupt,
            waiter,
            unsent: true,
            replies_at_send: 0,
            began,
            journey,
            inbox: None,
            writing: None,
            stays_since: None,
        })
    }

    /// Whether the server may have received the call.
    pub(super) fn was_sent(&self) -> bool {
        !self.unsent || self.writing.as_ref().is_some_and(Writing::own_begun)
    }

    /// Sends the call and waits for the reply. `patient`: never [`End::Expired`].
    /// `quiet` is called whenever nothing has come for a while.
    pub(super) fn run(&mut self, timer: &mut Timer, patient: bool, quiet: &dyn Fn()) -> End {
        loop {
            let looked = {
                let mut state = self.connection.lock();
                let looked = self.look(&mut state);
                if looked.is_err() {
                    // From now on nobody uses its results.
                    state.calls.remove(&self.xid);
                }
                looked
            };
            let next = match looked {
                Ok(next) => next,
                Err(end) => return end,
            };
            match next {
                Next::Stay(end) => {
                    let _ = self.poll(end);
                    continue;
                }
                Next::InHand => {
                    self.waiter.park(Instant::now() + AGAIN);
                    continue;
                }
                Next::Write | Next::Poll | Next::Park => {}
            }
            // Asked each time: whoever reads for others may have something to do beyond its own deadline.
            if Instant::now() >= timer.deadline() {
                self.waiter.stay();
                if self.is_given_up(timer, patient) && self.leave() {
                    return End::Expired;
                }
                continue;
            }
            match next {
                Next::Write => self.write(),
                Next::Poll if self.poll(timer.deadline()) == Polled::Quiet && self.inbox.is_some() => quiet(),
                Next::Poll => {}
                Next::Park | Next::Stay(_) | Next::InHand => self.waiter.park(timer.deadline()),
            }
        }
    }

    /// Does what is due after a call has waited. Returns whether the call is to be given up.
    fn is_given_up(&mut self, timer: &mut Timer, patient: bool) -> bool {
        match timer.due(Instant::now()) {
            Due::Nothing => {}
            Due::Retry => self.retry(),
            Due::Patience => {
                self.connection.activity().missed(timer.patience());
                if !patient {
                    return true;
                }
                self.retry();
            }
        }
        false
    }

    /// Withdraws the call, whose time is over. Returns `false` if its reply has arrived since the last check, or if its taker is
    /// running: a taker must not use the results of a call that has failed.
    fn leave(&self) -> bool {
        let mut state = self.connection.lock();
        let waits = |slot: &Slot| !slot.in_hand && slot.outcome.is_none();
        let may = state.calls.get(&self.xid).is_none_or(waits);
        if may {
            state.calls.remove(&self.xid);
        }
        may
    }

    /// Is it over? If not, takes the roles that are free, and says how to wait.
    fn look(&mut self, state: &mut State) -> Result<Next, End> {
        if let Some(end) = self.stays(state) {
            self.waiter.will_poll(self.bell());
            return Ok(Next::Stay(end));
        }
        let slot = state.calls.get_mut(&self.xid);
        if slot.as_ref().is_some_and(|slot| slot.in_hand) {
            return Ok(Next::InHand);
        }
        if let Some((outcome, received)) = slot.and_then(|slot| Some((slot.outcome.take()?, slot.received))) {
            self.journey.bytes_received += received as u64;
            self.journey.stayed += self
                .stays_since
                .take()
                .map_or(Duration::ZERO, |since| since.elapsed());
            return Err(End::Over(outcome));
        }
        if self.interrupt.is_raised() {
            return Err(End::Over(Err(CallError::Interrupted)));
        }
        if state.closed {
            if self.journey.transmissions > 0 {
                self.journey.lost = Some(self.began.elapsed());
            }
            return Err(End::Lost);
        }
        if self.take_output(state) {
            return Ok(Next::Write);
        }
        if self.inbox.is_none() {
            self.inbox = state.inbox.take();
        }
        if self.inbox.is_none() && self.writing.is_none() {
            return Ok(Next::Park);
        }
        // Said under the lock: whoever changes the state from now on rings the bell.
        self.waiter.will_poll(self.bell());
        Ok(Next::Poll)
    }

    /// Until when the caller, whose own results were taken, reads on for other calls with takers; `None` if it leaves. So one
    /// thread and one buffer serve a stream of such replies, and no thread has to be woken.
    fn stays(&mut self, state: &State) -> Option<Instant> {
        let slot = state.calls.get(&self.xid);
        let taken = slot.is_some_and(|slot| matches!(&slot.outcome, Some(Ok(reply)) if reply.was_taken()));
        let needed = self.inbox.is_some() && self.writing.is_none();
        let may = !state.closed && !self.interrupt.is_raised();
        if !(taken && needed && may && state.has_takers()) {
            return None;
        }
        let now = Instant::now();
        let end = *self.stays_since.get_or_insert(now) + STAY_MAX;
        (now < end).then_some(end)
    }

    /// Takes the role of writing if it is free and there is something to write; otherwise makes sure that the caller's record
    /// is written by others, or when its turn comes.
    fn take_output(&mut self, state: &mut State) -> bool {
        let nothing_to_write = !self.unsent && state.pending.is_empty();
        if self.writing.is_some() || nothing_to_write {
            return false;
        }
        let small = self.outgoing.len() <= SMALL;
        let my_turn = small || state.queue.front().is_none_or(|first| *first == self.xid);
        if !state.writing && my_turn {
            state.writing = true;
            state.queue.retain(|xid| *xid != self.xid);
            self.writing = Some(Writing::new(std::mem::take(&mut state.pending), self.unsent));
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

    /// The record was sent completely. The events may be reported under the lock, because their receivers only count.
    fn sent(&mut self, state: &mut State) {
        self.unsent = false;
        self.replies_at_send = state.traffic.receives;
        state.note_sent();
        self.journey.transmissions += 1;
        self.journey.bytes_sent += self.outgoing.len() as u64;
        self.journey.queued = self.began.elapsed();
        self.connection.activity().events().sent(self.outgoing.len());
    }

    /// Writes until the socket takes no more or nothing is left; in the latter case gives the output back.
    fn write(&mut self) {
        let connection = self.connection;
        loop {
            let Some(writing) = &mut self.writing else { return };
            match writing.push(&connection.socket, &self.outgoing) {
                Err(errno) => return connection.lost(&errno.to_string()),
                Ok(false) => return,
                Ok(true) => {}
            }
            let own_done = writing.own_done(&self.outgoing);
            let mut state = connection.lock();
            if own_done && self.unsent {
                self.sent(&mut state);
            }
            if state.pending.is_empty() {
                state.writing = false;
                self.writing = None;
                if !state.queue.is_empty() {
                    state.pass_on();
                }
                return;
            }
            self.writing = Some(Writing::new(std::mem::take(&mut state.pending), false));
        }
    }

    fn bell(&self) -> &'a Arc<super::waiter::Bell> {
        if self.inbox.is_some() {
            &self.connection.read_bell
        } else {
            &self.connection.write_bell
        }
    }

    /// Waits for the socket, and serves it.
    fn poll(&mut self, deadline: Instant) -> Polled {
        // A last look, now that `raise` will ring the bell.
        if self.interrupt.is_raised() {
            self.waiter.stay();
            return Polled::Woken;
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.inbox.is_some());
        events.set(PollFlags::OUT, self.writing.is_some());
        let polled = self
            .waiter
            .poll(&self.connection.socket, events, self.bell(), deadline);
        if polled == Polled::Ready {
            if let Some(inbox) = &mut self.inbox {
                self.connection.receive(inbox);
            }
            self.write();
        }
        polled
    }

    /// The same call once more on the same connection, if that makes sense: TCP loses nothing, so only a server that
    /// answered others since can have dropped it.
    fn retry(&mut self) {
        let answers_others = self.connection.lock().traffic.receives > self.replies_at_send;
        if !self.unsent && self.writing.is_none() && answers_others {
            self.unsent = true;
            self.connection.activity().events().retransmitted();
            probe!(RpcRetransmit {
                xid: self.xid,
                server: self.connection.activity().server(),
                reason: "no reply"
            });
        }
    }
}

impl Drop for Turn<'_> {
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
        if let Some(inbox) = self.inbox.take() {
            state.inbox = Some(inbox);
        }
        if state.calls.is_empty() {
            self.connection.idle();
        }
        state.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{
        super::{activity::Activity, connect::KeepAlive, events::NoEvents},
        *,
    };
    use crate::buffer::Pool;

    struct Nobody;

    impl Taker for Nobody {
        fn take(&self, _: &[u8]) -> bool {
            unreachable!("no reply comes")
        }
    }

    #[test]
    fn a_call_whose_time_is_over_leaves_only_if_its_reply_is_nowhere() {
        let (near, _far) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("there are sockets");
        let activity = Arc::new(Activity::new("nobody".into(), Arc::new(NoEvents)));
        let keep_alive = KeepAlive {
            interval: Duration::from_secs(60),
            count: 3,
        };
        let connection = Connection::new(near, activity, Arc::new(Pool::new(1)), 1 << 20, keep_alive)
            .expect("there are descriptors");
        let (interrupt, waiter) = (Interrupt::never(), Waiter::current());
        let (taker, mut journey): (Arc<dyn Taker>, _) = (Arc::new(Nobody), Journey::default());
        let turn = Turn::join(
            &connection,
            7,
            Outgoing::new(&[0; 4], &[], &[]),
            (1 << 20, Some(&taker)),
            (&interrupt, &waiter),
            (Instant::now(), &mut journey),
        );
        let turn = turn.expect("the connection is open");
        let change = |change: &dyn Fn(&mut Slot)| {
            change(connection.lock().calls.get_mut(&7).expect("it has not left"));
        };
        // The reply came after the last look, and whoever reads has given it to the taker.
        change(&|slot| slot.in_hand = true);
        assert!(!turn.leave());
        change(&|slot| {
            slot.in_hand = false;
            slot.outcome = Some(Ok(Reply::taken()));
        });
        assert!(!turn.leave(), "it succeeded");
        change(&|slot| slot.outcome = None);
        assert!(turn.leave());
        assert!(
            connection.lock().calls.is_empty(),
            "a reply that comes now is nobody's"
        );
    }
}
