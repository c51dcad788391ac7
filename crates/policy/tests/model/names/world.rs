//! The steps of the model: clients and server, by the crate's own decisions.

use core::time::Duration;

use curt_policy::{
    AttributeState, CacheOptions, CachingAttributes, MonotonicTime, Mutation, NameDecision, NameView,
    ServerClock,
    kernel_cache::{self, DirectoryView},
    names::{self, DentryState, LookupFinding, LookupTime},
};
use curt_types::FileKind;

use super::state::{Call, Client, OTHER, Reply, Request, Server, State, Step, Thread, WANTED};
use crate::{
    explore::World,
    server::{Changes, History, STRANGER},
    setting::{Setting, absorb_loss, learn_time, report, threads},
    table::Name,
    time::Time,
};

/// A fault that is planted in the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// The pre-operation attributes of a change are not compared with the known ones.
    BeforeNotCompared,
    /// Replies are dated by their arrival.
    DatedByArrival,
    /// LOOKUP replies are cached although a change of this client was in flight.
    TicketIgnored,
    /// Names are served although their directory's epoch has ended.
    EpochIgnored,
    /// A negative entry stays although CREATE returned EEXIST.
    ExistsIgnored,
    /// The kernel may keep a name for longer than the client believes it.
    KeptBeyondBelief,
}

#[derive(Debug)]
pub(super) struct Names {
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
    /// Changes whose replies are lost.
    pub(super) losses: u8,
    /// Ticks that may pass.
    pub(super) ticks: u8,
    /// Requests reach the server at once; only replies take time.
    pub(super) prompt: bool,
}

impl World for Names {
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
            kernel: None,
            threads: [Thread::Idle, Thread::Idle],
            operations: 0,
        };
        let long_ago = Time::START.moment();
        State {
            time: Time::START.after_tick(),
            server: Server {
                history: [false, true].map(|there| History::new(there, long_ago)),
                changes: Changes::OLD,
            },
            clients: [client(), client()],
            strangers: 0,
            losses: 0,
            orphan: None,
            ticks: 0,
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        if state.server.changes.excuses(self.setting.guard) {
            return;
        }
        if state.ticks < self.bounds.ticks {
            let time = state.time.after_tick();
            each(Step::Tick, State { time, ticks: state.ticks + 1, ..state.clone() }, None);
        }
        if state.strangers < self.bounds.strangers {
            let mut next = moved(state);
            next.strangers += 1;
            let there = next.server.history[WANTED].is();
            next.change(STRANGER, WANTED, !there);
            each(Step::Stranger(WANTED), next, None);
        }
        if let Some((name, request)) = state.orphan {
            let mut next = moved(state);
            next.orphan = None;
            if next.server.history[name].is() != (request == Request::Create) {
                next.change(STRANGER, name, request == Request::Create);
            }
            each(Step::ExecuteOrphan(request), next, None);
        }
        for (client, thread) in threads(self.bounds.threads) {
            match &state.clients[client].threads[thread] {
                Thread::Idle if state.clients[client].operations < self.bounds.operations[client] => {
                    self.begin(state, client, thread, each);
                }
                Thread::Idle => {}
                Thread::Waiting(call) => {
                    self.give_up(state, (client, thread), *call, Some((call.name, call.request)), each);
                    let mut next = moved(state);
                    self.execute(&mut next, client, thread, *call);
                    each(Step::Execute(client, thread, call.request), next, None);
                }
                Thread::Answered(call, reply) => {
                    self.give_up(state, (client, thread), *call, None, each);
                    let mut next = moved(state);
                    next.clients[client].threads[thread] = Thread::Idle;
                    let wrong = self.receive(&mut next, client, thread, *call, *reply);
                    each(Step::Receive(client, thread, call.request), next, wrong);
                }
            }
        }
    }
}

pub(super) fn moved(state: &State) -> State {
    State { time: state.time.after_event(), ..state.clone() }
}

impl Names {
    fn options(&self) -> CacheOptions {
        self.setting.options()
    }

