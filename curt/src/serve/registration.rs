//! Registration of ports with rpcbind, or an old portmapper.
//!
//! This is optional: clients can be given the ports. Registrations are made again after a restart
//! of rpcbind, and removed when the server ends.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::Duration,
};

use curt_proto::{
    mount3, nfs3, nfs4, nlm4, nsm,
    portmap::{self, IpProtocol, Mapping, PortmapProcedure, Rpcb, RpcbindVersion, format_universal_address},
};
use curt_rpc::{
    auth::RpcCredential,
    client::{
        CallArguments, CallError, Interrupt, NoTransportEvents, RpcRequest, ServerName, TcpOptions,
        TcpTransport, Transport,
    },
    message::{AcceptStatus, ProcedureId, call_record, decode_reply_header},
    record,
};
use curt_server::Versions;
use curt_xdr::{Decoder, Encode, Opaque, OptionalList, decode_all};
use parking_lot::Mutex;

use super::listeners::Listeners;

/// rpcbind's local socket, on which it gets this process's uid from the kernel.
const LOCAL_SOCKETS: [&str; 2] = ["/run/rpcbind.sock", "/var/run/rpcbind.sock"];

/// rpcbind is on this machine: it replies at once or not at all.
const RPCBIND_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of a reply: a list of all registrations.
const ANSWER_MAX: usize = 256 << 10;

/// The list of all registrations (`RPCBPROC_DUMP`, RFC 1833 section 2.2.1).
const DUMP: u32 = 4;

/// Maximum number of entries of that list.
const ENTRIES_MAX: usize = 1024;

/// A program, version and address to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisteredService {
    program: u32,
    version: u32,
    address: SocketAddr,
    protocol: IpProtocol,
}

/// How often the registrations are made again, which rpcbind may have lost by a restart.
const INTERVAL: Duration = Duration::from_secs(10);

/// The registrations.
pub(super) struct RpcbindRegistration {
    services: Vec<RegisteredService>,
    /// Whether this server has the lock service of its host: if another lock manager or monitor is
    /// registered, it takes its place when that ends.
    locks: LockServiceOwner,
    state: Mutex<RegistrationState>,
}

/// The program that has the lock service of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockServiceOwner {
    ThisServer,
    Another,
}

#[derive(Default)]
struct RegistrationState {
    registered: Vec<RegisteredService>,
    /// Other servers have registered these.
    refused: Vec<RegisteredService>,
    has_ended: bool,
}

/// Connections to rpcbind.
enum RpcbindClient {
    /// rpcbind on its local socket: version 4.
    Local(UnixStream),
    /// rpcbind over TCP: version 4.
    Remote(TcpTransport),
    /// A portmapper: version 2, which supports only IPv4.
    Portmap(TcpTransport),
}

impl RpcbindRegistration {
    /// Registers the services of `listeners`. That there is no rpcbind, or that it refuses, is
    /// logged and not an error.
    pub(super) fn register(listeners: &Listeners, versions: Versions, locks: LockServiceOwner) -> Arc<Self> {
        let services = all(listeners, versions);
        let registration = Arc::new(Self { services, locks, state: Mutex::default() });
        match registration.renew() {
            Ok(()) => registration.state.lock().warn_refused(),
            Err(None) => tracing::info!(
                "rpcbind is not running: clients need port= and mountport=, and nolock or lockport="
            ),
            Err(Some(error)) => {
                tracing::warn!("cannot register with rpcbind: {error}; clients need port= and mountport=");
            }
        }
        registration
    }

    /// Starts the thread that registers them again. It needs the privileges of the main thread.
    pub(super) fn keep(this: &Arc<Self>) -> io::Result<()> {
        let kept = Arc::downgrade(this);
        let keep = move || {
            loop {
                thread::sleep(INTERVAL);
                let Some(kept) = kept.upgrade() else { return };
                if let Err(error) = kept.renew() {
                    tracing::debug!(?error, "the registrations are not renewed");
                }
            }
        };
        thread::Builder::new().name("curt-rpcbind".into()).spawn(keep).map(drop)
    }

