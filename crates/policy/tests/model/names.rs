//! Freshness of names: who looks a name up is told what was true of it at most so long ago as the options say, and never
//! anything from before a change that the same client made or was told of.
//!
//! A directory with two names. Client 0 may have two threads, client 1 has one, strangers change names at once.

use core::time::Duration;
use std::fmt;

use curt_policy::{
    AttributeState, Before, CacheOptions, Facts, Interval, Moment, Mutation, NameDecision, NameIntent,
    NameLabel, NameView, ObjectKind, RacyGuard, Report, ServerClock, Stamp, Ticket,
    names::{self, Entry, Found, Learned, Wanted},
    server_clock::GUARD_MIN,
};

use crate::{
    explore::{World, explore},
    time::{Changed, Grain, TICK, Time},
};

/// A mistake put into the client on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// What a change found before it is not compared with what was known.
    BeforeNotCompared,
    /// Replies are dated by when they arrived.
    DatedByArrival,
    /// LOOKUP replies are kept although a change of ours was on its way.
    TicketIgnored,
    /// Names are served whatever became of their directory.
    EpochIgnored,
    /// A missing name stays although CREATE said that it exists.
    ExistsIgnored,
}

struct Names {
    grain: Grain,
    guard: RacyGuard,
    planted: Planted,
    /// acdirmin and acdirmax; `None` is noac.
    lifetime: Option<Duration>,
    bounds: Bounds,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Threads of client 0; client 1 has one.
    threads: usize,
    /// Operations that each client may begin.
    operations: [u8; 2],
    /// Changes by strangers.
    strangers: u8,
    /// Ticks that may pass.
    ticks: u8,
    /// Requests reach the server at once; only replies take time.
    prompt: bool,
}

const PAIR: Bounds = Bounds {
    threads: 1,
    operations: [3, 1],
    strangers: 0,
    ticks: 0,
    prompt: false,
};
const ALONE: Bounds = Bounds {
    threads: 1,
    operations: [3, 0],
    strangers: 2,
    ticks: 3,
    prompt: true,
};
const WIDE: Bounds = Bounds {
    threads: 2,
    operations: [3, 0],
    strangers: 1,
    ticks: 0,
    prompt: false,
};

const STRANGER: usize = 2;

/// The name that is looked up, and missing at first.
const WANTED: usize = 0;
/// Another name, there at first, that only clients change, and only once.
const OTHER: usize = 1;

#[derive(Clone, Debug, Hash)]
struct State {
    time: Time,
    server: Server,
    clients: [Client; 2],
    strangers: u8,
    ticks: u8,
}

#[derive(Clone, Debug, Hash)]
struct Server {
    /// For each name, whether it is there, and since when.
    history: [Vec<(bool, Moment)>; 2],
    changed: Changed,
}

#[derive(Clone, Debug, Hash)]
struct Client {
    directory: AttributeState,
    clock: ServerClock,
    names: [Name; 2],
    threads: [Thread; 2],
    operations: u8,
    changed_in: Option<u16>,
    /// Another client changed the directory within the tick of a change of this one's, after it.
    excused: bool,
}

#[derive(Clone, Debug, Default, Hash)]
struct Name {
    entry: Option<(Entry, NameLabel)>,
    /// Counts beginnings and ends of changes of ours.
    changes: u8,
    /// The states of the name's history before this one this client knows to be past.
    floor: usize,
}

#[derive(Clone, Debug, Hash)]
enum Thread {
    Idle,
    Waiting(Call),
    Answered(Call, Reply),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Call {
    request: Request,
    /// The name that is wanted.
    name: usize,
    began: Moment,
    sent_at: Moment,
    ticket: Ticket,
    changes: u8,
    /// The name's floor when the operation began.
    floor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Getattr,
    Lookup,
    Create,
    Remove,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Reply {
    before: Before,
    after: Facts,
    /// Whether the name was there before, and is after.
    was: bool,
    is: bool,
    /// Where in the name's history this was.
    position: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Stranger(usize),
    Begin(usize, usize, Request, usize),
    Execute(usize, usize, Request),
    Receive(usize, usize, Request),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(out, "10 ms pass"),
            Self::Stranger(name) => write!(out, "a stranger makes or removes name {name}"),
            Self::Begin(client, thread, request, name) => {
                write!(out, "client {client}.{thread} begins {request:?} of name {name}")
            }
            Self::Execute(client, thread, request) => {
                write!(out, "server executes {request:?} of {client}.{thread}")
            }
            Self::Receive(client, thread, request) => {
                write!(out, "client {client}.{thread} gets the reply to {request:?}")
            }
        }
    }
}

