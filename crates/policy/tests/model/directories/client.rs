//! The steps of the clients, by the crate's own decisions.

use curt_policy::{
    Absorbed, CacheOptions, MonotonicTime, Mutation, NameDecision, NameLabel, NameView,
    complete_directory::{ListingScan, reply_label, stays_complete, stays_complete_after_refusal},
    names::{self, DentryState, DentryUpdate, LookupFinding, LookupTime, RacyState},
};

use super::{
    complete::Complete,
    state::{Call, Client, EARLY, LATE, Listed, NAMES, Object, Reply, Request, State, Step, Thread, kind},
    world::{Directories, Planted, moved},
};
use crate::setting::{absorb_loss, learn_time, report};

/// The changes that clients make.
const CHANGES: [(Request, usize); 3] =
    [(Request::Create, EARLY), (Request::Rename, EARLY), (Request::Remove, LATE)];

/// Client and thread.
type At = (usize, usize);

type Each<'a> = dyn FnMut(Step, State, Option<String>) + 'a;

fn decide(view: &NameView, options: &CacheOptions) -> NameDecision {
    names::decide_lookup(view, options)
}

fn found(object: Object) -> LookupFinding {
    if object.is_some() { LookupFinding::Object } else { LookupFinding::Nothing }
}

impl Directories {
    pub(super) fn begin(&self, state: &State, client: usize, thread: usize, each: &mut Each<'_>) {
        let at = (client, thread);
        for name in [EARLY, LATE] {
            let mut next = moved(state);
            next.clients[client].operations += 1;
            let call = self.call(&next, at, (Request::Lookup, name));
            let mut filling = next.clone();
            let wrong = self.go_on(&mut next, at, call);
            let is_sent = !matches!(next.clients[client].threads[thread], Thread::Idle);
            each(Step::Begin(client, thread, Request::Lookup, name), next, wrong);
            // A lookup that has to send a request may list all names instead.
            if is_sent && self.bounds.replies == 1 {
                self.list(&mut filling, at, Call { wants: true, ..call });
                each(Step::Begin(client, thread, Request::List(EARLY), name), filling, None);
            }
        }
        if self.bounds.replies > 1 {
            let mut next = moved(state);
            next.clients[client].operations += 1;
            let call = self.call(&next, at, (Request::List(EARLY), EARLY));
            self.list(&mut next, at, call);
            each(Step::Begin(client, thread, Request::List(EARLY), EARLY), next, None);
        }
        if !self.bounds.changes {
            return;
        }
        for change in CHANGES {
            self.begin_change(state, at, change, each);
        }
    }

    fn call(&self, state: &State, at: At, (request, name): (Request, usize)) -> Call {
        let own = &state.clients[at.0];
        let now = state.time.moment();
        Call {
            request,
            name,
            began: now,
            sent_at: now,
            ticket: own.directory.ticket(),
            changes: [EARLY, LATE].map(|name| own.names[name].changes),
            floor: own.names[name].floor,
            pass: None,
            wants: false,
        }
    }

    fn begin_change(&self, state: &State, at: At, (request, name): (Request, usize), each: &mut Each<'_>) {
        let mut next = moved(state);
        let own = &mut next.clients[at.0];
        own.operations += 1;
        for name in touched(request, name) {
            own.directory.begin_mutation();
            own.names[name].changes();
        }
        let call = self.call(&next, at, (request, name));
        self.send(&mut next, at, call);
        each(Step::Begin(at.0, at.1, request, name), next, None);
    }

    /// Sends the request of a listing that `call` describes.
    pub(super) fn list(&self, state: &mut State, at: At, call: Call) {
        let own = &state.clients[at.0];
        let now = state.time.moment();
        let call = Call {
            request: call.pass.map_or(Request::List(EARLY), |_| call.request),
            sent_at: now,
            ticket: own.directory.ticket(),
            ..call
        };
        self.send(state, at, call);
    }