    /// Registers what is not registered, except for what another server had when this one came.
    /// `Err(None)`: there is no rpcbind.
    fn renew(&self) -> Result<(), Option<RpcbindError>> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Ok(());
        }
        let mut rpcbind = RpcbindClient::find().ok_or(None)?;
        for service in &self.services {
            let was_refused = state.refused.contains(service);
            let takes_over = service.is_of_locks() && self.locks == LockServiceOwner::ThisServer;
            if was_refused && !takes_over {
                continue;
            }
            if rpcbind.set(*service)? {
                state.refused.retain(|refused| refused != service);
                if !state.registered.contains(service) {
                    tracing::debug!("{service} is registered with rpcbind");
                    state.registered.push(*service);
                }
            } else if !was_refused {
                state.registered.retain(|registered| registered != service);
                state.refused.push(*service);
            }
        }
        Ok(())
    }

    /// The ports of NLM over TCP and UDP for IPv4.
    pub(super) fn lock_ports(&self) -> Option<[u16; 2]> {
        let port = |protocol| {
            let of_locks = self.services.iter().find(|service| {
                service.program == nlm4::PROGRAM && service.protocol == protocol && service.address.is_ipv4()
            });
            of_locks.map(|service| service.address.port())
        };
        Some([port(IpProtocol::Tcp)?, port(IpProtocol::Udp)?])
    }

    /// Removes the registrations.
    pub(super) fn withdraw(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let registered = std::mem::take(&mut state.registered);
        let Some(mut rpcbind) = RpcbindClient::find().filter(|_| !registered.is_empty()) else { return };
        for service in registered {
            if let Err(error) = rpcbind.unset(service) {
                tracing::info!("cannot withdraw {service} from rpcbind: {error}");
                return;
            }
        }
    }
}

impl RegistrationState {
    fn warn_refused(&self) {
        if self.refused.iter().any(|refused| refused.program == nsm::PROGRAM) {
            tracing::info!("the system's status monitor (rpc.statd) watches clients");
        }
        if self.refused.iter().any(|refused| refused.program == nlm4::PROGRAM) {
            tracing::warn!(
                "another lock manager is registered with rpcbind, such as the kernel's (lockd), which starts with its \
                 NFS server and with its mounts over NFSv3: clients cannot lock files of this server"
            );
        }
        let refused: Vec<_> =
            self.refused.iter().filter(|refused| !refused.is_of_locks()).map(ToString::to_string).collect();
        if !refused.is_empty() {
            tracing::warn!(
                "rpcbind has another server for what this one answers ({}): clients that ask it will not come here \
                 (`rpcinfo -p` shows it; name the ports on the client, or end the other server)",
                refused.join(", ")
            );
        }
    }
}

/// One address for each program, version and network: rpcbind stores no more.
fn all(listeners: &Listeners, versions: Versions) -> Vec<RegisteredService> {
    let programs = [
        (versions.v3, nfs3::PROGRAM, nfs3::VERSION, &listeners.nfs),
        (versions.v4(), nfs4::PROGRAM, nfs4::VERSION, &listeners.nfs),
        (versions.v3, mount3::PROGRAM, mount3::VERSION_1, &listeners.mount),
        (versions.v3, mount3::PROGRAM, mount3::VERSION, &listeners.mount),
        (true, nlm4::PROGRAM, nlm4::VERSION, &listeners.lock),
        (true, nsm::PROGRAM, nsm::VERSION, &listeners.statd),
    ];
    let mut all = Vec::new();
    for (_, program, version, addresses) in programs.into_iter().filter(|(served, ..)| *served) {
        for family in [SocketAddr::is_ipv4, SocketAddr::is_ipv6] {
            let Some(address) = addresses.iter().find(|address| family(address)).copied() else { continue };
            let by_udp =
                matches!(program, nlm4::PROGRAM | nsm::PROGRAM) && listeners.is_received_by_udp(address);
            let protocols = [Some(IpProtocol::Tcp), by_udp.then_some(IpProtocol::Udp)].into_iter().flatten();
            all.extend(protocols.map(|protocol| RegisteredService { program, version, address, protocol }));
        }
    }
    all
}

