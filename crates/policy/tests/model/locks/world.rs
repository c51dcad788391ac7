//! The steps of the world of locks, and what must never be.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use curt_policy::{
    MonotonicTime,
    locks::{
        GrantedCallback, LocalLockOwner, LocalLockRequest, LockAction, LockAgent, LockCallId, LockError,
        LockFileId, LockOpenId, LockOptions, LockProcedure, LockRanges, LockReply, LockRequestId,
        LockServerCall, LockTimer,
    },
};
use curt_types::{ByteRange, Fault, LockType};

use super::state::{CLIENT_OF, Message, OrderedCallback, OrderedReply, Process, Server, State, SystemCall};
use crate::explore::World;

/// Makes a step, and says what is wrong with it.
type Change<'a> = &'a dyn Fn(&mut State) -> Option<String>;

const FILE: LockFileId = LockFileId(1);
const RECLAIM: LockRequestId = LockRequestId(1);
/// The numbers of the requests that end late locks begin here.
const LATE: u64 = 60;
const NOW: MonotonicTime = MonotonicTime::from_nanoseconds(0);
/// Timers that are longer only wait for lost callbacks, and nothing is lost here.
const POLL_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pub(crate) lock_type: LockType,
    pub(crate) range: ByteRange,
    pub(crate) wait: bool,
}

/// A server's treatment of a LOCK that it has denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callbacks {
    /// Nothing.
    None,
    /// The server grants the lock later (GRANTED of NLM).
    Grant,
    /// The server says when it may be asked again (CB_NOTIFY_LOCK of NFSv4).
    Notify,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) menu: &'static [Wanted],
    /// Locks that each process asks for.
    pub(crate) operations: [u8; 3],
    pub(crate) interrupts: u8,
    pub(crate) timers: u8,
    pub(crate) restarts: u8,
    /// Notices of restarts that did not happen.
    pub(crate) false_restarts: u8,
    /// UNLOCKs that the server refuses.
    pub(crate) refusals: u8,
    /// Replies that are lost.
    pub(crate) losses: u8,
    /// Callbacks that come twice.
    pub(crate) repeats: u8,
    /// LOCKs that are sent again, and executed twice.
    pub(crate) resends: u8,
    pub(crate) callbacks: Callbacks,
    /// Processes 0 and 1 are threads of one process, whose locks are one owner's. What a thread may
    /// rely on while another one changes it is nothing that could be checked.
    pub(crate) are_threads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// The agent is told that an unlock is done when it is sent.
    UnlockAnsweredEarly,
    /// A LOCK that was granted after its caller was interrupted is not undone.
    GrantAfterCancelKept,
    /// A refused UNLOCK counts as done.
    RefusedUnlockDone,
    /// A callback that comes twice counts as one of the next LOCK.
    RepeatedCallbackBelieved,
    /// The agent is not told that a LOCK was sent again.
    ResentLockForgotten,
    /// A copy of a LOCK that the server executes after the UNLOCK is not undone.
    LateLockKept,
    /// A notification before the reply that denies the lock is forgotten.
    EarlyNotificationForgotten,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Locks {
    pub(crate) options: LockOptions,
    pub(crate) bounds: Bounds,
    pub(crate) planted: Planted,
}

#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "the fields are printed in traces")]
pub(crate) enum Step {
    Lock(usize, Wanted),
    Unlock(usize),
    Interrupt(usize),
    Executes(usize, LocalLockOwner, LockProcedure),
    Reply(usize, LockCallId, LockReply),
    Granted(usize, LocalLockOwner),
    Timer(usize, LockTimer),
    Refuses(usize, LocalLockOwner),
    Repeats(usize, LocalLockOwner),
    ExecutesFirst(usize, LocalLockOwner),
    Copies(usize, LocalLockOwner),
    ExecutesCopy(usize, LocalLockOwner),
    Loses(usize, LockCallId),
    Restart,
    FalseRestart(usize),
    GraceEnds,
}

