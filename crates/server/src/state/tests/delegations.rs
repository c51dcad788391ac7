//! All orders of opens, locks, changes, delegations and their recalls, of two clients and somebody
//! without a session, on one file.
//!
//! Checked in every state: who has a delegation has not missed a change; a change begins if and
//! only if nobody else has a delegation; a delegation is granted if and only if the rules allow it;
//! each client's stateids are what it believes them to be; and two clients do not hold a lock. Each
//! property is shown to find a planted fault.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use curt_types::LockType;
use curt_vfs::FileLease;

use super::super::delegations::NewDelegation;
use super::super::{
    ChangeKind, DelegationRequest, DelegationTable, GrantingCall, LocalChanges, LockBasis, LockStateOutcome,
    LockStateRequest,
};
use super::exploration;
use super::lock_table::{TableOfLocks, with_lock_table};
use super::*;

/// Half of a lease, and longer than the pause after a recall.
const WAIT: Duration = Duration::from_secs(45);
/// How long a file gets no delegation after a recall, in waits.
const PAUSE: u8 = 1;
/// How long a recall may remain unanswered, in waits.
const LEASE: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A change is asked for, and nothing keeps others from a delegation until it is made.
    PermitsEndEarly,
    /// Changes without a session do not ask.
    ChangesDoNotAsk,
    /// A client's changes count as those of the other one.
    ChangesAreOfTheOther,
    /// DELEGRETURN is answered, and forgotten.
    ReturnsAreForgotten,
    /// The state of a client that has vanished remains.
    TheVanishedRemain,
    /// Locks survive the open on which they are based.
    LocksSurviveOpens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    OpenToRead(usize),
    CloseReader(usize),
    /// OPEN for writing asks whether it may.
    AskToWrite(usize),
    /// OPEN for writing is granted.
    OpenToWrite(usize),
    Write(usize),
    CloseWriter(usize),
    Lock(usize),
    Return(usize),
    Vanish(usize),
    /// A WRITE of NFSv3 asks whether it may.
    AskToChange,
    /// The WRITE is executed.
    Change,
    Wait,
}

/// A client's view of its delegation, and the one by the rules.
#[derive(Clone, Debug, Default)]
struct Belief {
    reader: Option<Stateid>,
    writer: Option<Stateid>,
    may_write: bool,
    has_lock: bool,
    /// The delegation, and the version that the client has seen.
    delegation: Option<(Stateid, u32)>,
    /// Waits since its delegation was recalled.
    recalled: Option<u8>,
    is_revoked: bool,
    has_vanished: bool,
}

struct Run {
    planted: Planted,
    state: ServerState,
    locks: Arc<TableOfLocks>,
    clients: Vec<Arc<Client>>,
    now: Duration,
    version: u32,
    beliefs: [Belief; 2],
    may_change: bool,
    /// Waits since the last recall.
    paused: Option<u8>,
}

impl Run {
    fn new(planted: Planted) -> Self {
        let (state, locks) = with_lock_table(planted == Planted::LocksSurviveOpens);
        let clients = ["one", "two"].map(|name| client(&state, name).0);
        Self {
            planted,
            state,
            locks,
            clients: clients.into(),
            now: at(0),
            version: 0,
            beliefs: Default::default(),
            may_change: false,
            paused: None,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, belief) in self.beliefs.iter().enumerate().filter(|(_, belief)| !belief.has_vanished) {
            match (belief.reader, belief.writer) {
                (None, _) => steps.push(Step::OpenToRead(at)),
                (Some(_), _) => steps.push(Step::CloseReader(at)),
            }
            match belief.writer {
                None if belief.may_write => steps.push(Step::OpenToWrite(at)),
                None => steps.push(Step::AskToWrite(at)),
                Some(_) => {
                    steps.extend([Step::Write(at), Step::CloseWriter(at)]);
                    if !belief.has_lock {
                        steps.push(Step::Lock(at));
                    }
                }
            }
            if belief.delegation.is_some() {
                steps.push(Step::Return(at));
            }
            // One is enough.
            if at == 0 {
                steps.push(Step::Vanish(at));
            }
        }
        steps.extend([if self.may_change { Step::Change } else { Step::AskToChange }, Step::Wait]);
        steps
    }

