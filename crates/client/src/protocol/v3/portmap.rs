//! Finds the port of a service by portmap (RFC 1833, version 2) or rpcbind (versions 3 and 4).
//!
//! Over IPv4 version 2 is used, which all servers support; over IPv6 versions 4 and 3, which
//! support IPv6.

use std::{net::IpAddr, sync::Arc, time::Duration};

use curt_proto::portmap::{
    Mapping, NETID_TCP, NETID_TCP6, PORT, PROGRAM, PROTOCOL_TCP, PortmapProcedure, Rpcb, RpcbindVersion,
    UniversalAddress, format_universal_address, parse_universal_address,
};
use curt_rpc::{
    auth::RpcCredential,
    client::{
        CallError, CallReply, Interrupt, NoTransportEvents, PortSource, RecoveryMode, RpcRequest, ServerName,
        TcpOptions, TcpTransport, Transport,
    },
};
use curt_xdr::{Decode, DecodeError, Encode, Opaque, decode_all};

use crate::protocol::mounting::{MountError, ServiceKind};

/// Longest results, in bytes.
const RESULTS_MAX: usize = 512;

/// Queries the portmapper at `address` for the TCP port of `program` and `version`, which are those
/// of `service`.
pub(super) fn ask(
    address: IpAddr,
    service: ServiceKind,
    program: u32,
    version: u32,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<u16, MountError> {
    let failed = |error| MountError::of_call(ServiceKind::Portmapper, address.to_string(), PORT, error);
    let options = question_options(ServerName::Address(address), PORT, timeout);
    let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), interrupt).map_err(failed)?;
    let directory = PortmapClient { transport: &transport, interrupt };
    let port = directory.port(address, program, version).map_err(failed)?;
    port.ok_or_else(|| MountError::NotRegistered { service, server: address.to_string() })
}

/// Options of a connection for one request with the time limit `timeout`.
pub(super) fn question_options(server: ServerName, port: u16, timeout: Duration) -> TcpOptions {
    TcpOptions {
        timeout,
        retrans: 0,
        recovery: RecoveryMode::Soft,
        connect_timeout: timeout,
        ..TcpOptions::new(server, PortSource::Fixed(port))
    }
}

struct PortmapClient<'a> {
    transport: &'a dyn Transport,
    interrupt: &'a Interrupt,
}

impl PortmapClient<'_> {
    fn port(&self, address: IpAddr, program: u32, version: u32) -> Result<Option<u16>, CallError> {
        if address.is_ipv4() {
            match self.port_by_mapping(program, version) {
                // An rpcbind without version 2.
                Err(CallError::ProgramMismatch(_)) => {}
                answer => return answer,
            }
        }
        match self.port_by_binding(RpcbindVersion::Rpcbind4, address, program, version) {
            Err(CallError::ProgramMismatch(_)) => {
                self.port_by_binding(RpcbindVersion::Rpcbind3, address, program, version)
            }
            answer => answer,
        }
    }

    fn port_by_mapping(&self, program: u32, version: u32) -> Result<Option<u16>, CallError> {
        let mapping = Mapping { program, version, protocol: PROTOCOL_TCP, port: 0 };
        let reply = self.call(RpcbindVersion::Portmap2, &mapping)?;
        let port: u32 = decoded(&reply)?;
        let port = u16::try_from(port).map_err(|_| DecodeError::BadValue { name: "a port", value: port })?;
        Ok(Some(port).filter(|port| *port != 0))
    }

    fn port_by_binding(
        &self,
        rpcbind: RpcbindVersion,
        address: IpAddr,
        program: u32,
        version: u32,
    ) -> Result<Option<u16>, CallError> {
        let netid = if address.is_ipv4() { NETID_TCP } else { NETID_TCP6 };
        let reached = format_universal_address((address, PORT).into());
        let opaque = |bytes| Opaque::new(bytes).unwrap_or_default();
        let binding = Rpcb {
            program,
            version,
            netid: opaque(netid),
            address: opaque(reached.as_bytes()),
            owner: Opaque::default(),
        };
        let reply = self.call(rpcbind, &binding)?;
        let UniversalAddress(universal) = decoded(&reply)?;
        if universal.is_empty() {
            return Ok(None);
        }
        let length = u32::try_from(universal.len()).unwrap_or(u32::MAX);
        let parsed = parse_universal_address(universal.bytes());
        let address = parsed
            .ok_or(DecodeError::BadValue { name: "a universal address of so many bytes", value: length })?;
        Ok(Some(address.port()).filter(|port| *port != 0))
    }

    fn call(&self, version: RpcbindVersion, arguments: &(dyn Encode + Sync)) -> Result<CallReply, CallError> {
        let request = RpcRequest {
            program: PROGRAM,
            version: version as u32,
            procedure: PortmapProcedure::Lookup as u32,
            credential: &RpcCredential::None,
            arguments,
            bulk: &[],
            results_max: RESULTS_MAX,
        };
        self.transport.call(&request, self.interrupt)
    }
}

pub(super) fn decoded<'a, T: Decode<'a>>(reply: &'a CallReply) -> Result<T, CallError> {
    decode_all(reply.results()).map_err(CallError::Malformed)
}
