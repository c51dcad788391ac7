//! The steps of the model, and the server.

use core::time::Duration;

use curt_policy::{AttributeState, CacheOptions, CachingAttributes, ServerClock};
use curt_types::FileKind;

use super::state::{Call, Change, Client, EARLY, LATE, Listed, Reply, Request, Server, State, Step, Thread};
use crate::{
    explore::World,
    server::{Changes, History, STRANGER},
    setting::{Setting, threads},
    table::Name,
    time::Time,
};

/// A fault that is planted in the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// A directory stays complete when its stamp changes.
    EpochIgnored,
    /// The answers of a complete directory are dated by its last request.
    DatedByTheLastRequest,
    /// Replies are dated by their arrival.
    DatedByArrival,
    /// The answers of a complete directory are never confirmed although its stamp was recent.
    GuardLeftOut,
    /// Names that the client creates are not entered into a complete directory.
    OwnNamesNotEntered,
    /// A pass counts although a change of this client overlapped it.
    OwnChangesIgnored,
    /// An evicted name counts as missing.
    LetGoIsMissing,
    /// A negative entry stays although CREATE returned EEXIST.
    ExistsIgnored,
    /// A pass counts although its replies show different states.
    TornCounts,
}

#[derive(Debug)]
pub(super) struct Directories {
    pub(super) setting: Setting,
    pub(super) planted: Planted,
    pub(super) bounds: Bounds,
}

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Threads of client 0; client 1 has one.
    pub(super) threads: usize,
    /// Operations that each client may begin.
    pub(super) operations: [u8; 2],
    /// Changes by strangers.
    pub(super) strangers: u8,
    /// Names that are evicted.
    pub(super) evictions: u8,
    /// Replies to changes that are lost.
    pub(super) losses: u8,
    /// Ticks that may pass.
    pub(super) ticks: u8,
    /// Replies of a whole listing: one or two.
    pub(super) replies: usize,
    /// Requests reach the server at once; only replies take time.
    pub(super) prompt: bool,
    /// The server reads names first and the directory's attributes later.
    pub(super) halves: bool,
    /// Clients change names as well.
    pub(super) changes: bool,
}

impl World for Directories {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        self.setting.is_guarded()
    }

    fn start(&self) -> State {
        let client = || Client {
            directory: AttributeState::unknown(),
            clock: ServerClock::new(Duration::ZERO),
            names: [Name::default(), Name::default()],
            complete: None,
            threads: [Thread::Idle, Thread::Idle],
            operations: 0,
        };
        let long_ago = Time::START.moment();
        State {
            time: Time::START.after_tick(),
            server: Server {
                history: [None, Some(0)].map(|object| History::new(object, long_ago)),
                changes: Changes::OLD,
                made: 0,
            },
            clients: [client(), client()],
            strangers: 0,
            evictions: 0,
            losses: 0,
            ticks: 0,
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        if state.server.changes.excuses(self.setting.guard) {
            return;
        }
        if state.ticks < self.bounds.ticks {
            let mut next = state.clone();
            (next.time, next.ticks) = (state.time.after_tick(), state.ticks + 1);
            each(Step::Tick, next, None);
        }
        self.strangers(state, each);
        self.evictions(state, each);
        for (client, thread) in threads(self.bounds.threads) {
            match &state.clients[client].threads[thread] {
                Thread::Idle if state.clients[client].operations < self.bounds.operations[client] => {
                    self.begin(state, client, thread, each);
                }
                Thread::Idle => {}
                Thread::Waiting(call) => self.serve(state, (client, thread), *call, each),
                Thread::Half(call, listed) => {
                    let mut next = moved(state);
                    self.answer(&mut next, (client, thread), *call, *listed);
                    each(Step::Execute(client, thread, call.request), next, None);
                }
                Thread::Answered(call, reply) => {
                    let mut next = moved(state);
                    next.clients[client].threads[thread] = Thread::Idle;
                    let wrong = self.receive(&mut next, (client, thread), *call, *reply);
                    each(Step::Receive(client, thread, call.request), next, wrong);
                    self.lose(state, (client, thread), *call, each);
                }
                Thread::Paused(call) => {
                    let mut next = moved(state);
                    self.list(&mut next, (client, thread), *call);
                    each(Step::GoOn(client, thread), next, None);
                }
            }
        }
    }
}

