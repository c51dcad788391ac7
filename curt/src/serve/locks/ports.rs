//! The ports of programs of other hosts, by their portmapper or rpcbind (RFC 1833).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use curt_proto::portmap::{self, IpProtocol, PortLookup, PortmapProcedure, RpcbindVersion};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{CallError, LocalAddress, SingleCalls};
use curt_rpc::message::ProcedureId;

/// Time limit of a query, and of a connection.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A host, and how it is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) local: LocalAddress,
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
        protocols: [IpProtocol; 2],
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
        let mut mapper = self.unprivileged().open(portmap::PORT, IpProtocol::Udp)?;
        let port = self.port(&mut mapper, program, IpProtocol::Udp, timeout)?;
        let port = port.ok_or(CallError::Unreachable(std::io::ErrorKind::NotFound))?;
        self.open(port, IpProtocol::Udp)
    }

    fn open(self, port: u16, protocol: IpProtocol) -> Result<SingleCalls, CallError> {
        let address = SocketAddr::new(self.address, port);
        match protocol {
            IpProtocol::Tcp => SingleCalls::tcp(self.local, address, TIMEOUT),
            IpProtocol::Udp => SingleCalls::udp(self.local, address),
        }
    }

    /// Its portmapper needs no reserved port.
    fn portmapper(self) -> Result<SingleCalls, CallError> {
        let by_tcp = self.unprivileged().open(portmap::PORT, IpProtocol::Tcp);
        by_tcp.or_else(|_| self.unprivileged().open(portmap::PORT, IpProtocol::Udp))
    }

    fn unprivileged(self) -> Self {
        Self { local: LocalAddress { is_port_reserved: false, ..self.local }, ..self }
    }

    /// The port of a program, if it is registered.
    fn port(
        self,
        mapper: &mut SingleCalls,
        program: Program,
        protocol: IpProtocol,
        timeout: Duration,
    ) -> Result<Option<u16>, CallError> {
        let rpcbind = match self.address {
            IpAddr::V4(_) => RpcbindVersion::Portmap2,
            IpAddr::V6(_) => RpcbindVersion::Rpcbind4,
        };
        let procedure = ProcedureId {
            program: portmap::PROGRAM,
            version: rpcbind as u32,
            procedure: PortmapProcedure::Lookup as u32,
        };
        let lookup = PortLookup { program: program.number, version: program.version, protocol };
        let arguments = lookup.arguments(rpcbind, self.address);
        let reply = mapper.call(procedure, &RpcCredential::None, &arguments, timeout)?;
        Ok(PortLookup::port(rpcbind, &reply)?)
    }
}
