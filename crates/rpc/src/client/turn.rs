//! What a caller does on a connection from sending its call to leaving with the reply.
//!
//! One loop: look (under the lock) whether it is over, take every role that is free, then wait the way the roles want.
//! Dropping a [`Turn`] gives the roles back, at whatever point the caller leaves.

use std::{sync::Arc, time::Instant};

use rustix::event::PollFlags;

use super::{
    CallError, Interrupt, Reply,
    connection::{Connection, Slot, State},
    outgoing::{Outgoing, Writing},
    timer::{Due, Timer},
    waiter::{Polled, Waiter},
};
use crate::inbox::Inbox;

/// Records up to this size are given to whoever is writing, by a copy; longer ones wait for the output.
const SMALL: usize = 4096;

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
    /// Of this side's record, nothing is in the hands of whoever writes.
    unsent: bool,
    /// `State::replies` when the record was sent.
    replies_at_send: u64,
    inbox: Option<Inbox>,
    writing: Option<Writing>,
}

/// How to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Write,
    Poll,
    Park,
}

impl<'a> Turn<'a> {
    /// Joins the connection. `None` if it is closed.
    pub(super) fn join(
        connection: &'a Connection,
        xid: u32,
        outgoing: Outgoing<'a>,
        results_max: usize,
        interrupt: &'a Interrupt,
        waiter: &'a Arc<Waiter>,
    ) -> Option<Self> {
        let mut state = connection.lock();
        if state.closed {
            return None;
        }
        let slot = Slot {
            waiter: Arc::clone(waiter),
            results_max,
            outcome: None,
        };
        state.calls.insert(xid, slot);
        drop(state);
        Some(Self {
            connection,
            xid,
            outgoing,
            interrupt,
            waiter,
            unsent: true,
            replies_at_send: 0,
            inbox: None,
            writing: None,
        })
    }

    /// Whether the server may have received the call.
    pub(super) fn was_sent(&self) -> bool {
        !self.unsent || self.writing.as_ref().is_some_and(Writing::own_begun)
    }

    /// Sends the call and waits for the reply. `patient`: never [`End::Expired`].
    pub(super) fn run(&mut self, timer: &mut Timer, patient: bool) -> End {
        loop {
            let next = match self.look(&mut self.connection.lock()) {
                Ok(next) => next,
                Err(end) => return end,
            };
            // Asked each time: whoever reads for others may have something to do beyond its own deadline.
            if Instant::now() >= timer.deadline() {
                self.waiter.stay();
                if self.is_given_up(timer, patient) {
                    return End::Expired;
                }
                continue;
            }
            match next {
                Next::Write => self.write(),
                Next::Poll => self.poll(timer.deadline()),
                Next::Park => self.waiter.park(timer.deadline()),
            }
        }
    }

    /// Does what is due when a call waited so long; whether that is nothing any more.
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

    /// Is it over? If not, takes the roles that are free, and says how to wait.
    fn look(&mut self, state: &mut State) -> Result<Next, End> {
        if let Some(outcome) = state
            .calls
            .get_mut(&self.xid)
            .and_then(|slot| slot.outcome.take())
        {
            return Err(End::Over(outcome));
        }
        if self.interrupt.is_raised() {
            return Err(End::Over(Err(CallError::Interrupted)));
        }
        if state.closed {
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

    /// Takes the output if it is free and there is something to write; else sees to it that the own record is written by
    /// others, or in its turn.
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
            self.sent(state.replies);
        } else if self.unsent && !state.queue.contains(&self.xid) {
            state.queue.push_back(self.xid);
        }
        false
    }

    fn sent(&mut self, replies: u64) {
        self.unsent = false;
        self.replies_at_send = replies;
        self.connection.activity().events().sent(self.outgoing.len());
    }

    /// Writes until the socket takes no more or nothing is left; in the latter case gives the output back.
    fn write(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        loop {
            match writing.push(&self.connection.socket, &self.outgoing) {
                Err(errno) => return self.connection.lost(&errno.to_string()),
                Ok(false) => return,
                Ok(true) => {}
            }
            let own_done = writing.own_done(&self.outgoing);
            let mut state = self.connection.lock();
            if own_done && self.unsent {
                // The events may be told under the lock: they only count.
                self.unsent = false;
                self.replies_at_send = state.replies;
                self.connection.activity().events().sent(self.outgoing.len());
            }
            if state.pending.is_empty() {
                state.writing = false;
                self.writing = None;
                if !state.queue.is_empty() {
                    state.pass_on();
                }
                return;
            }
            *writing = Writing::new(std::mem::take(&mut state.pending), false);
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
    fn poll(&mut self, deadline: Instant) {
        // A last look, now that `raise` will ring the bell.
        if self.interrupt.is_raised() {
            return self.waiter.stay();
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
    }

    /// The same call once more on the same connection, if that makes sense: TCP loses nothing, so only a server that
    /// answered others since can have dropped it.
    fn retry(&mut self) {
        let answers_others = self.connection.lock().replies > self.replies_at_send;
        if !self.unsent && self.writing.is_none() && answers_others {
            self.unsent = true;
            self.connection.activity().events().retransmitted();
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
        state.pass_on();
    }
}
