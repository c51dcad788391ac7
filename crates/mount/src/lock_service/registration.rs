//! Registration of the programs that servers call with this machine's portmapper (version 2: IPv4).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use curt_proto::portmap::{self, Mapping, PROTOCOL_TCP, PROTOCOL_UDP, PortmapProcedure, RpcbindVersion};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    CallError, Interrupt, NoTransportEvents, PortSource, RecoveryMode, RpcRequest, ServerName, TcpOptions,
    TcpTransport, Transport as _,
};
use curt_xdr::{Decode, Encode, decode_all};

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A service on this machine replies at once or not at all.
pub(super) const LOCAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest result in bytes.
const RESULTS_MAX: usize = 64;

/// The portmapper of this machine.
pub(super) struct LocalPortmapper(TcpTransport);

impl LocalPortmapper {
    /// `None` if there is none.
    pub(super) fn find() -> Option<Self> {
        connect(portmap::PORT).ok().map(Self)
    }

    /// The port of a program.
    pub(super) fn port(&self, program: u32, version: u32, protocol: u32) -> Option<u16> {
        let port: u32 = self.call(PortmapProcedure::Lookup, program, version, protocol, 0).ok()?;
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// Registers a program at a port of TCP and one of UDP, unless another process has it. Returns
    /// whether it is registered.
    pub(super) fn register(&self, program: u32, version: u32, [tcp, udp]: [u16; 2]) -> bool {
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

    /// Whether a process that lives has registered the program.
    fn is_served(&self, program: u32, version: u32) -> bool {
        match self.port(program, version, PROTOCOL_TCP) {
            Some(port) => TcpStream::connect_timeout(&SocketAddr::from((HERE, port)), LOCAL_TIMEOUT).is_ok(),
            None => self.port(program, version, PROTOCOL_UDP).is_some(),
        }
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
        let procedure = procedure as u32;
        call(&self.0, (portmap::PROGRAM, RpcbindVersion::Portmap2 as u32, procedure), &mapping)
    }
}

/// A connection to a service of this machine. Some services accept calls from reserved ports only.
pub(super) fn connect(port: u16) -> Result<TcpTransport, CallError> {
    let options = TcpOptions {
        timeout: LOCAL_TIMEOUT,
        retrans: 0,
        recovery: RecoveryMode::Soft,
        connect_timeout: LOCAL_TIMEOUT,
        reserved_port: rustix::process::geteuid().is_root(),
        ..TcpOptions::new(ServerName::Address(HERE), PortSource::Fixed(port))
    };
    TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never())
}

/// Makes one call of `(program, version, procedure)`.
pub(super) fn call<T: for<'a> Decode<'a>>(
    transport: &TcpTransport,
    target: (u32, u32, u32),
    arguments: &(dyn Encode + Sync),
) -> Result<T, CallError> {
    let (program, version, procedure) = target;
    let credential = &RpcCredential::None;
    let request = RpcRequest {
        program,
        version,
        procedure,
        credential,
        arguments,
        bulk: &[],
        results_max: RESULTS_MAX,
    };
    let reply = transport.call(&request, &Interrupt::never())?;
    decode_all(reply.results()).map_err(CallError::Malformed)
}