impl World for Names {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        self.guard != RacyGuard::Off
    }

    fn start(&self) -> State {
        let client = || Client {
            directory: AttributeState::unknown(),
            clock: ServerClock::new(Duration::ZERO),
            names: [Name::default(), Name::default()],
            threads: [Thread::Idle, Thread::Idle],
            operations: 0,
            changed_in: None,
            excused: false,
        };
        let long_ago = Time::START.moment();
        State {
            time: Time::START.after_tick(),
            server: Server {
                history: [vec![(false, long_ago)], vec![(true, long_ago)]],
                changed: Changed::OLD,
            },
            clients: [client(), client()],
            strangers: 0,
            ticks: 0,
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State, Option<String>)) {
        if self.guard == RacyGuard::Auto && state.clients.iter().any(|client| client.excused) {
            return;
        }
        if state.ticks < self.bounds.ticks {
            let time = state.time.after_tick();
            each(
                Step::Tick,
                State {
                    time,
                    ticks: state.ticks + 1,
                    ..state.clone()
                },
                None,
            );
        }
        if state.strangers < self.bounds.strangers {
            let mut next = moved(state);
            next.strangers += 1;
            let there = next.server.is_there(WANTED);
            next.change(STRANGER, WANTED, !there);
            each(Step::Stranger(WANTED), next, None);
        }
        for (client, thread) in [(0, 0), (0, 1), (1, 0)] {
            if client == 0 && thread >= self.bounds.threads {
                continue;
            }
            match &state.clients[client].threads[thread] {
                Thread::Idle if state.clients[client].operations < self.bounds.operations[client] => {
                    self.begin(state, client, thread, each);
                }
                Thread::Idle => {}
                Thread::Waiting(call) => {
                    let mut next = moved(state);
                    self.execute(&mut next, client, thread, *call);
                    each(Step::Execute(client, thread, call.request), next, None);
                }
                Thread::Answered(call, reply) => {
                    let mut next = moved(state);
                    next.clients[client].threads[thread] = Thread::Idle;
                    let wrong = self.receive(&mut next, client, thread, *call, *reply);
                    each(Step::Receive(client, thread, call.request), next, wrong);
                }
            }
        }
    }
}

fn moved(state: &State) -> State {
    State {
        time: state.time.after_event(),
        ..state.clone()
    }
}

impl Names {
    fn options(&self) -> CacheOptions {
        let lifetime = self.lifetime.unwrap_or(Duration::ZERO);
        CacheOptions {
            racy_guard: self.guard,
            attribute_cache: self.lifetime.is_some(),
            directories: Interval {
                min: lifetime,
                max: lifetime,
            },
            ..CacheOptions::default()
        }
    }

    /// How old what a look-up is told may be.
    fn allowance(&self) -> Duration {
        let guard = if self.guard == RacyGuard::Off {
            Duration::ZERO
        } else {
            GUARD_MIN
        };
        self.lifetime.unwrap_or(Duration::ZERO).max(guard)
    }

