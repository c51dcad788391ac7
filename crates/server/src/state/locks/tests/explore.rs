//! All orders of events of a few clients: requests, cancels, callbacks that arrive, are lost or
//! whose answers are lost, clients that vanish, and time.
//!
//! Checked in every state: no two clients believe that they hold conflicting locks; what a client
//! believes to hold is held at the server; a process that waits is known to the server, or will ask
//! again; no client is granted a lock twice while another one waits; and, when nothing more can
//! happen, nobody waits for a free lock, and nothing is held that no client knows of. Each property
//! is shown to find a planted fault.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt::Write as _;

use super::super::queue::{NOTIFICATION_WINDOW, Transmission, WaiterState};
use super::*;

/// More states indicate an error in the bounds.
const STATES_MAX: usize = 60_000;

/// The explored system.
#[derive(Clone, Debug)]
struct World {
    processes: Vec<Process>,
    /// How many callbacks or answers may be lost.
    losses: u8,
    /// How many waiting clients may vanish.
    deaths: u8,
    planted: Planted,
}

/// A process of a client, and what it locks.
#[derive(Clone, Copy, Debug)]
struct Process {
    who: Who,
    lock_type: LockType,
    range: ByteRange,
    waits: Waits,
    /// How often it locks.
    locks: u8,
    /// How often it asks again without a notification.
    polls: u8,
    /// Whether it may give up.
    cancels: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A grant that was accepted is taken back.
    TakesBackAccepted,
    /// A CANCEL does not take an unconfirmed grant back.
    CancelLeavesGrant,
    /// A client that refuses a second copy has not got the lock by the first one.
    TakesBackSecondRefusal,
    /// A CANCEL removes all waiters of the client.
    CancelTakesOthers,
    /// The client that was served stays first.
    TurnDoesNotEnd,
    /// The timers do not run.
    NoTimers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A first request, or a repeated one.
    Lock(usize),
    Unlock(usize),
    Cancel(usize),
    Vanish(usize),
    /// The callback at this position of those on their way.
    Deliver(usize),
    /// The call arrives, and its answer does not.
    LoseAnswer(usize),
    Lose(usize),
    /// Until the next timer.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Idle,
    Waits,
    Holds,
    Vanished,
}

/// A run of the world along one path.
struct Run<'w> {
    world: &'w World,
    fixture: Fixture,
    beliefs: Vec<Belief>,
    locks_left: Vec<u8>,
    polls_left: Vec<u8>,
    /// Whether each was notified since its last request.
    is_notified: Vec<bool>,
    losses: u8,
    deaths: u8,
    on_their_way: Vec<LockCallback>,
    /// How often each process's client was served while the process of the other index waits.
    served: Vec<Vec<u8>>,
}

impl<'w> Run<'w> {
    fn new(world: &'w World) -> Self {
        let count = world.processes.len();
        Self {
            world,
            fixture: Fixture::new(),
            beliefs: vec![Belief::Idle; count],
            locks_left: world.processes.iter().map(|process| process.locks).collect(),
            polls_left: world.processes.iter().map(|process| process.polls).collect(),
            is_notified: vec![false; count],
            losses: world.losses,
            deaths: world.deaths,
            on_their_way: Vec::new(),
            served: vec![vec![0; 8]; count],
        }
    }

