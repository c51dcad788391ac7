//! The hosts that lock files, by the addresses that their requests come from, and the list of those
//! that a restarted server notifies.
//!
//! A host is in the list, on disk, before the reply to its first lock. Jobs of one thread change
//! and write the list. A request of a host that is not in it waits for the next job; no other
//! request, and no request with a lock held, waits for a disk. A host that a request refers to is
//! not removed.
//!
//! Lock order: the list, the map of hosts, what is known of a host.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking_lot::{Mutex, RwLock};

use super::host_states::{HostStates, LockedCount};
use crate::state_directory::{LOCALS_MAX, MonitoredHost, MonitoredHosts, PersistentState, StateError};

/// Maximum number of hosts with locks at one time, and of hosts in the list.
pub(super) const HOSTS_MAX: usize = 4096;

/// How long after a callback that did not reach it a host is not called for repeated requests.
const UNREACHED: Duration = Duration::from_secs(600);

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    /// The name that it gave, for information.
    name: Vec<u8>,
    /// The state numbers of its NSM.
    pub(super) states: HostStates,
    /// The host has requested a monitored lock (any but NM_LOCK). Relaxed: it orders nothing.
    wants: AtomicBool,
    known: Mutex<KnownHost>,
}

/// The part of a host's state that changes with its requests.
#[derive(Debug)]
struct KnownHost {
    /// The addresses of this server that its requests came to. Those beyond the limit are not kept.
    locals: ArrayVec<IpAddr, LOCALS_MAX>,
    /// The last of them, whether it is kept or not.
    latest: Option<IpAddr>,
    listing: Listing,
    /// When the last callback was made, if it did not reach the host.
    unreached: Option<Instant>,
}

/// Whether a host is in the list because of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// The host is not on the list, or an earlier run has put it there.
    No,
    /// The host is on the list, with the first so many of its `locals`.
    Yes { locals: usize },
    /// The host has no locks any more, and leaves the list unless it begins again before.
    Ended,
}

impl Host {
    /// Whether the host is in the list as it is now, or has not asked for it.
    pub(super) fn is_recorded(&self) -> bool {
        let known = self.known.lock();
        known.listing == Listing::Yes { locals: known.locals.len() } || !self.wants.load(Ordering::Relaxed)
    }

    /// Whether the host is in the list because of this run, and does not leave it.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.known.lock().listing, Listing::Yes { .. })
    }

    /// Notes a request for a monitored lock.
    pub(super) fn wants_monitoring(&self) {
        self.wants.store(true, Ordering::Relaxed);
    }

    /// The address of this server that its last request came to, as far as it is known.
    pub(super) fn latest_local(&self) -> Option<IpAddr> {
        self.known.lock().latest
    }

    /// Whether callbacks reach the host, as far as it is known.
    pub(super) fn can_be_called(&self, now: Instant) -> bool {
        self.known.lock().unreached.is_none_or(|at| now.saturating_duration_since(at) >= UNREACHED)
    }

    /// Notes whether a callback has reached the host. Returns whether it is the first one that has
    /// not.
    pub(super) fn note_callback(&self, is_undelivered: bool, now: Instant) -> bool {
        let unreached = is_undelivered.then_some(now);
        let before = std::mem::replace(&mut self.known.lock().unreached, unreached);
        is_undelivered && before.is_none()
    }

    /// The host has no locks any more. Returns whether the list has to be updated.
    pub(super) fn end(&self) -> bool {
        let mut known = self.known.lock();
        let is_listed = matches!(known.listing, Listing::Yes { .. });
        if is_listed {
            known.listing = Listing::Ended;
        }
        is_listed
    }

    fn note_local_address(&self, local: Option<IpAddr>) {
        let Some(local) = local else { return };
        let mut known = self.known.lock();
        known.latest = Some(local);
        if !known.locals.contains(&local) {
            // One that is too many is not notified from there.
            let _ = known.locals.try_push(local);
        }
    }
}

