//! The listening sockets.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

use super::{
    arguments::{NFS_PORT, ServeArguments},
    socket_activation::InheritedSocket,
};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The listening sockets and their protocols.
#[derive(Default)]
pub(super) struct Listeners {
    /// The sockets.
    pub(super) sockets: Vec<TcpListener>,
    /// Addresses of NFS.
    pub(super) nfs: Vec<SocketAddr>,
    /// Addresses of MOUNT.
    pub(super) mount: Vec<SocketAddr>,
    /// Addresses of NLM; none if locks are not served.
    pub(super) lock: Vec<SocketAddr>,
    /// Addresses of NSM.
    pub(super) statd: Vec<SocketAddr>,
    /// The sockets of NLM and NSM over UDP, at addresses of these.
    pub(super) datagrams: Vec<UdpSocket>,
}

impl Listeners {
    /// Uses the sockets of a service manager, if any were `inherited`, or opens those of
    /// `arguments`. Without `--bind`, a machine without IPv6 causes a warning.
    pub(super) fn open(arguments: &ServeArguments, inherited: Vec<InheritedSocket>) -> Result<Self> {
        if !inherited.is_empty() {
            ensure!(
                arguments.bind.is_empty() && arguments.mount_port.is_none(),
                "the service manager passed the sockets: leave out --bind and --mount-port, or disable the socket unit"
            );
            let mut listeners = Self::of(inherited)?;
            listeners.add_locks(arguments)?;
            return Ok(listeners);
        }
        let mut listeners = Self::default();
        if arguments.bind.is_empty() {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), NFS_PORT);
            listeners.add_nfs(any).with_context(|| advice(any))?;
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), NFS_PORT);
            match listeners.add_nfs(any) {
                Ok(()) => {}
                Err(errno @ (Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {
                    tracing::warn!("no IPv6 on this machine ({errno}): serving IPv4 alone");
                }
                Err(errno) => return Err(errno).with_context(|| advice(any)),
            }
        }
        for bind in &arguments.bind {
            listeners.add_nfs(bind.0).with_context(|| advice(bind.0))?;
        }
        listeners.mount = listeners.add_program(listeners.nfs.clone(), arguments.mount_port)?;
        listeners.add_locks(arguments)?;
        Ok(listeners)
    }

    /// The inherited sockets. MOUNT is served where NFS is, unless a socket has its name.
    fn of(inherited: Vec<InheritedSocket>) -> Result<Self> {
        let addresses = |for_mount| {
            let those = inherited.iter().filter(|one| one.is_for_mount == for_mount);
            those.map(|one| one.address).collect::<Vec<_>>()
        };
        let (nfs, mut mount) = (addresses(false), addresses(true));
        ensure!(!nfs.is_empty(), "the service manager passed no socket for NFS: all are named \"mount\"");
        if mount.is_empty() {
            mount.clone_from(&nfs);
        }
        let sockets = inherited.into_iter().map(|one| one.socket).collect();
        Ok(Self { sockets, nfs, mount, ..Self::default() })
    }

    fn add_nfs(&mut self, address: SocketAddr) -> rustix::io::Result<()> {
        let (socket, address) = listen(address)?;
        self.sockets.push(socket);
        self.nfs.push(address);
        Ok(())
    }

    /// A program is served on `port` of each address of another one, or where that is.
    fn add_program(&mut self, other: Vec<SocketAddr>, port: Option<u16>) -> Result<Vec<SocketAddr>> {
        let Some(port) = port.filter(|port| other.iter().any(|other| other.port() != *port)) else {
            return Ok(other);
        };
        let mut addresses = Vec::new();
        for address in other.iter().map(SocketAddr::ip).collect::<BTreeSet<IpAddr>>() {
            let mut address = SocketAddr::new(address, port);
            if !self.tcp().any(|known| *known == address) {
                let socket;
                (socket, address) = listen(address).with_context(|| advice(address))?;
                self.sockets.push(socket);
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// All addresses over TCP.
    fn tcp(&self) -> impl Iterator<Item = &SocketAddr> {
        self.nfs.iter().chain(&self.mount).chain(&self.lock).chain(&self.statd)
    }

    /// NLM and NSM are served over UDP, too. Clients call NLM over TCP, unless they have mounted
    /// over UDP, which this server has not; but status monitors send notices over UDP.
    fn add_locks(&mut self, arguments: &ServeArguments) -> Result<()> {
        if arguments.no_locks {
            return Ok(());
        }
        self.lock = self.add_program(self.nfs.clone(), arguments.lock_port)?;
        self.statd = self.add_program(self.lock.clone(), arguments.statd_port)?;
        let mut addresses: BTreeSet<_> = self.lock.iter().chain(&self.statd).copied().collect();
        // rpc.statd of this machine reports restarts to NLM over loopback.
        for lock in self.lock.iter().filter(|lock| lock.is_ipv4()) {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), lock.port());
            if !addresses.contains(&any) {
                addresses.insert(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), lock.port()));
            }
        }
        for address in addresses {
            match receive(address) {
                Ok(socket) => self.datagrams.push(socket),
                Err(errno) => tracing::warn!(
                    "{address} over UDP: {errno}; clients that restart cannot report it there, and keep their locks"
                ),
            }
        }
        Ok(())
    }

    /// Whether calls over UDP are received at a port of an address.
    pub(super) fn is_received_by_udp(&self, address: SocketAddr) -> bool {
        self.datagrams.iter().any(|socket| socket.local_addr().is_ok_and(|local| local == address))
    }

    /// Whether only this machine can connect.
    pub(super) fn is_local(&self) -> bool {
        self.nfs.iter().all(|address| address.ip().is_loopback())
    }
}

fn listen(address: SocketAddr) -> rustix::io::Result<(TcpListener, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of a server that has just ended do not block its port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok((listener, address))
}

fn receive(address: SocketAddr) -> rustix::io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

/// The failed operation, and what to do; the error follows.
fn advice(address: SocketAddr) -> String {
    let hint = match TcpListener::bind(address).map_err(|error| error.kind()) {
        Err(io::ErrorKind::AddrInUse) => format!(
            " (another server has that port: `ss -ltnp sport = :{}` shows which; choose another with --bind ADDR:PORT)",
            address.port()
        ),
        Err(io::ErrorKind::PermissionDenied) => {
            " (ports below 1024 need root: choose another with --bind ADDR:PORT or --mount-port)".into()
        }
        Err(io::ErrorKind::AddrNotAvailable) => " (not an address of this machine: see `ip address`)".into(),
        _ => String::new(),
    };
    format!("cannot listen on {address}{hint}")
}
