//! The steps of the model: clients and server, by the crate's own decisions.

use core::time::Duration;

use curt_policy::{
    AccessView, AttributeState, CacheOptions, CachingAttributes, Delegation, LockingState, MonotonicTime,
    Mutation, OpenDecision, OpenIntent, OpenView, ServerClock,
    data::{self, PagesDecision, PagesLabel},
    open,
};
use curt_types::FileKind;

use super::state::{Block, Call, Client, Reply, Request, Server, State, Step, Thread};
use crate::{
    explore::World,
    server::{Changes, STRANGER},
    setting::{Setting, learn_time, report, threads},
    time::Time,
};

/// A fault that is planted in the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// The pre-operation attributes of a WRITE are not compared with the known ones.
    BeforeNotCompared,
    /// READ replies are cached although a WRITE of this client was in flight.
    TicketIgnored,
    /// Pages are kept although their epoch has ended.
    PagesAlwaysKept,
    /// Open uses fresh attributes (`nocto`) where the model requires close-to-open.
    OpenBelievesFresh,
    /// A delegation is used after it was recalled.
    DelegationKept,
}

#[derive(Debug)]
pub(super) struct Files {
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
    /// Writes by strangers, who close at once.
    pub(super) strangers: u8,
    /// Ticks that may pass.
    pub(super) ticks: u8,
    /// Requests reach the server at once; only replies take time.
    pub(super) prompt: bool,
    /// The server delegates the file to a client that opens it while no other client writes.
    pub(super) delegates: bool,
}

impl World for Files {
    type State = State;
    type Step = Step;

    fn guarded(&self) -> bool {
        self.setting.is_guarded()
    }

