//! Random calls against a model that knows who holds each byte, and looks at everything each time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The parts that the model divides a file into. Its edges are those of the types of offsets.
const CELLS: usize = 8;
/// The last byte of each part.
const LASTS: [u64; CELLS] =
    [0, 1, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 2, (1 << 63) - 1, u64::MAX - 1, u64::MAX];

/// A range of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cells {
    first: usize,
    last: usize,
}

impl Cells {
    const WHOLE: Self = Self { first: 0, last: CELLS - 1 };

    fn range(self) -> ByteRange {
        let first = self.first.checked_sub(1).map_or(0, |before| LASTS[before] + 1);
        bytes(first, LASTS[self.last])
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        self.first..=self.last
    }

    const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    const fn touches(self, other: Self) -> bool {
        self.first <= other.last + 1 && other.first <= self.last + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    who: Who,
    lock_type: LockType,
    cells: Cells,
}

impl Wanted {
    fn excludes(&self, other: &Self) -> bool {
        self.who != other.who && self.cells.overlaps(other.cells) && self.lock_type.conflicts(other.lock_type)
    }
}

type Held = [Option<LockType>; CELLS];

#[derive(Debug)]
struct Grant {
    wanted: Wanted,
    before: Held,
}

#[derive(Debug, Default)]
struct Naive {
    held: BTreeMap<Who, Held>,
    /// The queues of clients in the order of their turns.
    queues: Vec<(u8, Vec<Wanted>)>,
    /// The client that had the last turn.
    latest: Option<u8>,
    grants: Vec<Grant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted,
    Blocked,
    Denied,
}

impl Naive {
    fn blocks(&self, holder: Who, wanted: &Wanted) -> bool {
        let Some(held) = self.held.get(&holder) else { return false };
        let held = wanted.cells.iter().filter_map(|cell| held[cell]);
        held.into_iter().any(|lock_type| lock_type.conflicts(wanted.lock_type))
    }

    fn conflicts(&self, wanted: &Wanted) -> bool {
        self.held.keys().any(|holder| *holder != wanted.who && self.blocks(*holder, wanted))
    }

    fn covers(&self, wanted: &Wanted) -> bool {
        let is_enough = |held: Option<LockType>| held.is_some_and(|held| held >= wanted.lock_type);
        self.held.get(&wanted.who).is_some_and(|held| wanted.cells.iter().all(|cell| is_enough(held[cell])))
    }

    fn waiters(&self) -> Vec<Wanted> {
        let longest = self.queues.iter().map(|queue| queue.1.len()).max().unwrap_or(0);
        let rounds = (0..longest).flat_map(|round| self.queues.iter().map(move |queue| (queue, round)));
        rounds.filter_map(|((_, queue), round)| queue.get(round).copied()).collect()
    }

    /// The waiters that `who` passes: those that wait for it, and those that touch these.
    fn passed(&self, who: Who) -> Vec<Wanted> {
        let (mut passed, mut rest): (Vec<_>, Vec<_>) = self
            .waiters()
            .into_iter()
            .filter(|waiter| waiter.who != who)
            .partition(|waiter| self.blocks(who, waiter));
        while let Some(at) =
            rest.iter().position(|waiter| passed.iter().any(|other| other.cells.touches(waiter.cells)))
        {
            passed.push(rest.remove(at));
        }
        passed
    }

    fn is_behind(&self, wanted: &Wanted, in_front: &[Wanted]) -> bool {
        let passed = self.passed(wanted.who);
        in_front.iter().any(|waiter| waiter.excludes(wanted) && !passed.contains(waiter))
    }

    /// Sets what an owner holds; returns where others may lock more than before.
    fn set(&mut self, wanted: &Wanted, lock_type: Option<LockType>) -> [bool; CELLS] {
        let held = self.held.entry(wanted.who).or_default();
        let mut weaker = [false; CELLS];
        for cell in wanted.cells.iter() {
            weaker[cell] = lock_type < held[cell];
            held[cell] = lock_type;
        }
        weaker
    }

