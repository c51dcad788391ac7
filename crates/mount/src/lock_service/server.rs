//! The lock service in the process of a server, which serves the programs of its host itself.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::callback_server::ServerPorts;
use super::host_service::{HostLockService, ServiceOwner, ServicePaths, ServingNfsServer};
use super::programs::{CallbackReceiver, Grant, GrantReply};

/// The pause between attempts, shorter than those of mounts that would take over.
const RETRY: Duration = Duration::from_millis(5);

/// Attempts before another server is taken for the owner: 5 s.
const YIELD_ATTEMPTS: u32 = 1000;

/// Attempts between two requests to a mount to give up.
const ATTEMPTS_PER_REQUEST: u32 = 100;

/// The lock service of a server.
pub struct ServerLockService {
    service: Arc<HostLockService>,
    owner_ends: ServicePaths,
    _right: File,
}

impl ServerLockService {
    /// Takes over the service of this network namespace. `None`: another server has it.
    ///
    /// `restarted`: the addresses of this host at which clients on this host had locks when the
    /// server ended.
    ///
    /// # Errors
    /// The directory of the service cannot be used; there is no thread.
    pub fn claim(restarted: Vec<IpAddr>) -> io::Result<Option<Self>> {
        let place = ServicePaths::here();
        let mut attempts = 0..YIELD_ATTEMPTS;
        let right = loop {
            if let Some(right) = place.claim()? {
                break right;
            }
            match attempts.next() {
                None => return Ok(None),
                // On an error it may have ended just now.
                Some(attempt)
                    if attempt % ATTEMPTS_PER_REQUEST == 0 && place.request_handover().unwrap_or(false) =>
                {
                    return Ok(None);
                }
                Some(_) => {}
            }
            thread::sleep(RETRY);
        };
        let listener = place.listen()?;
        let owner = ServingNfsServer { restarted, has_ended: AtomicBool::new(false) };
        let service = HostLockService::start(ServiceOwner::Server(owner));
        let accepting = Arc::clone(&service);
        let accept = move || {
            if let Err(error) = accepting.accept(&listener) {
                warn!(%error, "mounts cannot join the lock service any more: their locks are polled for");
            }
        };
        thread::Builder::new().name("curt-locks".into()).spawn(accept)?;
        Ok(Some(Self { service, owner_ends: place, _right: right }))
    }

    /// Serves mounts. `ports`: where the programs are served that are registered now or later;
    /// `None`: they never are.
    pub fn serve(&self, ports: Option<ServerPorts>) {
        self.service.serve_callbacks(ports);
    }

    /// Ends the service: a mount takes over.
    pub fn end(&self) {
        if let ServiceOwner::Server(owner) = self.service.owner() {
            owner.has_ended.store(true, Relaxed);
        }
        self.owner_ends.wake();
        self.service.end();
    }
}

impl CallbackReceiver for ServerLockService {
    fn granted(&self, server: IpAddr, grant: &Grant) -> GrantReply {
        self.service.granted(server, grant)
    }

    fn restarted(&self, host: IpAddr, state: i32) {
        self.service.restarted(host, state);
    }

    fn is_monitor(&self) -> bool {
        self.service.is_monitor()
    }

    fn state(&self) -> i32 {
        self.service.state()
    }
}