impl RpcbindClient {
    fn find() -> Option<Self> {
        let local = LOCAL_SOCKETS.iter().find_map(|path| UnixStream::connect(path).ok());
        if let Some(local) = local {
            let set = local
                .set_read_timeout(Some(RPCBIND_TIMEOUT))
                .and_then(|()| local.set_write_timeout(Some(RPCBIND_TIMEOUT)));
            return set.ok().map(|()| Self::Local(local));
        }
        let transport = connect()?;
        match remote(&transport, RpcbindVersion::Rpcbind4, PortmapProcedure::Null as u32, &()) {
            Ok(_) => Some(Self::Remote(transport)),
            Err(_) => Some(Self::Portmap(transport)),
        }
    }

    fn set(&mut self, answered: RegisteredService) -> Result<bool, RpcbindError> {
        if self.ask(PortmapProcedure::Set, answered)? {
            return Ok(true);
        }
        // Left by a killed server, unless the address accepts connections.
        if self.probe_registered(answered)? || !self.unset(answered)? {
            return Ok(false);
        }
        self.ask(PortmapProcedure::Set, answered)
    }

    fn unset(&mut self, answered: RegisteredService) -> Result<bool, RpcbindError> {
        self.ask(PortmapProcedure::Unset, answered)
    }

    /// Asks for the registered address of the same service. Returns whether it accepts connections.
    fn probe_registered(&mut self, answered: RegisteredService) -> Result<bool, RpcbindError> {
        let port = match self {
            Self::Portmap(_) => {
                let results = self.call(PortmapProcedure::Lookup as u32, answered)?;
                decode_all::<u32>(&results).ok().and_then(|port| u16::try_from(port).ok())
            }
            // A look-up would return the address for the network of the request, which is the local
            // one.
            Self::Local(_) | Self::Remote(_) => {
                let results = self.call(DUMP, answered)?;
                let list: OptionalList<Rpcb<'_>, ENTRIES_MAX> =
                    decode_all(&results).map_err(CallError::from)?;
                let netid = answered.netid();
                let same = list.iter().find(|other| {
                    (other.program, other.version, &*other.netid)
                        == (answered.program, answered.version, netid)
                });
                same.and_then(|other| portmap::parse_universal_address(&other.address))
                    .map(|address| address.port())
            }
        };
        let Some(port) = port.filter(|port| *port != 0) else {
            return Ok(false);
        };
        let here = match answered.address {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        let address = SocketAddr::new(here, port);
        Ok(match answered.protocol {
            IpProtocol::Tcp => TcpStream::connect_timeout(&address, RPCBIND_TIMEOUT).is_ok(),
            // The port is in use if it cannot be bound.
            IpProtocol::Udp => UdpSocket::bind((answered.address.ip(), port)).is_err(),
        })
    }

    fn ask(
        &mut self,
        procedure: PortmapProcedure,
        answered: RegisteredService,
    ) -> Result<bool, RpcbindError> {
        let results = self.call(procedure as u32, answered)?;
        Ok(decode_all(&results).map_err(CallError::from)?)
    }

    fn call(&mut self, procedure: u32, answered: RegisteredService) -> Result<Vec<u8>, RpcbindError> {
        let (address, owner) = (format_universal_address(answered.address), owner());
        let short = "shorter than a host name";
        let binding = Rpcb {
            program: answered.program,
            version: answered.version,
            netid: Opaque::new(answered.netid()).expect(short),
            address: Opaque::new(address.as_bytes()).expect(short),
            owner: Opaque::new(owner.as_bytes()).expect(short),
        };
        match self {
            // The list takes no arguments.
            Self::Local(stream) if procedure == DUMP => local(stream, procedure, &()),
            Self::Local(stream) => local(stream, procedure, &binding),
            Self::Remote(transport) if procedure == DUMP => {
                remote(transport, RpcbindVersion::Rpcbind4, procedure, &())
            }
            Self::Remote(transport) => remote(transport, RpcbindVersion::Rpcbind4, procedure, &binding),
            Self::Portmap(transport) => {
                let mapping = Mapping {
                    program: answered.program,
                    version: answered.version,
                    protocol: answered.protocol.number(),
                    port: answered.address.port().into(),
                };
                // It does not support IPv6: nothing is registered, which is not an error.
                if answered.address.is_ipv6() {
                    let mut yes = Vec::new();
                    true.encode(&mut yes);
                    return Ok(yes);
                }
                remote(transport, RpcbindVersion::Portmap2, procedure, &mapping)
            }
        }
    }
}

/// Over TCP rpcbind accepts registrations only from a local reserved port.
fn connect() -> Option<TcpTransport> {
    let here = ServerName::Address(Ipv4Addr::LOCALHOST.into());
    let options = TcpOptions {
        reserved_port: rustix::process::geteuid().is_root(),
        ..TcpOptions::single_calls(here, portmap::PORT, RPCBIND_TIMEOUT)
    };
    TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never()).ok()
}