impl Bounds {
    fn owner(&self, process: usize) -> LocalLockOwner {
        LocalLockOwner::Posix(if self.are_threads && process == 1 { 0 } else { process as u64 })
    }

    /// The processes whose locks are not those of `process`.
    fn strangers(&self, process: usize) -> impl Iterator<Item = usize> {
        let (own, all) = (self.owner(process), *self);
        (0..3).filter(move |other| all.owner(*other) != own)
    }

    /// Threads rely on exactly the locks that their mount has recorded.
    fn share(&self, next: &mut State) {
        if self.are_threads {
            let held = next.agents[0].held(FILE, self.owner(0));
            next.processes[0].held = held.clone();
            next.processes[1].held = held;
        }
    }
}

fn request_id(process: usize, call: u64) -> LockRequestId {
    LockRequestId(100 * (process as u64 + 1) + call)
}

/// Whether a timer ends a late lock.
const fn is_late(timer: LockTimer) -> bool {
    timer.call.request.0 % 100 > LATE
}

/// The process and the number of its call.
fn caller(id: LockRequestId) -> (usize, u64) {
    (usize::try_from(id.0 / 100).unwrap() - 1, id.0 % 100)
}

impl Process {
    fn conflicts(&self, wanted: Wanted) -> bool {
        self.held.overlapping(wanted.range).any(|(_, held)| held.conflicts(wanted.lock_type))
    }

    /// Whether it gets or gives back locks.
    fn is_busy(&self) -> bool {
        self.call.is_some()
    }
}

impl World for Locks {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        false
    }

    fn start(&self) -> State {
        let process = |operations| Process {
            operations,
            call: None,
            held: LockRanges::default(),
            calls: 0,
            interrupted: BTreeSet::new(),
        };
        State {
            agents: [LockAgent::new(self.options), LockAgent::new(self.options)],
            processes: self.bounds.operations.map(process),
            server: Server::default(),
            messages: BTreeSet::new(),
            timers: Vec::new(),
            interrupts: self.bounds.interrupts,
            polls: self.bounds.timers,
            restarts: self.bounds.restarts,
            false_restarts: self.bounds.false_restarts,
            refusals: self.bounds.refusals,
            losses: self.bounds.losses,
            repeats: self.bounds.repeats,
            resends: self.bounds.resends,
            sent_again: BTreeMap::new(),
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        let mut take = |step: Step, change: Change<'_>| {
            let mut next = state.clone();
            let wrong = change(&mut next).or_else(|| {
                self.bounds.share(&mut next);
                self.bounds.excuse(&mut next);
                self.bounds.judge(&next)
            });
            each(step, next, wrong);
        };
        for process in 0..3 {
            let own = &state.processes[process];
            match &own.call {
                None => {
                    for wanted in self.bounds.menu.iter().filter(|_| own.operations > 0) {
                        take(Step::Lock(process, *wanted), &|next| self.lock(next, process, *wanted));
                    }
                    if !own.held.is_empty() {
                        take(Step::Unlock(process), &|next| self.unlock(next, process));
                    }
                }
                Some(SystemCall::Lock { .. }) if state.interrupts > 0 => {
                    take(Step::Interrupt(process), &|next| self.interrupt(next, process));
                }
                Some(_) => {}
            }
        }
        for message in &state.messages {
            self.deliver(message, &mut take);
            self.disturb(state, message, &mut take);
        }
        // Calls are sent again; replies of the server before may arrive late.
        if state.restarts > 0 {
            take(Step::Restart, &|next| self.restart(next));
        }
        for client in (0..2).filter(|_| state.false_restarts > 0) {
            take(Step::FalseRestart(client), &|next| {
                next.false_restarts -= 1;
                let actions = next.agents[client].server_restarted(RECLAIM);
                self.act(next, client, actions)
            });
        }
        let reclaims = |message: &Message| match message {
            Message::Call(_, call) => call.is_reclaim,
            Message::Reply(_, call, _) => call.request == RECLAIM,
            Message::Granted(..) | Message::Copy(..) => false,
        };
        let is_reclaiming = |(_, timer): &(usize, LockTimer)| timer.call.request == RECLAIM;
        let is_reclaimed = !state.messages.iter().any(reclaims) && !state.timers.iter().any(is_reclaiming);
        if state.server.is_in_grace && is_reclaimed {
            take(Step::GraceEnds, &|next| {
                next.server.is_in_grace = false;
                None
            });
        }
        for (index, (client, timer)) in state.timers.iter().enumerate() {
            let is_poll = state.is_waited_for(timer.call);
            // Copies are on their way for less than that time.
            let is_copied = |message: &Message| matches!(message, Message::Copy(..));
            let is_early = is_late(*timer) && state.messages.iter().any(is_copied);
            if !state.has_effect(*client, *timer) || (is_poll && state.polls == 0) || is_early {
                continue;
            }
            take(Step::Timer(*client, *timer), &|next| {
                next.timers.remove(index);
                next.polls -= u8::from(is_poll);
                let actions = next.agents[*client].timer(*timer);
                self.act(next, *client, actions)
            });
        }
    }
}

