//! All orders of opens, delegations, changes, kills and restarts, with two clients and somebody
//! without a session, on one file.
//!
//! Checked in every state: who has a delegation that is in force has not missed a change, whether
//! it was made before a restart, while no server ran, or in the grace period; a delegation is given
//! back to a client if nothing was changed since changes were noticed last; and in the grace period
//! nobody but processes changes the file before a client has reclaimed its delegation. Each
//! property is shown to find a planted fault.

use super::super::{
    ChangeKind, DelegationRequest, GrantingCall, LocalChanges, RecordedClient, RecordedState,
};
use super::exploration;
use super::*;

/// Half of a lease, and longer than the pause after a recall.
const WAIT: Duration = Duration::from_secs(45);
/// How long a recall may remain unanswered, in waits.
const LEASE: u8 = 2;
const OWNERS: [&str; 2] = ["one", "two"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A delegation is reclaimed although its file was changed.
    ReclaimedThoughChanged,
    /// Only changes since the start of this run count.
    OnlyThisRunCounts,
    /// Changes count as noticed in the grace period.
    NoticedInGrace,
    /// Changes count as noticed although a client does not know of one.
    NoticedThoughUnanswered,
    /// A change in the grace period does not wait for clients that may have delegations.
    UnreclaimedNotWaitedFor,
    /// The record of a client does not say that it has a delegation.
    DelegationsNotRecorded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// OPEN for reading.
    Open(usize),
    /// DELEGRETURN, or FREE_STATEID of a delegation that was revoked.
    Return(usize),
    /// OPEN and, if the client had one, a delegation.
    Reclaim(usize),
    /// RECLAIM_COMPLETE.
    Complete(usize),
    /// A change by somebody without a session.
    Change,
    /// A change by a process of the server's machine.
    ChangeLocally,
    /// The server records that all changes so far were noticed.
    Notice,
    EndGrace,
    Wait,
    Kill,
    Start,
}

#[derive(Default)]
struct ModelClient {
    /// In this run of the server.
    client: Option<Arc<Client>>,
    /// The version that the client has cached, as long as it relies on a delegation.
    cached: Option<u32>,
    stateid: Option<Stateid>,
    is_open: bool,
    is_complete: bool,
    /// Whether the list of clients with state contains it.
    is_recorded: bool,
    /// Whether its record says that it may have delegations.
    has_delegations: bool,
    /// Waits since its delegation was recalled.
    recalled: Option<u8>,
}

struct Run {
    planted: Planted,
    /// None: it was killed.
    state: Option<ServerState>,
    clients: [ModelClient; 2],
    now: Duration,
    /// The clock of files, which ticks with each event.
    clock: u32,
    version: u32,
    ctime: u32,
    /// When all changes so far were noticed.
    noticed: Option<u32>,
    started: u32,
    is_paused: bool,
}

impl Run {
    fn new(planted: Planted) -> Self {
        let mut run = Self {
            planted,
            state: None,
            clients: Default::default(),
            now: at(0),
            clock: 0,
            version: 0,
            ctime: 0,
            noticed: None,
            started: 0,
            is_paused: false,
        };
        run.start();
        run
    }

    fn steps(&self) -> Vec<Step> {
        let Some(state) = &self.state else { return vec![Step::ChangeLocally, Step::Start] };
        let mut steps = vec![Step::Change, Step::Wait, Step::Kill];
        if state.grace.may_be_delegated() {
            // Otherwise it is as the other.
            steps.push(Step::ChangeLocally);
        }
        for (at, client) in self.clients.iter().enumerate() {
            match (client.is_complete, client.is_open) {
                (false, false) if state.grace.is_on() => {
                    steps.extend([Step::Reclaim(at), Step::Complete(at)]);
                }
                (false, _) => steps.push(Step::Complete(at)),
                (true, false) if !state.grace.is_on() => steps.push(Step::Open(at)),
                (true, _) => {}
            }
            if client.stateid.is_some() {
                steps.push(Step::Return(at));
            }
        }
        if state.grace.is_over(self.now) {
            steps.push(Step::EndGrace);
        }
        if self.notices(state) {
            steps.push(Step::Notice);
        }
        steps
    }

    fn notices(&self, state: &ServerState) -> bool {
        match self.planted {
            Planted::NoticedInGrace if state.grace.is_on() => true,
            Planted::NoticedThoughUnanswered if !state.grace.is_on() => true,
            _ => state.notices_changes(),
        }
    }

    fn tick(&mut self) -> u32 {
        self.clock += 1;
        self.clock
    }

