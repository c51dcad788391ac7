//! Close-to-open of one file of two blocks: who opens sees every write whose writer had closed before.
//!
//! Client 0 has two threads (so that its own requests overtake one another), client 1 has one. A read is open, READ if the
//! cached pages do not serve, close. A write is open, write of one block, close (which waits for the WRITE).

use core::time::Duration;
use std::fmt;

use curt_policy::{
    AccessView, AttributeState, Before, CacheOptions, Facts, Moment, Mutation, ObjectKind, OpenDecision,
    OpenIntent, OpenView, RacyGuard, Report, ServerClock, Stamp, Ticket,
    data::{self, DataLabel, Pages},
    open,
};

use crate::{
    explore::{World, explore},
    time::{Changed, Grain, Time},
};

/// A mistake put into the client on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// What a WRITE found before it is not compared with what was known.
    BeforeNotCompared,
    /// READ replies are kept although a WRITE of ours was on its way.
    TicketIgnored,
    /// Pages are kept although their epoch ended.
    PagesAlwaysKept,
    /// Open believes fresh attributes (`nocto`) where the model demands close-to-open.
    OpenBelievesFresh,
}

struct Files {
    grain: Grain,
    guard: RacyGuard,
    planted: Planted,
    bounds: Bounds,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Threads of client 0; client 1 has one.
    threads: usize,
    /// Operations that each client may begin.
    operations: [u8; 2],
    /// Writes by strangers, who close at once.
    strangers: u8,
    /// Ticks that may pass.
    ticks: u8,
    /// Requests reach the server at once; only replies take time.
    prompt: bool,
}

/// Two clients, one thread each.
const PAIR: Bounds = Bounds {
    threads: 1,
    operations: [3, 2],
    strangers: 0,
    ticks: 0,
    prompt: false,
};
/// The same while time passes, with fewer operations.
const SLOW_PAIR: Bounds = Bounds {
    threads: 1,
    operations: [2, 2],
    strangers: 0,
    ticks: 2,
    prompt: true,
};
/// One client among strangers while time passes.
const ALONE: Bounds = Bounds {
    threads: 1,
    operations: [3, 0],
    strangers: 2,
    ticks: 3,
    prompt: true,
};
/// One client with two threads whose requests overtake each other.
const WIDE: Bounds = Bounds {
    threads: 2,
    operations: [3, 0],
    strangers: 2,
    ticks: 1,
    prompt: true,
};

/// The stranger that the server remembers as the last to change the file.
const STRANGER: usize = 2;

type Block = u8;

#[derive(Clone, Debug, Hash)]
struct State {
    time: Time,
    server: Server,
    clients: [Client; 2],
    /// Number of writes begun: the next block's content.
    written: u8,
    strangers: u8,
    ticks: u8,
}

#[derive(Clone, Debug, Hash)]
struct Server {
    /// The contents of each block in the order the server took them.
    history: [Vec<Block>; 2],
    /// For each block, how many of those were written by somebody who has closed.
    closed: [usize; 2],
    changed: Changed,
}