impl Locks {
    fn lock(&self, next: &mut State, process: usize, wanted: Wanted) -> Option<String> {
        let own = &mut next.processes[process];
        own.operations -= 1;
        own.calls += 1;
        let before = own.held.clone();
        for (part, held) in before.parts(wanted.range) {
            own.held.set(part, held.min(Some(wanted.lock_type)));
        }
        own.call = Some(SystemCall::Lock { wanted, before, is_excused: false });
        let request = LocalLockRequest {
            id: request_id(process, own.calls),
            file: FILE,
            owner: self.bounds.owner(process),
            open: LockOpenId(process as u64),
            range: wanted.range,
            lock_type: wanted.lock_type,
            wait: wanted.wait,
        };
        self.bounds.share(next);
        self.bounds.excuse(next);
        let client = CLIENT_OF[process];
        let actions = next.agents[client].lock(request);
        self.act(next, client, actions)
    }

    fn unlock(&self, next: &mut State, process: usize) -> Option<String> {
        let own = &mut next.processes[process];
        own.calls += 1;
        own.held = LockRanges::default();
        own.call = Some(SystemCall::Unlock);
        let (id, client) = (request_id(process, own.calls), CLIENT_OF[process]);
        self.bounds.share(next);
        self.bounds.excuse(next);
        let actions = next.agents[client].unlock(id, FILE, self.bounds.owner(process), ByteRange::WHOLE, NOW);
        self.act(next, client, actions)
    }

    fn interrupt(&self, next: &mut State, process: usize) -> Option<String> {
        next.interrupts -= 1;
        let own = &mut next.processes[process];
        own.interrupted.insert(own.calls);
        let (id, client) = (request_id(process, own.calls), CLIENT_OF[process]);
        let actions = next.agents[client].interrupt(FILE, id);
        self.act(next, client, actions)
    }