    fn start(&self) -> State {
        let client = || Client {
            attributes: AttributeState::unknown(),
            clock: ServerClock::new(Duration::ZERO),
            clean: [None; 2],
            dirty: [None; 2],
            label: None,
            delegation: None,
            threads: [Thread::Idle, Thread::Idle],
            operations: 0,
        };
        State {
            time: Time::START,
            server: Server {
                history: [vec![0], vec![0]],
                closed: [1, 1],
                changes: Changes::OLD,
                delegated: [false; 2],
            },
            clients: [client(), client()],
            written: 0,
            strangers: 0,
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
        for block in 0..2 {
            if state.strangers < self.bounds.strangers {
                let mut next = self.moved(state);
                next.strangers += 1;
                next.written += 1;
                let content = next.written;
                self.recall(&mut next, STRANGER);
                next.change(STRANGER, block, content);
                next.server.closed[block] = next.server.history[block].len();
                each(Step::Stranger(block), next, None);
            }
        }
        for (client, thread) in threads(self.bounds.threads) {
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
    pub(super) fn options(&self) -> CacheOptions {
        CacheOptions {
            racy_guard: self.setting.guard,
            close_to_open: self.planted != Planted::OpenBelievesFresh,
            ..CacheOptions::default()
        }
    }

    pub(super) fn moved(&self, state: &State) -> State {
        State { time: state.time.after_event(), ..state.clone() }
    }

    pub(super) fn begin(
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

        // Each client writes its own block; both blocks are in the same file.
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

    /// Continues a read that began at `began`: decides, and either sends a request or ends it.
    pub(super) fn go_on(
        &self,
        state: &mut State,
        client: usize,
        thread: usize,
        began: MonotonicTime,
        floor: [usize; 2],
    ) -> Option<String> {
        let options = self.options();
        let now = state.time.moment();
        let own = &mut state.clients[client];
        let intent = OpenIntent { read: true, ..OpenIntent::default() };
        let view = open_view(own, began, now, &options);
        let options_open = CacheOptions { access: curt_policy::AccessMode::ModeBits, ..options };
        let request = match open::decide_open(&view, intent, &options_open) {
            OpenDecision::Revalidate => Some(Request::Getattr),
            OpenDecision::Serve(_) => {
                let pages =
                    data::decide_pages(own.label, &own.attributes, view.locking, &own.clock, &options);
                if pages == PagesDecision::Drop {
                    self.drop_pages(own);
                }
                own.cached().is_none().then_some(Request::Read)
            }
            other => panic!("{other:?} is not for this model"),
        };
        let ticket = own.attributes.ticket();
        if let Some(request) = request {
            let call = Call { request, began, sent_at: now, ticket, floor };
            own.threads[thread] = Thread::Waiting(call);
            if self.bounds.prompt {
                self.execute(state, client, thread, call);
            }
            return None;
        }
        let blocks = own.cached().unwrap();
        self.judge(state, client, blocks, floor)
    }

    pub(super) fn drop_pages(&self, client: &mut Client) {
        if self.planted != Planted::PagesAlwaysKept {
            client.drop_pages();
        }
    }

    /// Checks the result of a read whose open began when `floor` had been closed.
    pub(super) fn judge(
        &self,
        state: &State,
        client: usize,
        blocks: [Block; 2],
        floor: [usize; 2],
    ) -> Option<String> {
        (0..2).find_map(|block| {
            let position = state.server.history[block].iter().position(|content| *content == blocks[block]);
            // Until it is sent, this client sees its own write.
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

    pub(super) fn execute(&self, state: &mut State, client: usize, thread: usize, call: Call) {
        let before = self.attributes(&state.server).as_before();
        let mut taken = 0;
        if let Request::Write(block, content) = call.request {
            self.recall(state, client);
            state.change(client, block, content);
            taken = state.server.history[block].len();
        }
        let after = self.attributes(&state.server);
        let is_writing = |thread: &Thread| {
            let (Thread::Waiting(call) | Thread::Answered(call, _)) = thread else {
                return false;
            };
            matches!(call.request, Request::Write(..))
        };
        let is_contended = state.clients[1 - client].threads.iter().any(is_writing);
        let delegated = self.bounds.delegates && call.request == Request::Getattr && !is_contended;
        state.server.delegated[client] |= delegated;
        let last = |block: usize| *state.server.history[block].last().unwrap();
        let reply = Reply { before, after, blocks: [last(0), last(1)], taken, delegated };
        state.clients[client].threads[thread] = Thread::Answered(call, reply);
    }

    /// Before `by` writes, all others return their delegations, including those in replies that are
    /// still in flight (RFC 8881 §2.10.6.3).
    fn recall(&self, state: &mut State, by: usize) {
        for client in (0..2).filter(|client| *client != by) {
            state.server.delegated[client] = false;
            let own = &mut state.clients[client];
            if self.planted != Planted::DelegationKept {
                own.delegation = None;
            }
            for thread in &mut own.threads {
                if let Thread::Answered(_, reply) = thread {
                    reply.delegated = false;
                }
            }
        }
    }

    pub(super) fn attributes(&self, server: &Server) -> CachingAttributes {
        self.setting.attributes(FileKind::Regular, server.changes.last)
    }

    /// A WRITE of this client was answered.
    fn absorb_write_reply(
        &self,
        own: &mut Client,
        (block, content): (usize, Block),
        sent_at: MonotonicTime,
        received_at: MonotonicTime,
        reply: &Reply,
    ) {
        let before = if self.planted == Planted::BeforeNotCompared {
            own.attributes.newest().map(|attributes| attributes.as_before())
        } else {
            Some(reply.before)
        };
        let mutation = Mutation { before, after: Some(reply.after), sent_at, received_at };
        let absorbed = own.attributes.absorb_mutation(mutation, &self.options());
        if absorbed.contents_changed {
            self.drop_pages(own);
        }
        own.dirty[block] = None;
        own.clean[block] = Some(content);
        match own.attributes.contents().filter(|_| absorbed.stands) {
            Some(epoch) if own.label.is_none_or(|held| held.epoch == epoch) => {
                own.label.get_or_insert(PagesLabel { epoch, sent_at });
            }
            Some(_) | None => self.drop_pages(own),
        }
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
        let sent_at = call.sent_at;
        let own = &mut state.clients[client];
        learn_time(&mut own.clock, &reply.after, received_at);
        let report = report(reply.after, sent_at, received_at);
        match call.request {
            Request::Getattr => {
                if own.attributes.absorb(report, &options).contents_changed {
                    self.drop_pages(own);
                }
                if reply.delegated && own.delegation.is_none() {
                    let (write, since) = (false, sent_at);
                    own.delegation = Some(Delegation { write, since });
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
                self.absorb_write_reply(own, (block, content), sent_at, received_at, &reply);
                let closed = &mut state.server.closed[block];
                *closed = (*closed).max(reply.taken);
                None
            }
        }
    }
}

/// The known state of the file at an open.
fn open_view(own: &Client, began: MonotonicTime, now: MonotonicTime, options: &CacheOptions) -> OpenView {
    OpenView {
        kind: own.attributes.newest().map(|attributes| attributes.kind),
        attributes: own.attributes.freshness_under(own.delegation, began, now, options),
        age: own.attributes.sent_at().map_or(Duration::MAX, |sent_at| now.since(sent_at)),
        written_here: own.dirty.iter().any(Option::is_some),
        closed_after_writing: false,
        locking: LockingState { locked_at: None, delegation: own.delegation },
        access: AccessView { local: Some(curt_types::Access::ALL), entry: None, foreign_data: false },
    }
}