    pub(super) fn begin(
        &self,
        state: &State,
        client: usize,
        thread: usize,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        if let Some((kept, end)) = state.clients[client].kernel
            && state.time.moment() <= end
        {
            let mut next = moved(state);
            next.clients[client].operations += 1;
            let floor = next.clients[client].names[WANTED].floor;
            let wrong = self.judge(&next, client, WANTED, kept, next.time.moment(), floor);
            each(Step::Walk(client), next, wrong);
        }
        let mut next = moved(state);
        next.clients[client].operations += 1;
        let began = next.time.moment();
        let floor = next.clients[client].names[WANTED].floor;
        let wrong = self.go_on(&mut next, client, thread, WANTED, began, floor);
        each(Step::Begin(client, thread, Request::Lookup, WANTED), next, wrong);

        for (request, name) in
            [(Request::Create, WANTED), (Request::Remove, WANTED), (Request::Remove, OTHER)]
        {
            if state.server.history[OTHER].position() > 0 && name == OTHER {
                continue;
            }
            let mut next = moved(state);
            let now = next.time.moment();
            let own = &mut next.clients[client];
            own.operations += 1;
            own.directory.begin_mutation();
            own.names[name].changes += 1;
            if self.planted != Planted::ExistsIgnored {
                own.names[name].entry = None;
            }
            let call = Call {
                request,
                name,
                began: now,
                sent_at: now,
                ticket: own.directory.ticket(),
                changes: own.names[name].changes,
                floor: own.names[name].floor,
            };
            self.send(&mut next, client, thread, call);
            each(Step::Begin(client, thread, request, name), next, None);
        }
    }

    pub(super) fn send(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        state.clients[client].threads[thread] = Thread::Waiting(call);
        if self.bounds.prompt {
            self.execute(state, client, thread, call);
        }
    }

    /// Continues a lookup that began at `began`: decides, and either sends a request or ends it.
    pub(super) fn go_on(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        name: usize,
        began: MonotonicTime,
        floor: usize,
    ) -> Option<String> {
        let options = self.options();
        let now = state.time.moment();
        let own = &state.clients[client];
        let wanted = LookupTime { began, now };
        let mut view = match own.names[name].entry {
            None => NameView::absent(&own.directory, wanted, &options),
            Some((there, label)) => {
                let kept = if there { DentryState::Positive } else { DentryState::Negative };
                NameView::of(kept, label, &own.directory, &own.clock, wanted, &options)
            }
        };
        if self.planted == Planted::EpochIgnored {
            view.same_contents = true;
        }
        let request = match names::decide_lookup(&view, &options) {
            NameDecision::ServePositive => return self.told(state, client, name, true, (began, floor)),
            NameDecision::ServeNegative => return self.told(state, client, name, false, (began, floor)),
            NameDecision::RevalidateDirectory => Request::Getattr,
            NameDecision::Lookup(_) => Request::Lookup,
        };
        let ticket = own.directory.ticket();
        let call = Call { request, name, began, sent_at: now, ticket, changes: 0, floor };
        self.send(state, client, thread, call);
        None
    }

    /// A lookup ends: the kernel caches its result.
    fn told(
        &self,
        state: &mut State,
        client: usize,
        name: usize,
        told: bool,
        asked: (MonotonicTime, usize),
    ) -> Option<String> {
        let now = state.time.moment();
        let options = self.options();
        let own = &mut state.clients[client];
        let kept = if told { DentryState::Positive } else { DentryState::Negative };
        let lifetime = own.names[name].entry.filter(|(is, _)| *is == told).map(|(_, label)| {
            let view = DirectoryView { attributes: &own.directory, is_disputed: false, clock: &own.clock };
            kernel_cache::name_lifetime(kept, label, &view, now, &options)
        });
        let lifetime = match self.planted {
            Planted::KeptBeyondBelief => lifetime.map(|_| options.kernel_names),
            _ => lifetime,
        };
        let lifetime = lifetime.filter(|lifetime| !lifetime.is_zero());
        own.kernel = lifetime.map(|lifetime| (told, now.plus(lifetime)));
        self.judge(state, client, name, told, asked.0, asked.1)
    }

    /// Checks the result of a lookup that began at `began`.
    pub(super) fn judge(
        &self,
        state: &State,
        client: usize,
        name: usize,
        told: bool,
        began: MonotonicTime,
        floor: usize,
    ) -> Option<String> {
        let wrong = state.server.history[name].judge(told, (began, floor), self.setting.allowance());
        wrong.map(|wrong| format!("client {client}, name {name}: {wrong}"))
    }

