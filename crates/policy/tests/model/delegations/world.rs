//! The steps of the model, by the crate's own decisions.

use core::time::Duration;
use std::fmt;

use curt_policy::{
    AccessMode, AccessView, AttributeState, CacheOptions, Delegation, LockingState, MonotonicTime,
    MutationTicket, OpenDecision, OpenIntent, OpenView, RacyGuard, ServerClock,
    data::{self, PagesDecision, PagesLabel},
    delegation::{DelegationOffer, RecallDecision, RecalledDelegation, decide_recall},
    open::{IdleOpen, KEPT_FOR, decide_open},
};
use curt_types::{Access, FileKind};

use crate::{
    explore::World,
    setting::{Setting, report},
    time::{Changed, Grain, Time},
};

/// A fault that is planted in the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// A delegated file is served from memory after the recall was answered.
    ServedAfterRecall,
    /// The open that a delegation kept stays when that has ended.
    KeptOpenStays,
    /// A recall that comes before the reply to OPEN is answered and forgotten.
    EarlyRecallForgotten,
    /// So is one that was remembered while other replies were outstanding than the lost one.
    RememberedRecallDropped,
    /// An OPEN that was executed twice counts as one whose reply has arrived.
    RepeatedOpenForgotten,
    /// A reply that has brought no delegation, or one that has ended, is dated by another.
    DatedByAnotherDelegation,
}

#[derive(Debug)]
pub(super) struct Delegations {
    pub(super) planted: Planted,
    pub(super) bounds: Bounds,
}

/// How often each operation may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) opens: u8,
    pub(super) stats: u8,
    pub(super) writes: u8,
    pub(super) denials: u8,
    /// Lost replies to OPENs.
    pub(super) losses: u8,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct State {
    time: Time,
    server: Server,
    client: Client,
    other: Other,
    begun: [u8; 5],
}

#[derive(Clone, Debug, Hash)]
struct Server {
    /// The contents, which every writer has closed.
    version: u16,
    /// The delegation of client 0, by number.
    delegated: Option<u8>,
    granted: u8,
    recall: Recall,
    /// Client 0 has the file open.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recall {
    None,
    Sent,
    Answered,
}

#[derive(Clone, Debug, Hash)]
struct Client {
    attributes: AttributeState,
    data: Option<(u16, PagesLabel)>,
    delegation: Option<(u8, Delegation)>,
    returning: Option<u8>,
    early_recall: Option<u8>,
    is_reply_lost: bool,
    threads: [Thread; 2],
    /// The open was not used for a second.
    is_long_idle: bool,
}

#[derive(Clone, Debug, Hash)]
enum Thread {
    Idle,
    Waiting(Call),
    Answered(Call, Reply),
    /// The protocol has dealt with the reply, which has brought this delegation.
    Decoded(Call, Reply, Option<u8>),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Call {
    is_open: bool,
    began: MonotonicTime,
    sent_at: MonotonicTime,
    ticket: MutationTicket,
    floor: u16,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Reply {
    version: u16,
    granted: Option<u8>,
}

/// An action of client 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Other {
    Idle,
    Writing,
    Denying,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Open(usize),
    Stat(usize),
    Execute(usize),
    Receive(usize),
    Absorb(usize),
    Interrupt(usize),
    Repeat(usize),
    OtherBegins(bool),
    OtherExecutes,
    Recall,
    Return,
    Second,
    Rest,
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Open(thread) => write!(out, "thread {thread} opens and reads"),
            Self::Stat(thread) => write!(out, "thread {thread} sends GETATTR"),
            Self::Execute(thread) => write!(out, "server executes the request of thread {thread}"),
            Self::Receive(thread) => write!(out, "thread {thread} gets its reply"),
            Self::Absorb(thread) => write!(out, "thread {thread} caches its reply"),
            Self::Interrupt(thread) => write!(out, "thread {thread} is interrupted before its reply"),
            Self::Repeat(thread) => {
                write!(out, "the reply to thread {thread} is lost, and its request is sent again")
            }
            Self::OtherBegins(true) => write!(out, "client 1 opens and writes"),
            Self::OtherBegins(false) => write!(out, "client 1 opens and denies reading"),
            Self::OtherExecutes => write!(out, "server executes the OPEN of client 1"),
            Self::Recall => write!(out, "client 0 answers the recall"),
            Self::Return => write!(out, "server executes DELEGRETURN"),
            Self::Second => write!(out, "a second passes"),
            Self::Rest => write!(out, "nothing is in flight"),
        }
    }
}