    /// Makes a step; the error says which property does not hold.
    fn apply(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::OpenToRead(at) => self.open_to_read(at)?,
            Step::CloseReader(at) => {
                let reader = self.beliefs[at].reader.take();
                self.close(at, reader)?;
            }
            Step::AskToWrite(at) => self.beliefs[at].may_write = self.ask(Some(at))?,
            Step::OpenToWrite(at) => {
                let opened = open(&self.state, &self.clients[at], "writer", file(1), mode(2, 0));
                let stateid = opened.map_err(|fault| format!("OPEN for writing: {fault:?}"))?;
                self.end_change();
                let belief = &mut self.beliefs[at];
                (belief.writer, belief.may_write) = (Some(stateid), false);
            }
            Step::Write(at) => {
                self.version += 1;
                if let Some((_, seen)) = &mut self.beliefs[at].delegation {
                    *seen = self.version;
                }
            }
            Step::CloseWriter(at) => {
                let writer = self.beliefs[at].writer.take();
                self.beliefs[at].has_lock = false;
                self.close(at, writer)?;
            }
            Step::Lock(at) => self.lock(at)?,
            Step::Return(at) => self.give_back(at)?,
            Step::Vanish(at) => {
                if self.planted != Planted::TheVanishedRemain {
                    expire_client(&self.state, self.clients[at].id);
                }
                if self.beliefs[at].may_write {
                    self.end_change();
                }
                self.beliefs[at] = Belief { has_vanished: true, ..Belief::default() };
            }
            Step::AskToChange => {
                let asks = self.planted != Planted::ChangesDoNotAsk;
                self.may_change = !asks || self.ask(None)?;
            }
            Step::Change => {
                self.version += 1;
                self.may_change = false;
                self.end_change();
            }
            Step::Wait => self.wait(),
        }
        self.check()
    }

    fn end_change(&self) {
        if !matches!(self.planted, Planted::PermitsEndEarly | Planted::ChangesDoNotAsk) {
            self.state.delegations.end_change(&file(1));
        }
    }

    /// Whether somebody holds a delegation that is in force.
    fn holds(&self, at: usize) -> bool {
        self.beliefs[at].delegation.is_some() && !self.beliefs[at].is_revoked
    }

    /// Asks whether a client, or nobody of them, may change the file.
    fn ask(&mut self, by: Option<usize>) -> Result<bool, String> {
        let own = match self.planted {
            Planted::ChangesAreOfTheOther => by.map_or(Some(0), |at| Some(1 - at)),
            _ => by,
        };
        let own = own.map(|at| self.clients[at].id);
        let begun = self.state.delegations.begin_change(&file(1), own, ChangeKind::Data, self.now);
        let is_begun = begun.is_ok();
        if self.planted == Planted::PermitsEndEarly {
            drop(begun);
        } else {
            // It lasts until a later step.
            std::mem::forget(begun);
        }
        let holders: Vec<_> = (0..2).filter(|at| Some(*at) != by && self.holds(*at)).collect();
        if is_begun != holders.is_empty() {
            return Err(format!("a change begins: {is_begun}, although these hold delegations: {holders:?}"));
        }
        for holder in holders {
            self.paused = Some(0);
            self.beliefs[holder].recalled.get_or_insert(0);
        }
        Ok(is_begun)
    }

    fn open_to_read(&mut self, at: usize) -> Result<(), String> {
        let client = &self.clients[at];
        let opened = open(&self.state, client, "reader", file(1), mode(1, 0));
        let stateid = opened.map_err(|fault| format!("OPEN for reading: {fault:?}"))?;
        let handle = curt_types::FileHandle::new(b"handle").unwrap();
        let granted_by =
            GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
        let local = LocalChanges::Ignored;
        let asked = DelegationRequest { file: file(1), handle: &handle, granted_by, reclaim: None, local };
        let granted = self.state.delegate(client, asked, self.now);
        let is_changing = self.may_change || self.beliefs.iter().any(|belief| belief.may_write);
        let is_written = self.beliefs.iter().any(|belief| belief.writer.is_some());
        let is_recalled = (0..2).any(|at| self.holds(at) && self.beliefs[at].recalled.is_some());
        let is_paused = self.paused.is_some_and(|waits| waits < PAUSE);
        let allowed = !is_changing && !is_written && !is_recalled && !is_paused && !self.holds(at);
        if granted.is_ok() != allowed {
            return Err(format!("the delegation of {at} is granted: {granted:?}, allowed: {allowed}"));
        }
        let version = self.version;
        let belief = &mut self.beliefs[at];
        belief.reader = Some(stateid);
        if let Ok(stateid) = granted {
            (belief.delegation, belief.recalled, belief.is_revoked) = (Some((stateid, version)), None, false);
        }
        Ok(())
    }

    fn close(&self, at: usize, stateid: Option<Stateid>) -> Result<(), String> {
        let stateid = stateid.expect("it is open");
        let closed = self.state.close(&self.clients[at], &stateid, &file(1));
        closed.map_err(|fault| format!("CLOSE by {at}: {fault:?}"))
    }

    fn lock(&mut self, at: usize) -> Result<(), String> {
        let stateid = self.beliefs[at].writer.expect("it is open");
        let basis = LockBasis::Open { stateid, owner: b"owner" };
        let asked = LockStateRequest { basis, file: file(1), lock_type: LockType::Write, is_reclaim: false };
        let client = &self.clients[at];
        let outcome = self.state.lock(client, &asked, |owner, _| self.locks.lock(&asked, owner));
        let is_granted = matches!(outcome, Ok(LockStateOutcome::Granted(_)));
        let is_free = !self.beliefs.iter().any(|belief| belief.has_lock);
        if is_granted != is_free {
            return Err(format!("LOCK by {at}: {outcome:?}, free: {is_free}"));
        }
        self.beliefs[at].has_lock = is_granted;
        Ok(())
    }

    fn give_back(&mut self, at: usize) -> Result<(), String> {
        let (stateid, _) = self.beliefs[at].delegation.expect("it has one");
        let client = &self.clients[at];
        let expected = if self.beliefs[at].is_revoked {
            // Then it frees the stateid.
            let freed = self.state.free_stateid(client, &stateid);
            freed.map_err(|fault| format!("FREE_STATEID by {at}: {fault:?}"))?;
            Err(StateFault::BadStateid)
        } else {
            Ok(())
        };
        if self.planted != Planted::ReturnsAreForgotten {
            let returned = self.state.return_delegation(client, &stateid, &file(1));
            if returned != expected {
                return Err(format!("DELEGRETURN by {at}: {returned:?} instead of {expected:?}"));
            }
        }
        let belief = &mut self.beliefs[at];
        (belief.delegation, belief.recalled, belief.is_revoked) = (None, None, false);
        Ok(())
    }

    fn wait(&mut self) {
        self.now += WAIT;
        self.paused = self.paused.map(|waits| waits + 1).filter(|waits| *waits < PAUSE);
        for belief in &mut self.beliefs {
            belief.recalled = belief.recalled.map(|waits| waits + 1);
            belief.is_revoked |= belief.recalled.is_some_and(|waits| waits >= LEASE);
            if belief.is_revoked {
                belief.recalled = None;
            }
        }
        self.state.revoke_overdue(self.now);
    }

    fn check(&self) -> Result<(), String> {
        for (at, belief) in self.beliefs.iter().enumerate() {
            let Some((stateid, seen)) = &belief.delegation else { continue };
            let expected = if belief.is_revoked { Err(StateFault::DelegationRevoked) } else { Ok(()) };
            let tested = self.state.test_stateid(&self.clients[at], stateid);
            if tested != expected {
                return Err(format!("the delegation of {at} is {tested:?} instead of {expected:?}"));
            }
            if !belief.is_revoked && *seen != self.version {
                return Err(format!("{at} has a delegation, and has missed a change"));
            }
        }
        Ok(())
    }

    /// A key that distinguishes this state from others.
    fn key(&self) -> String {
        let client = |belief: &Belief| {
            let Belief { may_write, has_lock, recalled, is_revoked, has_vanished, .. } = *belief;
            let has = [belief.reader.is_some(), belief.writer.is_some(), belief.delegation.is_some()];
            (has, may_write, has_lock, recalled, is_revoked, has_vanished)
        };
        let clients = self.beliefs.each_ref().map(client);
        // What nobody believes in is a difference, too.
        let held = (self.state.delegations.len(), self.locks.len());
        format!("{clients:?} {} {:?} {held:?}", self.may_change, self.paused)
    }
}