    pub(super) fn execute(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        let before = self.attributes(&state.server).as_before();
        let was = state.server.history[call.name].is();
        match call.request {
            Request::Create if !was => state.change(client, call.name, true),
            Request::Remove if was => state.change(client, call.name, false),
            Request::Create | Request::Remove | Request::Getattr | Request::Lookup => {}
        }
        let after = self.attributes(&state.server);
        let is = state.server.history[call.name].is();
        let position = state.server.history[call.name].position();
        let reply = Reply { before, after, was, is, position };
        state.clients[client].threads[thread] = Thread::Answered(call, reply);
    }

    pub(super) fn attributes(&self, server: &Server) -> CachingAttributes {
        self.setting.attributes(FileKind::Directory, server.changes.last)
    }

    pub(super) fn receive(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        call: Call,
        reply: Reply,
    ) -> Option<String> {
        let options = self.options();
        let received_at = state.time.moment();
        let sent_at = if self.planted == Planted::DatedByArrival { received_at } else { call.sent_at };
        let own = &mut state.clients[client];
        learn_time(&mut own.clock, &reply.after, received_at);
        let report = report(reply.after, sent_at, received_at);
        match call.request {
            Request::Getattr => {
                let _ = own.directory.absorb(report, &options);
                self.go_on(state, client, thread, call.name, call.began, call.floor)
            }
            Request::Lookup => {
                let adopted = own.directory.absorb(report, &options).adopted;
                let ticket =
                    if self.planted == Planted::TicketIgnored { own.directory.ticket() } else { call.ticket };
                let found = if reply.is { LookupFinding::Object } else { LookupFinding::Nothing };
                let learned = names::learn(found, ticket, &own.directory, adopted, sent_at);
                own.names[call.name].keep(reply.is, learned);
                self.told(state, client, call.name, reply.is, (call.began, call.floor))
            }
            Request::Create | Request::Remove => {
                self.end_change(own, call, reply, received_at);
                None
            }
        }
    }

    /// A reply is lost: the client does not know whether its change was or will be executed.
    fn give_up(
        &self,
        state: &State,
        (client, thread): (usize, usize),
        call: Call,
        orphan: Option<(usize, Request)>,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        let is_change = matches!(call.request, Request::Create | Request::Remove);
        if !is_change || state.losses == self.bounds.losses || state.orphan.is_some() {
            return;
        }
        let mut next = moved(state);
        next.losses += 1;
        next.orphan = orphan;
        let received_at = next.time.moment();
        let own = &mut next.clients[client];
        own.threads[thread] = Thread::Idle;
        let absorbed = absorb_loss(&mut own.directory, (call.sent_at, received_at), &self.options());
        own.names[call.name].changes();
        let wrong = (absorbed.adopted || absorbed.stands).then(|| "no reply taught something".to_owned());
        each(Step::GiveUp(client, thread, call.request), next, wrong);
    }

    pub(super) fn end_change(&self, own: &mut Client, call: Call, reply: Reply, received_at: MonotonicTime) {
        let before = if self.planted == Planted::BeforeNotCompared {
            own.directory.newest().map(|attributes| attributes.as_before())
        } else {
            Some(reply.before)
        };
        let mutation = Mutation { before, after: Some(reply.after), sent_at: call.sent_at, received_at };
        let absorbed = own.directory.absorb_mutation(mutation, &self.options());
        if call.name == WANTED {
            // The kernel knows what it had changed itself.
            own.kernel = None;
        }
        let name = &mut own.names[call.name];
        let alone = name.changes == call.changes;
        name.changes += 1;
        name.floor = name.floor.max(reply.position);
        if reply.was == reply.is && call.request == Request::Create {
            // EEXIST: the name exists, but its object is unknown.
            if self.planted != Planted::ExistsIgnored {
                name.entry = None;
            }
            return;
        }
        name.entry = None;
        let found = if reply.is { LookupFinding::Object } else { LookupFinding::Nothing };
        let learned = names::learn_own(found, alone, &own.directory, absorbed, call.sent_at);
        name.keep(reply.is, learned);
    }
}