    fn confirm(&mut self, who: Who, cells: Cells) {
        self.grants.retain(|grant| grant.wanted.who != who || !grant.wanted.cells.overlaps(cells));
    }

    fn end_turn(&mut self, client: u8) {
        self.latest = Some(client);
        if let Some(at) = self.queues.iter().position(|queue| queue.0 == client) {
            let queue = self.queues.remove(at);
            self.queues.push(queue);
        }
    }

    fn leave(&mut self, wanted: &Wanted) {
        for (_, queue) in &mut self.queues {
            queue.retain(|waiter| waiter != wanted);
        }
        self.queues.retain(|queue| !queue.1.is_empty());
    }

    fn lock(&mut self, wanted: Wanted, waits: bool) -> (Answer, Vec<Wanted>) {
        let waiters = self.waiters();
        let is_free = !self.conflicts(&wanted)
            && (!waits || self.covers(&wanted) || !self.is_behind(&wanted, &waiters));
        if is_free {
            let weaker = self.set(&wanted, Some(wanted.lock_type));
            self.confirm(wanted.who, wanted.cells);
            if waiters.contains(&wanted) {
                self.end_turn(wanted.who.client);
                self.leave(&wanted);
            }
            let mut granted = self.promote(weaker);
            granted.extend(self.promote(self.wanted_by(wanted.who)));
            return (Answer::Granted, granted);
        }
        if !waits {
            return (Answer::Denied, Vec::new());
        }
        if waiters.contains(&wanted) {
            return (Answer::Blocked, Vec::new());
        }
        let client = wanted.who.client;
        if self.queues.is_empty() && self.grants.is_empty() {
            self.latest = None;
        }
        // Before the client whose turn it is.
        let has_turn = self.queues.last().is_some_and(|last| Some(last.0) == self.latest);
        let before = usize::from(has_turn && self.conflicts(&wanted));
        match self.queues.iter_mut().find(|queue| queue.0 == client) {
            Some((_, queue)) => queue.push(wanted),
            None => self.queues.insert(self.queues.len() - before, (client, vec![wanted])),
        }
        (Answer::Blocked, self.promote(self.near(&wanted)))
    }

    /// The parts that an owner waits for: it may pass others when it has a new lock.
    fn wanted_by(&self, who: Who) -> [bool; CELLS] {
        let mut cells = [false; CELLS];
        for waiter in self.waiters().iter().filter(|waiter| waiter.who == who) {
            waiter.cells.iter().for_each(|cell| cells[cell] = true);
        }
        cells
    }

    /// The parts around those of a new waiter, as far as waiters touch, if an owner that waits
    /// holds any of them.
    fn near(&self, queued: &Wanted) -> [bool; CELLS] {
        let (mut near, mut rest) = (vec![*queued], self.waiters());
        while let Some(at) =
            rest.iter().position(|waiter| near.iter().any(|other| other.cells.touches(waiter.cells)))
        {
            near.push(rest.remove(at));
        }
        let mut cells = [false; CELLS];
        near.iter().flat_map(|waiter| waiter.cells.iter()).for_each(|cell| cells[cell] = true);
        let holds_near = |waiter: &Wanted| {
            let held = self.held.get(&waiter.who).copied().unwrap_or_default();
            (0..CELLS).any(|cell| cells[cell] && held[cell].is_some())
        };
        if self.waiters().iter().any(holds_near) { cells } else { [false; CELLS] }
    }

    /// Each waiter that could pass all others that want its bytes, and waits for no lock, has it.
    fn assert_passed(&self) {
        for waiter in self.waiters() {
            let (others, passed) = (self.waiters(), self.passed(waiter.who));
            let mut others = others.iter().filter(|other| other.excludes(&waiter)).peekable();
            let waits = others.peek().is_none() || others.any(|other| !passed.contains(other));
            assert!(waits || self.conflicts(&waiter), "{waiter:?} has not passed others");
        }
    }