#[derive(Clone, Debug, Hash)]
struct Client {
    attributes: AttributeState,
    clock: ServerClock,
    clean: [Option<Block>; 2],
    dirty: [Option<Block>; 2],
    label: Option<DataLabel>,
    threads: [Thread; 2],
    operations: u8,
    /// The last tick in which the server took a change of this one.
    changed_in: Option<u16>,
    /// Another client changed the file within the tick of a change of this one's, after it.
    excused: bool,
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
    began: Moment,
    sent_at: Moment,
    ticket: Ticket,
    /// What had been closed when the operation began.
    floor: [usize; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Getattr,
    Read,
    Write(usize, Block),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Reply {
    before: Before,
    after: Facts,
    blocks: [Block; 2],
    /// How many contents of the written block there are now.
    taken: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Tick,
    Stranger(usize),
    BeginRead(usize, usize),
    BeginWrite(usize, usize, usize),
    Execute(usize, usize, Request),
    Receive(usize, usize, Request),
}

impl fmt::Debug for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick => write!(out, "10 ms pass"),
            Self::Stranger(block) => write!(out, "a stranger writes block {block} and closes"),
            Self::BeginRead(client, thread) => write!(out, "client {client}.{thread} opens and reads"),
            Self::BeginWrite(client, thread, block) => {
                write!(out, "client {client}.{thread} writes block {block}")
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

impl World for Files {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        self.guard != RacyGuard::Off
    }

    fn start(&self) -> State {
        let client = || Client {
            attributes: AttributeState::unknown(),
            clock: ServerClock::new(Duration::ZERO),
            clean: [None; 2],
            dirty: [None; 2],
            label: None,
            threads: [Thread::Idle, Thread::Idle],
            operations: 0,
            changed_in: None,
            excused: false,
        };
        State {
            time: Time::START,
            server: Server {
                history: [vec![0], vec![0]],
                closed: [1, 1],
                changed: Changed::OLD,
            },
            clients: [client(), client()],
            written: 0,
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
        for block in 0..2 {
            if state.strangers < self.bounds.strangers {
                let mut next = self.moved(state);
                next.strangers += 1;
                next.written += 1;
                let content = next.written;
                next.change(STRANGER, block, content);
                next.server.closed[block] = next.server.history[block].len();
                each(Step::Stranger(block), next, None);
            }
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
                    let mut next = self.moved(state);
                    self.execute(&mut next, client, thread, *call);
                    each(Step::Execute(client, thread, call.request), next, None);
                }
                Thread::Answered(call, reply) => {
                    let mut next = self.moved(state);
                    next.clients[client].threads[thread] = Thread::Idle;
                    let wrong = self.receive(&mut next, client, thread, *call, *reply);
                    each(Step::Receive(client, thread, call.request), next, wrong);
                }
            }
        }
    }
}

impl Files {
    fn options(&self) -> CacheOptions {
        CacheOptions {
            racy_guard: self.guard,
            close_to_open: self.planted != Planted::OpenBelievesFresh,
            ..CacheOptions::default()
        }
    }

    fn moved(&self, state: &State) -> State {
        State {
            time: state.time.after_event(),
            ..state.clone()
        }
    }

    fn begin(
        &self,
        state: &State,
        client: usize,
        thread: usize,
        each: &mut dyn FnMut(Step, State, Option<String>),
    ) {
        let mut next = self.moved(state);
        next.clients[client].operations += 1;
        let began = next.time.moment();
        let floor = next.server.closed;
        let wrong = self.go_on(&mut next, client, thread, began, floor);
        each(Step::BeginRead(client, thread), next, wrong);

        // Each client has its block; what matters is that the other's lies in the same file.
        let block = client;
        if state.clients[client].dirty[block].is_none() {
            let mut next = self.moved(state);
            next.written += 1;
            let content = next.written;
            let own = &mut next.clients[client];
            own.operations += 1;
            own.dirty[block] = Some(content);
            own.attributes.begin_mutation();
            let call = Call {
                request: Request::Write(block, content),
                began: next.time.moment(),
                sent_at: next.time.moment(),
                ticket: own.attributes.ticket(),
                floor: next.server.closed,
            };
            own.threads[thread] = Thread::Waiting(call);
            if self.bounds.prompt {
                self.execute(&mut next, client, thread, call);
            }
            each(Step::BeginWrite(client, thread, block), next, None);
        }
    }

