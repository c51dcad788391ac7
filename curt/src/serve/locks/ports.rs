//! The ports of programs of other hosts, by their portmapper or rpcbind (RFC 1833).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use curt_proto::portmap::{
    self, Mapping, NETID_TCP, NETID_TCP6, NETID_UDP, NETID_UDP6, PROTOCOL_TCP, PROTOCOL_UDP,
    PortmapProcedure, Rpcb, RpcbindVersion, UniversalAddress, format_universal_address,
    parse_universal_address,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, CallTarget, LocalAddress, SingleCalls};
use curt_xdr::{Opaque, decode_all};

/// Time limit of a query, and of a connection.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A host, and how it is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) local: LocalAddress,
}

/// The transport of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallTransport {
    Tcp,
    Udp,
}

/// A program and its version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) number: u32,
    pub(super) version: u32,
}

impl Peer {
    /// Connects to a program by the first of `protocols` that it has.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] if it has none, or its host cannot be reached.
    pub(super) fn connect(
        self,
        program: Program,
        protocols: [CallTransport; 2],
    ) -> Result<SingleCalls, CallError> {
        let mut mapper = self.portmapper()?;
        let mut failure = CallError::Unreachable(std::io::ErrorKind::NotFound);
        for protocol in protocols {
            let connected = match self.port(&mut mapper, program, protocol, TIMEOUT)? {
                None => continue,
                Some(port) => self.open(port, protocol),
            };
            match connected {
                Ok(calls) => return Ok(calls),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// As [`Self::connect`], by datagrams alone and within a time limit, which a host that is not
    /// there does not exceed.
    ///
    /// # Errors
    /// As those of [`Self::connect`].
    pub(super) fn connect_by_datagrams(
        self,
        program: Program,
        timeout: Duration,
    ) -> Result<SingleCalls, CallError> {
        let mut mapper = self.unprivileged().open(portmap::PORT, CallTransport::Udp)?;
        let port = self.port(&mut mapper, program, CallTransport::Udp, timeout)?;
        let port = port.ok_or(CallError::Unreachable(std::io::ErrorKind::NotFound))?;
        self.open(port, CallTransport::Udp)
    }

    fn open(self, port: u16, protocol: CallTransport) -> Result<SingleCalls, CallError> {
        let address = SocketAddr::new(self.address, port);
        match protocol {
            CallTransport::Tcp => SingleCalls::tcp(self.local, address, TIMEOUT),
            CallTransport::Udp => SingleCalls::udp(self.local, address),
        }
    }

    /// Its portmapper needs no reserved port.
    fn portmapper(self) -> Result<SingleCalls, CallError> {
        let by_tcp = self.unprivileged().open(portmap::PORT, CallTransport::Tcp);
        by_tcp.or_else(|_| self.unprivileged().open(portmap::PORT, CallTransport::Udp))
    }

    fn unprivileged(self) -> Self {
        Self { local: LocalAddress { is_port_reserved: false, ..self.local }, ..self }
    }

    /// The port of a program, if it is registered.
    fn port(
        self,
        mapper: &mut SingleCalls,
        program: Program,
        protocol: CallTransport,
        timeout: Duration,
    ) -> Result<Option<u16>, CallError> {
        let target = |version: RpcbindVersion| CallTarget {
            program: portmap::PROGRAM,
            version: version as u32,
            procedure: PortmapProcedure::Lookup as u32,
        };
        let Program { number, version } = program;
        if self.address.is_ipv4() {
            let protocol = if protocol == CallTransport::Tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
            let mapping = Mapping { program: number, version, protocol, port: 0 };
            let reply =
                mapper.call(target(RpcbindVersion::Portmap2), &RpcCredential::None, &mapping, timeout)?;
            let port: u32 = decode_all(&reply)?;
            return Ok(u16::try_from(port).ok().filter(|port| *port != 0));
        }
        let netid = match (protocol, self.address.is_ipv4()) {
            (CallTransport::Tcp, true) => NETID_TCP,
            (CallTransport::Tcp, false) => NETID_TCP6,
            (CallTransport::Udp, true) => NETID_UDP,
            (CallTransport::Udp, false) => NETID_UDP6,
        };
        let reached = format_universal_address((self.address, portmap::PORT).into());
        let opaque = |bytes| Opaque::new(bytes).unwrap_or_default();
        let binding = Rpcb {
            program: number,
            version,
            netid: opaque(netid),
            address: opaque(reached.as_bytes()),
            owner: Opaque::default(),
        };
        let reply = mapper.call(target(RpcbindVersion::Rpcbind4), &RpcCredential::None, &binding, timeout)?;
        let UniversalAddress(universal) = decode_all(&reply)?;
        let address = parse_universal_address(universal.bytes());
        Ok(address.map(|address| address.port()).filter(|port| *port != 0))
    }
}
