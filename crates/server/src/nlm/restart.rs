//! Restarts: of this server, whose hosts are notified and reclaim their locks, and of hosts, whose
//! locks are freed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use curt_observe::ServerCounter;

use super::host_states::HostLockKey;
use super::{HostCallbacks, LockPeers};
use crate::service::{NfsService, NfsServiceError};
use crate::state::locks::{LockClient, LockFile, LockOwner};

/// How locks are served.
pub struct LockServing {
    /// Makes calls to other hosts.
    pub peers: Arc<dyn LockPeers>,
    /// This host's name.
    pub host_name: Vec<u8>,
    /// How long only reclaims are granted, if hosts had locks when the last run ended.
    pub grace: Duration,
}

/// A host that had locks when the last run ended, to be notified of the restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostToNotify {
    /// Its address.
    pub address: IpAddr,
    /// The addresses of this host that its requests came to: it is notified from each, because it
    /// knows a server by its address. None if they are not known.
    pub locals: Vec<IpAddr>,
}

/// The notices of a server that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartNotices {
    /// The hosts to be notified.
    pub hosts: Vec<HostToNotify>,
    /// The state number of this run.
    pub state: i32,
}

impl NfsService {
    /// Serves NLM and NSM from now on. Called once, before requests. Returns which hosts are to be
    /// notified; without any there is no grace period.
    ///
    /// # Errors
    /// The list of hosts cannot be read or written, or a thread cannot be started.
    pub fn serve_locks(&self, serving: LockServing) -> Result<RestartNotices, NfsServiceError> {
        let manager = &self.lock_manager;
        let since = self.clock.wall_clock().duration_since(SystemTime::UNIX_EPOCH);
        let list = manager.hosts.begin(&self.state, since.unwrap_or_default().as_secs())?;
        let hosts = list.hosts.into_iter();
        let hosts: Vec<_> =
            hosts.map(|(address, host)| HostToNotify { address, locals: host.locals }).collect();
        if !hosts.is_empty() {
            self.held.grace.begin_for_others(self.uptime() + serving.grace);
        }
        let is_first = manager.serving.set(serving).is_ok();
        debug_assert!(is_first, "locks are served once");
        let callbacks = HostCallbacks { manager: Arc::clone(manager), state: Arc::clone(&self.state) };
        self.locks.serve_hosts(Arc::new(callbacks));
        self.locks.start(self.clock.clone()).map_err(NfsServiceError::LockThread)?;
        Ok(RestartNotices { hosts, state: list.state })
    }

    /// A host has restarted, as its monitor reports: it has no locks and reservations any more, but
    /// those that were requested with the new state number. Ignored if it has said so before, with
    /// the same number.
    pub fn host_restarted(&self, host: IpAddr, state: i32) {
        self.lock_manager.deferred.end_all_of(host);
        // It is unknown if it had no locks since this server's start.
        let Some(known) = self.lock_manager.hosts.find(host) else { return };
        if known.states.begin_restart(state) {
            tracing::info!(%host, state, "the host has restarted: its locks become free");
            self.counters.count(ServerCounter::LockHostsRestarted);
            self.lock_manager.shares.lock().release_host(&self.held.shares, host, Some(state));
            let precedes_restart = |file: &LockFile, owner: &LockOwner<'_>| {
                let LockOwner { process, name, .. } = *owner;
                known.states.precedes_restart(state, HostLockKey { file, process, name })
            };
            self.locks.release_owners(LockClient::Host(host), &precedes_restart, self.clock.now());
            self.end_without_shares(host);
            if !known.states.end_restart(state) {
                tracing::warn!(%host, "locks from before the restart stay: the host has locked too much since");
            }
        }
    }

    /// Begins to remove hosts that had locks in an earlier run, and have had none in this one, from
    /// the list of those that a restarted server notifies. To be called after the grace period,
    /// when all have been notified as far as possible.
    pub fn forget_hosts_without_locks(&self) {
        let manager = &self.lock_manager;
        manager.hosts.forget_last_run();
        manager.update_list(&self.state);
    }
}
