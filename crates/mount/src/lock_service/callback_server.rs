//! The service that servers call, registered with this machine's portmapper, and the monitor that
//! reports restarted servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use curt_proto::nsm::{self, MonArguments, MonResult, MonitorCallback, MonitorId, NsmProcedure};
use curt_proto::{nlm4, portmap};
use curt_rpc::message::ProcedureId;
use curt_rpc::server::{
    DatagramServer, DatagramServerHandle, Limits, RpcServer, RpcServerHandle, RpcService,
};
use curt_xdr::Opaque;
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::host_service::HostLockService;
use super::programs::{CallbackPrograms, MONITOR_CALLBACK, may_wait, record_of};
use super::registration::{self, LocalPortmapper};
use crate::options::CallbackPorts;

/// The limits of connections and threads. Servers call seldom, and any host can connect.
const CONNECTIONS_MAX: usize = 64;
const THREADS_MAX: usize = 8;
const THREADS_PER_CLIENT_MAX: usize = 4;

/// How long after [`NotServed::Refused`] no other attempt to serve the programs is made.
const REFUSED_INTERVAL: Duration = Duration::from_secs(300);

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
    /// The ports of NSM, which may be the same; `None`: the one of `statdport=` is not free.
    monitor_ports: Option<[u16; 2]>,
    /// A server serves and registers them.
    is_of_server: bool,
    servers: Option<(RpcServerHandle, Vec<DatagramServerHandle>)>,
    monitor: Option<SystemMonitor>,
}

/// The sockets of a program.
struct ProgramSockets {
    tcp: TcpListener,
    udp: UdpSocket,
    ports: [u16; 2],
}

/// Why a status monitor does not watch a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWatched {
    /// The status monitor refuses that host.
    Refused,
    /// The status monitor does not answer.
    Unreachable,
}

/// Why the programs are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotServed {
    /// There is no portmapper, or another lock manager is registered.
    NotHere,
    /// The port that an option gives is not free. A mount that served the programs before, and
    /// completes its last calls, frees it soon.
    PortInUse(&'static str, u16),
    /// The portmapper registers nothing for this process, or a socket or thread is missing.
    Refused,
}

/// Why and when the programs were not served, if the last attempt failed.
#[derive(Default)]
pub(super) struct LastFailure(Mutex<Option<(NotServed, Instant)>>);

/// The system's status monitor (rpc.statd), at a port. It calls procedure 16 of the lock manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMonitor(pub(super) u16);

impl LastFailure {
    /// Calls `start`, which opens ports, unless the programs were [`NotServed::Refused`] a short
    /// time ago, as by a portmapper that registers programs for root only. Each of these attempts
    /// would write to the log.
    pub(super) fn unless_refused<T>(&self, start: impl FnOnce() -> Result<T, NotServed>) -> Option<T> {
        let mut last = self.0.lock();
        let before = last.map(|(why, _)| why);
        let is_recent = last.is_some_and(|(_, at)| at.elapsed() < REFUSED_INTERVAL);
        if before == Some(NotServed::Refused) && is_recent {
            return None;
        }
        let started = start();
        let why = started.as_ref().err().copied();
        if let Some(NotServed::PortInUse(option, port)) = why
            && why != before
        {
            warn!("servers cannot call {option}={port} yet: the port is not free");
        }
        *last = why.map(|why| (why, Instant::now()));
        started.ok()
    }
}

impl ProgramSockets {
    /// Binds them to the port that an option gives, or else to any.
    fn bind(port: Option<u16>) -> io::Result<Self> {
        let address = (Ipv4Addr::UNSPECIFIED, port.unwrap_or(0));
        let (tcp, udp) = (TcpListener::bind(address)?, UdpSocket::bind(address)?);
        let ports = [tcp.local_addr()?.port(), udp.local_addr()?.port()];
        Ok(Self { tcp, udp, ports })
    }
}

/// Why programs without sockets are not served.
fn not_bound(option: &'static str, port: Option<u16>, error: &io::Error) -> NotServed {
    match port {
        Some(port) if error.kind() == io::ErrorKind::AddrInUse => return NotServed::PortInUse(option, port),
        Some(port) => warn!(%error, "servers cannot call {option}={port}"),
        None => warn!(%error, "servers cannot call: no port"),
    }
    NotServed::Refused
}

