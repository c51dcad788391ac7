//! What a user may say about a transport (the rows of nfs(5) that concern it).

use std::{fmt, io, net::IpAddr, num::NonZeroU8, sync::Arc, time::Duration};

use crate::{clock::TimeSource, connection::CallHandler};

/// How long a call is tried (nfs(5), `hard`, `soft`, `softerr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecoveryMode {
    /// For ever.
    #[default]
    Hard,
    /// Until the time of `retrans` retries is over; applications then see EIO.
    Soft,
    /// As `Soft`, but applications see ETIMEDOUT.
    SoftErr,
}

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerName {
    /// A host name, looked up again for each connection; both address families are tried.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Asks for a port; given the address that will be connected to.
type PortLookup = dyn Fn(IpAddr) -> io::Result<u16> + Send + Sync;

/// Which port of the server to connect to.
#[derive(Clone)]
pub enum PortSource {
    /// Always this one.
    Fixed(u16),
    /// Asked anew for each connection (of the server's portmapper), given the address that will be
    /// connected to. Runs on a thread of its own, so it may wait.
    Lookup(Arc<PortLookup>),
}

impl fmt::Debug for PortSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(port) => write!(f, "Fixed({port})"),
            Self::Lookup(_) => f.write_str("Asked"),
        }
    }
}

/// Which addresses of a server are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// All, in the resolver's order.
    #[default]
    Any,
    /// IPv4 (`proto=tcp` of nfs(5)).
    V4,
    /// IPv6 (`proto=tcp6` of nfs(5)).
    V6,
}

/// How a [`super::TcpTransport`] behaves.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The server.
    pub server: ServerName,
    /// Which of its addresses are tried.
    pub family: AddressFamily,
    /// The server's port.
    pub port: PortSource,
    /// How many connections share the calls: 1 to 16 (`nconnect`).
    pub nconnect: NonZeroU8,
    /// The first interval of waiting (`timeo`, there in tenths of a second). Each retry waits that
    /// much longer than the one before, up to 600 s.
    pub timeout: Duration,
    /// How many retries before the outage is told, or a soft call given up (`retrans`).
    pub retrans: u32,
    /// How long a call is tried.
    pub recovery: RecoveryMode,
    /// Connect from a port below 1024 (`resvport`).
    pub reserved_port: bool,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long a reply may be at most, whatever its call allows, in bytes.
    pub reply_max: usize,
    /// The clock by which all of these times pass.
    pub clock: TimeSource,
    /// Who answers calls of the server over these connections (RFC 8881 section 2.10.3.1). Each
    /// connection then has a thread that reads it while no call waits, and has the calls executed
    /// one after the other. Without it calls of the server are dropped.
    pub callbacks: Option<CallHandler>,
}

impl TcpOptions {
    /// The most connections (`nconnect` of nfs(5)).
    pub const NCONNECT_MAX: u8 = 16;

    /// The longest interval between two retries (nfs(5), `timeo`).
    pub const INTERVAL_MAX: Duration = Duration::from_secs(600);

    /// nfs(5)'s defaults: hard, 60 s, 2 retries, one connection, from any port.
    #[must_use]
    pub const fn new(server: ServerName, port: PortSource) -> Self {
        Self {
            server,
            family: AddressFamily::Any,
            port,
            nconnect: NonZeroU8::MIN,
            timeout: Duration::from_secs(60),
            retrans: 2,
            recovery: RecoveryMode::Hard,
            reserved_port: false,
            connect_timeout: Duration::from_secs(10),
            reply_max: 2 << 20,
            clock: TimeSource::System,
            callbacks: None,
        }
    }
}