const SETTING: Setting =
    Setting { grain: Grain::Change, guard: RacyGuard::Off, lifetime: Some(Duration::from_secs(60)) };

fn attributes(version: u16) -> curt_policy::CachingAttributes {
    SETTING.attributes(FileKind::Regular, Changed { tick: 0, number: version })
}

impl World for Delegations {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        false
    }

    fn start(&self) -> State {
        State {
            time: Time::START,
            server: Server { version: 1, delegated: None, granted: 0, recall: Recall::None, is_open: false },
            client: Client {
                attributes: AttributeState::unknown(),
                data: None,
                delegation: None,
                returning: None,
                early_recall: None,
                is_reply_lost: false,
                threads: [Thread::Idle, Thread::Idle],
                is_long_idle: false,
            },
            other: Other::Idle,
            begun: [0; 5],
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        let next = || State { time: state.time.after_event(), ..state.clone() };
        for thread in 0..2 {
            match &state.client.threads[thread] {
                Thread::Idle => self.begin(state, thread, each),
                Thread::Waiting(call) => {
                    let mut next = next();
                    execute(&mut next, thread, *call);
                    each(Step::Execute(thread), next, None);
                }
                Thread::Answered(call, reply) => {
                    let mut next = next();
                    self.receive(&mut next, thread, *call, *reply);
                    each(Step::Receive(thread), next, None);
                    if call.is_open && state.begun[4] < self.bounds.losses {
                        self.lose_reply(state, thread, *call, each);
                    }
                }
                Thread::Decoded(call, reply, brought) => {
                    let mut next = next();
                    next.client.threads[thread] = Thread::Idle;
                    let wrong = self.absorb(&mut next, *call, *reply, *brought);
                    each(Step::Absorb(thread), next, wrong);
                }
            }
        }
        self.other_steps(state, each);
        if state.server.recall == Recall::Sent {
            let mut next = next();
            let wrong = self.recalled(&mut next);
            each(Step::Recall, next, wrong);
        }
        if let Some(id) = state.client.returning {
            let mut next = next();
            next.client.returning = None;
            if next.server.delegated == Some(id) {
                (next.server.delegated, next.server.recall) = (None, Recall::None);
            }
            // CLOSE is piggybacked on it.
            self.close_idle(&mut next, KEPT_FOR);
            each(Step::Return, next, None);
        }
        if state.server.is_open && !state.client.is_long_idle && state.client.is_unused() {
            let mut next = next();
            next.client.is_long_idle = true;
            self.close_idle(&mut next, KEPT_FOR);
            each(Step::Second, next, None);
        }
        let is_at_rest = state.client.is_unused() && state.client.returning.is_none();
        let is_waiting = state.other != Other::Idle && state.server.delegated.is_some();
        if is_at_rest && is_waiting && state.server.recall == Recall::Answered {
            each(Step::Rest, next(), Some("client 1 waits for a delegation that nobody returns".into()));
        }
    }
}

impl Client {
    fn is_unused(&self) -> bool {
        self.threads.iter().all(|thread| matches!(thread, Thread::Idle))
    }

    fn is_opening(&self) -> bool {
        self.threads.iter().any(|thread| match thread {
            Thread::Idle | Thread::Decoded(..) => false,
            Thread::Waiting(call) | Thread::Answered(call, _) => call.is_open,
        })
    }

    fn locking(&self) -> LockingState {
        LockingState { locked_at: None, delegation: self.delegation.map(|(_, delegation)| delegation) }
    }
}

fn execute(state: &mut State, thread: usize, call: Call) {
    let server = &mut state.server;
    let mut granted = None;
    if call.is_open {
        server.is_open = true;
        state.client.is_long_idle = false;
        if server.delegated.is_none() && state.other == Other::Idle {
            server.granted += 1;
            server.delegated = Some(server.granted);
            granted = server.delegated;
        }
    }
    let reply = Reply { version: server.version, granted };
    state.client.threads[thread] = Thread::Answered(call, reply);
}