    fn restart(&self, next: &mut State) -> Option<String> {
        next.restarts -= 1;
        next.server = Server { is_in_grace: true, ..Server::default() };
        for client in 0..2 {
            let actions = next.agents[client].server_restarted(RECLAIM);
            let wrong = self.act(next, client, actions);
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    fn deliver(&self, message: &Message, take: &mut dyn FnMut(Step, Change<'_>)) {
        match message {
            Message::Call(client, call) => {
                let procedure = match call.lock {
                    Some((lock_type, _)) if call.is_cancel => LockProcedure::Cancel { lock_type },
                    Some((lock_type, wait)) => LockProcedure::Lock { lock_type, wait },
                    None => LockProcedure::Unlock,
                };
                take(Step::Executes(*client, call.wire_owner, procedure), &|next| {
                    next.messages.remove(message);
                    let (reply, callbacks) = next.server.execute(*client, call, self.bounds.callbacks);
                    next.messages.extend(callbacks);
                    next.messages.insert(Message::Reply(*client, call.id, reply));
                    None
                });
            }
            Message::Reply(client, call, reply) => {
                take(Step::Reply(*client, *call, (*reply).into()), &|next| {
                    next.messages.remove(message);
                    let sent_again = next.sent_again.remove(&(*client, *call));
                    if let Some((range, lock_type)) = sent_again
                        && self.planted != Planted::ResentLockForgotten
                    {
                        // Each owner is its own at the server.
                        let id = LockCallId { request: LockRequestId(call.request.0 + LATE), ..*call };
                        let actions = next.agents[*client].sent_again(id, range, lock_type);
                        let wrong = match self.planted {
                            Planted::LateLockKept => None,
                            _ => self.act(next, *client, actions),
                        };
                        if wrong.is_some() {
                            return wrong;
                        }
                    }
                    let actions = next.agents[*client].replied(*call, (*reply).into(), NOW);
                    self.act(next, *client, actions)
                });
            }
            Message::Copy(client, call) => {
                take(Step::ExecutesCopy(*client, call.wire_owner), &|next| {
                    next.messages.remove(message);
                    let (_, callbacks) = next.server.execute(*client, call, self.bounds.callbacks);
                    next.messages.extend(callbacks);
                    None
                });
            }
            Message::Granted(client, callback) => {
                take(Step::Granted(*client, callback.wire_owner), &|next| {
                    next.messages.remove(message);
                    self.call_back(next, *client, *callback)
                });
            }
        }
    }

    fn call_back(&self, next: &mut State, client: usize, callback: OrderedCallback) -> Option<String> {
        let OrderedCallback { wire_owner, range, lock_type, is_repeated } = callback;
        let LocalLockOwner::Posix(process) = wire_owner else { return None };
        if self.bounds.callbacks == Callbacks::Notify {
            let before = next.agents[client].clone();
            let (_, actions) = next.agents[client].available(FILE, wire_owner);
            if self.planted == Planted::EarlyNotificationForgotten && actions.is_empty() {
                next.agents[client] = before;
            }
            return self.act(next, client, actions);
        }
        let id = LockRequestId(100 * (process + 1) + 50);
        let is_repeated = is_repeated && self.planted != Planted::RepeatedCallbackBelieved;
        let callback = GrantedCallback { wire_owner, range, lock_type, is_repeated };
        let (_, actions) = next.agents[client].granted(id, FILE, callback);
        self.act(next, client, actions)
    }

    /// The possible faults of a message.
    fn disturb(&self, state: &State, message: &Message, take: &mut dyn FnMut(Step, Change<'_>)) {
        match message {
            Message::Call(client, call) if call.lock.is_none() && state.refusals > 0 => {
                take(Step::Refuses(*client, call.wire_owner), &|next| {
                    next.refusals -= 1;
                    next.messages.remove(message);
                    let is_planted = self.planted == Planted::RefusedUnlockDone;
                    let reply = if is_planted { OrderedReply::Granted } else { OrderedReply::Refused };
                    next.messages.insert(Message::Reply(*client, call.id, reply));
                    None
                });
            }
            Message::Call(client, call)
                if let Some((lock_type, _)) = call.lock
                    && !call.is_cancel
                    && !call.is_reclaim
                    && state.resends > 0 =>
            {
                let sent_again = ((*client, call.id), (call.range, lock_type));
                take(Step::Copies(*client, call.wire_owner), &|next| {
                    next.resends -= 1;
                    next.messages.insert(Message::Copy(*client, call.clone()));
                    next.sent_again.extend([sent_again]);
                    None
                });
                // The connection is lost before the reply.
                take(Step::ExecutesFirst(*client, call.wire_owner), &|next| {
                    next.resends -= 1;
                    let (_, callbacks) = next.server.execute(*client, call, self.bounds.callbacks);
                    next.messages.extend(callbacks);
                    next.sent_again.extend([sent_again]);
                    None
                });
            }
            Message::Reply(client, call, _) if state.losses > 0 => {
                take(Step::Loses(*client, *call), &|next| {
                    next.losses -= 1;
                    next.messages.remove(message);
                    let reply = LockReply::Unknown(LockError::Failed(Fault::Io));
                    let actions = next.agents[*client].replied(*call, reply, NOW);
                    self.act(next, *client, actions)
                });
            }
            Message::Granted(client, callback) if state.repeats > 0 => {
                take(Step::Repeats(*client, callback.wire_owner), &|next| {
                    next.repeats -= 1;
                    next.messages.remove(message);
                    next.messages.insert(Message::Granted(
                        *client,
                        OrderedCallback { is_repeated: true, ..*callback },
                    ));
                    self.call_back(next, *client, *callback)
                });
            }
            _ => {}
        }
    }

    /// Executes the actions of an agent.
    fn act(&self, next: &mut State, client: usize, actions: Vec<LockAction>) -> Option<String> {
        let mut queue: std::collections::VecDeque<_> = actions.into();
        while let Some(action) = queue.pop_front() {
            match action {
                LockAction::Send(call) => {
                    if next.has_lock_in_flight(client, call) {
                        return Some(format!("two requests of {:?} are in flight", call.id));
                    }
                    let (is_sent, is_done) = self.planted(next, call);
                    if is_sent {
                        next.messages.insert(Message::Call(client, call.into()));
                    }
                    if is_done {
                        queue.extend(next.agents[client].replied(call.id, LockReply::Granted, NOW));
                    }
                }
                LockAction::SetTimer { timer, after } => {
                    if after < POLL_MAX || is_late(timer) {
                        next.timers.push((client, timer));
                    }
                }
                LockAction::HandedOff { .. } => {}
                LockAction::Lost { owner, range, .. } => {
                    if self.bounds.false_restarts == 0 {
                        return Some(format!("{owner:?} loses its lock"));
                    }
                    self.bounds.lose(next, client, owner, range);
                }
                LockAction::Answer { request, result } => {
                    if let Some(wrong) = self.bounds.answered(next, request, result) {
                        return Some(wrong);
                    }
                }
            }
        }
        next.tidy_timers()
    }

    /// Whether a call is sent, and whether the agent is told at once that it is done.
    fn planted(&self, next: &State, call: LockServerCall) -> (bool, bool) {
        if call.id.request == RECLAIM {
            return (true, false);
        }
        let (process, number) = caller(call.id.request);
        let is_unlock = call.procedure == LockProcedure::Unlock;
        let is_undone = next.processes[process].interrupted.contains(&number);
        match self.planted {
            Planted::Nothing
            | Planted::RefusedUnlockDone
            | Planted::RepeatedCallbackBelieved
            | Planted::ResentLockForgotten
            | Planted::LateLockKept
            | Planted::EarlyNotificationForgotten => (true, false),
            Planted::UnlockAnsweredEarly => (true, is_unlock && !is_undone),
            Planted::GrantAfterCancelKept => (!(is_unlock && is_undone), is_unlock && is_undone),
        }
    }
}

impl State {
    /// Whether a timer would change anything now.
    fn has_effect(&self, client: usize, timer: LockTimer) -> bool {
        let mut agent = self.agents[client].clone();
        !agent.timer(timer).is_empty() || agent != self.agents[client]
    }

    /// Forgets the timers of calls that are over, and says whether a call has two. An ineffective
    /// timer of a waiter stays: it must not have an effect later either.
    fn tidy_timers(&mut self) -> Option<String> {
        let (mut timers, mut seen) = (core::mem::take(&mut self.timers), BTreeSet::new());
        timers.retain(|(client, timer)| self.is_waited_for(timer.call) || self.has_effect(*client, *timer));
        timers.sort_unstable();
        let mut effective = timers.iter().filter(|(client, timer)| self.has_effect(*client, *timer));
        let second = effective.find(|(client, timer)| !seen.insert((*client, timer.call)));
        let wrong = second.map(|(_, timer)| format!("two timers of {:?} have an effect", timer.call));
        self.timers = timers;
        wrong
    }

    /// Whether a LOCK for the same waiter is on its way, or its reply.
    fn has_lock_in_flight(&self, client: usize, next: LockServerCall) -> bool {
        matches!(next.procedure, LockProcedure::Lock { .. })
            && self.messages.iter().any(|message| match message {
                Message::Call(its, call) => *its == client && call.id == next.id && !call.is_cancel,
                Message::Reply(its, call, _) => *its == client && *call == next.id,
                Message::Granted(..) | Message::Copy(..) => false,
            })
    }

    /// Whether a timer is that of a process that waits for a lock; otherwise a release is sent
    /// again.
    fn is_waited_for(&self, call: LockCallId) -> bool {
        call.request != RECLAIM && {
            let (process, number) = caller(call.request);
            let own = &self.processes[process];
            number == own.calls && matches!(own.call, Some(SystemCall::Lock { .. }))
        }
    }
}

impl Bounds {
    /// The processes of an owner are told that they hold a range no more.
    fn lose(&self, next: &mut State, client: usize, owner: LocalLockOwner, range: ByteRange) {
        for process in (0..3).filter(|process| CLIENT_OF[*process] == client && self.owner(*process) == owner)
        {
            let own = &mut next.processes[process];
            own.held.set(range, None);
            if let Some(SystemCall::Lock { before, .. }) = &mut own.call {
                before.set(range, None);
            }
        }
    }

    /// A caller is answered.
    fn answered(
        &self,
        next: &mut State,
        request: LockRequestId,
        result: Result<(), LockError>,
    ) -> Option<String> {
        let (process, number) = caller(request);
        if number != next.processes[process].calls {
            return Some(format!("process {process} is answered for an earlier call"));
        }
        let call = next.processes[process].call.take();
        let Some(call) = call else { return Some(format!("process {process} is answered twice")) };
        let SystemCall::Lock { wanted, before, is_excused } = call else {
            let is_known = |error: &LockError| match error {
                LockError::NoLocks => self.refusals > 0,
                LockError::Failed(_) => self.losses > 0,
                _ => false,
            };
            let error = result.err().filter(|error| !is_known(error));
            return error.map(|error| format!("an unlock fails: {error:?}"));
        };
        match result {
            Ok(()) => {
                for other in self.strangers(process) {
                    if next.processes[other].conflicts(wanted) {
                        return Some(format!("processes {process} and {other} hold conflicting locks"));
                    }
                }
                next.processes[process].held.set(wanted.range, Some(wanted.lock_type));
                None
            }
            Err(LockError::Interrupted) => {
                // A downgrade may be done yet, anything else not.
                let held = next.agents[CLIENT_OF[process]].held(FILE, self.owner(process));
                let is_kept = held == before;
                let weaker = before.parts(wanted.range).into_iter().map(|(part, held)| match held {
                    Some(held) => (part, Some(held.min(wanted.lock_type))),
                    None => (part, None),
                });
                let own = &mut next.processes[process].held;
                *own = before.clone();
                weaker.for_each(|(part, held)| own.set(part, held));
                (!is_kept && !self.are_threads).then(|| "an interruption changes the locks".to_owned())
            }
            Err(LockError::Held) if !wanted.wait && is_excused => {
                next.processes[process].held = before;
                None
            }
            Err(LockError::Failed(_)) if self.losses > 0 => {
                next.processes[process].held = before;
                None
            }
            Err(LockError::Deadlock) if wanted.wait => {
                next.processes[process].held = before;
                None
            }
            Err(error) => Some(format!("process {process} fails without a reason: {error:?}")),
        }
    }

    /// Remembers of each attempt whether somebody else may hold the lock.
    fn excuse(&self, next: &mut State) {
        // Whoever is interrupted is answered before his locks are given back.
        let is_undoing = next.messages.iter().any(|message| {
            let id = match message {
                Message::Call(_, call) => call.id.request,
                Message::Reply(_, call, _) => call.request,
                Message::Granted(..) | Message::Copy(..) => return true,
            };
            if id == RECLAIM {
                return true;
            }
            let (process, number) = caller(id);
            number >= 50 || next.processes[process].interrupted.contains(&number)
        });
        let is_undoing = is_undoing
            || next.messages.iter().any(|message| self.undoes(next, message))
            || next.timers.iter().any(|(_, timer)| !next.is_waited_for(timer.call));
        for process in 0..3 {
            let Some(SystemCall::Lock { wanted, .. }) = next.processes[process].call else { continue };
            let is_held = self.strangers(process).any(|other| {
                let other = &next.processes[other];
                other.conflicts(wanted) || other.is_busy()
            });
            if let Some(SystemCall::Lock { is_excused, .. }) = &mut next.processes[process].call {
                *is_excused |= is_held || is_undoing;
            }
        }
    }

    /// Whether a message belongs to a release for which nobody waits any more.
    fn undoes(&self, state: &State, message: &Message) -> bool {
        let id = match message {
            Message::Call(_, call) => call.id,
            Message::Reply(_, call, _) => *call,
            Message::Granted(..) | Message::Copy(..) => return true,
        };
        (self.refusals > 0 || self.losses > 0 || self.restarts > 0) && {
            let (process, number) = caller(id.request);
            number != state.processes[process].calls || state.processes[process].call.is_none()
        }
    }

    /// The fault of a state in which no message is in transit; `None`: there is none.
    fn judge(&self, state: &State) -> Option<String> {
        if !state.messages.is_empty()
            || state.timers.iter().any(|(_, timer)| !state.is_waited_for(timer.call))
        {
            return None;
        }
        for client in 0..2 {
            let mut expected = LockRanges::default();
            for (process, its) in CLIENT_OF.iter().enumerate() {
                if *its == client {
                    let held = state.agents[client].held(FILE, self.owner(process));
                    let believed = &state.processes[process].held;
                    let has_less = believed.iter().any(|(range, believed)| {
                        held.parts(range).iter().any(|(_, held)| *held < Some(believed))
                    });
                    if has_less {
                        return Some(format!("process {process} relies on {believed:?}, and has {held:?}"));
                    }
                    expected.strengthen(&held);
                }
            }
            let held = state.server.held_for(client);
            if held != expected {
                return Some(format!(
                    "the server holds {held:?} for client {client}, which has {expected:?}"
                ));
            }
        }
        let waits = |process: usize| match &state.processes[process].call {
            Some(SystemCall::Lock { wanted, .. }) => Some(*wanted),
            Some(SystemCall::Unlock) | None => None,
        };
        if let Some(process) =
            (0..3).find(|process| matches!(state.processes[*process].call, Some(SystemCall::Unlock)))
        {
            return Some(format!("nobody will answer the unlock of process {process}"));
        }
        let has_timer = |process: usize| {
            let request = request_id(process, state.processes[process].calls);
            state
                .timers
                .iter()
                .any(|(client, timer)| timer.call.request == request && state.has_effect(*client, *timer))
        };
        for process in 0..3 {
            let Some(wanted) = waits(process) else { continue };
            let is_held = self.strangers(process).any(|other| {
                let has_to_wait = waits(other).is_some_and(|its| its.range.overlaps(wanted.range));
                state.processes[other].conflicts(wanted) || has_to_wait
            });
            let is_left = is_held && wanted.wait;
            if !is_left && !has_timer(process) {
                return Some(format!("process {process} waits in vain"));
            }
        }
        let waiting: Vec<_> = (0..3).filter(|process| waits(*process).is_some()).collect();
        let is_hopeless = waiting.iter().all(|process| {
            let is_held =
                |other: usize| waits(*process).is_some_and(|wanted| state.processes[other].conflicts(wanted));
            !has_timer(*process) && !self.strangers(*process).any(is_held)
        });
        (!waiting.is_empty() && is_hopeless).then(|| format!("processes {waiting:?} wait for each other"))
    }
}
