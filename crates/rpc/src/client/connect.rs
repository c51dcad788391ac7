//! Making a connection: resolving, reserved ports, socket options.
//!
//! May wait for a resolver or a handshake, so it runs on a thread that no caller waits for
//! uninterruptibly.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily as Family, SocketFlags, SocketType, sockopt},
};

use super::{
    options::{AddressFamily, PortSource, ServerName, TcpOptions},
    timer::major_timeout,
};

/// The ports that are tried with `resvport`; those below are left to services.
const RESERVED: std::ops::RangeInclusive<u16> = 665..=1023;

/// How often an attempt sends its first segment over another socket. TCP doubles the time between
/// two of these (RFC 6298), so that a network that is back might not be noticed for seconds.
pub(super) const PACE: Duration = Duration::from_secs(1);

/// The least time after which data that the peer does not acknowledge end the connection.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// Connects to the first of the server's addresses that answers.
pub(super) fn connect(options: &TcpOptions) -> io::Result<OwnedFd> {
    let mut failure = io::Error::new(
        io::ErrorKind::NotFound,
        "the server's name has no address of that family",
    );
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
    let wanted = |address: &SocketAddr| match options.family {
        AddressFamily::Any => true,
        AddressFamily::V4 => address.is_ipv4(),
        AddressFamily::V6 => address.is_ipv6(),
    };
    Ok(all.into_iter().filter(wanted).collect())
}

fn port(options: &TcpOptions, address: IpAddr) -> io::Result<u16> {
    match &options.port {
        PortSource::Fixed(port) => Ok(*port),
        PortSource::Lookup(ask) => ask(address),
    }
}

/// Makes a stream for records to `address`. What is received and sent later goes through the socket
/// that this returns, and through nothing else: this is the place for whatever lies between TCP and
/// record marking (`docs/decisions/two-way-connections.md`, TLS). It runs on a thread of its own
/// and may wait for the peer, for [`TcpOptions::connect_timeout`].
fn open_stream(options: &TcpOptions, address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = await_one(options, address)?;
    tune(&socket, options)?;
    if is_of_this_machine(&socket, address.ip()) {
        // What paces sending for the sake of a network, such as BBR with its timers, only takes
        // time where there is none. Reno is in every kernel and needs no right; without it all
        // works as well.
        let _slower = sockopt::set_tcp_congestion(&socket, "reno");
    }
    Ok(socket)
}

/// Waits for a socket that is connected. The first one is given all the time there is, for a peer
/// that is far away; beside it another one is begun in each interval of [`PACE`], in place of the
/// one before.
fn await_one(options: &TcpOptions, address: SocketAddr) -> io::Result<OwnedFd> {
    let end = options.clock.now() + options.connect_timeout;
    let first = begin(options, address)?;
    let mut next: Option<OwnedFd> = None;
    loop {
        let left = options.clock.until(end);
        let mut fds = vec![PollFd::new(&first, PollFlags::OUT)];
        fds.extend(next.as_ref().map(|next| PollFd::new(next, PollFlags::OUT)));
        let ready = match rustix::event::poll(&mut fds, Some(&timespec(left.min(jittered(PACE))))) {
            Ok(_) | Err(Errno::INTR) => fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>(),
            Err(errno) => return Err(errno.into()),
        };
        let socket = match (ready[0], next.take()) {
            (true, _) => first,
            (false, Some(next)) if ready[1] => next,
            (false, _) if left.is_zero() => return Err(Errno::TIMEDOUT.into()),
            // For want of ports or descriptors there is only the first.
            (false, _) => {
                next = begin(options, address).ok();
                continue;
            }
        };
        sockopt::socket_error(&socket)??;
        return Ok(socket);
    }
}

/// Begins to connect, from a reserved port if that is wanted.
fn begin(options: &TcpOptions, address: SocketAddr) -> io::Result<OwnedFd> {
    if !options.reserved_port {
        return Ok(begin_from(address, None)?);
    }
    let count = RESERVED.end() - RESERVED.start() + 1;
    // Started anywhere, so that mounts made at the same time do not try the same ports one after
    // the other.
    let first = random_u32()? % u32::from(count);
    let mut failure = Errno::ADDRINUSE;
    for offset in 0..u32::from(count) {
        let step = u16::try_from((first + offset) % u32::from(count)).expect("below a u16");
        match begin_from(address, Some(RESERVED.start() + step)) {
            Err(errno @ (Errno::ADDRINUSE | Errno::ADDRNOTAVAIL)) => failure = errno,
            other => return Ok(other?),
        }
    }
    Err(failure.into())
}

fn begin_from(address: SocketAddr, port: Option<u16>) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        Family::INET
    } else {
        Family::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(port) = port {
        // A port whose last connection is still in TIME_WAIT may be used again.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let any = match address {
            SocketAddr::V4(_) => IpAddr::from([0u8; 4]),
            SocketAddr::V6(_) => IpAddr::from([0u8; 16]),
        };
        rustix::net::bind(&socket, &SocketAddr::new(any, port))?;
    }
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether no network lies between both ends.
fn is_of_this_machine(socket: &OwnedFd, server: IpAddr) -> bool {
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    server.is_loopback() || local.is_ok_and(|local| local.ip() == server)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Up to a quarter more or less, so that many clients that lost a server together do not come back
/// together.
pub(super) fn jittered(duration: Duration) -> Duration {
    let random = random_u32().unwrap_or(u32::MAX / 2);
    duration.mul_f64(0.75 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// When the kernel asks whether the peer of a connection is still there, if nothing is sent
/// (tcp(7)).
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    /// After this time without traffic, and then in each such interval.
    pub(super) interval: Duration,
    /// How often before the connection is given up.
    pub(super) count: u32,
}

impl KeepAlive {
    /// After `timeo` and `retrans`, as calls.
    pub(super) fn of(options: &TcpOptions) -> Self {
        Self {
            interval: Duration::from_secs(options.timeout.as_secs().clamp(1, 600)),
            count: options.retrans.saturating_add(1).min(100),
        }
    }

    /// As often before the connection is given up, but at another interval.
    pub(super) const fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Has the kernel do so. It gives the connection up after the user timeout whatever the count,
    /// since that is set as well.
    pub(super) fn set(self, socket: &OwnedFd) -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.interval)?;
        sockopt::set_tcp_keepintvl(socket, self.interval)?;
        sockopt::set_tcp_keepcnt(socket, self.count)
    }
}

/// A peer that is gone without a word is noticed after as long as a call waits; one that is alive
/// but silent keeps its connection.
fn tune(socket: &OwnedFd, options: &TcpOptions) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    KeepAlive::of(options).set(socket)?;
    // This also ends a connection whose window a live peer keeps shut: give it some time even when
    // calls get little.
    let patience = major_timeout(options).max(USER_TIMEOUT_MIN).as_millis();
    let patience = u32::try_from(patience).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, patience)
}

/// A random number that others are unlikely to guess or to choose as well; not good enough for
/// secrets.
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
        let options = TcpOptions::new(
            ServerName::Address(address.ip()),
            PortSource::Fixed(address.port()),
        );
        let socket = connect(&options).expect("somebody listens");
        assert_eq!(sockopt::tcp_congestion(&socket).as_deref(), Ok("reno"));
    }
}