    fn along(world: &'w World, path: &[Step]) -> Self {
        let mut run = Self::new(world);
        for step in path {
            run.apply(*step).expect("the path was taken before");
        }
        run
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, process) in self.world.processes.iter().enumerate() {
            match self.beliefs[at] {
                Belief::Idle if self.locks_left[at] > 0 => steps.push(Step::Lock(at)),
                Belief::Idle | Belief::Vanished => {}
                Belief::Waits => {
                    let may_repeat = matches!(process.waits, Waits::Notified | Waits::Repeated);
                    if may_repeat && (self.is_notified[at] || self.polls_left[at] > 0) {
                        steps.push(Step::Lock(at));
                    }
                    if process.cancels {
                        steps.push(Step::Cancel(at));
                    }
                    if self.deaths > 0 {
                        steps.push(Step::Vanish(at));
                    }
                }
                Belief::Holds => steps.push(Step::Unlock(at)),
            }
        }
        for at in 0..self.on_their_way.len() {
            steps.push(Step::Deliver(at));
            if self.losses > 0 {
                steps.extend([Step::LoseAnswer(at), Step::Lose(at)]);
            }
        }
        // No callback takes so long that a grant counts as unanswered.
        let may_wait = self.on_their_way.iter().all(|callback| callback.style == CallbackStyle::Notified);
        if may_wait && self.fixture.table.next_tick().is_some() {
            steps.push(Step::Wait);
        }
        steps
    }

    fn apply(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Lock(at) => self.lock(at)?,
            Step::Unlock(at) => {
                let Process { who, range, .. } = self.world.processes[at];
                self.fixture.unlock(who, range);
                self.beliefs[at] = Belief::Idle;
            }
            Step::Cancel(at) => self.cancel(at),
            Step::Vanish(at) => {
                self.beliefs[at] = Belief::Vanished;
                self.deaths -= 1;
            }
            Step::Deliver(at) => {
                let callback = self.on_their_way.remove(at);
                let answer = self.received(&callback)?;
                self.fixture.answer(&callback, answer);
                let is_taken_back = match self.world.planted {
                    Planted::TakesBackAccepted => answer == ACCEPTED,
                    Planted::TakesBackSecondRefusal => answer == CallbackAnswer::Refused,
                    _ => false,
                };
                if is_taken_back {
                    let (file, owner) = (file(FILE), Who::of(&callback.lock).owner());
                    let Fixture { table, callbacks, now, .. } = &mut self.fixture;
                    table.release_owner(&file, &owner, *now, callbacks);
                }
            }
            Step::LoseAnswer(at) => {
                let callback = self.on_their_way.remove(at);
                self.received(&callback)?;
                self.fixture.answer(&callback, CallbackAnswer::Unanswered);
                self.losses -= 1;
            }
            Step::Lose(at) => {
                let callback = self.on_their_way.remove(at);
                self.fixture.answer(&callback, CallbackAnswer::Unanswered);
                self.losses -= 1;
            }
            Step::Wait => {
                let next = self.fixture.table.next_tick().expect("there is a timer");
                self.fixture.now = self.fixture.now.max(next);
                if self.world.planted != Planted::NoTimers {
                    self.fixture.advance(Duration::ZERO);
                    let next = self.fixture.table.next_tick();
                    if next.is_some_and(|next| next <= self.fixture.now) {
                        return Err("a timer was not carried out".into());
                    }
                }
            }
        }
        self.take_callbacks();
        self.check()
    }

    fn take_callbacks(&mut self) {
        let callbacks = self.fixture.callbacks();
        for callback in &callbacks {
            if callback.style == CallbackStyle::Granted && callback.attempt == 0 {
                self.count_turn(Who::of(&callback.lock).client);
                if self.world.planted == Planted::TurnDoesNotEnd {
                    self.fixture.table.undo_turns();
                }
            }
        }
        for callback in callbacks {
            // One notification on its way stands for all of the same waiter.
            let is_same = |other: &LockCallback| other.id == callback.id;
            if callback.style == CallbackStyle::Granted || !self.on_their_way.iter().any(is_same) {
                self.on_their_way.push(callback);
            }
        }
        // What arrives of a notification that the server has forgotten is a poll.
        let table = &self.fixture.table;
        let is_grant = |callback: &LockCallback| callback.style == CallbackStyle::Granted;
        self.on_their_way.retain(|callback| is_grant(callback) || table.knows(callback.id));
    }

    fn count_turn(&mut self, client: u8) {
        for (at, process) in self.world.processes.iter().enumerate() {
            if self.beliefs[at] == Belief::Waits && process.who.client != client {
                self.served[at][usize::from(client)] += 1;
            }
        }
        // The client's own waiters begin to count anew.
        for (at, process) in self.world.processes.iter().enumerate() {
            if process.who.client == client {
                self.served[at].fill(0);
            }
        }
    }

    fn lock(&mut self, at: usize) -> Result<(), String> {
        let Process { who, lock_type, range, waits, .. } = self.world.processes[at];
        if self.beliefs[at] == Belief::Idle {
            self.locks_left[at] -= 1;
            self.served[at].fill(0);
        } else if !self.is_notified[at] {
            self.polls_left[at] -= 1;
        }
        self.is_notified[at] = false;
        self.beliefs[at] = match self.fixture.lock(who, lock_type, range, waits) {
            LockOutcome::Granted => Belief::Holds,
            LockOutcome::Blocked(_) => Belief::Waits,
            LockOutcome::Denied(denial) => return Err(format!("denied: {denial:?}")),
        };
        Ok(())
    }

    /// As Linux's client: CANCEL without UNLOCK, whatever the answer is.
    fn cancel(&mut self, at: usize) {
        let Process { who, lock_type, range, .. } = self.world.processes[at];
        if self.world.planted != Planted::CancelLeavesGrant || self.fixture.held(who).is_empty() {
            let _ = self.fixture.cancel(who, lock_type, range);
        }
        if self.world.planted == Planted::CancelTakesOthers {
            let others = self.world.processes.iter().filter(|other| other.who.client == who.client);
            for other in others {
                let _ = self.fixture.cancel(other.who, other.lock_type, other.range);
            }
        }
        self.beliefs[at] = Belief::Idle;
        // A client of NLM cannot tell a late callback from one for its next request.
        self.on_their_way.retain(|callback| Who::of(&callback.lock) != who);
    }

    /// The client receives a callback.
    fn received(&mut self, callback: &LockCallback) -> Result<CallbackAnswer, String> {
        let who = Who::of(&callback.lock);
        let at = self.world.processes.iter().position(|process| process.who == who);
        let at = at.ok_or("a callback for nobody")?;
        let belief = self.beliefs[at];
        Ok(match (belief, callback.style) {
            (Belief::Vanished, _) => CallbackAnswer::Unanswered,
            (_, CallbackStyle::Notified) => {
                self.is_notified[at] = belief == Belief::Waits;
                ACCEPTED
            }
            (Belief::Waits, CallbackStyle::Granted) => {
                self.beliefs[at] = Belief::Holds;
                ACCEPTED
            }
            (Belief::Idle | Belief::Holds, CallbackStyle::Granted) => CallbackAnswer::Refused,
        })
    }

    fn check(&self) -> Result<(), String> {
        let processes = &self.world.processes;
        let mut waiters = Vec::new();
        self.fixture.table.report(&mut |_, lock| {
            if lock.waits {
                waiters.push(Who::of(&lock.lock));
            }
            true
        });
        for (at, process) in processes.iter().enumerate() {
            let who = process.who;
            match self.beliefs[at] {
                Belief::Holds => {
                    let held = self.fixture.held(who);
                    if held != [(process.lock_type, process.range)] {
                        return Err(format!("{who:?} believes to hold what the server does not: {held:?}"));
                    }
                    let conflicts = |other: usize| {
                        other != at
                            && self.beliefs[other] == Belief::Holds
                            && processes[other].range.overlaps(process.range)
                            && processes[other].lock_type.conflicts(process.lock_type)
                    };
                    if let Some(other) = (0..processes.len()).find(|other| conflicts(*other)) {
                        return Err(format!("{who:?} and {:?} hold one lock", processes[other].who));
                    }
                }
                Belief::Waits if process.waits == Waits::Granted => {
                    let is_granted = !self.fixture.held(who).is_empty();
                    if !is_granted && !waiters.contains(&who) {
                        return Err(format!("the server has lost the request of {who:?}"));
                    }
                    let served = self.served[at].iter().max().copied().unwrap_or(0);
                    let are_all_granted = processes.iter().all(|other| other.waits == Waits::Granted);
                    if served > 1 && are_all_granted && !is_granted && self.world.losses == 0 {
                        return Err(format!("a client is served {served} times while {who:?} waits"));
                    }
                }
                Belief::Waits | Belief::Idle | Belief::Vanished => {}
            }
        }
        let is_quiet = self.on_their_way.is_empty() && self.fixture.table.next_tick().is_none();
        let mut unknown = processes.iter().zip(&self.beliefs).filter(|(process, belief)| {
            **belief == Belief::Idle && !self.fixture.held(process.who).is_empty()
        });
        if let Some((process, _)) = unknown.next().filter(|_| is_quiet) {
            return Err(format!("{:?} has a lock that it does not know of", process.who));
        }
        let is_free = processes.iter().all(|process| self.fixture.held(process.who).is_empty());
        if is_quiet && is_free && !waiters.is_empty() {
            return Err(format!("nobody holds a lock, and {waiters:?} wait"));
        }
        Ok(())
    }

    /// The state, with times relative to now and without numbers that only grow.
    fn state(&self) -> String {
        let mut state = self.fixture.table.describe(self.fixture.now);
        for callback in &self.on_their_way {
            let who = Who::of(&callback.lock);
            let is_known = self.fixture.table.knows(callback.id);
            let _ = write!(state, " {who:?} {:?} {} {is_known}", callback.style, callback.attempt);
        }
        let _ = write!(state, " {:?} {:?} {:?}", self.beliefs, self.locks_left, self.served);
        let _ = write!(state, " {:?} {:?}", self.polls_left, self.is_notified);
        let _ = write!(state, " {} {}", self.losses, self.deaths);
        state
    }
}