    /// The cached entry of a name, and the answer of a complete directory for it.
    fn view(&self, state: &State, at: At, call: &Call) -> (Object, NameView) {
        let options = self.options();
        let own = &state.clients[at.0];
        let now = state.time.moment();
        let wanted = LookupTime { began: call.began, now };
        let entry = own.names[call.name].entry;
        let of = |object: Object, label: NameLabel| {
            NameView::of(kind(object), label, &own.directory, &own.clock, wanted, &options)
        };
        let missing = own.complete.filter(|complete| match self.planted {
            Planted::LetGoIsMissing => entry.is_none(),
            _ => !complete.is_listed[call.name],
        });
        let (object, view) = match entry {
            Some((object, label)) => (object, of(object, label)),
            None => (None, NameView::absent(&own.directory, wanted, &options)),
        };
        let is_unknown = |view: &NameView| matches!(decide(view, &options), NameDecision::Lookup(_));
        let Some(complete) = missing.filter(|_| is_unknown(&view)) else {
            return (object, view);
        };
        let mut absent = of(None, complete.label);
        absent.same_contents |= self.planted == Planted::EpochIgnored;
        if self.planted == Planted::GuardLeftOut {
            absent.racy_state = RacyState::NotRacy;
        }
        if is_unknown(&absent) { (object, view) } else { (None, absent) }
    }

    /// Continues a lookup: decides, and either sends a request or ends it.
    fn go_on(&self, state: &mut State, at: At, call: Call) -> Option<String> {
        let (object, view) = self.view(state, at, &call);
        debug_assert!(view.entry == DentryState::Absent || kind(object) == view.entry, "{view:?}");
        let request = match decide(&view, &self.options()) {
            NameDecision::ServePositive | NameDecision::ServeNegative => {
                return self.judge(state, at, &call, object);
            }
            NameDecision::RevalidateDirectory => Request::Getattr,
            NameDecision::Lookup(_) => Request::Lookup,
        };
        let sent = Call {
            request,
            sent_at: state.time.moment(),
            ticket: state.clients[at.0].directory.ticket(),
            ..call
        };
        self.send(state, at, sent);
        None
    }

    pub(super) fn receive(&self, state: &mut State, at: At, call: Call, reply: Reply) -> Option<String> {
        let options = self.options();
        let received_at = state.time.moment();
        let sent_at = if self.planted == Planted::DatedByArrival { received_at } else { call.sent_at };
        let own = &mut state.clients[at.0];
        learn_time(&mut own.clock, &reply.after, received_at);
        let report = report(reply.after, sent_at, received_at);
        match call.request {
            Request::Getattr => {
                let _ = own.directory.absorb(report, &options);
                self.go_on(state, at, call)
            }
            Request::Lookup => {
                let adopted = own.directory.absorb(report, &options).adopted;
                let object = reply.is[call.name];
                let learned = names::learn(found(object), call.ticket, &own.directory, adopted, sent_at);
                own.names[call.name].keep(object, learned);
                self.judge(state, at, &call, object)
            }
            Request::List(first) => {
                let adopted = own.directory.absorb(report, &options).adopted;
                self.take_listing(state, at, (call, first), (reply, adopted, sent_at))
            }
            Request::Create | Request::Remove | Request::Rename => {
                self.end_change(own, call, reply, received_at);
                None
            }
        }
    }

