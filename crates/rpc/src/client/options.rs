//! Options of a transport (the rows of nfs(5) that concern it).

use std::{fmt, io, net::IpAddr, num::NonZeroU8, sync::Arc, time::Duration};

use crate::{clock::TimeSource, connection::answer::CallHandler};

/// How long a call is retried (nfs(5), `hard`, `soft`, `softerr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecoveryMode {
    /// Without limit.
    #[default]
    Hard,
    /// Until `retrans` retries have timed out; applications then get EIO.
    Soft,
    /// As `Soft`, but applications get ETIMEDOUT.
    SoftErr,
}

/// When a call without a reply is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retransmission {
    /// When its connection is lost, and after a timeout if the server has replied to other calls
    /// since.
    #[default]
    Timeout,
    /// When its connection is lost. A server must not drop a call and keep the connection (RFC 8881
    /// section 2.9.2).
    ConnectionLoss,
}

/// The server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerName {
    /// A host name, resolved again when there is no connection.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl From<&str> for ServerName {
    /// An address if the text is one, else a host name.
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Address)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Looks up the port for an address.
type PortLookup = dyn Fn(IpAddr) -> io::Result<u16> + Send + Sync;

/// The port of the server.
#[derive(Clone)]
pub enum PortSource {
    /// A fixed port.
    Fixed(u16),
    /// Looked up when there is no connection (by the server's portmapper). Runs on a separate
    /// thread, so it may wait.
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

impl AddressFamily {
    /// Whether an address belongs to it.
    #[must_use]
    pub const fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// Options of a [`super::TcpTransport`].
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The server.
    pub server: ServerName,
    /// Which of its addresses are tried.
    pub family: AddressFamily,
    /// The server's port.
    pub port: PortSource,
    /// Number of connections that share the calls, all to one address: 1 to 16 (`nconnect`).
    pub nconnect: NonZeroU8,
    /// The first timeout of a call (`timeo`, there in tenths of a second). Each retry waits
    /// longer than the one before by this value, up to 600 s.
    pub timeout: Duration,
    /// Number of retries before an outage is reported, or a soft call fails (`retrans`).
    pub retrans: u32,
    /// How long a call is retried.
    pub recovery: RecoveryMode,
    /// When a call without a reply is sent again.
    pub retransmission: Retransmission,
    /// Connect from a port below 1024 (`resvport`).
    pub reserved_port: bool,
    /// Timeout of one attempt to connect.
    pub connect_timeout: Duration,
    /// Maximum size of a reply in bytes, whatever its call allows.
    pub reply_max: usize,
    /// The clock for all of these times.
    pub clock: TimeSource,
    /// Executes calls of the server over these connections (RFC 8881 section 2.10.3.1). Each
    /// connection then has a thread that reads it while no call waits, and executes the server's
    /// calls one at a time. Without it calls of the server are dropped.
    pub callbacks: Option<CallHandler>,
}

impl TcpOptions {
    /// Maximum number of connections (`nconnect` of nfs(5)).
    pub const NCONNECT_MAX: u8 = 16;

    /// Maximum retransmission timeout (nfs(5), `timeo`).
    pub const INTERVAL_MAX: Duration = Duration::from_secs(600);

    /// The defaults of nfs(5): hard, 60 s, 2 retries, one connection, any source port.
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
            retransmission: Retransmission::Timeout,
            reserved_port: false,
            connect_timeout: Duration::from_secs(10),
            reply_max: 2 << 20,
            clock: TimeSource::System,
            callbacks: None,
        }
    }

    /// Options of a connection for single calls: each is sent once and fails after `timeout`, as
    /// does the attempt to connect.
    #[must_use]
    pub fn single_calls(server: ServerName, port: u16, timeout: Duration) -> Self {
        Self {
            timeout,
            retrans: 0,
            recovery: RecoveryMode::Soft,
            connect_timeout: timeout,
            ..Self::new(server, PortSource::Fixed(port))
        }
    }
}
