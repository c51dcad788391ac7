//! Recovery of NFSv4 clients: the list of those that have state, the grace period, and the end of
//! leases.
//!
//! Invariants: a client is on the list before it gets its first new state; it is off the list
//! before another client gets what it loses, and loses nothing if it cannot be removed from the
//! list; the list is that of this run before the first state is granted after the grace period. So
//! whatever a client may reclaim after a restart is still its own (RFC 8881 section 8.4.3).
//!
//! A client comes on the list when it completes its reclaims, so that its first OPEN does not wait
//! for the disk. One that reclaims is on the list of the last run until then. If the grace period ends before, the client is on no list and keeps what
//! it has reclaimed; after another restart it may reclaim nothing, for others may have had, and
//! given up, what it had not reclaimed yet.
//!
//! The grace period lasts as long as the lease before the restart, because that is the lease that
//! the clients know: each of them sends a request within it. It goes on while they reclaim.

use curt_observe::ServerCounter;
use curt_proto::nfs4::{Clientid, Stateid};

use crate::service::NfsService;
use crate::state::locks::{LockClient, LockHolder};
use crate::state::{
    Client, DelegationRefusal, DelegationRequest, FileKey, OpenGranted, OpenRequest, RecordedClient,
    RecordedState, StateFault, WantedAccess,
};
use crate::state_directory::{RecordLimits, StateError};

impl NfsService {
    /// Begins the recovery of clients that had state when the last run ended. Called once, before
    /// requests and after [`Self::set_lease`].
    ///
    /// # Errors
    /// The list of clients cannot be read, or not be written for another reason than a full disk.
    pub fn recover_clients(&mut self) -> Result<(), StateError> {
        let limits = RecordLimits { lease: self.held.lease(), clients: self.held.clients_max() };
        let (records, last) = self.state.client_records(limits)?;
        self.client_records = records;
        self.last_lease = if last.lease.is_zero() { limits.lease } else { last.lease };
        let count = last.clients.len();
        if count > 0 {
            let grace = self.last_lease;
            tracing::info!(
                clients = count,
                seconds = grace.as_secs(),
                "NFSv4 clients may reclaim their state"
            );
            let clients = last.clients.into_iter();
            let clients = clients.map(|(owner, entry)| RecordedClient {
                owner,
                principal: entry.principal,
                held: entry.held,
            });
            let clients = clients.collect();
            let until = self.uptime().saturating_add(grace);
            let latest = until.saturating_add(grace);
            self.held.delegations.track_changes(latest);
            self.held.grace.begin(clients, until, latest);
        }
        Ok(())
    }

    /// Begins an OPEN: checks that the client may open or reclaim files now, and records a client
    /// without state. Called before a file is created.
    pub(crate) fn begin_open(&self, client: &Client, is_reclaim: bool) -> Result<(), StateFault> {
        self.held.may_open(client, is_reclaim)?;
        // A client that reclaims is on the list.
        if is_reclaim { Ok(()) } else { self.record_client(client) }
    }

    /// OPEN's part that concerns state.
    pub(crate) fn open_state(
        &self,
        client: &Client,
        asked: &OpenRequest<'_>,
    ) -> Result<OpenGranted, StateFault> {
        match self.held.open(client, asked) {
            Err(StateFault::ShareDenied) => {
                self.expire_holders(&asked.file, WantedAccess::Open(asked.mode))?;
                self.held.open(client, asked)
            }
            outcome => outcome,
        }
    }

    /// Delegates a file to a client. A client without delegations is recorded, which may block.
    pub(crate) fn delegate(
        &self,
        client: &Client,
        asked: DelegationRequest<'_>,
    ) -> Result<Stateid, DelegationRefusal> {
        // A client that reclaims is on the list.
        if asked.reclaim.is_none() && !client.may_have_delegations() {
            let held = RecordedState { has_delegations: true, ..RecordedState::default() };
            self.add_record(client, held).map_err(|_| DelegationRefusal::Resource)?;
        }
        self.held.delegate(client, asked, self.uptime())
    }

