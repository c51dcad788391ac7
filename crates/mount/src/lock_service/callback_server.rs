//! The service that servers call, registered with this machine's portmapper, and the monitor that
//! reports restarted servers.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread;

use curt_proto::nsm::{self, MonArguments, MonResult, MonitorCallback, MonitorId, NsmProcedure};
use curt_proto::{nlm4, portmap};
use curt_rpc::message::ProcedureId;
use curt_rpc::server::{DatagramServer, DatagramServerHandle, Limits, RpcServer, RpcServerHandle};
use curt_xdr::Opaque;
use tracing::{debug, warn};

use super::host_service::HostLockService;
use super::programs::{CallbackPrograms, MONITOR_CALLBACK, may_wait, record_of};
use super::registration::{self, LocalPortmapper};

/// Servers call seldom, and any host can connect.
const LIMITS: (usize, usize, usize) = (64, 8, 4);

/// The ports at which a server serves the programs.
#[derive(Clone, Copy, Debug)]
pub struct ServerPorts {
    /// NLM over TCP and UDP.
    pub nlm: [u16; 2],
    /// NSM over TCP.
    pub nsm: u16,
}

/// The registered programs.
pub(super) struct NlmCallbackServer {
    portmapper: LocalPortmapper,
    ports: [u16; 2],
    own_monitor: u16,
    /// `None`: a server serves and registers them.
    servers: Option<(RpcServerHandle, DatagramServerHandle)>,
    monitor: Option<SystemMonitor>,
}

/// The system's status monitor (rpc.statd), at a port. It calls procedure 16 of the lock manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMonitor(pub(super) u16);

impl NlmCallbackServer {
    /// Serves and registers the programs. `None` if servers cannot call them.
    pub(super) fn start(service: &Arc<HostLockService>) -> Option<Self> {
        let portmapper = LocalPortmapper::find()?;
        // One that cannot register opens no ports each time.
        if portmapper.is_served(nlm4::PROGRAM, nlm4::VERSION) {
            return None;
        }
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        let ports = [listener.local_addr().ok()?.port(), socket.local_addr().ok()?.port()];
        let [tcp, udp] = CallbackPrograms::for_both_transports(service).ok()?.map(Arc::new);
        let (connections, threads, threads_per_client) = LIMITS;
        let limits = Limits { connections, threads, threads_per_client, ..Limits::default() };
        let server = RpcServer::new(vec![listener], tcp, limits).ok()?;
        let datagrams = DatagramServer::new(socket, udp, may_wait).ok()?;
        let servers = Some((server.handle(), datagrams.handle()));
        let mut started = Self { portmapper, ports, own_monitor: ports[0], servers, monitor: None };
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

    /// The programs of a server. `None` if they are not registered, and other hosts cannot call it.
    pub(super) fn of_server(ports: ServerPorts) -> Option<Self> {
        let ServerPorts { nlm: ports, nsm: own_monitor } = ports;
        let portmapper = LocalPortmapper::find()?;
        let is_registered = portmapper.is_registered_at(nlm4::PROGRAM, nlm4::VERSION, ports);
        let monitor = SystemMonitor::find_other_than(&portmapper, own_monitor);
        is_registered.then_some(Self { portmapper, ports, own_monitor, servers: None, monitor })
    }

    fn register(&mut self) -> bool {
        self.portmapper.register(nlm4::PROGRAM, nlm4::VERSION, self.ports) && self.keep_monitor()
    }

    /// Whether servers can call the programs. Registers them anew if the portmapper has forgotten
    /// them, and finds the monitor that has been started or has ended meanwhile.
    pub(super) fn keep_registered(&mut self) -> bool {
        if self.servers.is_none() {
            self.monitor = SystemMonitor::find_other_than(&self.portmapper, self.own_monitor);
            return self.portmapper.is_registered_at(nlm4::PROGRAM, nlm4::VERSION, self.ports);
        }
        self.keep(nlm4::PROGRAM, nlm4::VERSION) && self.keep_monitor()
    }

    fn keep(&self, program: u32, version: u32) -> bool {
        self.portmapper.is_registered_at(program, version, self.ports)
            || self.portmapper.register(program, version, self.ports)
    }

    /// Is the host's monitor, or finds the system's. Whether there is one.
    fn keep_monitor(&mut self) -> bool {
        if self.keep(nsm::PROGRAM, nsm::VERSION) {
            self.monitor = None;
            return true;
        }
        let port = self.portmapper.port(nsm::PROGRAM, nsm::VERSION, portmap::PROTOCOL_TCP);
        self.monitor = port.map(SystemMonitor);
        self.monitor.is_some()
    }

    /// Whether this service is the host's monitor.
    pub(super) const fn is_monitor(&self) -> bool {
        self.monitor.is_none()
    }

    pub(super) const fn system_monitor(&self) -> Option<SystemMonitor> {
        self.monitor
    }

    pub(super) fn end(self) {
        let Some((server, datagrams)) = self.servers else { return };
        self.portmapper.unregister(nlm4::PROGRAM, nlm4::VERSION, self.ports);
        self.portmapper.unregister(nsm::PROGRAM, nsm::VERSION, self.ports);
        server.shutdown();
        datagrams.shutdown();
    }
}

impl SystemMonitor {
    /// The monitor of this host, unless it is the one at this port of TCP.
    #[must_use]
    pub fn find(own: u16) -> Option<Self> {
        Self::find_other_than(&LocalPortmapper::find()?, own)
    }