    fn unlock(&mut self, who: Who, cells: Cells) -> Vec<Wanted> {
        self.confirm(who, cells);
        let freed = self.set(&Wanted { who, lock_type: READ, cells }, None);
        self.promote(freed)
    }

    fn cancel(&mut self, wanted: &Wanted) -> (CancelOutcome, Vec<Wanted>) {
        if !self.waiters().contains(wanted) {
            if self.grants.iter().any(|grant| grant.wanted == *wanted) {
                return (CancelOutcome::Cancelled, self.refused(wanted));
            }
            return (CancelOutcome::NotWaiting, Vec::new());
        }
        self.leave(wanted);
        (CancelOutcome::Cancelled, self.promote(of_cells(wanted.cells)))
    }

    fn refused(&mut self, wanted: &Wanted) -> Vec<Wanted> {
        let Some(at) = self.grants.iter().position(|grant| grant.wanted == *wanted) else {
            return Vec::new();
        };
        let grant = self.grants.remove(at);
        let held = self.held.entry(wanted.who).or_default();
        for cell in wanted.cells.iter() {
            held[cell] = grant.before[cell].map(|before| before.min(wanted.lock_type));
        }
        self.promote(of_cells(wanted.cells))
    }

    fn release(&mut self, is_released: impl Fn(Who) -> bool) -> Vec<Wanted> {
        let mut freed = [false; CELLS];
        for waiter in self.waiters().into_iter().filter(|waiter| is_released(waiter.who)) {
            self.leave(&waiter);
            waiter.cells.iter().for_each(|cell| freed[cell] = true);
        }
        for (_, held) in self.held.iter_mut().filter(|(who, _)| is_released(**who)) {
            (0..CELLS).for_each(|cell| freed[cell] |= held[cell].is_some());
            *held = [None; CELLS];
        }
        self.grants.retain(|grant| !is_released(grant.wanted.who));
        self.promote(freed)
    }