/// Explores all states. Returns their number, or the shortest way to a fault.
fn explore(planted: Planted) -> Result<usize, (Vec<Step>, String)> {
    exploration::explore(|| Run::new(planted), Run::steps, Run::apply, Run::key)
}

#[test]
fn nobody_with_a_delegation_misses_a_change_and_nobody_waits_for_none() {
    let states = explore(Planted::Nothing).unwrap_or_else(|(path, why)| panic!("{why}: {path:?}"));
    assert!(states > 500, "{states} states");
}

#[test]
fn the_exploration_finds_planted_faults() {
    let all = [
        (Planted::PermitsEndEarly, 4),
        (Planted::ChangesDoNotAsk, 4),
        (Planted::ChangesAreOfTheOther, 3),
        (Planted::ReturnsAreForgotten, 4),
        (Planted::TheVanishedRemain, 4),
        (Planted::LocksSurviveOpens, 8),
    ];
    for (planted, steps_max) in all {
        let found = explore(planted).err();
        let (path, why) = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
        assert!(path.len() <= steps_max, "{planted:?}: {why}: {path:?}");
    }
}

#[test]
fn the_time_for_a_recall_that_was_repeated_begins_when_it_is_delivered() {
    for is_lost in [false, true] {
        let state = state();
        let (holder, _) = client(&state, "holder");
        open(&state, &holder, "reader", file(1), mode(1, 0)).unwrap();
        let handle = curt_types::FileHandle::new(b"handle").unwrap();
        let granted_by =
            GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
        let local = LocalChanges::Ignored;
        let asked = DelegationRequest { file: file(1), handle: &handle, granted_by, reclaim: None, local };
        state.delegate(&holder, asked, at(0)).unwrap();
        let table = &state.delegations;
        let begun = table.begin_change(&file(1), None, ChangeKind::Data, at(0));
        let recall = begun.unwrap_err().recalls.pop().unwrap();
        table.recall_ended(&recall, !is_lost, at(1));
        assert_eq!(table.unanswered(), if is_lost { vec![(file(1), holder.id)] } else { Vec::new() });
        let repeated = table.repeat_recall(&file(1), holder.id, at(80));
        assert_eq!(repeated.is_some(), is_lost);
        assert!(table.unanswered().is_empty());
        if let Some(repeated) = repeated {
            table.recall_ended(&repeated, true, at(80));
        }
        let ends = if is_lost { 80 + 90 } else { 90 };
        assert_eq!((state.revoke_overdue(at(ends - 1)), state.revoke_overdue(at(ends))), (0, 1));
    }
}

