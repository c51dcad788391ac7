//! A server over sockets, and a client that sends any bytes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use curt_observe::ServerCounters;
use curt_proto::{
    mount3::{self, DirPath, MountReply},
    nfs3::{self, DirOpArgs, Fattr, Filename, LookupOk, NfsFh3, NfsProcedure, NfsResult},
};
use curt_rpc::{
    auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential},
    message::{AcceptStatus, RejectedReply, decode_reply_header, encode_call_header},
    record,
    server::{Limits, RpcServer, RpcServerHandle, RpcService},
};
use curt_server::{
    ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, RECORD_MAX, Squash,
};
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Decode, Decoder, Encode, Opaque, decode_all};

/// Maximum time to wait for a reply.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Served {
    pub address: SocketAddr,
    pub service: Arc<NfsService>,
    pub counters: Arc<ServerCounters>,
    pub handle: RpcServerHandle,
    thread: Option<JoinHandle<()>>,
}

/// All clients, on any port, not squashed.
pub fn open_rules() -> ExportRules {
    ExportRules { squash: Squash::None, secure_ports: false, ..ExportRules::default() }
}

/// An empty tree in memory, exported as `path`.
pub fn memory(path: &str, instance: u64) -> ExportDefinition {
    let options = MemoryOptions { instance, ..MemoryOptions::default() };
    export(path, Arc::new(MemoryVfs::new(options)), open_rules())
}

pub fn export(path: &str, vfs: Arc<dyn Vfs>, rules: ExportRules) -> ExportDefinition {
    ExportDefinition::for_everyone(path.into(), vfs, rules)
}

impl Served {
    pub fn new(exports: Vec<ExportDefinition>) -> Self {
        Self::with_limits(exports, Limits::default())
    }

    pub fn with_limits(exports: Vec<ExportDefinition>, limits: Limits) -> Self {
        Self::wrapped(exports, limits, |service| service)
    }

    /// A server with a service around its own.
    pub fn wrapped(
        exports: Vec<ExportDefinition>,
        limits: Limits,
        wrap: impl FnOnce(Arc<NfsService>) -> Arc<dyn RpcService>,
    ) -> Self {
        let counters = Arc::new(ServerCounters::default());
        let setup = NfsServiceConfig {
            state: PersistentState::ephemeral().unwrap(),
            exports,
            counters: Arc::clone(&counters),
        };
        let service = Arc::new(NfsService::new(setup).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { record: RECORD_MAX, ..limits };
        let served = wrap(Arc::clone(&service));
        let server = RpcServer::new(vec![listener], served, limits).unwrap();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, service, counters, handle, thread }
    }

    pub fn connect(&self) -> Wire {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire { stream, xid: 0, who: user(0, 0, &[]) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handle.shutdown();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let ended = thread.join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// The credential of a caller.
pub fn user(uid: u32, gid: u32, groups: &[u32]) -> RpcCredential {
    RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"test"),
        uid,
        gid,
        groups: AuthSysGids::first_of(groups),
    })
}

/// One connection.
pub struct Wire {
    pub stream: TcpStream,
    pub xid: u32,
    /// The caller of later calls.
    pub who: RpcCredential,
}

/// How a call failed that was parsed as a call.
pub type Answer = Result<Vec<u8>, Refused>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Denied(RejectedReply),
    Not(AcceptStatus),
}

impl Wire {
    /// Sends a call with arguments of any bytes.
    pub fn send(&mut self, (program, version, procedure): (u32, u32, u32), arguments: &[u8]) {
        self.xid += 1;
        let mut out = Vec::new();
        let body = record::begin_record(&mut out);
        encode_call_header(&mut out, self.xid, program, version, procedure, &self.who);
        out.extend_from_slice(arguments);
        record::finish_record(&mut out, body, 0);
        self.stream.write_all(&out).unwrap();
    }

    /// The next reply; none if the connection was closed.
    pub fn receive(&mut self) -> Option<(u32, Answer)> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).ok()?;
        let length = u32::from_be_bytes(mark) & 0x7fff_ffff;
        let mut body = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut body).ok()?;
        let mut decoder = Decoder::new(&body);
        let header = decode_reply_header(&mut decoder).unwrap();
        let answer = match header.outcome {
            Ok(AcceptStatus::Success) => Ok(decoder.remaining().to_vec()),
            Ok(status) => Err(Refused::Not(status)),
            Err(denial) => Err(Refused::Denied(denial)),
        };
        Some((header.xid, answer))
    }

    /// Sends a call of any bytes and returns its reply.
    pub fn raw(&mut self, procedure: (u32, u32, u32), arguments: &[u8]) -> Answer {
        self.send(procedure, arguments);
        let (xid, answer) = self.receive().expect("a reply");
        assert_eq!(xid, self.xid);
        answer
    }

    /// Sends an NFS call and returns its results.
    pub fn nfs(&mut self, procedure: NfsProcedure, arguments: &dyn Encode) -> Vec<u8> {
        let mut bytes = Vec::new();
        arguments.encode(&mut bytes);
        let procedure = (nfs3::PROGRAM, nfs3::VERSION, procedure.number());
        self.raw(procedure, &bytes).unwrap()
    }

    /// Sends an NFS call and returns its results, which do not borrow from the connection.
    pub fn ask<T, F>(&mut self, procedure: NfsProcedure, arguments: &dyn Encode) -> NfsResult<T, F>
    where
        NfsResult<T, F>: for<'a> Decode<'a>,
    {
        decode_all(&self.nfs(procedure, arguments)).unwrap()
    }

    /// The handle of an export's root.
    pub fn mount(&mut self, path: &str) -> NfsFh3 {
        let mut arguments = Vec::new();
        DirPath(Opaque::new(path.as_bytes()).unwrap()).encode(&mut arguments);
        let procedure = (mount3::PROGRAM, 3, mount3::MountProcedure::Mount.number());
        match decode_all(&self.raw(procedure, &arguments).unwrap()).unwrap() {
            MountReply::Ok(mounted) => mounted.root,
            MountReply::Failed(status) => panic!("{path}: {status}"),
        }
    }

    /// The handle of a name.
    pub fn lookup(&mut self, directory: NfsFh3, name: &[u8]) -> NfsResult<LookupOk, Option<Fattr>> {
        let name = Filename::new(name).unwrap();
        self.ask(NfsProcedure::Lookup, &DirOpArgs { directory, name })
    }
}