/// All hosts.
#[derive(Default)]
pub(super) struct HostTable {
    hosts: RwLock<HashMap<IpAddr, Arc<Host>>>,
    /// The hosts that had locks when the last run ended.
    of_last_run: OnceLock<HashSet<IpAddr>>,
    /// The number of this run. Relaxed: it does not change once requests are served.
    state: AtomicI32,
    /// Whether the next job forgets hosts of the last run. Relaxed: the job is queued after it.
    forgets_last_run: AtomicBool,
    wanted: Mutex<Vec<WantedRecord>>,
    /// The list; locked only by who writes it.
    list: Mutex<MonitoredHosts>,
    locked_since_restarts: LockedCount,
}

/// A host that is to be recorded.
struct WantedRecord {
    address: IpAddr,
    host: Arc<Host>,
    outcome: mpsc::Sender<Result<(), HostRecordError>>,
}

/// The hosts that have come to the list, and that have left it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListChanges {
    pub(super) added: Vec<IpAddr>,
    pub(super) removed: Vec<IpAddr>,
}

/// An address of this server that a request came to. That of a datagram is not known.
pub(super) fn known_local(address: IpAddr) -> Option<IpAddr> {
    Some(address).filter(|address| !address.is_unspecified())
}

impl HostTable {
    /// Begins a run with the list of the last one, which stays. Returns it, with the state number
    /// of this run.
    pub(super) fn begin(&self, state: &PersistentState, seconds: u64) -> Result<MonitoredHosts, StateError> {
        let mut list = self.list.lock();
        *list = state.monitored()?.unwrap_or_default();
        list.state = next_state(list.state, seconds);
        state.save_monitored(&list)?;
        self.state.store(list.state, Ordering::Relaxed);
        let _ = self.of_last_run.set(list.hosts.keys().copied().collect());
        Ok(list.clone())
    }

    /// The number of this run, and whether it has begun.
    pub(super) fn state(&self) -> i32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Whether a host had locks when the last run ended, which it can reclaim.
    pub(super) fn had_locks(&self, address: IpAddr) -> bool {
        self.of_last_run.get().is_some_and(|hosts| hosts.contains(&address))
    }

    /// The host with an address.
    pub(super) fn find(&self, address: IpAddr) -> Option<Arc<Host>> {
        self.hosts.read().get(&address).cloned()
    }

    /// The host with an address, whose request came to `local`. It stays as long as the caller
    /// has it. `None`: there are too many.
    pub(super) fn of_request(
        &self,
        address: IpAddr,
        local: Option<IpAddr>,
        name: &[u8],
    ) -> Option<Arc<Host>> {
        let host = self.find(address).or_else(|| self.add(address, name))?;
        host.note_local_address(local);
        Some(host)
    }

    fn add(&self, address: IpAddr, name: &[u8]) -> Option<Arc<Host>> {
        let mut hosts = self.hosts.write();
        if let Some(known) = hosts.get(&address) {
            return Some(Arc::clone(known));
        }
        if hosts.len() >= HOSTS_MAX {
            // Those without monitored locks are not needed.
            hosts.retain(|_, host| Arc::strong_count(host) > 1 || host.known.lock().listing != Listing::No);
            if hosts.len() >= HOSTS_MAX {
                return None;
            }
        }
        let known =
            KnownHost { locals: ArrayVec::new(), latest: None, listing: Listing::No, unreached: None };
        let host = Arc::new(Host {
            name: name.to_vec(),
            states: HostStates::new(Arc::clone(&self.locked_since_restarts)),
            wants: AtomicBool::new(false),
            known: Mutex::new(known),
        });
        hosts.insert(address, Arc::clone(&host));
        Some(host)
    }

    /// Lets the next [`Self::update`] record a host. The outcome arrives then.
    pub(super) fn want(
        &self,
        address: IpAddr,
        host: Arc<Host>,
    ) -> mpsc::Receiver<Result<(), HostRecordError>> {
        let (outcome, arrives) = mpsc::channel();
        self.wanted.lock().push(WantedRecord { address, host, outcome });
        arrives
    }