#[test]
fn a_delegation_is_not_refused_again_because_of_changes_of_other_files() {
    let state = state();
    let (reader, _) = client(&state, "reader");
    open(&state, &reader, "reader", file(1), mode(1, 0)).unwrap();
    let (handle, table) = (curt_types::FileHandle::new(b"handle").unwrap(), &state.delegations);
    let granted_by = GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
    let delegate = || {
        let (local, reclaim) = (LocalChanges::Ignored, None);
        let asked = DelegationRequest { file: file(1), handle: &handle, granted_by, reclaim, local };
        state.delegate(&reader, asked, at(1)).is_ok()
    };
    let first = table.begin_change_of_any(at(1)).unwrap();
    assert!(!delegate());
    // The next change begins before the first one ends.
    assert!(table.begin_change_of_any(at(1)).is_none());
    drop(first);
    assert!(delegate());
}

#[test]
fn a_write_whose_open_ends_while_a_delegation_is_decided_is_seen() {
    let table = DelegationTable::default();
    let new = || NewDelegation {
        client: Clientid(1),
        stateid: Stateid::default(),
        handle: curt_types::FileHandle::new(b"handle").unwrap(),
        granted_by: GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) },
        is_reclaim: false,
    };
    let mut begun = None;
    let is_written = || {
        begun = Some(table.begin_write(&file(1)));
        false
    };
    assert!(!table.grant(&file(1), new(), &mut LocalChanges::Ignored, at(0), is_written));
    drop(begun);
    assert!(table.grant(&file(1), new(), &mut LocalChanges::Ignored, at(0), || false));
}