/// Why rpcbind refused or failed.
#[derive(Debug, thiserror::Error)]
enum RpcbindError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it answers {0:?}")]
    Refused(Option<AcceptStatus>),
}

fn remote(
    transport: &TcpTransport,
    version: RpcbindVersion,
    procedure: u32,
    arguments: &dyn CallArguments,
) -> Result<Vec<u8>, RpcbindError> {
    let procedure = ProcedureId { program: portmap::PROGRAM, version: version as u32, procedure };
    let request = RpcRequest::anonymous(procedure, arguments, ANSWER_MAX);
    Ok(transport.call(&request, &Interrupt::never())?.results().to_vec())
}

fn local(stream: &mut UnixStream, procedure: u32, arguments: &dyn Encode) -> Result<Vec<u8>, RpcbindError> {
    let (xid, version) = (std::process::id(), RpcbindVersion::Rpcbind4 as u32);
    let call = call_record(xid, portmap::PROGRAM, version, procedure, &RpcCredential::None, arguments);
    stream.write_all(&call)?;
    let mut mark = [0; record::MARK_SIZE];
    stream.read_exact(&mut mark)?;
    let length = usize::try_from(u32::from_be_bytes(mark) & (u32::MAX >> 1)).unwrap_or(usize::MAX);
    if length > ANSWER_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    }
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply)?;
    let mut decoder = Decoder::new(&reply);
    match decode_reply_header(&mut decoder).map_err(CallError::from)?.outcome {
        Ok(AcceptStatus::Success) => Ok(decoder.remaining().to_vec()),
        other => Err(RpcbindError::Refused(other.ok())),
    }
}

/// This process's user as rpcbind names it.
fn owner() -> String {
    match rustix::process::geteuid() {
        root if root.is_root() => "superuser".into(),
        other => other.as_raw().to_string(),
    }
}

impl RegisteredService {
    const fn is_of_locks(&self) -> bool {
        matches!(self.program, nlm4::PROGRAM | nsm::PROGRAM)
    }

    const fn netid(&self) -> &'static [u8] {
        self.protocol.netid(self.address.ip())
    }
}

impl std::fmt::Display for RegisteredService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.program {
            nfs3::PROGRAM => "NFS",
            mount3::PROGRAM => "MOUNT",
            nlm4::PROGRAM => "NLM",
            _ => "NSM",
        };
        let protocol = if self.protocol == IpProtocol::Udp { " over UDP" } else { "" };
        write!(f, "{name} version {} on {}{protocol}", self.version, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_and_family_is_registered_once() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let lock = datagrams.local_addr().expect("its address");
        let listeners = Listeners {
            nfs: vec![address("10.0.0.1:2049"), address("127.0.0.1:2049"), address("[::1]:2049")],
            mount: vec![address("10.0.0.1:20048")],
            lock: vec![lock],
            statd: vec![address("[::1]:2049")],
            datagrams: vec![datagrams],
            ..Listeners::default()
        };
        let all: Vec<String> = all(&listeners, Versions::default()).iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            [
                "NFS version 3 on 10.0.0.1:2049".into(),
                "NFS version 3 on [::1]:2049".into(),
                "NFS version 4 on 10.0.0.1:2049".into(),
                "NFS version 4 on [::1]:2049".into(),
                "MOUNT version 1 on 10.0.0.1:20048".into(),
                "MOUNT version 3 on 10.0.0.1:20048".into(),
                format!("NLM version 4 on {lock}"),
                format!("NLM version 4 on {lock} over UDP"),
                "NSM version 1 on [::1]:2049".into(),
            ]
        );
    }
}