impl Delegations {
    fn begin(&self, state: &State, thread: usize, each: &mut dyn FnMut(Step, State, Option<String>)) {
        let moved = |counted: usize| {
            let mut next = State { time: state.time.after_event(), ..state.clone() };
            next.begun[counted] += 1;
            next
        };
        if state.begun[0] < self.bounds.opens {
            let mut next = moved(0);
            let (now, floor) = (next.time.moment(), next.server.version);
            let wrong = self.go_on(&mut next, thread, now, floor);
            each(Step::Open(thread), next, wrong);
        }
        if state.begun[1] < self.bounds.stats {
            let mut next = moved(1);
            let now = next.time.moment();
            let call = Call {
                is_open: false,
                began: now,
                sent_at: now,
                ticket: next.client.attributes.ticket(),
                floor: 0,
            };
            next.client.threads[thread] = Thread::Waiting(call);
            each(Step::Stat(thread), next, None);
        }
    }

    /// The reply to an OPEN is lost: its caller does not wait for it, or the server does not repeat
    /// it.
    fn lose_reply(
        &self,
        state: &State,
        thread: usize,
        call: Call,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        let mut next = State { time: state.time.after_event(), ..state.clone() };
        next.begun[4] += 1;
        let mut repeated = next.clone();
        next.client.is_reply_lost = true;
        next.client.threads[thread] = Thread::Idle;
        self.end_opening(&mut next.client);
        each(Step::Interrupt(thread), next, None);
        repeated.client.is_reply_lost |= self.planted != Planted::RepeatedOpenForgotten;
        repeated.client.threads[thread] = Thread::Waiting(call);
        each(Step::Repeat(thread), repeated, None);
    }

    /// A reply to OPEN was dealt with, or is lost.
    fn end_opening(&self, client: &mut Client) {
        if client.is_opening() {
            return;
        }
        if let Some(id) = client.early_recall.take()
            && client.is_reply_lost
            && self.planted != Planted::RememberedRecallDropped
        {
            client.returning = Some(id);
        }
    }