impl LockTable {
    /// Whether a callback's answer would have an effect.
    fn knows(&self, id: CallbackId) -> bool {
        self.ids.contains_key(&id.0)
    }

    /// The state, with times relative to `now` and without ids.
    fn describe(&self, now: Instant) -> String {
        let until = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        let mut text = String::new();
        for slot in self.slots.values() {
            let entry = &self.files[slot.0 as usize];
            entry.held.visit(ByteRange::WHOLE, &mut |part| {
                text += &format!("{:?} ", self.owners.holder(part));
            });
            let Some(queue) = entry.queue.as_deref() else { continue };
            text += &format!("latest {:?} ", queue.latest);
            let expiries: BTreeSet<Instant> = queue.iter().filter_map(|waiter| waiter.expires).collect();
            for queue in &queue.clients {
                text += &format!("queue {:?} ", queue.client);
                for waiter in &queue.waiters {
                    let holder = self.owners.holder(waiter.wanted);
                    let state = match waiter.state {
                        WaiterState::Waiting => "waits".to_owned(),
                        // However long ago, it holds nobody back then.
                        WaiterState::Notified { sent } => {
                            format!("notified {:?}", (now - sent).min(NOTIFICATION_WINDOW))
                        }
                        WaiterState::Reserved { until: at } => format!("reserved {:?}", until(Some(at))),
                    };
                    // Which expires first is enough: requests that are repeated would make each
                    // time another state.
                    let before = expiries.iter().filter(|expiry| Some(**expiry) < waiter.expires).count();
                    text += &format!("{holder:?} {state} {before} ");
                }
            }
            let mut grants: Vec<String> = Vec::new();
            for grant in &queue.grants {
                let holder = self.owners.holder(grant.granted);
                // Nobody begins to send, so Queued is Sent.
                let is_sent = matches!(grant.transmission, Transmission::Queued | Transmission::Sent);
                let flags = (grant.attempt, grant.may_be_known, is_sent);
                grants.push(format!("grant {holder:?} {flags:?} {:?} ", until(grant.timer)));
            }
            grants.sort();
            text += &grants.concat();
        }
        text
    }