    /// Lets the next [`Self::update`] remove the hosts of the last run that have not locked in this
    /// one.
    pub(super) fn forget_last_run(&self) {
        self.forgets_last_run.store(true, Ordering::Relaxed);
    }

    /// Changes the list as was requested since the last update, and writes it. `is_used`: whether a
    /// host has something else than locks.
    pub(super) fn update(
        &self,
        save: impl FnOnce(&MonitoredHosts) -> Result<(), StateError>,
        is_used: impl Fn(IpAddr) -> bool,
    ) -> ListChanges {
        let mut list = self.list.lock();
        let wanted = std::mem::take(&mut *self.wanted.lock());
        let forgets_last_run = self.forgets_last_run.swap(false, Ordering::Relaxed);
        let mut changed = list.clone();
        let mut changes = ListChanges::default();
        changed.hosts.retain(|address, _| {
            let stays = self.stays(*address, forgets_last_run, &is_used);
            if !stays {
                changes.removed.push(*address);
            }
            stays
        });
        let mut answers = Vec::with_capacity(wanted.len());
        for WantedRecord { address, host, outcome } in wanted {
            let locals = host.known.lock().locals.clone();
            let count = locals.len();
            let is_listed = changed.hosts.contains_key(&address);
            let result = if is_listed || changed.hosts.len() < HOSTS_MAX {
                let new = || MonitoredHost { locals: Vec::new(), name: Vec::new() };
                let listed = changed.hosts.entry(address).or_insert_with(new);
                listed.name.clone_from(&host.name);
                for local in locals {
                    if !listed.locals.contains(&local) && listed.locals.len() < LOCALS_MAX {
                        listed.locals.push(local);
                    }
                }
                if !is_listed {
                    changes.added.push(address);
                }
                Ok(count)
            } else {
                Err(HostRecordError::TooMany)
            };
            answers.push((host, outcome, result));
        }
        let is_saved = changed == *list || save(&changed).is_ok();
        if is_saved {
            *list = changed;
            for address in &changes.removed {
                self.remove(*address);
            }
        } else {
            // The next job tries again.
            self.forgets_last_run.fetch_or(forgets_last_run, Ordering::Relaxed);
            changes = ListChanges::default();
        }
        for (host, outcome, result) in answers {
            let result = result.and_then(|locals| {
                if !is_saved {
                    return Err(HostRecordError::NotSaved);
                }
                host.known.lock().listing = Listing::Yes { locals };
                Ok(())
            });
            // No waiter is left when the server ends.
            let _ = outcome.send(result);
        }
        changes
    }

    /// Whether a host of the list stays in it.
    fn stays(&self, address: IpAddr, forgets_last_run: bool, is_used: &impl Fn(IpAddr) -> bool) -> bool {
        // No request begins while the map is locked, and those in progress have a reference.
        let hosts = self.hosts.write();
        let Some(host) = hosts.get(&address) else { return !forgets_last_run };
        let listing = host.known.lock().listing;
        match listing {
            Listing::Yes { .. } => true,
            // A request in progress waits until it is recorded.
            Listing::No => !forgets_last_run,
            Listing::Ended => Arc::strong_count(host) > 1 || is_used(address),
        }
    }

    /// Forgets a host that has left the list, unless it has begun again.
    fn remove(&self, address: IpAddr) {
        let mut hosts = self.hosts.write();
        let Some(host) = hosts.get(&address) else { return };
        let was_listed = std::mem::replace(&mut host.known.lock().listing, Listing::No) == Listing::Ended;
        if was_listed && Arc::strong_count(host) == 1 {
            hosts.remove(&address);
        }
    }
}

/// Why a host is not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostRecordError {
    #[error("there are {HOSTS_MAX} hosts with locks")]
    TooMany,
    #[error("the list of hosts with locks is not saved")]
    NotSaved,
}