    fn other_steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        let next = || State { time: state.time.after_event(), ..state.clone() };
        if state.other == Other::Idle {
            for (counted, most, other) in
                [(2, self.bounds.writes, Other::Writing), (3, self.bounds.denials, Other::Denying)]
            {
                if state.begun[counted] < most {
                    let mut next = next();
                    next.begun[counted] += 1;
                    next.other = other;
                    each(Step::OtherBegins(other == Other::Writing), next, None);
                }
            }
            return;
        }
        let mut next = next();
        let mut wrong = None;
        if next.server.delegated.is_some() {
            if next.server.recall != Recall::None {
                return;
            }
            next.server.recall = Recall::Sent;
        } else if next.other == Other::Writing {
            next.server.version += 1;
            next.other = Other::Idle;
        } else {
            next.other = Other::Idle;
            if next.server.is_open && next.client.is_unused() && next.client.is_long_idle {
                wrong = Some("client 1 is denied an open because of one that nobody uses".to_owned());
            }
        }
        each(Step::OtherExecutes, next, wrong);
    }

    /// Closes an open without users that has been idle for this time, if that is decided.
    fn close_idle(&self, state: &mut State, since: Duration) {
        let is_delegated = state.client.delegation.is_some();
        let idle = IdleOpen { since: Some(since), writes: false, others: 1, is_delegated };
        let stays = self.planted == Planted::KeptOpenStays;
        if state.client.is_unused() && idle.is_closed() && !stays {
            state.server.is_open = false;
        }
    }

    fn recalled(&self, state: &mut State) -> Option<String> {
        let client = &mut state.client;
        let id = state.server.delegated?;
        let holding = if client.delegation.is_some_and(|(held, _)| held == id) {
            RecalledDelegation::Held
        } else if client.returning == Some(id) {
            RecalledDelegation::Returning
        } else {
            let remembered = usize::from(client.early_recall.is_some());
            let (is_opening, is_reply_lost) = (client.is_opening(), client.is_reply_lost);
            RecalledDelegation::Unknown { is_opening, is_reply_lost, remembered }
        };
        state.server.recall = match decide_recall(holding) {
            RecallDecision::Return => {
                if self.planted != Planted::ServedAfterRecall {
                    client.delegation = None;
                }
                client.returning = Some(id);
                Recall::Answered
            }
            RecallDecision::Wait => Recall::Answered,
            RecallDecision::Remember => {
                if self.planted != Planted::EarlyRecallForgotten {
                    client.early_recall = Some(id);
                }
                Recall::Answered
            }
            RecallDecision::ReturnUnknown => {
                client.returning = Some(id);
                Recall::Answered
            }
            // It is sent again.
            RecallDecision::Delay => Recall::None,
            RecallDecision::Refuse => {
                return Some("the recall of a delegation is refused, which nobody returns".to_owned());
            }
        };
        None
    }

    /// Continues an open that began at `began`: decides, and either sends OPEN with GETATTR and
    /// READ, or reads what is cached.
    fn go_on(&self, state: &mut State, thread: usize, began: MonotonicTime, floor: u16) -> Option<String> {
        let options = CacheOptions { access: AccessMode::ModeBits, ..SETTING.options() };
        let now = state.time.moment();
        let client = &mut state.client;
        let locking = client.locking();
        let view = OpenView {
            kind: client.attributes.newest().map(|attributes| attributes.kind),
            attributes: client.attributes.freshness_under(locking.delegation, began, now, &options),
            age: client.attributes.sent_at().map_or(Duration::MAX, |sent_at| now.since(sent_at)),
            written_here: false,
            closed_after_writing: false,
            locking,
            access: AccessView { local: Some(Access::ALL), entry: None, foreign_data: false },
        };
        let intent = OpenIntent { read: true, ..OpenIntent::default() };
        let is_served = match decide_open(&view, intent, &options) {
            OpenDecision::Serve(_) => true,
            OpenDecision::Revalidate => false,
            other => panic!("{other:?} is not for this model"),
        };
        let clock = ServerClock::new(Duration::ZERO);
        let keeps = |label| {
            let pages = data::decide_pages(Some(label), &client.attributes, locking, &clock, &options);
            pages == PagesDecision::Keep
        };
        match client.data.filter(|(_, label)| is_served && keeps(*label)) {
            Some((version, _)) => {
                let known = client.attributes.newest().map(|attributes| attributes.stamp);
                let is_stale = (0..floor).any(|old| known == Some(attributes(old).stamp));
                (version < floor || is_stale).then(|| {
                    format!("version {version} is read with attributes {known:?}, {floor} was closed before")
                })
            }
            None => {
                let ticket = client.attributes.ticket();
                let call = Call { is_open: true, began, sent_at: now, ticket, floor };
                client.threads[thread] = Thread::Waiting(call);
                None
            }
        }
    }

    fn receive(&self, state: &mut State, thread: usize, call: Call, reply: Reply) {
        let now = state.time.moment();
        let client = &mut state.client;
        let mut brought = None;
        if let Some(id) = reply.granted {
            let offer = DelegationOffer {
                was_wanted: true,
                is_read: true,
                is_recalled: client.early_recall == Some(id),
                has_another: client.delegation.is_some(),
                is_written_here: false,
            };
            if offer.is_kept() {
                client.delegation = Some((id, Delegation { write: false, since: now }));
                brought = Some(id);
            } else {
                (client.returning, client.early_recall) = (Some(id), None);
            }
        }
        client.threads[thread] = Thread::Decoded(call, reply, brought);
        self.end_opening(client);
    }

    fn absorb(&self, state: &mut State, call: Call, reply: Reply, brought: Option<u8>) -> Option<String> {
        let options = SETTING.options();
        let now = state.time.moment();
        let client = &mut state.client;
        let is_current = client.delegation.is_some_and(|(held, _)| {
            brought == Some(held) || call.is_open && self.planted == Planted::DatedByAnotherDelegation
        });
        let is_undisturbed = client.attributes.is_undisturbed(call.ticket);
        let dated = if is_current && is_undisturbed { now } else { call.sent_at };
        let absorbed = client.attributes.absorb(report(attributes(reply.version), dated, now), &options);
        if absorbed.contents_changed {
            client.data = None;
        }
        if !call.is_open {
            return None;
        }
        if let Some(epoch) = client.attributes.contents().filter(|_| absorbed.adopted) {
            client.data = Some((reply.version, PagesLabel { epoch, sent_at: dated }));
        }
        (reply.version < call.floor).then(|| "the model's server is wrong".to_owned())
    }
}