pub(super) fn moved(state: &State) -> State {
    State { time: state.time.after_event(), ..state.clone() }
}

impl Directories {
    pub(super) fn options(&self) -> CacheOptions {
        self.setting.options()
    }

    fn strangers(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        if state.strangers == self.bounds.strangers {
            return;
        }
        for name in [EARLY, LATE] {
            for change in
                [Change::Create(name), Change::Remove(name), Change::Rename(name), Change::Replace(name)]
            {
                let mut next = moved(state);
                next.strangers += 1;
                let Some(effect) = next.server.effect(change) else {
                    continue;
                };
                next.change(STRANGER, &effect);
                each(Step::Stranger(change), next, None);
            }
        }
    }

    fn evictions(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        if state.evictions == self.bounds.evictions {
            return;
        }
        for (client, own) in state.clients.iter().enumerate() {
            for name in [EARLY, LATE] {
                if own.names[name].entry.is_none() {
                    continue;
                }
                let mut next = moved(state);
                next.evictions += 1;
                next.clients[client].names[name].entry = None;
                each(Step::Evict(client, name), next, None);
            }
        }
    }

    /// Sends a request.
    pub(super) fn send(&self, state: &mut State, at: (usize, usize), call: Call) {
        state.clients[at.0].threads[at.1] = Thread::Waiting(call);
        if self.bounds.prompt {
            self.take(state, at, call);
        }
    }

    /// The server receives a request; it may need a further step for it.
    fn take(&self, state: &mut State, at: (usize, usize), call: Call) -> bool {
        let listed = state.server.objects();
        if matches!(call.request, Request::List(_)) && self.bounds.halves {
            state.clients[at.0].threads[at.1] = Thread::Half(call, listed);
            return false;
        }
        self.answer(state, at, call, listed);
        true
    }

    fn serve(
        &self,
        state: &State,
        at: (usize, usize),
        call: Call,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        let mut next = moved(state);
        let step = if self.take(&mut next, at, call) {
            Step::Execute(at.0, at.1, call.request)
        } else {
            Step::Read(at.0, at.1)
        };
        each(step, next, None);
    }

    /// The server replies; for a listing, `listed` is what it read.
    fn answer(&self, state: &mut State, (client, thread): (usize, usize), call: Call, listed: Listed) {
        let before = self.attributes(&state.server).as_before();
        let was = state.server.objects();
        let change = match call.request {
            Request::Create => Some(Change::Create(call.name)),
            Request::Remove => Some(Change::Remove(call.name)),
            Request::Rename => Some(Change::Rename(call.name)),
            Request::Getattr | Request::Lookup | Request::List(_) => None,
        };
        if let Some(effect) = change.and_then(|change| state.server.effect(change)) {
            state.change(client, &effect);
        }
        let is = match call.request {
            Request::List(_) => listed,
            Request::Getattr | Request::Lookup | Request::Create | Request::Remove | Request::Rename => {
                state.server.objects()
            }
        };
        let reply = Reply {
            before,
            after: self.attributes(&state.server),
            was,
            is,
            positions: [EARLY, LATE].map(|name| state.server.history[name].position()),
        };
        state.clients[client].threads[thread] = Thread::Answered(call, reply);
    }

    fn attributes(&self, server: &Server) -> CachingAttributes {
        self.setting.attributes(FileKind::Directory, server.changes.last)
    }

    /// Checks the result of a lookup that began at `began`.
    pub(super) fn judge(
        &self,
        state: &State,
        (client, _): (usize, usize),
        call: &Call,
        told: Option<u8>,
    ) -> Option<String> {
        let history = &state.server.history[call.name];
        let wrong = history.judge(told, (call.began, call.floor), self.setting.allowance());
        wrong.map(|wrong| format!("client {client}, name {}: {wrong}", call.name))
    }
}