/// Counts the drops of leases, and those with a lock.
struct CountedLease {
    state: Weak<ServerState>,
    clients: [Weak<Client>; 2],
    drops: Arc<[AtomicUsize; 2]>,
}

impl FileLease for CountedLease {
    fn is_broken(&self) -> bool {
        false
    }
}

impl Drop for CountedLease {
    fn drop(&mut self) {
        let is_shard_locked = self.state.upgrade().is_some_and(|state| state.delegations.is_locked());
        let mut clients = self.clients.iter().filter_map(Weak::upgrade);
        let is_locked = is_shard_locked || clients.any(|client| client.states.is_locked());
        self.drops[usize::from(is_locked)].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_lease_that_is_not_used_is_dropped_without_a_lock() {
    let state = Arc::new(state());
    let clients = ["first", "second"].map(|name| client(&state, name).0);
    let drops = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let handle = curt_types::FileHandle::new(b"handle").unwrap();
    let granted_by = GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
    let delegate = |client: &Client, now| {
        let lease = CountedLease {
            state: Arc::downgrade(&state),
            clients: clients.each_ref().map(Arc::downgrade),
            drops: Arc::clone(&drops),
        };
        let (local, reclaim) = (LocalChanges::Lease(Box::new(lease)), None);
        let asked = DelegationRequest { file: file(1), handle: &handle, granted_by, reclaim, local };
        state.delegate(client, asked, now).is_ok()
    };
    let counted = || drops.each_ref().map(|count| count.load(Ordering::Relaxed));
    let [first, second] = &clients;
    assert!(delegate(first, at(0)));
    assert!(delegate(second, at(0)), "both have opened the file before");
    assert_eq!(counted(), [1, 0], "the file has the lease of the first");
    assert!(!delegate(first, at(0)), "it has one");
    assert_eq!(counted(), [2, 0]);
    let (third, _) = client(&state, "third");
    let change = state.delegations.begin_change(&file(1), None, ChangeKind::Data, at(0));
    assert!(change.is_err() && !delegate(&third, at(0)), "those of the others are recalled");
    assert_eq!(counted(), [3, 0]);
}

#[test]
fn no_lease_is_taken_for_a_delegation_that_is_refused() {
    let state = state();
    let (reader, _) = client(&state, "reader");
    let may = |now| state.check_delegable(&reader, &file(1), false, now).is_ok();
    assert!(may(at(0)));
    let change = state.delegations.begin_change(&file(1), None, ChangeKind::Data, at(0)).unwrap();
    assert!(!may(at(0)));
    drop(change);
    assert!(may(at(0)));
    let (writer, _) = client(&state, "writer");
    open(&state, &writer, "writer", file(1), mode(2, 0)).unwrap();
    assert!(!may(at(0)), "it may be written");
    assert!(state.check_delegable(&reader, &file(2), false, at(0)).is_ok());
    let handle = curt_types::FileHandle::new(b"handle").unwrap();
    let granted_by = GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
    let (local, reclaim) = (LocalChanges::Ignored, None);
    let asked = DelegationRequest { file: file(2), handle: &handle, granted_by, reclaim, local };
    let held = state.delegate(&writer, asked, at(0)).unwrap();
    let conflict = state.delegations.begin_change(&file(2), None, ChangeKind::Data, at(0));
    assert!(conflict.is_err());
    state.return_delegation(&writer, &held, &file(2)).unwrap();
    let paused = state.check_delegable(&reader, &file(2), false, at(29));
    assert!(paused.is_err(), "it was recalled lately");
    assert!(state.check_delegable(&reader, &file(2), true, at(29)).is_ok(), "the client had it before");
    assert!(state.check_delegable(&reader, &file(2), false, at(31)).is_ok());
}