    fn apply(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Open(at) => self.open(at, false)?,
            Step::Reclaim(at) => self.open(at, true)?,
            Step::Return(at) => self.give_back(at)?,
            Step::Complete(at) => {
                let (state, model) = (running(self.state.as_ref()), &mut self.clients[at]);
                state.reclaim_complete(client_in(model)).map_err(|fault| format!("{fault:?}"))?;
                model.is_complete = true;
                model.is_recorded |= model.is_open;
                model.has_delegations |= model.is_open && client_in(model).may_have_delegations();
                if model.stateid.is_none() {
                    model.cached = None;
                }
            }
            Step::Change => self.change()?,
            Step::ChangeLocally => self.change_locally(),
            Step::Notice => self.noticed = Some(self.tick()),
            Step::EndGrace => {
                running(self.state.as_ref()).grace.end();
                for model in &mut self.clients {
                    model.is_recorded = model.is_open && model.is_complete;
                    model.has_delegations = model.is_recorded && client_in(model).may_have_delegations();
                }
            }
            Step::Wait => {
                self.now += WAIT;
                self.is_paused = false;
                running(self.state.as_ref()).revoke_overdue(self.now);
                for model in &mut self.clients {
                    model.recalled = model.recalled.map(|waits| waits + 1).filter(|waits| *waits < LEASE);
                }
            }
            Step::Kill => {
                self.state = None;
                self.is_paused = false;
                for model in &mut self.clients {
                    let ModelClient { cached, is_recorded, has_delegations, .. } = *model;
                    *model = ModelClient { cached, is_recorded, has_delegations, ..ModelClient::default() };
                }
            }
            Step::Start => self.start(),
        }
        self.check()
    }

    fn start(&mut self) {
        self.started = self.tick();
        let state = state();
        let recorded = OWNERS.iter().zip(&self.clients).filter(|(_, model)| model.is_recorded);
        let recorded = recorded.map(|(owner, model)| RecordedClient {
            owner: owner.as_bytes().into(),
            principal: Principal::Uid(0),
            held: RecordedState { denies: false, has_delegations: model.has_delegations },
        });
        state.grace.begin(recorded.collect(), self.now + 2 * WAIT, self.now + 2 * WAIT);
        for (owner, model) in OWNERS.iter().zip(&mut self.clients) {
            let created = session_of(&state, exchange(&state, owner));
            model.client = Some(Arc::clone(&state.session(&created.session).unwrap().client));
            if !model.is_recorded {
                state.reclaim_complete(client_in(model)).unwrap();
                (model.is_complete, model.cached) = (true, None);
            }
        }
        self.state = Some(state);
    }

    fn change(&mut self) -> Result<(), String> {
        let state = running(self.state.as_ref());
        if state.grace.may_be_delegated() && self.planted != Planted::UnreclaimedNotWaitedFor {
            return Ok(());
        }
        let may_reclaim = |model: &ModelClient| model.cached.is_some() && !model.is_complete;
        let before = self.version;
        let is_missed = state.grace.is_on() && self.clients.iter().any(may_reclaim);
        self.change_locally();
        if is_missed && self.version != before {
            return Err("a file was changed before a client had reclaimed its delegation".into());
        }
        Ok(())
    }

    /// Does not wait for what is not reclaimed: only a lease of the kernel would be in its way.
    fn change_locally(&mut self) {
        if let Some(state) = &self.state
            && state.delegations.begin_change(&file(1), None, ChangeKind::Data, self.now).is_err()
        {
            self.is_paused = true;
            for model in self.clients.iter_mut().filter(|model| is_in_force(state, model)) {
                model.recalled.get_or_insert(0);
            }
            return;
        }
        self.version += 1;
        self.ctime = self.tick();
    }

    fn open(&mut self, at: usize, is_reclaim: bool) -> Result<(), String> {
        let state = running(self.state.as_ref());
        let is_recalled =
            self.clients.iter().any(|other| other.recalled.is_some() && is_in_force(state, other));
        let model = &mut self.clients[at];
        let client = client_in(model);
        let asked = OpenRequest {
            owner: b"reader",
            file: file(1),
            mode: mode(1, 0),
            is_reclaim,
            is_admitted: false,
            pin: None,
        };
        let opened = state.open(client, &asked);
        opened.map(drop).map_err(|fault| format!("OPEN by {at}: {fault:?}"))?;
        (model.is_open, model.is_recorded) = (true, true);
        if is_reclaim && model.cached.is_none() {
            return Ok(());
        }
        let handle = curt_types::FileHandle::new(b"handle").unwrap();
        let granted_by =
            GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
        let since = match self.planted {
            Planted::OnlyThisRunCounts => Some(self.started),
            _ => self.noticed,
        };
        let is_unchanged = since.is_some_and(|since| self.ctime < since);
        let seems_unchanged = || is_unchanged || self.planted == Planted::ReclaimedThoughChanged;
        let reclaim: Option<&dyn Fn() -> bool> = if is_reclaim { Some(&seems_unchanged) } else { None };
        let local = LocalChanges::Ignored;
        let asked = DelegationRequest { file: file(1), handle: &handle, granted_by, reclaim, local };
        if !is_reclaim && self.planted != Planted::DelegationsNotRecorded {
            client_in(model)
                .set_recorded(RecordedState { has_delegations: true, ..RecordedState::default() });
            model.has_delegations = true;
        }
        let granted = state.delegate(client_in(model), asked, self.now).ok();
        if is_reclaim && is_unchanged && granted.is_none() && !is_recalled {
            return Err(format!("{at} does not get its delegation back, though nothing was changed"));
        }
        if !is_reclaim || granted.is_none() {
            // It reads the file.
            model.cached = granted.map(|_| self.version);
        }
        model.stateid = granted;
        Ok(())
    }

    fn give_back(&mut self, at: usize) -> Result<(), String> {
        let (state, model) = (running(self.state.as_ref()), &mut self.clients[at]);
        let (client, stateid) = (client_in(model), model.stateid.expect("it has one"));
        let ended = match state.test_stateid(client, &stateid) {
            Ok(()) => state.return_delegation(client, &stateid, &file(1)),
            Err(_) => state.free_stateid(client, &stateid),
        };
        ended.map_err(|fault| format!("the end of the delegation of {at}: {fault:?}"))?;
        (model.cached, model.stateid, model.recalled) = (None, None, None);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let Some(state) = &self.state else { return Ok(()) };
        for (at, model) in self.clients.iter().enumerate() {
            if is_in_force(state, model) && model.cached != Some(self.version) {
                return Err(format!("{at} has a delegation, and has missed a change"));
            }
        }
        Ok(())
    }

    /// A key that distinguishes this state from others.
    fn key(&self) -> String {
        let client = |model: &ModelClient| {
            let is_in_force = self.state.as_ref().is_some_and(|state| is_in_force(state, model));
            let is_current = model.cached.map(|version| version == self.version);
            let ModelClient { is_open, is_complete, is_recorded, has_delegations, recalled, .. } = *model;
            let has = (model.stateid.is_some(), is_in_force, is_current);
            let is_noted = self.state.as_ref().is_some_and(|state| state.grace.is_on())
                && client_in(model).may_have_delegations();
            (has, is_open, is_complete, is_recorded, (has_delegations, is_noted), recalled)
        };
        let clients = self.clients.each_ref().map(client);
        let is_changed =
            [self.noticed, Some(self.started)].map(|since| since.is_some_and(|since| self.ctime < since));
        let grace = self.state.as_ref().map(|state| (state.grace.is_on(), state.grace.is_over(self.now)));
        let until = self.state.as_ref().map(|state| state.grace.is_over(self.now + WAIT));
        format!("{clients:?} {is_changed:?} {grace:?} {until:?} {}", self.is_paused)
    }
}

