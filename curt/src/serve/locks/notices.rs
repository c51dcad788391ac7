//! Notices to hosts that had locks when the server ended (SM_NOTIFY): they reclaim them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use curt_mount::lock_service::{CallbackReceiver as _, ServerLockService};
use curt_proto::nsm::{self, NsmProcedure, StateChange};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, CallTarget, LocalAddress};
use curt_server::{HostToNotify, NfsService, RestartNotices};
use curt_xdr::Opaque;
use parking_lot::Mutex;

use super::peers::is_here;
use super::ports::{Peer, Program, Protocol};

/// Hosts that are notified at the same time.
const THREADS_MAX: usize = 8;

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The first pause before another attempt; each is twice the last one.
const RETRY: Duration = Duration::from_secs(1);

/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How long a host is tried to be notified, as by sm-notify(8).
const GIVE_UP_AFTER: Duration = Duration::from_secs(15 * 60);

const NSM: Program = Program { number: nsm::PROGRAM, version: nsm::VERSION };

/// What the notices need.
pub(super) struct Notices {
    pub(super) service: Arc<NfsService>,
    pub(super) mounts: Option<Arc<ServerLockService>>,
    pub(super) host_name: Vec<u8>,
    pub(super) grace: Duration,
}

/// A host, and when it is tried next.
struct Attempt {
    host: HostToNotify,
    at: Instant,
    pause: Duration,
}

impl Notices {
    /// Starts the threads that notify the hosts.
    pub(super) fn send(self, notices: &RestartNotices) -> io::Result<()> {
        if notices.hosts.is_empty() {
            return Ok(());
        }
        let (begun, grace) = (Instant::now(), self.grace);
        let (state, hosts) = (notices.state, notices.hosts.clone());
        let run = move || {
            let first = |host| Attempt { host, at: begun, pause: RETRY };
            let attempts: VecDeque<_> = hosts.into_iter().map(first).collect();
            let threads = attempts.len().min(THREADS_MAX);
            let attempts = Mutex::new(attempts);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| self.work(&attempts, begun, state));
                }
            });
            thread::sleep((begun + grace).saturating_duration_since(Instant::now()));
            self.service.forget_hosts_without_locks();
        };
        let end_of_grace = move || {
            thread::sleep(grace);
            tracing::info!("the grace period for locks is over");
        };
        thread::Builder::new().name("curt-lock-grace".into()).spawn(end_of_grace)?;
        thread::Builder::new().name("curt-lock-notices".into()).spawn(run).map(drop)
    }

    fn work(&self, attempts: &Mutex<VecDeque<Attempt>>, begun: Instant, state: i32) {
        loop {
            let next = attempts.lock().pop_front();
            let Some(Attempt { host, at, pause }) = next else { return };
            thread::sleep(at.saturating_duration_since(Instant::now()));
            match self.notify(&host, state) {
                Ok(()) => tracing::info!(host = %host.address, "notified of the restart"),
                Err(error) if begun.elapsed() >= GIVE_UP_AFTER => {
                    tracing::warn!(host = %host.address, %error, "not notified of the restart: its locks are lost");
                }
                Err(error) => {
                    tracing::debug!(host = %host.address, %error, "not notified yet of the restart");
                    let (at, pause) = (Instant::now() + pause, (pause * 2).min(RETRY_MAX));
                    attempts.lock().push_back(Attempt { host, at, pause });
                }
            }
        }
    }

    fn notify(&self, host: &HostToNotify, state: i32) -> Result<(), CallError> {
        // Mounts that are not there yet are told when they join.
        if let Some(mounts) = self.mounts.as_ref().filter(|_| is_here(host.address, Some(host.local))) {
            mounts.restarted(host.local, state);
            return Ok(());
        }
        let local =
            LocalAddress { ip: Some(host.local), is_port_reserved: rustix::process::geteuid().is_root() };
        let peer = Peer { address: host.address, local };
        let change = StateChange { name: Opaque::new(&self.host_name).unwrap_or_default(), state };
        let target = CallTarget {
            program: nsm::PROGRAM,
            version: nsm::VERSION,
            procedure: NsmProcedure::Notify.number(),
        };
        let mut calls = peer.connect(NSM, [Protocol::Udp, Protocol::Tcp])?;
        calls.call(target, &RpcCredential::None, &change, TIMEOUT).map(drop)
    }
}