    fn promote(&mut self, mut freed: [bool; CELLS]) -> Vec<Wanted> {
        let mut granted = Vec::new();
        while freed.contains(&true) {
            let mut weaker = [false; CELLS];
            let mut in_front: Vec<Wanted> = Vec::new();
            let mut served = Vec::new();
            for wanted in self.waiters() {
                let is_near = wanted.cells.iter().any(|cell| freed[cell]);
                if !is_near || self.conflicts(&wanted) || self.is_behind(&wanted, &in_front) {
                    in_front.push(wanted);
                    continue;
                }
                let before = self.held.get(&wanted.who).copied().unwrap_or_default();
                let now_weaker = self.set(&wanted, Some(wanted.lock_type));
                (0..CELLS).for_each(|cell| weaker[cell] |= now_weaker[cell]);
                self.confirm(wanted.who, wanted.cells);
                self.grants.push(Grant { wanted, before });
                let queue = self.queues.iter_mut().find(|queue| queue.0 == wanted.who.client).unwrap();
                queue.1.retain(|waiter| *waiter != wanted);
                let passing = self.wanted_by(wanted.who);
                (0..CELLS).for_each(|cell| weaker[cell] |= passing[cell]);
                served.push(wanted);
            }
            for wanted in &served {
                self.end_turn(wanted.who.client);
            }
            self.queues.retain(|queue| !queue.1.is_empty());
            granted.extend(served);
            freed = weaker;
        }
        granted
    }
}

fn of_cells(cells: Cells) -> [bool; CELLS] {
    std::array::from_fn(|cell| cells.iter().any(|other| other == cell))
}

#[derive(Clone, Debug)]
enum Call {
    Lock {
        wanted: Wanted,
        waits: bool,
    },
    Unlock {
        who: Who,
        cells: Cells,
    },
    /// Cancels the waiter at this position, or a request that may not wait.
    Cancel {
        waiter: usize,
    },
    CancelOther {
        wanted: Wanted,
    },
    CancelGrant {
        grant: usize,
    },
    Accept {
        grant: usize,
    },
    Refuse {
        grant: usize,
    },
    ReleaseOwner {
        who: Who,
    },
    ReleaseClient {
        client: u8,
    },
}

fn cells() -> impl Strategy<Value = Cells> {
    (0..CELLS, 0..CELLS).prop_map(|(one, other)| Cells { first: one.min(other), last: one.max(other) })
}

fn owner() -> impl Strategy<Value = Who> {
    (1..4_u8, 0..2_u32).prop_map(|(client, process)| who(client, process))
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (owner(), any::<bool>(), cells()).prop_map(|(who, writes, cells)| {
        let lock_type = if writes { WRITE } else { READ };
        Wanted { who, lock_type, cells }
    })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => (wanted(), any::<bool>()).prop_map(|(wanted, waits)| Call::Lock { wanted, waits }),
        4 => (owner(), cells()).prop_map(|(who, cells)| Call::Unlock { who, cells }),
        1 => owner().prop_map(|who| Call::Unlock { who, cells: Cells::WHOLE }),
        1 => (0..8_usize).prop_map(|waiter| Call::Cancel { waiter }),
        1 => wanted().prop_map(|wanted| Call::CancelOther { wanted }),
        1 => (0..8_usize).prop_map(|grant| Call::CancelGrant { grant }),
        2 => (0..8_usize).prop_map(|grant| Call::Accept { grant }),
        1 => (0..8_usize).prop_map(|grant| Call::Refuse { grant }),
        1 => owner().prop_map(|who| Call::ReleaseOwner { who }),
        1 => (1..4_u8).prop_map(|client| Call::ReleaseClient { client }),
    ]
}

/// The table beside its model.
struct Both {
    fixture: Fixture,
    naive: Naive,
    /// Callbacks that may be answered.
    unanswered: Vec<LockCallback>,
}

impl Both {
    fn apply(&mut self, call: &Call) {
        let (fixture, naive) = (&mut self.fixture, &mut self.naive);
        let expected = match call {
            Call::Lock { wanted, waits } => {
                let waits_in_table = if *waits { Waits::Granted } else { Waits::No };
                let Wanted { who, lock_type, cells } = *wanted;
                let answer = match fixture.lock(who, lock_type, cells.range(), waits_in_table) {
                    LockOutcome::Granted => Answer::Granted,
                    LockOutcome::Blocked(_) => Answer::Blocked,
                    LockOutcome::Denied(_) => Answer::Denied,
                };
                let (expected, granted) = naive.lock(*wanted, *waits);
                assert_eq!(answer, expected);
                granted
            }
            Call::Unlock { who, cells } => {
                fixture.unlock(*who, cells.range());
                naive.unlock(*who, *cells)
            }
            Call::Cancel { waiter } => {
                let Some(wanted) = naive.waiters().get(*waiter).copied() else { return };
                return self.apply(&Call::CancelOther { wanted });
            }
            Call::CancelGrant { grant } => {
                let Some(wanted) = naive.grants.get(*grant).map(|grant| grant.wanted) else { return };
                return self.apply(&Call::CancelOther { wanted });
            }
            Call::CancelOther { wanted } => {
                let outcome = fixture.cancel(wanted.who, wanted.lock_type, wanted.cells.range());
                let (expected, granted) = naive.cancel(wanted);
                assert_eq!(outcome, expected);
                granted
            }
            Call::Accept { grant } | Call::Refuse { grant } => {
                if *grant >= self.unanswered.len() {
                    return;
                }
                let callback = self.unanswered.remove(*grant);
                let wanted = naive.grants.iter().map(|grant| grant.wanted).find(|wanted| {
                    (wanted.who, wanted.lock_type, wanted.cells.range())
                        == (Who::of(&callback.lock), callback.lock.lock_type, callback.lock.range)
                });
                if let Call::Accept { .. } = call {
                    fixture.answer(&callback, ACCEPTED);
                    naive.grants.retain(|grant| Some(grant.wanted) != wanted);
                    Vec::new()
                } else {
                    fixture.answer(&callback, CallbackAnswer::Refused);
                    wanted.map_or_else(Vec::new, |wanted| naive.refused(&wanted))
                }
            }
            Call::ReleaseOwner { who } => {
                let (file, now) = (file(FILE), fixture.now);
                fixture.table.release_owner(&file, &who.owner(), now, &mut fixture.callbacks);
                naive.release(|other| other == *who)
            }
            Call::ReleaseClient { client: number } => {
                let now = fixture.now;
                fixture.table.release_client(client(*number), now, &mut fixture.callbacks);
                naive.release(|other| other.client == *number)
            }
        };
        let callbacks = fixture.callbacks();
        let granted = callbacks.iter().map(|callback| describe(&callback.lock));
        let expected = expected.iter().map(|wanted| (wanted.who, wanted.lock_type, wanted.cells.range()));
        assert_eq!(granted.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "callbacks");
        self.unanswered.extend(callbacks);
        // A callback whose lock was granted again has no effect any more: the model knows it by its
        // lock, the table by its number.
        let known = |callback: &LockCallback| {
            let mut all = self.naive.grants.iter().map(|grant| grant.wanted);
            all.any(|wanted| describe(&callback.lock) == (wanted.who, wanted.lock_type, wanted.cells.range()))
        };
        self.unanswered.retain(known);
        self.compare();
    }

