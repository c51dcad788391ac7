//! Registration of the programs that servers call with this machine's portmapper (version 2: IPv4).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use curt_proto::portmap::{self, Mapping, PROTOCOL_TCP, PROTOCOL_UDP, PortmapProcedure, RpcbindVersion};
use curt_rpc::client::{
    CallArguments, CallError, Interrupt, NoTransportEvents, RpcRequest, ServerName, TcpOptions, TcpTransport,
    Transport as _,
};
use curt_rpc::message::ProcedureId;
use curt_xdr::{Decode, decode_all};

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A service on this machine replies at once or not at all; those of tests always reply.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 3 });

/// The longest result in bytes.
const RESULTS_MAX: usize = 64;

/// The portmapper of this machine.
pub(super) struct LocalPortmapper(TcpTransport);

impl LocalPortmapper {
    /// `None` if there is none.
    pub(super) fn find() -> Option<Self> {
        connect(portmap::PORT).ok().map(Self)
    }

    /// A portmapper at another port.
    #[cfg(test)]
    pub(super) fn at(port: u16) -> Option<Self> {
        connect(port).ok().map(Self)
    }

    /// The port of a program.
    pub(super) fn port(&self, program: u32, version: u32, protocol: u32) -> Option<u16> {
        let port: u32 = self.call(PortmapProcedure::Lookup, program, version, protocol, 0).ok()?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// Registers a program at a port of TCP and one of UDP, unless another process has it. Returns
    /// whether it is registered.
    pub(super) fn register(&self, program: u32, version: u32, ports: [u16; 2]) -> bool {
        let [tcp, udp] = ports;
        if self.is_served(program, version) {
            return false;
        }
        // What a process left that was killed.
        let _: Result<bool, _> = self.call(PortmapProcedure::Unset, program, version, 0, 0);
        [(PROTOCOL_TCP, tcp), (PROTOCOL_UDP, udp)].into_iter().all(|(protocol, port)| {
            let set = self.call(PortmapProcedure::Set, program, version, protocol, port);
            set.is_ok_and(|is_set: bool| is_set)
        })
    }

    /// Ends the registration of a program at these ports.
    pub(super) fn unregister(&self, program: u32, version: u32, ports: [u16; 2]) {
        if self.is_registered_at(program, version, ports) {
            let _: Result<bool, _> = self.call(PortmapProcedure::Unset, program, version, 0, 0);
        }
    }

    /// Whether a program is registered at these ports of TCP and UDP.
    pub(super) fn is_registered_at(&self, program: u32, version: u32, ports: [u16; 2]) -> bool {
        let [tcp, udp] = ports;
        self.port(program, version, PROTOCOL_TCP) == Some(tcp)
            && self.port(program, version, PROTOCOL_UDP) == Some(udp)
    }

    /// Whether the program is registered by a process that has a socket at its port. The socket may
    /// be bound to any address of this host, so a connection to one of them would prove nothing.
    pub(super) fn is_served(&self, program: u32, version: u32) -> bool {
        let tables = [(PROTOCOL_TCP, ["tcp", "tcp6"]), (PROTOCOL_UDP, ["udp", "udp6"])];
        tables.into_iter().any(|(protocol, tables)| {
            let port = self.port(program, version, protocol);
            port.is_some_and(|port| tables.iter().any(|table| has_socket(&sockets(table), port)))
        })
    }

    fn call<T: for<'a> Decode<'a>>(
        &self,
        procedure: PortmapProcedure,
        program: u32,
        version: u32,
        protocol: u32,
        port: u16,
    ) -> Result<T, CallError> {
        let mapping = Mapping { program, version, protocol, port: u32::from(port) };
        let target = ProcedureId {
            program: portmap::PROGRAM,
            version: RpcbindVersion::Portmap2 as u32,
            procedure: procedure as u32,
        };
        call(&self.0, target, &mapping)
    }
}

/// The sockets of this network namespace in one of its tables (proc(5)).
fn sockets(table: &str) -> String {
    std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default()
}

/// Whether a table has a socket that receives at a port: in state LISTEN (TCP) or CLOSE (UDP,
/// without a peer).
fn has_socket(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        let at = local.and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok());
        at == Some(port) && matches!(state, Some("0A" | "07"))
    })
}

/// A connection to a service of this machine. Some services accept calls from reserved ports only.
pub(super) fn connect(port: u16) -> Result<TcpTransport, CallError> {
    let options = TcpOptions {
        reserved_port: rustix::process::geteuid().is_root(),
        ..TcpOptions::single_calls(ServerName::Address(HERE), port, LOCAL_TIMEOUT)
    };
    TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never())
}

/// Makes one call.
pub(super) fn call<T: for<'a> Decode<'a>>(
    transport: &TcpTransport,
    target: ProcedureId,
    arguments: &dyn CallArguments,
) -> Result<T, CallError> {
    let request = RpcRequest::anonymous(target, arguments, RESULTS_MAX);
    let reply = transport.call(&request, &Interrupt::never())?;
    decode_all(reply.results()).map_err(CallError::Malformed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_service_is_found_whatever_address_it_is_bound_to() {
        for address in ["127.0.0.1:0", "127.9.9.9:0", "0.0.0.0:0"] {
            let (tcp, udp) = (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            let ports = [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()];
            assert!(has_socket(&sockets("tcp"), ports[0]), "{address}");
            assert!(has_socket(&sockets("udp"), ports[1]), "{address}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!has_socket(&sockets("tcp"), client.local_addr().unwrap().port()), "it does not listen");
        assert!(!has_socket("", 1) && !has_socket("head\n 0: nonsense", 1));
    }
}
