//! Runs of a server over one state directory: what clients reclaim, and what they do not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use curt_observe::ServerCounters;
use curt_proto::nfs4::{SequenceId, SessionId, SlotId, Verifier4};
use curt_rpc::clock::{ScriptedTime, TimeSource};
use curt_vfs::{HandleScheme, NodeHandle};
use tempfile::TempDir;

use super::*;
use crate::file_handle::FileSystemId;
use crate::state::{
    ChannelLimits, CreateSession, ExchangeId, GrantingCall, LocalChanges, Principal, ShareBits, ShareMode,
    StateLimits,
};
use crate::{NfsServiceConfig, PersistentState, SystemNames};

/// One run of a server over a state directory.
struct Run {
    service: NfsService,
    time: Arc<ScriptedTime>,
    directory: TempDir,
}

impl Run {
    fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap())
    }

    /// The next run over the same directory, after this one was killed.
    fn restart(self) -> Self {
        let Self { service, directory, .. } = self;
        drop(service);
        Self::start(directory)
    }

    fn start(directory: TempDir) -> Self {
        let time = ScriptedTime::new();
        let setup = NfsServiceConfig {
            state: PersistentState::open(directory.path()).unwrap(),
            exports: Vec::new(),
            counters: Arc::new(ServerCounters::default()),
        };
        let names = Box::new(SystemNames);
        let mut service =
            NfsService::with_environment(setup, names, TimeSource::Scripted(Arc::clone(&time))).unwrap();
        service.recover_clients().unwrap();
        Self { service, time, directory }
    }

    fn client(&self, owner: &[u8]) -> Arc<Client> {
        self.instance(owner, 1)
    }

    /// The instance of a client with this verifier.
    fn instance(&self, owner: &[u8], verifier: u8) -> Arc<Client> {
        let presented = ExchangeId {
            owner,
            verifier: Verifier4([verifier; 8]),
            principal: Principal::Uid(0),
            is_update: false,
            implementation: b"",
            peer: IpAddr::from([127, 0, 0, 1]),
        };
        let (held, now) = (&self.service.held, self.service.uptime());
        let exchanged = held.exchange_id(&presented, now).unwrap();
        let StateLimits { fore, back, .. } = StateLimits::default();
        let fore = ChannelLimits { slots: 1, ..fore };
        let creation = CreateSession {
            client: exchanged.client,
            sequence: SequenceId(1),
            principal: Principal::Uid(0),
            fore,
            back,
            backchannel: None,
            callback_program: 1,
            callback_security: None,
            minor_version: 1,
        };
        let created = held.create_session(&creation, now).unwrap();
        self.service.release_departing();
        Arc::clone(&held.session(&created.session).unwrap().client)
    }

    /// A client that has nothing to reclaim.
    fn new_client(&self, owner: &[u8]) -> Arc<Client> {
        let client = self.client(owner);
        self.service.complete_reclaim(&client).unwrap();
        client
    }

    fn open(&self, client: &Client, file: u8, is_reclaim: bool) -> Result<OpenGranted, StateFault> {
        let node = NodeHandle::new(HandleScheme::Memory, 0, &[file]).unwrap();
        let asked = OpenRequest {
            owner: b"owner",
            file: FileKey { file_system: FileSystemId(1), node },
            mode: ShareMode { access: ShareBits::BOTH, deny: ShareBits::BOTH },
            is_reclaim,
            is_admitted: false,
            pin: None,
        };
        self.service.held.may_open(client, is_reclaim)?;
        client.note_denial(asked.mode);
        self.service.begin_open(client, is_reclaim)?;
        self.service.open_state(client, &asked)
    }

    fn advance(&self, seconds: u64) {
        self.time.advance(Duration::from_secs(seconds));
    }
}

// SEMANTICS: stateful-8.
#[test]
fn clients_with_state_reclaim_it_and_the_grace_period_ends_with_the_last() {
    let run = Run::new();
    let [one, two, idle] = [b"one".as_slice(), b"two", b"idle"].map(|owner| run.new_client(owner));
    assert!(run.open(&one, 1, false).is_ok() && run.open(&two, 2, false).is_ok());
    drop(idle);
    // No orderly end is needed: the records were written with the opens.
    let run = run.restart();
    let new = run.new_client(b"new");
    assert_eq!(run.open(&new, 3, false).err(), Some(StateFault::Grace));
    let idle = run.client(b"idle");
    assert_eq!(run.open(&idle, 1, true).err(), Some(StateFault::ReclaimBad));
    let (one, two) = (run.client(b"one"), run.client(b"two"));
    assert!(run.open(&one, 1, true).is_ok() && run.open(&two, 2, true).is_ok());
    run.service.complete_reclaim(&one).unwrap();
    assert_eq!(run.open(&one, 3, false).err(), Some(StateFault::Grace));
    run.service.complete_reclaim(&two).unwrap();
    assert!(run.service.is_in_grace());
    run.service.expire_leases();
    assert!(!run.service.is_in_grace());
    assert!(run.open(&one, 3, false).is_ok());
    assert_eq!(run.open(&new, 1, false).err(), Some(StateFault::ShareDenied));
}