    /// Records a client that completes its reclaims, before it has state, so that its first OPEN
    /// does not wait for the disk. `may_delegate`: whether it may get delegations. If the client
    /// cannot be recorded, the OPEN tries again.
    pub(crate) fn record_ahead(&self, client: &Client, may_delegate: bool) {
        if !client.is_recorded() || may_delegate && !client.may_have_delegations() {
            let held = RecordedState { has_delegations: may_delegate, ..RecordedState::default() };
            let _ = self.add_record(client, held);
        }
    }

    /// RECLAIM_COMPLETE of all file systems.
    pub(crate) fn complete_reclaim(&self, client: &Client) -> Result<(), StateFault> {
        if client.has_states() {
            self.record_client(client)?;
        }
        self.held.reclaim_complete(client)
    }

    /// Whether only reclaims are granted now, by any protocol.
    #[must_use]
    pub fn is_in_grace(&self) -> bool {
        self.held.grace.is_on()
    }

    /// Records a client durably.
    fn record_client(&self, client: &Client) -> Result<(), StateFault> {
        if client.is_recorded() { Ok(()) } else { self.add_record(client, RecordedState::default()) }
    }

    /// Records durably that a client has `held`, too.
    fn add_record(&self, client: &Client, held: RecordedState) -> Result<(), StateFault> {
        let mut record = RecordedClient::from(client);
        record.held = record.held.and(held);
        let recorded = self.client_records.add(client.id, &record, || client.is_removed());
        let is_recorded = recorded.map_err(|error| {
            tracing::error!(%error, "an NFSv4 client cannot be recorded: its opens are delayed");
            StateFault::Delay
        })?;
        if !is_recorded {
            return Err(StateFault::DeadSession);
        }
        client.set_recorded(record.held);
        Ok(())
    }

    /// Ends the grace period if its time has passed, or if all have reclaimed their state.
    fn end_grace_if_over(&self) {
        if !self.held.grace.is_over(self.uptime()) {
            return;
        }
        if let Err(error) = self.client_records.forget_last_run() {
            tracing::error!(%error, "the grace period goes on: the list of NFSv4 clients cannot be written");
            return;
        }
        self.held.grace.end();
        tracing::info!("the grace period has ended");
    }

    /// Ends the grace period if it is over, and the leases of clients from which nothing was heard
    /// for the time of a lease. To be called about once a second, and ten times in a grace period,
    /// by a thread that serves no calls: it creates files in the state directory.
    pub fn expire_leases(&self) {
        if let Err(error) = self.client_records.maintain() {
            tracing::error!(%error, "the list of NFSv4 clients cannot be replaced");
        }
        self.end_grace_if_over();
        let revoked = self.held.revoke_overdue(self.uptime());
        if revoked > 0 {
            self.counters.add(ServerCounter::DelegationsRevoked, revoked as u64);
            tracing::warn!(
                delegations = revoked,
                "NFSv4 clients have not returned delegations, and lose them"
            );
        }
        report_expired(self.held.expire(self.uptime()));
        self.release_departing();
        self.repeat_recalls();
        self.note_delegations();
    }

    /// Records that clients know of all changes of files that were delegated to them, if they do.
    fn note_delegations(&self) {
        if !self.held.notices_changes() {
            return;
        }
        if let Err(error) = self.state.set_changes_noticed_until(self.clock.coarse_wall_clock()) {
            tracing::debug!(%error, "delegations of files that change from now on cannot be reclaimed");
        }
    }

    /// Ends the leases of silent clients whose opens of `file` conflict with another request. Then
    /// the request is to be repeated, whatever this finds: what was in its way may be gone since.
    ///
    /// # Errors
    /// [`StateFault::Delay`] as long as such a client cannot be removed from the list.
    pub(crate) fn expire_holders(&self, file: &FileKey, wanted: WantedAccess) -> Result<(), StateFault> {
        report_expired(self.held.expire_holders(file, wanted, self.uptime()));
        self.release_departing();
        if self.held.is_denied_by_departing(file, wanted) { Err(StateFault::Delay) } else { Ok(()) }
    }