    /// Goes on with a read that began at `began`: decides, and either sends a request or ends it.
    fn go_on(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        began: Moment,
        floor: [usize; 2],
    ) -> Option<String> {
        let options = self.options();
        let now = state.time.moment();
        let own = &mut state.clients[client];
        let intent = OpenIntent {
            read: true,
            ..OpenIntent::default()
        };
        let view = OpenView {
            kind: own.attributes.facts().map(|facts| facts.kind),
            attributes: own.attributes.freshness(began, now, &options),
            age: own
                .attributes
                .sent_at()
                .map_or(Duration::MAX, |sent_at| now.since(sent_at)),
            written_here: own.dirty.iter().any(Option::is_some),
            closed_after_writing: false,
            locked: false,
            access: AccessView {
                local: Some(curt_policy::Rights::ALL),
                entry: None,
                foreign_data: false,
            },
        };
        let options_open = CacheOptions {
            access: curt_policy::AccessMode::ModeBits,
            ..options
        };
        let request = match open::decide_open(&view, intent, &options_open) {
            OpenDecision::Revalidate => Some(Request::Getattr),
            OpenDecision::Serve(_) => {
                let pages = data::decide_pages(own.label, &own.attributes, &own.clock, &options);
                if pages == Pages::Drop {
                    self.drop_pages(own);
                }
                own.cached().is_none().then_some(Request::Read)
            }
            other => panic!("{other:?} is not for this model"),
        };
        let ticket = own.attributes.ticket();
        if let Some(request) = request {
            let call = Call {
                request,
                began,
                sent_at: now,
                ticket,
                floor,
            };
            own.threads[thread] = Thread::Waiting(call);
            if self.bounds.prompt {
                self.execute(state, client, thread, call);
            }
            return None;
        }
        let blocks = own.cached().unwrap();
        self.judge(state, client, blocks, floor)
    }

    fn drop_pages(&self, client: &mut Client) {
        if self.planted != Planted::PagesAlwaysKept {
            client.drop_pages();
        }
    }

    /// Is this what a reader may see whose open began when `floor` had been closed?
    fn judge(&self, state: &State, client: usize, blocks: [Block; 2], floor: [usize; 2]) -> Option<String> {
        (0..2).find_map(|block| {
            let position = state.server.history[block]
                .iter()
                .position(|content| *content == blocks[block]);
            // Until it is taken, a write of our own is what this client sees.
            let own = state.clients[client].dirty[block] == Some(blocks[block]);
            let stale = !own && position.is_some_and(|position| position + 1 < floor[block]);
            stale.then(|| {
                format!(
                    "client {client} read {} in block {block}, of which {:?} were closed before it opened",
                    blocks[block],
                    &state.server.history[block][..floor[block]]
                )
            })
        })
    }

    fn execute(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        let before = self.facts(&state.server).as_before();
        let mut taken = 0;
        if let Request::Write(block, content) = call.request {
            state.change(client, block, content);
            taken = state.server.history[block].len();
        }
        let after = self.facts(&state.server);
        let last = |block: usize| *state.server.history[block].last().unwrap();
        let reply = Reply {
            before,
            after,
            blocks: [last(0), last(1)],
            taken,
        };
        state.clients[client].threads[thread] = Thread::Answered(call, reply);
    }

    fn facts(&self, server: &Server) -> Facts {
        let stamp = server.changed.stamp(self.grain);
        Facts {
            kind: ObjectKind::Regular,
            mode: 0o644,
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
        let sent_at = call.sent_at;
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
                if own.attributes.absorb(report, &options).contents_changed {
                    self.drop_pages(own);
                }
                self.go_on(state, client, thread, call.began, call.floor)
            }
            Request::Read => {
                let absorbed = own.attributes.absorb(report, &options);
                if absorbed.contents_changed {
                    self.drop_pages(own);
                }
                let ticket = if self.planted == Planted::TicketIgnored {
                    own.attributes.ticket()
                } else {
                    call.ticket
                };
                own.keep_pages(reply.blocks, ticket, absorbed.adopted, call.sent_at);
                let seen = [0, 1].map(|block| own.dirty[block].unwrap_or(reply.blocks[block]));
                self.judge(state, client, seen, call.floor)
            }
            Request::Write(block, content) => {
                let before = if self.planted == Planted::BeforeNotCompared {
                    own.attributes.facts().map(|facts| facts.as_before())
                } else {
                    Some(reply.before)
                };
                let mutation = Mutation {
                    before,
                    after: Some(reply.after),
                    sent_at,
                    received_at,
                };
                let absorbed = own.attributes.absorb_mutation(mutation, &options);
                if absorbed.contents_changed {
                    self.drop_pages(own);
                }
                own.dirty[block] = None;
                own.label = data::learn_written(own.label, &own.attributes, absorbed, call.sent_at);
                own.clean[block] = Some(content);
                if own.label.is_none() {
                    self.drop_pages(own);
                }
                let closed = &mut state.server.closed[block];
                *closed = (*closed).max(reply.taken);
                None
            }
        }
    }
}