    fn compare(&self) {
        self.naive.assert_passed();
        for (who, held) in &self.naive.held {
            for (cell, lock_type) in held.iter().enumerate().filter_map(|(cell, held)| Some((cell, (*held)?)))
            {
                let wanted = Wanted { who: *who, lock_type, cells: Cells { first: cell, last: cell } };
                assert!(!self.naive.conflicts(&wanted), "{wanted:?} conflicts");
            }
        }
        let mut held: BTreeMap<Who, Held> = BTreeMap::new();
        let mut waiters = Vec::new();
        self.fixture.table.report(&mut |_, lock| {
            let (who, lock_type, range) = describe(&lock.lock);
            if lock.waits {
                waiters.push((who, lock_type, range));
                return true;
            }
            let held = held.entry(who).or_default();
            let is_locked = |cell: usize| (Cells { first: cell, last: cell }).range().overlaps(range);
            for (_, held) in held.iter_mut().enumerate().filter(|(cell, _)| is_locked(*cell)) {
                assert_eq!(held.replace(lock_type), None, "an owner's locks overlap");
            }
            true
        });
        let expected = self.naive.held.iter().filter(|(_, held)| held.iter().any(Option::is_some));
        let expected: BTreeMap<Who, Held> = expected.map(|(who, held)| (*who, *held)).collect();
        assert_eq!(held, expected, "locks");
        let expected = self.naive.waiters().into_iter();
        let expected = expected.map(|wanted| (wanted.who, wanted.lock_type, wanted.cells.range()));
        assert_eq!(waiters, expected.collect::<Vec<_>>(), "waiters");
    }
}

fn describe(lock: &LockHolder) -> (Who, LockType, ByteRange) {
    (Who::of(lock), lock.lock_type, lock.range)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_table_decides_as_a_model_that_looks_at_every_byte(calls in prop::collection::vec(call(), 1..80)) {
        let mut both =
            Both { fixture: Fixture::new(), naive: Naive::default(), unanswered: Vec::new() };
        for call in &calls {
            both.apply(call);
        }
        for client in 1..4 {
            both.apply(&Call::ReleaseClient { client });
        }
        both.fixture.assert_empty();
    }
}