    /// Ends the lease of a silent client that holds a lock in conflict with another request.
    /// Returns whether the request is to be repeated.
    ///
    /// # Errors
    /// [`StateFault::Delay`] as long as the client cannot be removed from the list.
    pub(crate) fn expire_lock_holder(&self, holder: &LockHolder) -> Result<bool, StateFault> {
        let LockClient::Clientid(client) = holder.client else { return Ok(false) };
        let client = Clientid(client);
        if !self.held.expire_lock_holder(client, self.uptime()) {
            return Ok(false);
        }
        self.release_departing();
        if self.held.is_departing(client) { Err(StateFault::Delay) } else { Ok(true) }
    }

    /// Revokes the opens and delegations of files that are not exported any more.
    pub(crate) fn revoke_unexported(&self) {
        let exports = self.exports.current();
        let is_exported =
            |file: &FileKey| exports.iter().any(|export| export.file_system == file.file_system);
        let count = self.held.revoke_opens(|file| !is_exported(file));
        if count > 0 {
            tracing::warn!(
                states = count,
                "NFSv4 opens and delegations of file systems that are not exported any more are revoked"
            );
        }
    }

    /// Removes an NFSv4 client with its state, as if its lease had expired. Returns whether there
    /// is such a client.
    pub fn expire_client(&self, id: u64) -> bool {
        let is_removed = self.held.expire_client(Clientid(id)).is_ok();
        self.release_departing();
        is_removed
    }

    /// Removes the clients that have left, or have expired, from the list, and releases their
    /// state. Those that cannot be removed from the list keep it until a later call.
    pub(crate) fn release_departing(&self) {
        let mut departing = self.held.departing();
        if departing.is_empty() {
            return;
        }
        let identities = departing.iter().map(|client| (client.id, &*client.owner));
        if let Err(error) = self.client_records.remove(identities) {
            tracing::error!(%error, "NFSv4 clients stay on the list of clients with state, and keep it");
            departing.retain(|client| !self.client_records.holds(client.id, &client.owner));
        }
        self.held.release_departing(&departing);
    }
}

