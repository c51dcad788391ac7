//! What the lock managers of one network namespace share: the numbers of owners (`svid`), and the
//! services that servers call.

mod callback_server;
mod granted_results;
mod host_service;
mod host_state;
mod programs;
mod record;
mod registered_mount;
mod registration;
mod server;

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use curt_client::protocol::v3::nlm::{LockReadiness, NlmHost};
use curt_client::protocol::{LockEvents, WireLock, WireOwner};
use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;
use parking_lot::Mutex;
use tracing::warn;

pub use callback_server::{NotWatched, ServerPorts, SystemMonitor};
pub use programs::{
    CallbackPrograms, CallbackReceiver, Grant, GrantReply, MONITOR_CALLBACK, PORT_RESERVED, may_wait,
};
pub use server::ServerLockService;

use host_service::ServicePaths;
use host_state::HostState;
use record::{LockRecord, RecordedServer};
use registered_mount::RegisteredMount;

use crate::options::{CallbackPorts, LockSettings};

/// How long the first lock waits for the service. It goes on without, unless a notice of this
/// host's restart might follow it to the server.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of a mount in what lock managers share.
#[derive(Debug)]
pub(crate) struct LockHost {
    /// The addresses of the server's name, which it may call from.
    others: Vec<IpAddr>,
    lock_port: Option<u16>,
    callback_ports: CallbackPorts,
    events: Mutex<Option<Weak<dyn LockEvents>>>,
    /// Made with the first lock: most mounts never lock.
    joined: OnceLock<LockServiceRegistration>,
    joining: Mutex<()>,
}

/// The numbers of a mount that locks, and its part in the service.
#[derive(Debug)]
struct LockServiceRegistration {
    record: LockRecord,
    mount: Arc<RegisteredMount>,
}

impl LockHost {
    /// A mount of a server whose name has these addresses.
    pub(crate) fn new(others: Vec<IpAddr>, settings: LockSettings) -> Arc<Self> {
        if record::directory().read_dir().is_ok_and(|mut records| records.next().is_some()) {
            record::begin_to_unlock_abandoned();
        }
        Arc::new(Self {
            others,
            lock_port: settings.lock_port,
            callback_ports: settings.callback_ports,
            events: Mutex::default(),
            joined: OnceLock::new(),
            joining: Mutex::default(),
        })
    }

    /// Reserves numbers, and joins the service of this network namespace.
    fn join(&self, server: IpAddr) -> std::io::Result<LockServiceRegistration> {
        let recorded = RecordedServer { address: server, port: self.lock_port };
        let record = LockRecord::reserve(&record::directory(), recorded)?;
        let mut servers = vec![server];
        servers.extend(self.others.iter().filter(|other| **other != server));
        let mut mount = RegisteredMount::new(record.first_svid(), servers);
        mount.callback_ports = self.callback_ports;
        *mount.events.lock() = self.events.lock().clone();
        let mount = Arc::new(mount);
        let (kept, (joined, decided)) = (Arc::downgrade(&mount), mpsc::channel());
        let keep = move || host_service::keep(&kept, &joined);
        match thread::Builder::new().name("curt-locks".into()).spawn(keep) {
            // Without the service locks of other machines are polled for.
            Ok(_) => drop(decided.recv_timeout(JOIN_TIMEOUT)),
            Err(error) => warn!(%error, "no thread for the lock service"),
        }
        Ok(LockServiceRegistration { record, mount })
    }

    fn with<T>(&self, use_it: impl FnOnce(&LockServiceRegistration) -> T) -> Option<T> {
        self.joined.get().map(use_it)
    }
}

impl NlmHost for LockHost {
    fn prepare(&self, server: IpAddr) -> LockReadiness {
        if self.joined.get().is_none() {
            let _joining = self.joining.lock();
            if self.joined.get().is_none() {
                match self.join(server) {
                    Ok(host) => drop(self.joined.set(host)),
                    Err(error) => {
                        warn!(%error, "no numbers for lock owners: locks fail with ENOLCK");
                        return LockReadiness::Impossible;
                    }
                }
            }
        }
        let is_registered = self.with(|host| host.mount.is_registered.load(Relaxed)).unwrap_or(false);
        let servers = self.others.iter().copied().chain([server]);
        if is_registered || !HostState::may_be_notified(servers) {
            return LockReadiness::Ready;
        }
        LockReadiness::NotYet
    }

    fn first_svid(&self) -> i32 {
        self.with(|host| host.record.first_svid()).unwrap_or(0)
    }

    fn can_be_called(&self) -> bool {
        // A hint: without callbacks the server is asked again.
        self.with(|host| host.mount.can_be_called.load(Relaxed)).unwrap_or(false)
    }

    fn nsm_state(&self) -> i32 {
        self.with(|host| host.mount.state.load(Relaxed)).unwrap_or(0)
    }

    fn note_lock(&self, file: &FileHandle, owner: WireOwner, credential: &RpcCredential) {
        self.with(|host| host.record.note(file, owner, credential));
    }

    fn note_blocked(&self, file: &FileHandle, lock: &WireLock) {
        self.with(|host| host.record.note_blocked(file, lock));
    }

    fn forget_file(&self, file: &FileHandle) {
        self.with(|host| host.record.forget_file(file));
    }

    fn forget_owners(&self, owners: &[WireOwner]) {
        self.with(|host| host.record.forget_owners(owners));
    }

    fn report(&self, events: Weak<dyn LockEvents>) {
        *self.events.lock() = Some(events);
    }
}

impl Drop for LockHost {
    fn drop(&mut self) {
        if let Some(host) = self.joined.get_mut() {
            host.mount.end();
            ServicePaths::here().wake();
        }
    }
}