    fn take_listing(
        &self,
        state: &mut State,
        at: At,
        (call, first): (Call, usize),
        (reply, adopted, sent_at): (Reply, bool, MonotonicTime),
    ) -> Option<String> {
        let own = &mut state.clients[at.0];
        let (is_last, names_told) = match self.bounds.replies {
            1 => (true, EARLY..NAMES),
            _ => (first == LATE, first..first + 1),
        };
        let label = reply_label(call.ticket, &own.directory, adopted, sent_at);
        let (mut pass, mut seen) =
            call.pass.unwrap_or_else(|| (ListingScan::begin(call.ticket), [None; NAMES]));
        for name in names_told {
            seen[name] = reply.is[name];
            if let (Some(_), Some(label)) = (reply.is[name], label) {
                own.names[name].keep(reply.is[name], DentryUpdate::Positive(label));
            }
        }
        if is_last && matches!(self.planted, Planted::TornCounts | Planted::OwnChangesIgnored) {
            pass = ListingScan::begin(own.directory.ticket());
        }
        pass.add(label, is_last);
        pass.keep(&own.directory);
        if !is_last {
            own.threads[at.1] =
                Thread::Paused(Call { request: Request::List(first + 1), pass: Some((pass, seen)), ..call });
            return None;
        }
        self.complete(own, pass.complete(), seen, sent_at);
        if !call.wants {
            return None;
        }
        // A caller that lists the directory for a name gets its result, whether or not it may be
        // cached.
        self.judge(state, at, &call, seen[call.name])
    }

    fn complete(&self, own: &mut Client, label: Option<NameLabel>, seen: Listed, sent_at: MonotonicTime) {
        let Some(mut label) = label else {
            return;
        };
        if self.planted == Planted::DatedByTheLastRequest {
            label.sent_at = sent_at;
        }
        let is_listed = seen.map(|object| object.is_some());
        own.complete = Some(Complete { label, is_listed });
    }

    /// A reply is lost: the client does not know whether its change was executed.
    pub(super) fn lose(&self, state: &State, at: At, call: Call, each: &mut Each<'_>) {
        let names = touched(call.request, call.name);
        if names.is_empty() || state.losses == self.bounds.losses {
            return;
        }
        let mut next = moved(state);
        next.losses += 1;
        let received_at = next.time.moment();
        let own = &mut next.clients[at.0];
        own.threads[at.1] = Thread::Idle;
        for name in names {
            let _ = absorb_loss(&mut own.directory, (call.sent_at, received_at), &self.options());
            own.names[name].changes();
        }
        each(Step::Lose(at.0, at.1, call.request), next, None);
    }

    fn end_change(&self, own: &mut Client, call: Call, reply: Reply, received_at: MonotonicTime) {
        let mutation = Mutation {
            before: Some(reply.before),
            after: Some(reply.after),
            sent_at: call.sent_at,
            received_at,
        };
        let names = touched(call.request, call.name);
        let ended: Vec<(usize, bool, Absorbed)> = names
            .iter()
            .map(|name| {
                let absorbed = own.directory.absorb_mutation(mutation, &self.options());
                let alone = own.names[*name].changes == call.changes[*name];
                (*name, alone, absorbed)
            })
            .collect();
        for (name, alone, absorbed) in ended {
            let kept = &mut own.names[name];
            kept.changes();
            kept.floor = kept.floor.max(reply.positions[name]);
            if reply.was == reply.is {
                let exists = call.request == Request::Create;
                own.complete = own.complete.filter(|complete| {
                    let is_listed = complete.is_listed[name];
                    stays_complete_after_refusal(exists, is_listed, absorbed.stands)
                        || self.planted == Planted::ExistsIgnored
                });
                continue;
            }
            let object = reply.is[name];
            let learned = names::learn_own(found(object), alone, &own.directory, absorbed, call.sent_at);
            own.names[name].keep(object, learned);
            if self.planted == Planted::OwnNamesNotEntered {
                continue;
            }
            own.complete = own.complete.filter(|complete| stays_complete(complete.label, learned));
            if let Some(complete) = &mut own.complete {
                complete.enter(name, object);
            }
        }
    }
}

/// The names that a request changes.
fn touched(request: Request, name: usize) -> Vec<usize> {
    match request {
        Request::Create | Request::Remove => vec![name],
        Request::Rename => vec![1 - name, name],
        Request::Getattr | Request::Lookup | Request::List(_) => Vec::new(),
    }
}