// SEMANTICS: stateful-8.
#[test]
fn without_recorded_clients_there_is_no_grace_period() {
    let run = Run::new();
    run.new_client(b"idle");
    let run = run.restart();
    let client = run.new_client(b"idle");
    assert!(run.open(&client, 1, false).is_ok());
}

// SEMANTICS: stateful-8.
#[test]
fn a_client_that_missed_a_grace_period_does_not_reclaim_in_the_next() {
    let run = Run::new();
    assert!(run.open(&run.new_client(b"absent"), 1, false).is_ok());
    let run = run.restart();
    let other = run.new_client(b"other");
    run.advance(89);
    assert_eq!(run.open(&other, 1, false).err(), Some(StateFault::Grace));
    run.advance(1);
    run.service.expire_leases();
    // The lease of the other client is renewed by its requests.
    let other = run.new_client(b"third");
    assert!(run.open(&other, 1, false).is_ok());
    let run = run.restart();
    assert_eq!(run.open(&run.client(b"absent"), 1, true).err(), Some(StateFault::ReclaimBad));
    assert!(run.open(&run.client(b"third"), 1, true).is_ok());
}

// SEMANTICS: stateful-8.
#[test]
fn a_client_that_has_not_completed_its_reclaims_does_not_reclaim_after_the_next_restart() {
    let run = Run::new();
    assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
    let run = run.restart();
    let one = run.client(b"one");
    assert!(run.open(&one, 1, true).is_ok());
    run.advance(89);
    run.service.expire_leases();
    assert!(run.service.is_in_grace());
    run.advance(2);
    run.service.expire_leases();
    assert!(!run.service.is_in_grace());
    // It keeps what it has, and others may have had the rest.
    assert!(one.has_states());
    let two = run.new_client(b"two");
    assert!(run.open(&two, 2, false).is_ok());
    assert!(run.service.expire_client(two.id.0));
    let run = run.restart();
    assert!(!run.service.is_in_grace(), "nobody may reclaim");
    assert!(run.open(&run.new_client(b"three"), 1, false).is_ok());
    assert_eq!(run.open(&run.client(b"one"), 1, true).err(), Some(StateFault::NoGrace));
}

#[test]
fn two_restarts_in_one_grace_period_lose_no_client() {
    let run = Run::new();
    assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
    assert!(run.open(&run.new_client(b"two"), 2, false).is_ok());
    let run = run.restart();
    let one = run.client(b"one");
    assert!(run.open(&one, 1, true).is_ok());
    run.service.complete_reclaim(&one).unwrap();
    let run = run.restart();
    assert!(run.open(&run.client(b"one"), 1, true).is_ok());
    assert!(run.open(&run.client(b"two"), 2, true).is_ok());
}

// SEMANTICS: stateful-8.
#[test]
fn a_client_whose_lease_expired_does_not_reclaim_what_others_got() {
    for by_conflict in [true, false] {
        let run = Run::new();
        let lost = run.new_client(b"lost");
        assert!(run.open(&lost, 1, false).is_ok());
        run.advance(91);
        let other = run.new_client(b"other");
        run.service.expire_leases();
        if by_conflict {
            assert!(run.open(&other, 1, false).is_ok());
        } else {
            assert!(run.service.expire_client(lost.id.0));
        }
        let run = run.restart();
        assert!(run.open(&run.client(b"lost"), 1, true).is_err());
    }
}

// SEMANTICS: stateful-8.
#[test]
fn the_grace_period_is_as_long_as_the_lease_before_the_restart() {
    for lease in [200, 20] {
        let run = Run::new();
        let one = run.new_client(b"one");
        assert!(run.open(&one, 1, false).is_ok());
        let path = run.directory.path().join("clients");
        let list = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, list.replace("lease 90", &format!("lease {lease}"))).unwrap();
        let run = run.restart();
        assert_eq!(run.service.default_grace(), Duration::from_secs(lease));
        run.advance(lease - 1);
        run.service.expire_leases();
        let client = run.new_client(b"two");
        assert_eq!(run.open(&client, 2, false).err(), Some(StateFault::Grace));
        run.advance(1);
        run.service.expire_leases();
        assert!(run.open(&client, 2, false).is_ok());
    }
}