    fn begin(
        &self,
        state: &State,
        client: usize,
        thread: usize,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        let mut next = moved(state);
        next.clients[client].operations += 1;
        let began = next.time.moment();
        let floor = next.clients[client].names[WANTED].floor;
        let wrong = self.go_on(&mut next, client, thread, WANTED, began, floor);
        each(Step::Begin(client, thread, Request::Lookup, WANTED), next, wrong);

        for (request, name) in [
            (Request::Create, WANTED),
            (Request::Remove, WANTED),
            (Request::Remove, OTHER),
        ] {
            if state.server.history[OTHER].len() > 1 && name == OTHER {
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

    fn send(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        state.clients[client].threads[thread] = Thread::Waiting(call);
        if self.bounds.prompt {
            self.execute(state, client, thread, call);
        }
    }

    /// Goes on with a look-up that began at `began`: decides, and either sends a request or ends it.
    fn go_on(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        name: usize,
        began: Moment,
        floor: usize,
    ) -> Option<String> {
        let options = self.options();
        let now = state.time.moment();
        let own = &state.clients[client];
        let wanted = Wanted { began, now };
        let mut view = match own.names[name].entry {
            None => NameView::absent(&own.directory, wanted, &options),
            Some(kept) => NameView::of(kept, &own.directory, &own.clock, wanted, &options),
        };
        if self.planted == Planted::EpochIgnored {
            view.same_contents = true;
        }
        let request = match names::decide_lookup(&view, NameIntent::Use, &options) {
            NameDecision::ServePositive => return self.judge(state, client, name, true, began, floor),
            NameDecision::ServeNegative => return self.judge(state, client, name, false, began, floor),
            NameDecision::RevalidateDirectory => Request::Getattr,
            NameDecision::Lookup(_) => Request::Lookup,
            NameDecision::LeaveToServer => unreachable!("a look-up is for use"),
        };
        let ticket = own.directory.ticket();
        let call = Call {
            request,
            name,
            began,
            sent_at: now,
            ticket,
            changes: 0,
            floor,
        };
        self.send(state, client, thread, call);
        None
    }

    /// Is this what a look-up may be told that began at `began`?
    fn judge(
        &self,
        state: &State,
        client: usize,
        name: usize,
        told: bool,
        began: Moment,
        floor: usize,
    ) -> Option<String> {
        let history = &state.server.history[name];
        let recent = |position: usize| {
            history
                .get(position + 1)
                .is_none_or(|(_, ended)| ended.plus(self.allowance()) >= began)
        };
        let right = (floor..history.len()).any(|position| history[position].0 == told && recent(position));
        (!right).then(|| {
            let word = if told { "there" } else { "missing" };
            format!("client {client} is told that name {name} is {word}; its states were {history:?}, the first {floor} known to be past")
        })
    }

    fn execute(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        let before = self.facts(&state.server).as_before();
        let was = state.server.is_there(call.name);
        match call.request {
            Request::Create if !was => state.change(client, call.name, true),
            Request::Remove if was => state.change(client, call.name, false),
            Request::Create | Request::Remove | Request::Getattr | Request::Lookup => {}
        }
        let after = self.facts(&state.server);
        let is = state.server.is_there(call.name);
        let position = state.server.history[call.name].len() - 1;
        let reply = Reply {
            before,
            after,
            was,
            is,
            position,
        };
        state.clients[client].threads[thread] = Thread::Answered(call, reply);
    }

    fn facts(&self, server: &Server) -> Facts {
        let stamp = server.changed.stamp(self.grain);
        Facts {
            kind: ObjectKind::Directory,
            mode: 0o755,
            uid: 1,
            gid: 1,
            size: 2,
            stamp,
        }
    }

    fn receive(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        call: Call,
        reply: Reply,
    ) -> Option<String> {
        let options = self.options();
        let received_at = state.time.moment();
        let sent_at = if self.planted == Planted::DatedByArrival {
            received_at
        } else {
            call.sent_at
        };
        let own = &mut state.clients[client];
        let Stamp::Times { ctime, .. } = reply.after.stamp else {
            unreachable!()
        };
        own.clock.learn(ctime, received_at);
        let report = Report {
            facts: reply.after,
            sent_at,
            received_at,
        };
        match call.request {
            Request::Getattr => {
                let _ = own.directory.absorb(report, &options);
                self.go_on(state, client, thread, call.name, call.began, call.floor)
            }
            Request::Lookup => {
                let adopted = own.directory.absorb(report, &options).adopted;
                let ticket = if self.planted == Planted::TicketIgnored {
                    own.directory.ticket()
                } else {
                    call.ticket
                };
                let found = if reply.is { Found::Object } else { Found::Nothing };
                own.names[call.name].keep(names::learn(found, ticket, &own.directory, adopted, sent_at));
                self.judge(state, client, call.name, reply.is, call.began, call.floor)
            }
            Request::Create | Request::Remove => {
                self.end_change(own, call, reply, received_at);
                None
            }
        }
    }

    fn end_change(&self, own: &mut Client, call: Call, reply: Reply, received_at: Moment) {
        let before = if self.planted == Planted::BeforeNotCompared {
            own.directory.facts().map(|facts| facts.as_before())
        } else {
            Some(reply.before)
        };
        let mutation = Mutation {
            before,
            after: Some(reply.after),
            sent_at: call.sent_at,
            received_at,
        };
        let absorbed = own.directory.absorb_mutation(mutation, &self.options());
        let name = &mut own.names[call.name];
        let alone = name.changes == call.changes;
        name.changes += 1;
        name.floor = name.floor.max(reply.position);
        if reply.was == reply.is && call.request == Request::Create {
            // EEXIST: the name is there, but leads we do not know where.
            if self.planted != Planted::ExistsIgnored {
                name.entry = None;
            }
            return;
        }
        name.entry = None;
        let found = if reply.is { Found::Object } else { Found::Nothing };
        name.keep(names::learn_own(
            found,
            alone,
            &own.directory,
            absorbed,
            call.sent_at,
        ));
    }
}

impl State {
    fn change(&mut self, by: usize, name: usize, there: bool) {
        for (other, own) in self.clients.iter_mut().enumerate() {
            own.excused |= other != by && own.changed_in == Some(self.time.tick);
        }
        if let Some(own) = self.clients.get_mut(by) {
            own.changed_in = Some(self.time.tick);
        }
        self.server.changed = self.server.changed.next(self.time);
        self.server.history[name].push((there, self.time.moment()));
    }
}

impl Server {
    fn is_there(&self, name: usize) -> bool {
        self.history[name].last().unwrap().0
    }
}

impl Name {
    fn keep(&mut self, learned: Learned) {
        match learned {
            Learned::Positive(label) => self.entry = Some((Entry::Positive, label)),
            Learned::Negative(label) => self.entry = Some((Entry::Negative, label)),
            Learned::Drop => self.entry = None,
            Learned::Leave => {}
        }
    }
}

const MOST: usize = 1_000_000;
const SHORT: Option<Duration> = Some(TICK);
const NOAC: Option<Duration> = None;

#[track_caller]
fn holds(grain: Grain, guard: RacyGuard, runs: &[(Option<Duration>, Bounds)]) {
    for (lifetime, bounds) in runs {
        let names = Names {
            grain,
            guard,
            planted: Planted::Nothing,
            lifetime: *lifetime,
            bounds: *bounds,
        };
        let states = explore(&names, MOST).holds();
        println!("{grain:?}, guard {guard:?}, lifetime {lifetime:?}, {bounds:?}: {states} states");
    }
}

#[test]
fn a_name_is_as_fresh_as_its_directory_with_fine_stamps_and_no_guard() {
    holds(
        Grain::Fine,
        RacyGuard::Off,
        &[(NOAC, PAIR), (SHORT, Bounds { ticks: 2, ..ALONE }), (NOAC, WIDE)],
    );
}

#[test]
fn a_name_is_as_fresh_as_its_directory_or_the_guard_although_changes_share_a_stamp() {
    holds(
        Grain::Coarse,
        RacyGuard::On,
        &[(NOAC, PAIR), (SHORT, ALONE), (NOAC, WIDE)],
    );
}

#[test]
fn by_default_only_a_name_changed_in_the_same_tick_after_our_own_change_can_be_missed() {
    holds(
        Grain::Coarse,
        RacyGuard::Auto,
        &[(NOAC, PAIR), (SHORT, ALONE), (NOAC, WIDE)],
    );
}

#[test]
fn without_the_guard_a_name_made_within_the_tick_is_missed() {
    let planted = Planted::Nothing;
    let names = Names {
        grain: Grain::Coarse,
        guard: RacyGuard::Off,
        planted,
        lifetime: NOAC,
        bounds: ALONE,
    };
    explore(&names, MOST).broken("neg_racy_guard=off, coarse stamps");
}

#[test]
fn every_planted_mistake_about_names_is_found() {
    let slow = Bounds {
        prompt: false,
        ticks: 2,
        ..ALONE
    };
    let quick = Bounds {
        ticks: 0,
        strangers: 3,
        ..ALONE
    };
    for (planted, grain, guard, lifetime, bounds) in [
        (
            Planted::BeforeNotCompared,
            Grain::Fine,
            RacyGuard::Off,
            NOAC,
            Bounds { ticks: 0, ..ALONE },
        ),
        (Planted::DatedByArrival, Grain::Fine, RacyGuard::Off, SHORT, slow),
        (Planted::TicketIgnored, Grain::Coarse, RacyGuard::Auto, NOAC, WIDE),
        (Planted::EpochIgnored, Grain::Fine, RacyGuard::Off, NOAC, PAIR),
        (
            Planted::ExistsIgnored,
            Grain::Coarse,
            RacyGuard::Auto,
            NOAC,
            quick,
        ),
    ] {
        let steps = explore(
            &Names {
                grain,
                guard,
                planted,
                lifetime,
                bounds,
            },
            MOST,
        )
        .broken(&format!("{planted:?}"));
        assert!(
            steps <= 12,
            "{planted:?}: a trace of {steps} steps is not the shortest"
        );
    }
}