impl NlmCallbackServer {
    /// Registers the programs and serves them.
    pub(super) fn start(service: &Arc<HostLockService>, wanted: CallbackPorts) -> Result<Self, NotServed> {
        let portmapper = LocalPortmapper::find().ok_or(NotServed::NotHere)?;
        if portmapper.is_served(nlm4::PROGRAM, nlm4::VERSION) {
            return Err(NotServed::NotHere);
        }
        Self::start_at(portmapper, service, wanted)
    }

    pub(super) fn start_at(
        portmapper: LocalPortmapper,
        service: &Arc<HostLockService>,
        wanted: CallbackPorts,
    ) -> Result<Self, NotServed> {
        let CallbackPorts { lock_manager, status_monitor } = wanted;
        let lock_sockets = ProgramSockets::bind(lock_manager)
            .map_err(|error| not_bound("lockcallbackport", lock_manager, &error))?;
        let ports = lock_sockets.ports;
        let (mut sockets, mut unbound) = (vec![lock_sockets], None);
        let monitor_ports = if status_monitor.is_none() || status_monitor == lock_manager {
            Some(ports)
        } else {
            let own = ProgramSockets::bind(status_monitor);
            sockets.extend(own.map_err(|error| unbound = Some(error)));
            sockets.get(1).map(|own| own.ports)
        };
        let (is_of_server, servers, monitor) = (false, None, None);
        // Calls wait at the sockets until they are served.
        let mut started = Self { portmapper, ports, monitor_ports, is_of_server, servers, monitor };
        let failed = if !started.portmapper.register(nlm4::PROGRAM, nlm4::VERSION, ports) {
            Some(NotServed::Refused)
        } else if !started.keep_monitor() {
            // If the system's monitor has the port, it is found.
            Some(unbound.map_or(NotServed::Refused, |error| not_bound("statdport", status_monitor, &error)))
        } else {
            started.serve(sockets, service).is_none().then_some(NotServed::Refused)
        };
        let Some(failed) = failed else { return Ok(started) };
        started.end();
        Err(failed)
    }

    /// Begins to serve the programs. `None`: a socket or thread is missing.
    fn serve(&mut self, sockets: Vec<ProgramSockets>, service: &Arc<HostLockService>) -> Option<()> {
        let [tcp, udp] = CallbackPrograms::for_both_transports(service).ok()?;
        let (tcp, udp): (Arc<dyn RpcService>, Arc<dyn RpcService>) = (Arc::new(tcp), Arc::new(udp));
        let limits = Limits {
            connections: CONNECTIONS_MAX,
            threads: THREADS_MAX,
            threads_per_client: THREADS_PER_CLIENT_MAX,
            ..Limits::default()
        };
        let (listeners, sockets): (Vec<_>, Vec<_>) =
            sockets.into_iter().map(|sockets| (sockets.tcp, sockets.udp)).unzip();
        let server = RpcServer::new(listeners, tcp, limits).ok()?;
        let datagrams =
            sockets.into_iter().map(|socket| DatagramServer::new(socket, Arc::clone(&udp), may_wait));
        let datagrams = datagrams.collect::<Result<Vec<_>, _>>().ok()?;
        self.servers = Some((server.handle(), datagrams.iter().map(DatagramServer::handle).collect()));
        thread::Builder::new().name("curt-locks-tcp".into()).spawn(move || server.run()).ok()?;
        datagrams.into_iter().try_for_each(|datagrams| {
            let serve = move || {
                if let Err(error) = datagrams.run() {
                    warn!(%error, "calls of servers over UDP are not received any more");
                }
            };
            thread::Builder::new().name("curt-locks-udp".into()).spawn(serve).ok().map(drop)
        })
    }

    /// The programs of a server. `None` if they are not registered, and other hosts cannot call it.
    pub(super) fn of_server(ports: ServerPorts) -> Option<Self> {
        let ServerPorts { nlm: ports, nsm: own_monitor } = ports;
        let portmapper = LocalPortmapper::find()?;
        let is_registered = portmapper.is_registered_at(nlm4::PROGRAM, nlm4::VERSION, ports);
        let monitor = SystemMonitor::find_other_than(&portmapper, own_monitor);
        is_registered.then_some(Self {
            portmapper,
            ports,
            // Its server registers it.
            monitor_ports: Some([own_monitor, 0]),
            is_of_server: true,
            servers: None,
            monitor,
        })
    }