    fn find_other_than(portmapper: &LocalPortmapper, own: u16) -> Option<Self> {
        let port = portmapper.port(nsm::PROGRAM, nsm::VERSION, portmap::PROTOCOL_TCP);
        // What a server left that was killed has no socket.
        let port = port.filter(|port| *port != own && registration::connect(*port).is_ok());
        port.map(Self)
    }

    /// Has a host watched, or not any more. Returns whether it is done.
    #[must_use]
    pub fn watch(self, host: IpAddr, is_watched: bool) -> bool {
        if is_watched {
            return self.monitor(host).is_some();
        }
        let name = host.to_string();
        let unwatched = registration::connect(self.0).and_then(|transport| {
            let id = monitored(&name);
            registration::call::<nsm::MonitorState>(&transport, target(NsmProcedure::Unmon), &id)
        });
        unwatched
            .inspect_err(|error| debug!(%host, %error, "the status monitor still watches the host"))
            .is_ok()
    }

    /// Has a host watched. Returns the monitor's state number, with which it notifies that host of
    /// a restart.
    pub(super) fn monitor(self, host: IpAddr) -> Option<i32> {
        let name = host.to_string();
        let arguments = MonArguments { id: monitored(&name), private: record_of(host) };
        let told = registration::connect(self.0).and_then(|transport| {
            registration::call::<MonResult>(&transport, target(NsmProcedure::Mon), &arguments)
        });
        match told {
            Ok(MonResult { result: nsm::MonitorResult::Success, state }) => return Some(state),
            Ok(_) => {
                warn!(%host, "the status monitor does not watch the host: its restart goes unnoticed");
            }
            Err(error) => {
                warn!(%host, %error, "no status monitor watches the host: its restart goes unnoticed");
            }
        }
        None
    }
}

/// A host that is watched, by its name for the monitor, and the call of who wants to know.
fn monitored(name: &str) -> MonitorId<'_> {
    let callback = MonitorCallback {
        name: Opaque::new(b"localhost").unwrap_or_default(),
        program: nlm4::PROGRAM,
        version: nlm4::VERSION,
        procedure: MONITOR_CALLBACK,
    };
    MonitorId { name: Opaque::new(name.as_bytes()).unwrap_or_default(), callback }
}

const fn target(procedure: NsmProcedure) -> ProcedureId {
    ProcedureId { program: nsm::PROGRAM, version: nsm::VERSION, procedure: procedure.number() }
}
