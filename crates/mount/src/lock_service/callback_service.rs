//! The service that servers call, registered with this machine's portmapper, and the monitor that
//! tells of restarted servers.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread;

use curt_proto::nsm::{self, MonArguments, MonResult, MonitorCallback, MonitorId, NsmProcedure};
use curt_proto::{nlm4, portmap};
use curt_rpc::server::{DatagramServer, DatagramServerHandle, Limits, RpcServer, RpcServerHandle};
use curt_xdr::Opaque;
use tracing::warn;

use super::granted_results;
use super::membership::LockService;
use super::programs::{CallbackPrograms, MONITOR_CALLBACK, record_of};
use super::registration::{self, LocalPortmapper};

/// Servers call seldom, and anybody can connect.
const LIMITS: (usize, usize, usize) = (64, 8, 4);

/// The registered programs.
pub(super) struct CallbackService {
    portmapper: LocalPortmapper,
    ports: [u16; 2],
    server: RpcServerHandle,
    datagrams: DatagramServerHandle,
    monitor: Option<SystemMonitor>,
}

/// The system's status monitor, at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemMonitor(u16);

impl CallbackService {
    /// Serves and registers the programs. `None` if servers cannot call them.
    pub(super) fn start(service: &Arc<LockService>) -> Option<Self> {
        let portmapper = LocalPortmapper::find()?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        let ports = [listener.local_addr().ok()?.port(), socket.local_addr().ok()?.port()];
        let results = granted_results::start().ok()?;
        let programs = |is_udp| {
            let receiver = Arc::clone(service);
            Arc::new(CallbackPrograms { receiver, is_udp, results: results.clone() })
        };
        let (connections, threads, threads_per_client) = LIMITS;
        let limits = Limits { connections, threads, threads_per_client, ..Limits::default() };
        let server = RpcServer::new(vec![listener], programs(false), limits).ok()?;
        let datagrams = DatagramServer::new(socket, programs(true)).ok()?;
        let mut started =
            Self { portmapper, ports, server: server.handle(), datagrams: datagrams.handle(), monitor: None };
        thread::Builder::new().name("curt-locks-tcp".into()).spawn(move || server.run()).ok()?;
        let serve_datagrams = move || {
            if let Err(error) = datagrams.run() {
                warn!(%error, "calls of servers over UDP are not received any more");
            }
        };
        let spawned = thread::Builder::new().name("curt-locks-udp".into()).spawn(serve_datagrams);
        if spawned.is_err() || !started.register() {
            started.end();
            return None;
        }
        Some(started)
    }

    fn register(&mut self) -> bool {
        if !self.portmapper.register(nlm4::PROGRAM, nlm4::VERSION, self.ports) {
            return false;
        }
        if self.portmapper.register(nsm::PROGRAM, nsm::VERSION, self.ports) {
            return true;
        }
        let port = self.portmapper.port(nsm::PROGRAM, nsm::VERSION, portmap::PROTOCOL_TCP);
        self.monitor = port.map(SystemMonitor);
        self.monitor.is_some()
    }

    /// Whether servers can call the lock manager. Registers it anew if the portmapper has forgotten
    /// it.
    pub(super) fn keep_registered(&self) -> bool {
        let (program, version) = (nlm4::PROGRAM, nlm4::VERSION);
        self.portmapper.is_registered_at(program, version, self.ports)
            || self.portmapper.register(program, version, self.ports)
    }

    /// Whether this service is the host's monitor.
    pub(super) const fn is_monitor(&self) -> bool {
        self.monitor.is_none()
    }

    pub(super) const fn system_monitor(&self) -> Option<SystemMonitor> {
        self.monitor
    }

    pub(super) fn end(self) {
        self.portmapper.unregister(nlm4::PROGRAM, nlm4::VERSION, self.ports);
        self.portmapper.unregister(nsm::PROGRAM, nsm::VERSION, self.ports);
        self.server.shutdown();
        self.datagrams.shutdown();
    }
}

impl SystemMonitor {
    /// Has a server watched.
    pub(super) fn watch(self, server: IpAddr) {
        let name = server.to_string();
        let text = |text: &'static str| Opaque::new(text.as_bytes()).unwrap_or_default();
        let callback = MonitorCallback {
            name: text("localhost"),
            program: nlm4::PROGRAM,
            version: nlm4::VERSION,
            procedure: MONITOR_CALLBACK,
        };
        let id = MonitorId { name: Opaque::new(name.as_bytes()).unwrap_or_default(), callback };
        let arguments = MonArguments { id, private: record_of(server) };
        let target = (nsm::PROGRAM, nsm::VERSION, NsmProcedure::Mon.number());
        let told = registration::connect(self.0)
            .and_then(|transport| registration::call::<MonResult>(&transport, target, &arguments));
        match told {
            Ok(MonResult { result: nsm::MonitorResult::Success, .. }) => {}
            Ok(_) => {
                warn!(%server, "the status monitor does not watch the server: its restart goes unnoticed")
            }
            Err(error) => {
                warn!(%server, %error, "no status monitor watches the server: its restart goes unnoticed");
            }
        }
    }
}
