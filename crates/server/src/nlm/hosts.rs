//! The hosts that lock files, by the addresses that their requests come from, and the list of those
//! that a restarted server notifies.
//!
//! A host is in the list, on disk, before the reply to its first lock. The list's mutex is held
//! while it is written; requests of hosts that are in it do not take that mutex.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::host_states::HostStates;
use crate::state_directory::{MonitoredHost, MonitoredHosts, PersistentState, StateError};

/// Maximum number of hosts with locks at one time, and of hosts in the list.
pub(super) const HOSTS_MAX: usize = 4096;

/// Makes a list durable.
pub(super) type SaveList<'a> = &'a dyn Fn(&MonitoredHosts) -> Result<(), StateError>;

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    /// The address of this server that it has connected to, from which it is called.
    pub(super) local: IpAddr,
    /// The name that it gave, for information.
    name: Vec<u8>,
    /// The state numbers of its NSM.
    pub(super) states: Arc<HostStates>,
    /// It has requested a monitored lock (any but NM_LOCK). Relaxed: it orders nothing.
    wants: AtomicBool,
    /// It is in the list. Release by who has written the list, acquire by who relies on it.
    is_recorded: AtomicBool,
}

impl Host {
    /// Whether the host is in the list, or has not asked for it.
    pub(super) fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Acquire) || !self.wants.load(Ordering::Relaxed)
    }

    /// Whether the host is in the list by a lock of this run.
    pub(super) fn is_listed(&self) -> bool {
        self.is_recorded.load(Ordering::Acquire)
    }

    /// Notes a request for a monitored lock.
    pub(super) fn wants_monitoring(&self) {
        self.wants.store(true, Ordering::Relaxed);
    }
}

/// All hosts.
#[derive(Default)]
pub(super) struct HostTable {
    hosts: RwLock<HashMap<IpAddr, Arc<Host>>>,
    /// The list; locked before `hosts`.
    list: Mutex<MonitoredHosts>,
}

impl HostTable {
    /// Begins a run with the list of the last one, which stays. Returns it, with the state number
    /// of this run.
    pub(super) fn begin(&self, state: &PersistentState, seconds: u64) -> Result<MonitoredHosts, StateError> {
        let mut list = self.list.lock();
        *list = state.monitored()?.unwrap_or_default();
        list.state = next_state(list.state, seconds);
        state.save_monitored(&list)?;
        Ok(list.clone())
    }

    /// The number of this run, and whether it has begun.
    pub(super) fn state(&self) -> i32 {
        self.list.lock().state
    }

    /// The host with an address.
    pub(super) fn find(&self, address: IpAddr) -> Option<Arc<Host>> {
        self.hosts.read().get(&address).cloned()
    }

    /// The host with an address, which has connected to `local`. `None`: there are too many.
    pub(super) fn of_request(&self, address: IpAddr, local: IpAddr, name: &[u8]) -> Option<Arc<Host>> {
        // The address that a datagram was sent to is not known.
        let is_same = |known: &Arc<Host>| known.local == local || local.is_unspecified();
        if let Some(known) = self.find(address).filter(is_same) {
            return Some(known);
        }
        let mut hosts = self.hosts.write();
        if !hosts.contains_key(&address) && hosts.len() >= HOSTS_MAX {
            // Those without monitored locks are not needed.
            hosts.retain(|_, host| host.is_recorded.load(Ordering::Acquire));
            if hosts.len() >= HOSTS_MAX {
                return None;
            }
        }
        let before = hosts.get(&address);
        let flag = |flag: fn(&Host) -> &AtomicBool| {
            AtomicBool::new(before.is_some_and(|before| flag(before).load(Ordering::Acquire)))
        };
        let host = Arc::new(Host {
            local,
            name: name.to_vec(),
            states: before.map(|before| Arc::clone(&before.states)).unwrap_or_default(),
            wants: flag(|before| &before.wants),
            is_recorded: flag(|before| &before.is_recorded),
        });
        hosts.insert(address, Arc::clone(&host));
        Some(host)
    }