    /// Undoes the end of the last turn.
    fn undo_turns(&mut self) {
        for queue in self.files.iter_mut().filter_map(|file| file.queue.as_deref_mut()) {
            queue.clients.rotate_right(1.min(queue.clients.len()));
        }
    }
}

/// The results of the exploration.
#[derive(Debug)]
enum Found {
    Nothing { states: usize },
    Fault { path: Vec<Step>, fault: String },
}

fn explore(world: &World) -> Found {
    let mut seen = HashSet::from([Run::new(world).state()]);
    let mut paths = VecDeque::from([Vec::new()]);
    while let Some(path) = paths.pop_front() {
        let run = Run::along(world, &path);
        let steps = run.steps();
        // Without timers time passes without an effect.
        if steps.iter().all(|step| *step == Step::Wait)
            && world.planted == Planted::NoTimers
            && !steps.is_empty()
        {
            return Found::Fault { path, fault: "only time passes, and a reservation stays".into() };
        }
        for step in steps {
            let mut run = Run::along(world, &path);
            let mut next = path.clone();
            next.push(step);
            if let Err(fault) = run.apply(step) {
                return Found::Fault { path: next, fault };
            }
            if seen.insert(run.state()) {
                paths.push_back(next);
            }
        }
        assert!(seen.len() <= STATES_MAX, "more than {STATES_MAX} states");
    }
    Found::Nothing { states: seen.len() }
}