impl State {
    /// The server takes new contents of a block from a client or a stranger.
    fn change(&mut self, by: usize, block: usize, content: Block) {
        for (other, own) in self.clients.iter_mut().enumerate() {
            own.excused |= other != by && own.changed_in == Some(self.time.tick);
        }
        if let Some(own) = self.clients.get_mut(by) {
            own.changed_in = Some(self.time.tick);
        }
        self.server.changed = self.server.changed.next(self.time);
        self.server.history[block].push(content);
    }
}

impl Client {
    fn drop_pages(&mut self) {
        self.clean = [None; 2];
        self.label = None;
    }

    /// What a read sees without any request.
    fn cached(&self) -> Option<[Block; 2]> {
        let block = |block: usize| self.dirty[block].or(self.clean[block]);
        Some([block(0)?, block(1)?])
    }

    fn keep_pages(&mut self, blocks: [Block; 2], ticket: Ticket, adopted: bool, sent_at: Moment) {
        let Some(label) = data::learn_pages(self.label, ticket, &self.attributes, adopted, sent_at) else {
            return;
        };
        if self.label.is_some_and(|held| held.epoch != label.epoch) {
            self.drop_pages();
        }
        self.label = Some(label);
        self.clean = blocks.map(Some);
    }
}

const MOST: usize = 1_000_000;

#[track_caller]
fn holds(grain: Grain, guard: RacyGuard, bounds: &[Bounds]) {
    for bounds in bounds {
        let states = explore(
            &Files {
                grain,
                guard,
                planted: Planted::Nothing,
                bounds: *bounds,
            },
            MOST,
        )
        .holds();
        println!("{grain:?}, guard {guard:?}, {bounds:?}: {states} states");
    }
}

#[test]
fn an_open_sees_what_was_closed_before_with_fine_stamps_and_no_guard() {
    holds(
        Grain::Fine,
        RacyGuard::Off,
        &[
            PAIR,
            Bounds {
                ticks: 0,
                prompt: false,
                ..WIDE
            },
        ],
    );
}

#[test]
fn an_open_sees_what_was_closed_before_although_changes_share_a_stamp() {
    holds(Grain::Coarse, RacyGuard::On, &[SLOW_PAIR, ALONE, WIDE]);
}

#[test]
fn by_default_only_a_change_in_the_same_tick_after_our_own_can_be_missed() {
    holds(Grain::Coarse, RacyGuard::Auto, &[SLOW_PAIR, ALONE, WIDE]);
}

#[test]
fn without_the_guard_a_second_change_within_a_tick_is_missed() {
    let files = Files {
        grain: Grain::Coarse,
        guard: RacyGuard::Off,
        planted: Planted::Nothing,
        bounds: ALONE,
    };
    explore(&files, MOST).broken("neg_racy_guard=off, coarse stamps");
}

/// One client alone with its file: nobody else's change can hide in a tick, so no guard is needed.
const LONELY: Bounds = Bounds {
    threads: 2,
    operations: [4, 0],
    strangers: 0,
    ticks: 0,
    prompt: true,
};

#[test]
fn our_own_changes_within_a_tick_are_never_missed_even_without_the_guard() {
    holds(Grain::Coarse, RacyGuard::Off, &[LONELY]);
}

#[test]
fn every_planted_mistake_is_found() {
    for (planted, grain, bounds) in [
        (Planted::BeforeNotCompared, Grain::Fine, PAIR),
        (Planted::TicketIgnored, Grain::Coarse, LONELY),
        (Planted::PagesAlwaysKept, Grain::Fine, PAIR),
        (Planted::OpenBelievesFresh, Grain::Fine, PAIR),
    ] {
        let files = Files {
            grain,
            guard: RacyGuard::Off,
            planted,
            bounds,
        };
        let steps = explore(&files, MOST).broken(&format!("{planted:?}"));
        assert!(
            steps <= 14,
            "{planted:?}: a trace of {steps} steps is not the shortest"
        );
    }
}