/// The state number of a run: odd, and larger than that of the last one, even if the state
/// directory was lost. Seconds, because those of other monitors at this address, which count
/// restarts, are small: clients ignore a notice with a number that they know.
fn next_state(last: i32, seconds: u64) -> i32 {
    let by_clock = i32::try_from(seconds & u64::from(i32::MAX.cast_unsigned())).unwrap_or(0);
    match last.max(by_clock).checked_add(2) {
        Some(next) => (next - 1) | 1,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn address(number: usize) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap()).into()
    }

    const LOCAL: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn record(table: &HostTable, state: &PersistentState, address: IpAddr) -> Result<(), HostRecordError> {
        let outcome = table.want(address, table.find(address).unwrap());
        update(table, state, |_| false);
        outcome.try_recv().unwrap()
    }

    fn update(table: &HostTable, state: &PersistentState, is_used: impl Fn(IpAddr) -> bool) -> ListChanges {
        table.update(|list| state.save_monitored(list), is_used)
    }

    fn listed(state: &PersistentState) -> Vec<IpAddr> {
        state.monitored().unwrap().unwrap().hosts.into_keys().collect()
    }

    #[test]
    fn state_numbers_are_odd_and_grow_whatever_the_clock_says() {
        let mut last = 0;
        for seconds in [0, 0, 1000, 1000, 999, 5, 1001, 2_000_000_000, 1] {
            let next = next_state(last, seconds);
            assert!(next > last && next % 2 == 1, "{last} {next}");
            last = next;
        }
        for (last, seconds) in [(i32::MAX, 5), (i32::MAX - 1, 5), (0, u64::MAX), (0, 0x7fff_ffff)] {
            assert_eq!(next_state(last, seconds) % 2, 1);
        }
    }

    #[test]
    fn hosts_are_recorded_once_and_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let state = PersistentState::open(directory.path()).unwrap();
        let table = HostTable::default();
        assert!(table.begin(&state, 100).unwrap().hosts.is_empty());
        let host = table.of_request(address(1), LOCAL, b"one").unwrap();
        assert!(host.is_recorded(), "NM_LOCK alone");
        host.wants_monitoring();
        assert!(!host.is_recorded());
        let outcome = table.want(address(1), Arc::clone(&host));
        assert_eq!(update(&table, &state, |_| false).added, [address(1)]);
        assert_eq!(outcome.try_recv(), Ok(Ok(())));
        record(&table, &state, address(1)).unwrap();
        assert!(table.of_request(address(1), LOCAL, b"other").unwrap().is_recorded());
        // Through another address of this server it is called from there, and notified from both.
        let other = known_local(address(9));
        let host = table.of_request(address(1), other, b"one").unwrap();
        assert!(!host.is_recorded() && host.latest_local() == other);
        record(&table, &state, address(1)).unwrap();
        let datagram = table.of_request(address(1), known_local("0.0.0.0".parse().unwrap()), b"one").unwrap();
        assert!(datagram.is_recorded() && datagram.latest_local() == other);
        drop((state, host, datagram));
        let state = PersistentState::open(directory.path()).unwrap();
        let again = HostTable::default();
        let before = again.begin(&state, 100).unwrap();
        assert_eq!(before.state, 103);
        let locals = LOCAL.into_iter().chain(other).collect();
        assert_eq!(before.hosts[&address(1)], MonitoredHost { locals, name: b"one".to_vec() });
        assert!(again.had_locks(address(1)) && !again.had_locks(address(2)) && !table.had_locks(address(1)));
        assert_eq!(update(&again, &state, |_| false), ListChanges::default());
        again.forget_last_run();
        assert_eq!(update(&again, &state, |_| false).removed, [address(1)]);
        assert!(listed(&state).is_empty());
    }

    #[test]
    fn no_more_addresses_of_this_server_are_kept_than_the_limit() {
        let state = PersistentState::ephemeral().unwrap();
        let table = HostTable::default();
        for number in 0..=LOCALS_MAX {
            let host = table.of_request(address(1), Some(address(100 + number)), b"one").unwrap();
            host.wants_monitoring();
            assert_eq!(host.is_recorded(), number == LOCALS_MAX, "{number}");
            assert_eq!(host.latest_local(), Some(address(100 + number)));
            record(&table, &state, address(1)).unwrap();
        }
        assert_eq!(table.list.lock().hosts[&address(1)].locals.len(), LOCALS_MAX);
    }

    #[test]
    fn a_host_that_begins_again_while_it_is_forgotten_stays_or_is_recorded_again() {
        let directory = tempfile::tempdir().unwrap();
        let state = PersistentState::open(directory.path()).unwrap();
        let table = HostTable::default();
        let begin = || {
            let host = table.of_request(address(1), LOCAL, b"one").unwrap();
            host.wants_monitoring();
            host
        };
        drop(begin());
        record(&table, &state, address(1)).unwrap();
        let end = || table.find(address(1)).unwrap().end();
        assert!(end() && !end());
        // A request in progress, a reservation, and a request that waits to be recorded.
        let host = begin();
        assert!(!host.is_recorded());
        assert_eq!(update(&table, &state, |_| false), ListChanges::default());
        drop(host);
        assert_eq!(update(&table, &state, |_| true), ListChanges::default());
        record(&table, &state, address(1)).unwrap();
        assert!(table.find(address(1)).unwrap().is_recorded());
        assert_eq!(listed(&state), [address(1)]);
        assert!(end());
        assert_eq!(update(&table, &state, |_| false).removed, [address(1)]);
        assert!(table.find(address(1)).is_none() && listed(&state).is_empty());
    }

    #[test]
    fn what_could_not_be_written_is_tried_again() {
        let state = PersistentState::ephemeral().unwrap();
        let table = HostTable::default();
        let failed = |_: &MonitoredHosts| Err(StateError::InUse("state".into()));
        let host = table.of_request(address(1), LOCAL, b"one").unwrap();
        host.wants_monitoring();
        let outcome = table.want(address(1), Arc::clone(&host));
        assert_eq!(table.update(failed, |_| false), ListChanges::default());
        assert_eq!((outcome.try_recv(), host.is_recorded()), (Ok(Err(HostRecordError::NotSaved)), false));
        record(&table, &state, address(1)).unwrap();
        assert!(host.is_recorded() && host.end());
        drop(host);
        assert_eq!(table.update(failed, |_| false), ListChanges::default());
        assert_eq!(update(&table, &state, |_| false).removed, [address(1)]);
    }

    #[test]
    fn there_are_no_more_hosts_than_the_limit_and_unused_ones_make_room() {
        let state = PersistentState::ephemeral().unwrap();
        let table = HostTable::default();
        let mut wanted = Vec::new();
        for number in 0..HOSTS_MAX {
            let host = table.of_request(address(number), LOCAL, b"").unwrap();
            host.wants_monitoring();
            if number > 0 {
                wanted.push(table.want(address(number), host));
            }
        }
        assert_eq!(update(&table, &state, |_| false).added.len(), HOSTS_MAX - 1);
        assert!(wanted.iter().all(|outcome| outcome.try_recv() == Ok(Ok(()))));
        let used = table.find(address(0)).unwrap();
        assert!(table.of_request(address(HOSTS_MAX), LOCAL, b"").is_none(), "all are used");
        drop(used);
        assert!(table.of_request(address(HOSTS_MAX), LOCAL, b"").is_some(), "the first is forgotten");
        assert!(table.find(address(0)).is_none());
        table.find(address(HOSTS_MAX)).unwrap().wants_monitoring();
        record(&table, &state, address(HOSTS_MAX)).unwrap();
        assert!(table.of_request(address(HOSTS_MAX + 1), LOCAL, b"").is_none());
    }
}