    /// Writes a host to the list, unless it is there. Returns whether it is new.
    pub(super) fn record(&self, save: SaveList<'_>, address: IpAddr) -> Result<bool, RecordError> {
        let mut list = self.list.lock();
        let Some(host) = self.find(address) else { return Err(RecordError::TooMany) };
        if host.is_recorded() {
            return Ok(false);
        }
        let recorded = MonitoredHost { local: host.local, name: host.name.clone() };
        let is_new = list.hosts.get(&address) != Some(&recorded);
        if is_new {
            if list.hosts.len() >= HOSTS_MAX && !list.hosts.contains_key(&address) {
                return Err(RecordError::TooMany);
            }
            let mut changed = list.clone();
            changed.hosts.insert(address, recorded);
            save(&changed).map_err(RecordError::State)?;
            *list = changed;
        }
        // It may have been replaced meanwhile by one with another `local`.
        if let Some(host) = self.find(address) {
            host.is_recorded.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Removes hosts that have no locks from the list, and forgets them. Returns the removed ones.
    /// Does not wait until the list is saved.
    pub(super) fn forget(
        &self,
        begin_to_save: impl FnOnce(&MonitoredHosts),
        is_unused: impl Fn(IpAddr) -> bool,
    ) -> Vec<IpAddr> {
        let mut list = self.list.lock();
        let removed: Vec<_> = list.hosts.keys().copied().filter(|address| is_unused(*address)).collect();
        if !removed.is_empty() {
            for address in &removed {
                list.hosts.remove(address);
                self.hosts.write().remove(address);
            }
            begin_to_save(&list);
        }
        removed
    }
}

/// Why a host is not in the list.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("there are {HOSTS_MAX} hosts with locks")]
    TooMany,
    #[error(transparent)]
    State(StateError),
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

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

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
        assert!(!table.record(&|list| state.save_monitored(list), address(1)).unwrap());
        host.wants_monitoring();
        assert!(!host.is_recorded());
        assert!(table.record(&|list| state.save_monitored(list), address(1)).unwrap());
        assert!(!table.record(&|list| state.save_monitored(list), address(1)).unwrap());
        assert!(table.of_request(address(1), LOCAL, b"other").unwrap().is_recorded());
        // Through another address of this server it is called from there.
        let host = table.of_request(address(1), address(9), b"one").unwrap();
        assert!(host.is_recorded() && host.local == address(9));
        let datagram = table.of_request(address(1), "0.0.0.0".parse().unwrap(), b"one").unwrap();
        assert_eq!(datagram.local, address(9));
        drop(state);
        let state = PersistentState::open(directory.path()).unwrap();
        let again = HostTable::default();
        let before = again.begin(&state, 100).unwrap();
        assert_eq!(before.state, 103);
        assert_eq!(before.hosts[&address(1)], MonitoredHost { local: LOCAL, name: b"one".to_vec() });
        let save = |list: &MonitoredHosts| state.save_monitored(list).unwrap();
        assert!(again.forget(save, |_| false).is_empty());
        assert_eq!(again.forget(save, |_| true), [address(1)]);
        assert!(state.monitored().unwrap().unwrap().hosts.is_empty());
    }

    #[test]
    fn there_are_no_more_hosts_than_the_limit_and_unused_ones_make_room() {
        let state = PersistentState::ephemeral().unwrap();
        let table = HostTable::default();
        for number in 0..HOSTS_MAX {
            let host = table.of_request(address(number), LOCAL, b"").unwrap();
            host.wants_monitoring();
            if number > 0 {
                table.record(&|list| state.save_monitored(list), address(number)).unwrap();
            }
        }
        assert!(table.of_request(address(HOSTS_MAX), LOCAL, b"").is_some(), "the first is forgotten");
        assert!(table.find(address(0)).is_none());
        table.find(address(HOSTS_MAX)).unwrap().wants_monitoring();
        table.record(&|list| state.save_monitored(list), address(HOSTS_MAX)).unwrap();
        assert!(table.of_request(address(HOSTS_MAX + 1), LOCAL, b"").is_none());
        assert!(table.record(&|list| state.save_monitored(list), address(HOSTS_MAX + 1)).is_err());
    }
}