fn report_expired(clients: usize) {
    if clients > 0 {
        tracing::info!(clients, "leases of NFSv4 clients have ended");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::net::IpAddr;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use curt_observe::ServerCounters;
    use curt_proto::nfs4::{SequenceId, SessionId, SlotId, Verifier4};
    use curt_rpc::clock::{ScriptedTime, TimeSource};
    use curt_vfs::{HandleScheme, NodeHandle};

    use super::*;
    use crate::file_handle::FileSystemId;
    use crate::state::{
        ChannelLimits, CreateSession, ExchangeId, GrantingCall, LocalChanges, Principal, ShareBits,
        ShareMode, StateLimits,
    };
    use crate::{NfsServiceConfig, PersistentState, SystemNames};

    /// One run of a server over a state directory.
    struct Run {
        service: NfsService,
        time: Arc<ScriptedTime>,
    }

    impl Run {
        fn start(directory: &Path) -> Self {
            let time = ScriptedTime::new();
            let setup = NfsServiceConfig {
                state: PersistentState::open(directory).unwrap(),
                exports: Vec::new(),
                counters: Arc::new(ServerCounters::default()),
            };
            let names = Box::new(SystemNames);
            let mut service =
                NfsService::with_environment(setup, names, TimeSource::Scripted(Arc::clone(&time))).unwrap();
            service.recover_clients().unwrap();
            Self { service, time }
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
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        let [one, two, idle] = [b"one".as_slice(), b"two", b"idle"].map(|owner| run.new_client(owner));
        assert!(run.open(&one, 1, false).is_ok() && run.open(&two, 2, false).is_ok());
        drop((run, idle));
        // No orderly end is needed: the records were written with the opens.
        let run = Run::start(directory.path());
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
        let directory = tempfile::tempdir().unwrap();
        drop(Run::start(directory.path()).new_client(b"idle"));
        let run = Run::start(directory.path());
        let client = run.new_client(b"idle");
        assert!(run.open(&client, 1, false).is_ok());
    }

    // SEMANTICS: stateful-8.
    #[test]
    fn a_client_that_missed_a_grace_period_does_not_reclaim_in_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        assert!(run.open(&run.new_client(b"absent"), 1, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
        let other = run.new_client(b"other");
        run.advance(89);
        assert_eq!(run.open(&other, 1, false).err(), Some(StateFault::Grace));
        run.advance(1);
        run.service.expire_leases();
        // The lease of the other client is renewed by its requests.
        let other = run.new_client(b"third");
        assert!(run.open(&other, 1, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
        assert_eq!(run.open(&run.client(b"absent"), 1, true).err(), Some(StateFault::ReclaimBad));
        assert!(run.open(&run.client(b"third"), 1, true).is_ok());
    }

    // SEMANTICS: stateful-8.
    #[test]
    fn a_client_that_has_not_completed_its_reclaims_does_not_reclaim_after_the_next_restart() {
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
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
        drop(run);
        let run = Run::start(directory.path());
        assert!(!run.service.is_in_grace(), "nobody may reclaim");
        assert!(run.open(&run.new_client(b"three"), 1, false).is_ok());
        assert_eq!(run.open(&run.client(b"one"), 1, true).err(), Some(StateFault::NoGrace));
    }

    #[test]
    fn two_restarts_in_one_grace_period_lose_no_client() {
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
        assert!(run.open(&run.new_client(b"two"), 2, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
        let one = run.client(b"one");
        assert!(run.open(&one, 1, true).is_ok());
        run.service.complete_reclaim(&one).unwrap();
        drop(run);
        let run = Run::start(directory.path());
        assert!(run.open(&run.client(b"one"), 1, true).is_ok());
        assert!(run.open(&run.client(b"two"), 2, true).is_ok());
    }

    // SEMANTICS: stateful-8.
    #[test]
    fn a_client_whose_lease_expired_does_not_reclaim_what_others_got() {
        let directory = tempfile::tempdir().unwrap();
        for by_conflict in [true, false] {
            let run = Run::start(directory.path());
            run.advance(200);
            run.service.expire_leases();
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
            drop(run);
            let run = Run::start(directory.path());
            assert!(run.open(&run.client(b"lost"), 1, true).is_err());
        }
    }

    // SEMANTICS: stateful-8.
    #[test]
    fn the_grace_period_is_as_long_as_the_lease_before_the_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        for lease in [200, 20] {
            let run = Run::start(directory.path());
            run.advance(1000);
            run.service.expire_leases();
            let one = run.new_client(b"one");
            assert!(run.open(&one, 1, false).is_ok());
            drop(run);
            let list = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, list.replace("lease 90", &format!("lease {lease}"))).unwrap();
            let run = Run::start(directory.path());
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let run = Run::start(directory.path());
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
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        assert!(run.open(&run.new_client(b"one"), 1, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
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
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
        let [one, two] = [b"one".as_slice(), b"two"].map(|owner| run.new_client(owner));
        assert!(run.open(&one, 1, false).is_ok() && run.open(&two, 2, false).is_ok());
        drop(run);
        let run = Run::start(directory.path());
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
        let directory = tempfile::tempdir().unwrap();
        let run = Run::start(directory.path());
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
        drop(run);
        let run = Run::start(directory.path());
        assert!(run.open(&run.client(b"lost"), 1, true).is_err());
        assert!(run.open(&run.client(b"other"), 1, true).is_ok());
    }
}
