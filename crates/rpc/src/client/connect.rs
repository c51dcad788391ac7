//! Opening a connection: name resolution, reserved ports, socket options.
//!
//! This may wait for a resolver or a handshake, so it runs on a separate thread that callers can
//! stop waiting for.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily as Family, SocketFlags, SocketType, sockopt},
};

use super::{
    options::{PortSource, ServerName, TcpOptions},
    timer::major_timeout,
};

/// The ports tried with `resvport`; lower ports are left to services.
const RESERVED: std::ops::RangeInclusive<u16> = 665..=1023;

/// Interval at which an attempt sends another SYN from a new socket. TCP doubles the time between
/// two SYNs of one socket (RFC 6298), so the end of a network outage might be noticed seconds
/// later.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// Minimum time after which unacknowledged data end the connection.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// Connects to this address; `None`: to the first of the server's addresses that accepts.
pub(super) fn connect(options: &TcpOptions, address: Option<SocketAddr>) -> io::Result<OwnedFd> {
    if let Some(address) = address {
        return open_stream(options, address);
    }
    let mut failure =
        io::Error::new(io::ErrorKind::NotFound, "the server's name has no address of that family");
    for address in addresses(options)? {
        match port(options, address.ip()).and_then(|port| {
            let mut address = address;
            address.set_port(port);
            open_stream(options, address)
        }) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn addresses(options: &TcpOptions) -> io::Result<Vec<SocketAddr>> {
    let all: Vec<SocketAddr> = match &options.server {
        ServerName::Address(address) => vec![SocketAddr::new(*address, 0)],
        ServerName::Name(name) => (name.as_str(), 0)
            .to_socket_addrs()
            .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?
            .collect(),
    };
    Ok(all.into_iter().filter(|address| options.family.has(address.ip())).collect())
}

fn port(options: &TcpOptions, address: IpAddr) -> io::Result<u16> {
    match &options.port {
        PortSource::Fixed(port) => Ok(*port),
        PortSource::Lookup(ask) => ask(address),
    }
}

/// Opens a stream for records to `address`. All later I/O uses the returned socket, so this is the
/// place for a layer between TCP and record marking (`docs/decisions/two-way-connections.md`, TLS).
/// It runs on a separate thread and may wait for the peer, for [`TcpOptions::connect_timeout`].
fn open_stream(options: &TcpOptions, address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = await_one(options, address)?;
    tune(&socket, options)?;
    if is_of_this_machine(&socket, address.ip()) {
        // Congestion control that paces its output, such as BBR with its timers, only costs time on
        // one machine. Reno is in each kernel and needs no privilege; if it fails, the connection
        // still works.
        let _slower = sockopt::set_tcp_congestion(&socket, "reno");
    }
    Ok(socket)
}

/// Waits for a connected socket. The first attempt has the whole timeout, for a distant peer. In
/// addition another attempt begins in each interval of [`PACE`] and replaces the previous
/// additional one.
fn await_one(options: &TcpOptions, address: SocketAddr) -> io::Result<OwnedFd> {
    let end = options.clock.now() + options.connect_timeout;
    let local = LocalAddress { ip: None, is_port_reserved: options.reserved_port };
    let first = begin(local, address)?;
    let mut next: Option<OwnedFd> = None;
    loop {
        let left = options.clock.until(end);
        let mut fds = vec![PollFd::new(&first, PollFlags::OUT)];
        fds.extend(next.as_ref().map(|next| PollFd::new(next, PollFlags::OUT)));
        let longest = Timespec::try_from(left.min(jittered(PACE))).ok();
        let ready = match rustix::event::poll(&mut fds, longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>(),
            Err(errno) => return Err(errno.into()),
        };
        let socket = match (ready[0], next.take()) {
            (true, _) => first,
            (false, Some(next)) if ready[1] => next,
            (false, _) if left.is_zero() => return Err(Errno::TIMEDOUT.into()),
            // Without free ports or descriptors there is only the first attempt.
            (false, _) => {
                next = begin(local, address).ok();
                continue;
            }
        };
        sockopt::socket_error(&socket)??;
        return Ok(socket);
    }
}

/// The address of this host that a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address; `None`: the kernel chooses it by the route.
    pub ip: Option<IpAddr>,
    /// Use a port below 1024, which needs a privilege.
    pub is_port_reserved: bool,
}

impl LocalAddress {
    /// The ports to be tried, in random order if there are several, so that concurrent mounts do
    /// not try the same ports in the same order; 0: any.
    pub(super) fn ports(self) -> io::Result<impl Iterator<Item = u16>> {
        let (count, first) = if self.is_port_reserved {
            let count = RESERVED.end() - RESERVED.start() + 1;
            (count, random_u32()? % u32::from(count))
        } else {
            (1, 0)
        };
        Ok((0..u32::from(count)).map(move |offset| {
            let step = u16::try_from((first + offset) % u32::from(count)).expect("below a u16");
            if self.is_port_reserved { RESERVED.start() + step } else { 0 }
        }))
    }

    /// Its IP address in the family of `peer`.
    pub(super) fn ip_for(self, peer: IpAddr) -> IpAddr {
        match (self.ip, peer) {
            (Some(IpAddr::V4(ip)), IpAddr::V4(_)) => ip.into(),
            (Some(IpAddr::V6(ip)), IpAddr::V6(_)) => ip.into(),
            (_, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (_, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// Begins to connect.
pub(super) fn begin(local: LocalAddress, address: SocketAddr) -> io::Result<OwnedFd> {
    let mut failure = Errno::ADDRINUSE;
    for port in local.ports()? {
        match begin_from(local, port, address) {
            Err(errno @ (Errno::ADDRINUSE | Errno::ADDRNOTAVAIL)) => failure = errno,
            other => return Ok(other?),
        }
    }
    Err(failure.into())
}

fn begin_from(local: LocalAddress, port: u16, address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { Family::INET } else { Family::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if port != 0 {
        // A port may be used again while its last connection is in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if port != 0 || local.ip.is_some() {
        rustix::net::bind(&socket, &SocketAddr::new(local.ip_for(address.ip()), port))?;
    }
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether both ends are on this machine.
fn is_of_this_machine(socket: &OwnedFd, server: IpAddr) -> bool {
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    server.is_loopback() || local.is_ok_and(|local| local.ip() == server)
}

/// Changes the duration by up to a quarter at random, so that many clients that lost a server at
/// the same time do not reconnect at the same time.
pub(super) fn jittered(duration: Duration) -> Duration {
    let random = random_u32().unwrap_or(u32::MAX / 2);
    duration.mul_f64(0.75 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// TCP keepalive parameters (tcp(7)).
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    /// Time without traffic before the first probe, and between probes.
    pub(super) interval: Duration,
    /// Number of unanswered probes that end the connection.
    pub(super) count: u32,
}

impl KeepAlive {
    /// Derived from `timeo` and `retrans`, like the timeout of calls.
    pub(super) fn of(options: &TcpOptions) -> Self {
        Self {
            interval: Duration::from_secs(options.timeout.as_secs().clamp(1, 600)),
            count: options.retrans.saturating_add(1).min(100),
        }
    }

    /// As many of probes at another interval.
    pub(super) const fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the parameters. The user timeout is set as well, so the kernel ends the connection
    /// after that time whatever the count is.
    pub(super) fn set(self, socket: &OwnedFd) -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.interval)?;
        sockopt::set_tcp_keepintvl(socket, self.interval)?;
        sockopt::set_tcp_keepcnt(socket, self.count)
    }
}

/// A vanished peer is detected within the timeout of a call; a live peer that sends no reply keeps
/// its connection.
fn tune(socket: &OwnedFd, options: &TcpOptions) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    KeepAlive::of(options).set(socket)?;
    // This timeout also ends a connection whose live peer keeps its window closed, so it has a
    // minimum even if calls have short timeouts.
    let timeout = major_timeout(options).max(USER_TIMEOUT_MIN).as_millis();
    let timeout = u32::try_from(timeout).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, timeout)
}

/// A random number, unlikely to be guessed or chosen by other clients; not suitable for secrets.
pub(super) fn random_u32() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_of_this_machine_is_sent_to_without_pacing() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let options = TcpOptions::new(ServerName::Address(address.ip()), PortSource::Fixed(address.port()));
        let socket = connect(&options, None).expect("somebody listens");
        assert_eq!(sockopt::tcp_congestion(&socket).as_deref(), Ok("reno"));
    }
}
