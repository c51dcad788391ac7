//! Finds the port of a service by portmap (RFC 1833, version 2) or rpcbind (versions 3 and 4).
//!
//! Over IPv4 version 2 is used, which all servers support; over IPv6 versions 4 and 3, which
//! support IPv6.

use std::{net::IpAddr, sync::Arc, time::Duration};

use curt_proto::portmap::{IpProtocol, PORT, PROGRAM, PortLookup, PortmapProcedure, RpcbindVersion};
use curt_rpc::{
    client::{
        CallError, Interrupt, NoTransportEvents, RpcRequest, ServerName, TcpOptions, TcpTransport, Transport,
    },
    message::ProcedureId,
};

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
    let options = TcpOptions::single_calls(ServerName::Address(address), PORT, timeout);
    let transport = TcpTransport::connect(options, Arc::new(NoTransportEvents), interrupt).map_err(failed)?;
    let directory = PortmapClient { transport: &transport, interrupt };
    let port = directory.port(address, program, version).map_err(failed)?;
    port.ok_or_else(|| MountError::NotRegistered { service, server: address.to_string() })
}

struct PortmapClient<'a> {
    transport: &'a dyn Transport,
    interrupt: &'a Interrupt,
}

impl PortmapClient<'_> {
    fn port(&self, address: IpAddr, program: u32, version: u32) -> Result<Option<u16>, CallError> {
        if address.is_ipv4() {
            match self.port_by(RpcbindVersion::Portmap2, address, program, version) {
                // An rpcbind without version 2.
                Err(CallError::ProgramMismatch(_)) => {}
                answer => return answer,
            }
        }
        match self.port_by(RpcbindVersion::Rpcbind4, address, program, version) {
            Err(CallError::ProgramMismatch(_)) => {
                self.port_by(RpcbindVersion::Rpcbind3, address, program, version)
            }
            answer => answer,
        }
    }

    fn port_by(
        &self,
        rpcbind: RpcbindVersion,
        address: IpAddr,
        program: u32,
        version: u32,
    ) -> Result<Option<u16>, CallError> {
        let procedure = ProcedureId {
            program: PROGRAM,
            version: rpcbind as u32,
            procedure: PortmapProcedure::Lookup as u32,
        };
        let lookup = PortLookup { program, version, protocol: IpProtocol::Tcp };
        let arguments = lookup.arguments(rpcbind, address);
        let request = RpcRequest::anonymous(procedure, &arguments, RESULTS_MAX);
        let reply = self.transport.call(&request, self.interrupt)?;
        PortLookup::port(rpcbind, reply.results()).map_err(CallError::Malformed)
    }
}