const fn process(who: Who, lock_type: LockType, range: ByteRange) -> Process {
    Process { who, lock_type, range, waits: Waits::Granted, locks: 2, polls: 1, cancels: false }
}

const fn notified(process: Process) -> Process {
    Process { waits: Waits::Notified, ..process }
}

const fn world(processes: Vec<Process>) -> World {
    World { processes, losses: 0, deaths: 0, planted: Planted::Nothing }
}

/// Two processes of one client, one of another, and a holder, which lock the same bytes.
fn turns() -> World {
    let processes = vec![
        Process { locks: 1, ..process(who(3, 0), WRITE, WHOLE) },
        process(who(1, 0), WRITE, WHOLE),
        process(who(1, 1), WRITE, WHOLE),
        process(who(2, 0), WRITE, WHOLE),
    ];
    world(processes)
}

/// Three clients with ranges and types that overlap in part, of which one gives up.
fn overlaps() -> World {
    let first = process(who(1, 0), READ, bytes(0, 9));
    let second = process(who(2, 0), WRITE, bytes(5, 15));
    let third = process(who(3, 0), READ, bytes(9, 20));
    world(vec![first, Process { cancels: true, ..second }, third])
}

/// Lost callbacks and answers.
fn losses() -> World {
    let processes = vec![
        process(who(1, 0), WRITE, WHOLE),
        Process { cancels: true, locks: 1, ..process(who(2, 0), WRITE, WHOLE) },
    ];
    World { losses: 2, ..world(processes) }
}

/// Clients that are notified, one of which may vanish.
fn reservations() -> World {
    let processes = vec![
        notified(process(who(1, 0), WRITE, WHOLE)),
        notified(Process { locks: 1, ..process(who(2, 0), WRITE, WHOLE) }),
    ];
    World { deaths: 1, losses: 1, ..world(processes) }
}

/// Both styles.
fn styles() -> World {
    let processes = vec![
        notified(Process { cancels: true, ..process(who(1, 0), WRITE, WHOLE) }),
        Process { locks: 1, ..process(who(2, 0), WRITE, WHOLE) },
        Process { locks: 1, ..process(who(3, 0), READ, bytes(0, 0)) },
    ];
    world(processes)
}

/// Clients that repeat their requests once or not at all, one of which may give up, and one that is
/// called.
fn repetitions() -> World {
    let repeated = |process| Process { waits: Waits::Repeated, locks: 1, ..process };
    let processes = vec![
        repeated(Process { cancels: true, ..process(who(1, 0), WRITE, WHOLE) }),
        process(who(2, 0), WRITE, WHOLE),
        repeated(process(who(3, 0), READ, bytes(0, 0))),
    ];
    world(processes)
}

#[test]
fn locks_exclude_and_waiters_are_served_in_all_orders_of_events() {
    for world in [turns(), overlaps(), losses(), reservations(), styles(), repetitions()] {
        match explore(&world) {
            Found::Nothing { states } => println!("{states} states"),
            Found::Fault { path, fault } => panic!("{fault}\n{path:#?}\n{world:?}"),
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let cancels = |mut world: World| {
        world.processes[1].cancels = true;
        world
    };
    for (world, planted, expected) in [
        (turns(), Planted::TakesBackAccepted, "believes to hold"),
        (cancels(turns()), Planted::CancelTakesOthers, "has lost"),
        (losses(), Planted::CancelLeavesGrant, "does not know of"),
        (losses(), Planted::TakesBackSecondRefusal, "believes to hold"),
        (turns(), Planted::TurnDoesNotEnd, "times while"),
        (reservations(), Planted::NoTimers, "only time passes"),
        (repetitions(), Planted::NoTimers, "only time passes"),
    ] {
        let world = World { planted, ..world };
        match explore(&world) {
            Found::Nothing { states } => panic!("{planted:?}: not found in {states} states"),
            Found::Fault { path, fault } => {
                println!("{planted:?}: {fault} after {path:?}");
                assert!(fault.contains(expected), "{fault}");
            }
        }
    }
}
