//! Calls of version 3 by a test's client, over a transport that several threads may share, and a
//! server for them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::nfs3::{
    self, DirOpArgs, Fattr, Filename, LookupOk, NfsFh3, NfsProcedure, NfsResult, NfsStat3,
};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::client::{
    CallArguments, Interrupt, NoTransportEvents, PortSource, RpcRequest, ServerName, TcpOptions,
    TcpTransport, Transport,
};
use curt_rpc::server::{Limits, RpcServer};
use curt_server::{
    ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, RECORD_MAX, Squash,
};
use curt_xdr::{Opaque, decode_all};

/// User and group of the caller.
pub(crate) const ROOT: (u32, u32) = (0, 0);

/// All clients, on any port, not squashed.
pub(crate) fn open_rules() -> ExportRules {
    ExportRules { squash: Squash::None, secure_ports: false, ..ExportRules::default() }
}

/// The setup of a server of `exports` with its state in memory.
pub(crate) fn setup(exports: Vec<ExportDefinition>) -> NfsServiceConfig {
    NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports,
        counters: Arc::new(ServerCounters::default()),
    }
}

/// A server over TCP, which ends with the test's process.
pub(crate) fn serve(service: Arc<NfsService>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { record: RECORD_MAX, ..Limits::default() };
    let server = RpcServer::new(vec![listener], service, limits).unwrap();
    std::thread::spawn(|| server.run());
    address
}

pub(crate) fn connect(address: SocketAddr) -> TcpTransport {
    let options = TcpOptions::new(ServerName::Address(address.ip()), PortSource::Fixed(address.port()));
    TcpTransport::connect(options, Arc::new(NoTransportEvents), &Interrupt::never()).unwrap()
}

/// The results of a call of a user and group, which has to succeed; at most 4 KiB.
pub(crate) fn call(
    transport: &dyn Transport,
    (uid, gid): (u32, u32),
    (program, procedure): (u32, u32),
    arguments: &dyn CallArguments,
) -> Vec<u8> {
    let credential = RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"test"),
        uid,
        gid,
        groups: AuthSysGids::first_of(&[]),
    });
    let request =
        RpcRequest { program, version: 3, procedure, credential: &credential, arguments, results_max: 4096 };
    let reply = transport.call(&request, &Interrupt::never());
    reply.unwrap().results().to_vec()
}

/// The results of an NFS call by [`ROOT`].
pub(crate) fn nfs(
    transport: &dyn Transport,
    procedure: NfsProcedure,
    arguments: &dyn CallArguments,
) -> Vec<u8> {
    call(transport, ROOT, (nfs3::PROGRAM, procedure.number()), arguments)
}

/// The handle of an export's root.
pub(crate) fn mount(transport: &dyn Transport, who: (u32, u32), path: &str) -> NfsFh3 {
    let path = DirPath(Opaque::new(path.as_bytes()).unwrap());
    let procedure = mount3::MountProcedure::Mount.number();
    let mounted = call(transport, who, (mount3::PROGRAM, procedure), &path);
    match decode_all(&mounted).unwrap() {
        MountReply::Ok(mounted) => mounted.root,
        MountReply::Failed(status) => panic!("not mounted: {status}"),
    }
}

/// The handle of a name.
pub(crate) fn lookup(transport: &dyn Transport, directory: NfsFh3, name: &[u8]) -> Result<NfsFh3, NfsStat3> {
    let name = Filename::new(name).unwrap();
    let found = nfs(transport, NfsProcedure::Lookup, &DirOpArgs { directory, name });
    match decode_all::<NfsResult<LookupOk, Option<Fattr>>>(&found).unwrap() {
        NfsResult::Ok(found) => Ok(found.object),
        NfsResult::Failed(status, _) => Err(status),
    }
}