    /// Whether servers can call the programs. Registers them anew if the portmapper has forgotten
    /// them, and finds the monitor that has been started or has ended meanwhile.
    pub(super) fn keep_registered(&mut self) -> bool {
        if self.is_of_server {
            let own = self.monitor_ports.map_or(0, |[tcp, _]| tcp);
            self.monitor = SystemMonitor::find_other_than(&self.portmapper, own);
            return self.portmapper.is_registered_at(nlm4::PROGRAM, nlm4::VERSION, self.ports);
        }
        self.keep(nlm4::PROGRAM, nlm4::VERSION, self.ports) && self.keep_monitor()
    }

    fn keep(&self, program: u32, version: u32, ports: [u16; 2]) -> bool {
        self.portmapper.is_registered_at(program, version, ports)
            || self.portmapper.register(program, version, ports)
    }

    /// Is the host's monitor, or finds the system's. Whether there is one.
    fn keep_monitor(&mut self) -> bool {
        if self.monitor_ports.is_some_and(|ports| self.keep(nsm::PROGRAM, nsm::VERSION, ports)) {
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

    /// Ends the programs, unless they are a server's.
    pub(super) fn end(self) {
        if self.is_of_server {
            return;
        }
        self.portmapper.unregister(nlm4::PROGRAM, nlm4::VERSION, self.ports);
        if let Some(ports) = self.monitor_ports {
            self.portmapper.unregister(nsm::PROGRAM, nsm::VERSION, ports);
        }
        if let Some((server, datagrams)) = self.servers {
            server.shutdown();
            datagrams.iter().for_each(DatagramServerHandle::shutdown);
        }
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

    /// Has a host watched, or not any more.
    pub fn watch(self, host: IpAddr, is_watched: bool) -> Result<(), NotWatched> {
        if is_watched {
            return self.monitor(host).map(drop);
        }
        let name = host.to_string();
        let unwatched = registration::connect(self.0).and_then(|transport| {
            let id = monitored(&name);
            registration::call::<nsm::MonitorState>(&transport, target(NsmProcedure::Unmon), &id)
        });
        unwatched.map(drop).map_err(|error| {
            debug!(%host, %error, "the status monitor still watches the host");
            NotWatched::Unreachable
        })
    }

    /// Has a host watched. Returns the monitor's state number, with which it notifies that host of
    /// a restart.
    pub(super) fn monitor(self, host: IpAddr) -> Result<i32, NotWatched> {
        let name = host.to_string();
        let arguments = MonArguments { id: monitored(&name), private: record_of(host) };
        let told = registration::connect(self.0).and_then(|transport| {
            registration::call::<MonResult>(&transport, target(NsmProcedure::Mon), &arguments)
        });
        match told {
            Ok(MonResult { result: nsm::MonitorResult::Success, state }) => Ok(state),
            Ok(_) => Err(NotWatched::Refused),
            Err(error) => {
                debug!(%host, %error, "the status monitor does not answer");
                Err(NotWatched::Unreachable)
            }
        }
    }
}

impl NotWatched {
    /// Writes to the log that a host is not watched.
    pub fn warn(self, host: IpAddr) {
        let why = match self {
            Self::Refused => "the status monitor refuses it",
            Self::Unreachable => "the status monitor does not answer",
        };
        warn!(%host, why, "the host is not watched: its restart goes unnoticed");
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_portmapper_that_refuses_is_not_asked_each_time() {
        let failure = LastFailure::default();
        let asked = Cell::new(0);
        let start = |outcome: Result<(), NotServed>| {
            failure.unless_refused(|| {
                asked.set(asked.get() + 1);
                outcome
            })
        };
        for _ in 0..3 {
            assert_eq!(start(Err(NotServed::NotHere)), None);
            assert_eq!(start(Err(NotServed::PortInUse("lockcallbackport", 4045))), None);
        }
        assert_eq!((asked.get(), start(Ok(()))), (6, Some(())), "the port is free meanwhile");
        for _ in 0..3 {
            assert_eq!(start(Err(NotServed::Refused)), None);
        }
        assert_eq!(asked.get(), 8);
        *failure.0.lock() =
            Instant::now().checked_sub(REFUSED_INTERVAL).map(|before| (NotServed::Refused, before));
        assert_eq!(start(Ok(())), Some(()));
    }
}
