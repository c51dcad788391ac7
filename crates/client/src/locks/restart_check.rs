//! Checks whether the lock manager was restarted: while there are locks, and after notices.

use std::sync::{Arc, Weak, atomic::Ordering};

use curt_rpc::auth::RpcCredential;

use super::{MountLocks, senders::RequestKind};
use crate::protocol::RpcCaller;

impl MountLocks {
    /// Schedules a check for a restart of the lock manager, unless it is noticed without that.
    pub(super) fn schedule_restart_check(&self) -> bool {
        let Some(interval) = self.core.protocol.lock_server_interval() else { return false };
        let this = Weak::clone(&self.this);
        let check = move || {
            let Some(locks) = this.upgrade() else { return };
            let threads = Arc::clone(&locks.senders(RequestKind::Lock).threads);
            threads.spawn(Box::new(move || locks.check_for_restart()));
        };
        self.timers.spawn_after(interval, Box::new(check));
        true
    }

    /// Reclaims the locks if the server may have been restarted.
    pub(super) fn check_for_restart(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.files.len() == 0 || self.stop.is_raised() {
                state.is_check_scheduled = false;
                return;
            }
        }
        self.reclaim_after_restart();
        self.schedule_restart_check();
    }

    /// Reclaims the locks if the connection to the lock manager was lost. Returns whether it was.
    pub(super) fn reclaim_after_restart(self: &Arc<Self>) -> bool {
        let caller = RpcCaller { credential: &RpcCredential::None, interrupt: &self.stop };
        let is_lost = self.core.protocol.has_lost_lock_connection(caller) && !self.stop.is_raised();
        if is_lost {
            let effects = self.event(|state, _| state.agent.server_restarted(self.next_request()));
            self.perform_on(Some(RequestKind::Lock), effects);
        }
        is_lost
    }

    /// Looks at the server until no notice has come since the last look: anybody who can forge the
    /// server's address can send notices.
    pub(super) fn check_restart_notices(self: &Arc<Self>) {
        let mut seen = self.restart_notices.load(Ordering::Acquire);
        while !self.stop.is_raised() {
            if !self.reclaim_after_restart() {
                tracing::info!(
                    "a notice that the server restarted is ignored: the connection was not lost since the last one"
                );
            }
            match self.restart_notices.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }
}