fn running(state: Option<&ServerState>) -> &ServerState {
    state.expect("the server runs")
}

fn client_in(model: &ModelClient) -> &Client {
    model.client.as_ref().expect("the server runs")
}

/// Whether the server knows of a delegation of the client that was not revoked.
fn is_in_force(state: &ServerState, model: &ModelClient) -> bool {
    model.stateid.is_some_and(|stateid| state.test_stateid(client_in(model), &stateid).is_ok())
}

/// Explores all states. Returns their number, or the shortest way to a fault.
fn explore(planted: Planted) -> Result<usize, (Vec<Step>, String)> {
    exploration::explore(|| Run::new(planted), Run::steps, Run::apply, Run::key)
}

// SEMANTICS: stateful-13.
#[test]
fn no_client_takes_back_a_delegation_of_a_file_whose_change_it_has_missed() {
    let states = explore(Planted::Nothing).unwrap_or_else(|(path, why)| panic!("{why}: {path:?}"));
    assert!(states > 500, "{states} states");
}

#[test]
fn the_exploration_of_restarts_finds_planted_faults() {
    let all = [
        (Planted::ReclaimedThoughChanged, 6),
        (Planted::OnlyThisRunCounts, 6),
        (Planted::NoticedInGrace, 6),
        (Planted::NoticedThoughUnanswered, 9),
        (Planted::UnreclaimedNotWaitedFor, 4),
        (Planted::DelegationsNotRecorded, 4),
    ];
    for (planted, steps_max) in all {
        let found = explore(planted).err();
        let (path, why) = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
        assert!(path.len() <= steps_max, "{planted:?}: {why}: {path:?}");
    }
}