#[test]
fn a_client_that_leaves_is_off_the_list_and_its_next_instance_is_not() {
    let run = Run::new();
    let path = run.directory.path().join("clients");
    let recorded = || {
        let list = std::fs::read_to_string(&path).unwrap();
        let count = |kind| list.lines().filter(|line| line.starts_with(kind)).count();
        count("client") - count("gone")
    };
    let one = run.new_client(b"one");
    assert!(run.open(&one, 1, false).is_ok());
    assert_eq!(recorded(), 1);
    // It restarts: its state is its own to take again.
    let again = run.instance(b"one", 2);
    assert_eq!((recorded(), run.open(&one, 1, false).err()), (0, Some(StateFault::DeadSession)));
    assert_eq!(recorded(), 0);
    run.service.complete_reclaim(&again).unwrap();
    assert!(run.open(&again, 1, false).is_ok());
    assert_eq!(recorded(), 1);
    assert!(run.service.expire_client(again.id.0));
    assert_eq!(recorded(), 0);
    // A client whose OPEN found no file destroys its client ID.
    let idle = run.new_client(b"idle");
    run.service.begin_open(&idle, false).unwrap();
    assert_eq!(recorded(), 1);
    let session = &run.service.held.sessions_of(idle.id)[0];
    run.service.held.destroy_session(&session.id, None).unwrap();
    run.service.held.destroy_clientid(idle.id).unwrap();
    run.service.release_departing();
    assert_eq!(recorded(), 0);
}

#[test]
fn a_restarted_client_counts_for_the_end_of_the_grace_period() {
    let run = Run::new();
    assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
    let run = run.restart();
    let one = run.client(b"one");
    assert!(run.open(&one, 1, true).is_ok());
    let again = run.instance(b"one", 2);
    run.service.complete_reclaim(&again).unwrap();
    run.service.expire_leases();
    assert!(!run.service.is_in_grace());
    assert!(run.open(&run.new_client(b"two"), 1, false).is_ok());
}

// SEMANTICS: stateful-13.
#[test]
fn a_client_takes_its_delegation_back_unless_somebody_has_the_file_open_for_writing() {
    let run = Run::new();
    let [one, two] = [b"one".as_slice(), b"two"].map(|owner| run.new_client(owner));
    assert!(run.open(&one, 1, false).is_ok() && run.open(&two, 2, false).is_ok());
    let run = run.restart();
    let (one, two) = (run.client(b"one"), run.client(b"two"));
    assert!(run.open(&two, 2, true).is_ok());
    let handle = curt_types::FileHandle::new(b"handle").unwrap();
    let reclaim = |file: u8| {
        let node = NodeHandle::new(HandleScheme::Memory, 0, &[file]).unwrap();
        let granted_by =
            GrantingCall { session: SessionId([0; 16]), slot: SlotId(0), sequence: SequenceId(1) };
        let asked = DelegationRequest {
            file: FileKey { file_system: FileSystemId(1), node },
            handle: &handle,
            granted_by,
            reclaim: Some(&|| true),
            local: LocalChanges::Ignored,
        };
        run.service.held.delegate(&one, asked, run.service.uptime())
    };
    assert!(reclaim(1).is_ok());
    assert_eq!(reclaim(2), Err(DelegationRefusal::Contention));
    // From then on it is in the way of others as before.
    assert_eq!(reclaim(1), Err(DelegationRefusal::Contention));
    run.service.complete_reclaim(&one).unwrap();
    run.service.complete_reclaim(&two).unwrap();
    run.service.expire_leases();
    assert_eq!(run.service.clients().iter().map(|client| client.delegations).sum::<usize>(), 1);
}

// SEMANTICS: stateful-5.
#[test]
fn a_client_that_cannot_be_removed_from_the_list_keeps_its_state() {
    let run = Run::new();
    let lost = run.new_client(b"lost");
    let other = run.new_client(b"other");
    assert!(run.open(&lost, 1, false).is_ok() && run.open(&other, 2, false).is_ok());
    run.advance(91);
    let other = run.instance(b"other", 2);
    run.service.complete_reclaim(&other).unwrap();
    assert!(run.open(&other, 2, false).is_ok());
    run.service.client_records.fill_disk();
    for _ in 0..2 {
        assert_eq!(run.open(&other, 1, false).err(), Some(StateFault::Delay));
    }
    assert_eq!(run.open(&lost, 1, false).err(), Some(StateFault::DeadSession));
    run.service.expire_leases();
    assert!(run.open(&other, 1, false).is_ok());
    let run = run.restart();
    assert!(run.open(&run.client(b"lost"), 1, true).is_err());
    assert!(run.open(&run.client(b"other"), 1, true).is_ok());
}
