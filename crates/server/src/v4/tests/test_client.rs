//! A server with exports in memory, and clients with a session each.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::nfs4::{
    ChannelAttributes, ClientOwner, CompoundEncoder, CompoundResults, CreateHow4, CreateSessionArgs4,
    CreateSessionFlags, CreateSessionOk4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, Fattr4, GetfhOk4,
    LookupArgs4, Nfs4Operation, NfsFh4, NfsStat4, OpenArgs4, OpenClaim, OpenHow, OpenOk4, PROGRAM,
    PutfhArgs4, ReclaimCompleteArgs4, SequenceArgs4, SequenceId, SequenceOk4, SessionId, ShareAccess4,
    SlotId, StateOwner, StateProtectArgs, Stateid, VERSION, Verifier4,
};
use curt_rpc::auth::{AuthSys, AuthSysCredential, AuthSysGids, MachineName, OpaqueAuth, RpcCredential};
use curt_rpc::client::{
    CallArguments, Interrupt, NoTransportEvents, PortSource, RpcRequest, ServerName, TcpOptions,
    TcpTransport, Transport as _,
};
use curt_rpc::clock::{ScriptedTime, TimeSource};
use curt_rpc::message::{CallMessage, ProcedureId};
use curt_rpc::server::{CallContext, Limits, RpcServer, RpcServerHandle, RpcService as _};
use curt_types::FileHandle;
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Decode, Encoded, Opaque, VarArray};
use parking_lot::Mutex;

use crate::exports::CredentialFlavor;
use crate::{
    ExportClient, ExportDefinition, ExportRules, Fsid, NfsService, NfsServiceConfig, PersistentState,
    RulesByFlavor, Squash, SystemNames,
};

/// The operations of a compound, after SEQUENCE.
pub(super) type Operations<'a> = &'a dyn Fn(&mut CompoundEncoder<'_>);

/// The root user of clients may everything.
pub(super) fn rules() -> ExportRules {
    ExportRules { squash: Squash::None, ..ExportRules::default() }
}

pub(super) fn memory(instance: u64) -> Arc<MemoryVfs> {
    Arc::new(MemoryVfs::new(MemoryOptions { instance, ..MemoryOptions::default() }))
}

/// An export of an empty tree in memory.
pub(super) fn export(path: &str, instance: u64, rules: ExportRules) -> ExportDefinition {
    let vfs: Arc<dyn Vfs> = memory(instance);
    ExportDefinition::for_everyone(path.as_bytes().to_vec(), vfs, rules)
}

/// An export for callers of one flavor only.
pub(super) fn export_for_flavor(path: &str, instance: u64, flavor: CredentialFlavor) -> ExportDefinition {
    let only = ExportClient {
        rules: RulesByFlavor::with_sec(std::iter::once((flavor, rules())).collect()),
        ..ExportClient::everyone(rules())
    };
    ExportDefinition { clients: vec![only], ..export(path, instance, rules()) }
}

/// The export that is the root of all (`fsid=0`).
pub(super) fn root_export(path: &str, instance: u64) -> ExportDefinition {
    ExportDefinition { fsid: Some(Fsid::Number(0)), ..export(path, instance, rules()) }
}

/// A channel of one slot.
pub(super) fn channel() -> ChannelAttributes {
    ChannelAttributes {
        header_padding: 0,
        request_max: 1 << 20,
        response_max: 1 << 20,
        response_cached_max: 4096,
        operations_max: 128,
        requests_max: 1,
        rdma_ird: VarArray::default(),
    }
}

pub(super) struct Server {
    pub(super) service: Arc<NfsService>,
    /// A connection to it; without one, calls are made directly.
    connection: Option<(TcpTransport, RpcServerHandle)>,
    /// The address from which calls are made directly.
    address: Mutex<IpAddr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((_, handle)) = &self.connection {
            handle.shutdown();
        }
    }
}

impl Server {
    /// One export, /srv/files.
    pub(super) fn new() -> Self {
        Self::with(vec![export("/srv/files", 1, rules())])
    }

    /// A server whose time stands still.
    pub(super) fn with(exports: Vec<ExportDefinition>) -> Self {
        Self::with_clock(exports, ScriptedTime::new().clock())
    }

    pub(super) fn in_real_time(exports: Vec<ExportDefinition>) -> Self {
        Self::with_clock(exports, TimeSource::System)
    }

    fn with_clock(exports: Vec<ExportDefinition>, clock: TimeSource) -> Self {
        let (state, counters) = (PersistentState::with_key([9; 16]), Arc::new(ServerCounters::default()));
        let setup = NfsServiceConfig { state, exports, counters };
        Self::over(Arc::new(NfsService::with_environment(setup, Box::new(SystemNames), clock).unwrap()))
    }

    pub(super) const fn over(service: Arc<NfsService>) -> Self {
        let address = Mutex::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Self { service, connection: None, address }
    }

    /// Calls clients back from now on.
    pub(super) fn calling_back(self) -> Self {
        self.service.serve_callbacks().unwrap();
        self
    }

    /// Calls come from this address from now on.
    pub(super) fn call_from(&self, address: [u8; 4]) {
        *self.address.lock() = address.into();
    }

    /// Serves over a connection from now on, so that calls can wait.
    pub(super) fn connected(mut self) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { record: crate::RECORD_MAX, ..Limits::default() };
        let service = Arc::<NfsService>::clone(&self.service);
        let server = RpcServer::new(vec![listener], service, limits).unwrap();
        let handle = server.handle();
        std::thread::spawn(move || server.run());
        let transport = TcpTransport::new(
            TcpOptions::new(ServerName::Address(address.ip()), PortSource::Fixed(address.port())),
            Arc::new(NoTransportEvents),
        );
        self.connection = Some((transport, handle));
        self
    }

    /// Stops serving over the connection.
    pub(super) fn shutdown(&self) {
        self.connection.as_ref().unwrap().1.shutdown();
    }

    /// Calls with bytes as arguments of COMPOUND.
    pub(super) fn raw(&self, credential: OpaqueAuth<'_>, arguments: &[u8]) -> Vec<u8> {
        let reply = self.call(credential, arguments);
        super::valid_errors::check(&reply);
        reply
    }

    fn call(&self, credential: OpaqueAuth<'_>, arguments: &[u8]) -> Vec<u8> {
        if self.connection.is_some() {
            let target = ProcedureId { program: PROGRAM, version: VERSION, procedure: 1 };
            return self.call_connected(target, credential, &Encoded(arguments));
        }
        let call =
            CallMessage { xid: 1, program: PROGRAM, version: VERSION, procedure: 1, credential, arguments };
        let peer = SocketAddr::new(*self.address.lock(), 1000);
        let local = "127.0.0.1:2049".parse().unwrap();
        let mut reply = Vec::new();
        self.service.call(&call, &mut CallContext::detached(peer, local), &mut reply).unwrap();
        assert_eq!(reply.len() % 4, 0, "XDR comes in fours");
        reply
    }

    /// The results of a call over the connection.
    pub(super) fn call_connected(
        &self,
        target: ProcedureId,
        credential: OpaqueAuth<'_>,
        arguments: &dyn CallArguments,
    ) -> Vec<u8> {
        let (transport, _) = self.connection.as_ref().unwrap();
        let credential = match credential {
            OpaqueAuth::Sys(sys) => RpcCredential::Sys(AuthSysCredential {
                machine_name: MachineName::new(sys.machine_name),
                uid: sys.uid,
                gid: sys.gid,
                groups: sys.groups,
            }),
            _ => RpcCredential::None,
        };
        let request =
            RpcRequest { credential: &credential, ..RpcRequest::anonymous(target, arguments, 1 << 20) };
        transport.call(&request, &Interrupt::never()).unwrap().results().to_vec()
    }

    /// A client with a session, after RECLAIM_COMPLETE.
    pub(super) fn client(&self, name: &str) -> TestClient<'_> {
        self.client_with(name, channel())
    }

    pub(super) fn client_with(&self, name: &str, fore: ChannelAttributes) -> TestClient<'_> {
        let client = self.reclaiming_client(name, fore);
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        assert_eq!(client.status(&|compound| compound.push(&complete)), NfsStat4::Ok);
        client
    }

    /// A client with a session, before RECLAIM_COMPLETE.
    pub(super) fn reclaiming_client(&self, name: &str, fore: ChannelAttributes) -> TestClient<'_> {
        self.instance(name, 1, fore)
    }

    /// An instance of a client, by its verifier, with a session.
    pub(super) fn instance(&self, name: &str, verifier: u8, fore: ChannelAttributes) -> TestClient<'_> {
        let presented = ExchangeIdArgs4 {
            owner: ClientOwner {
                verifier: Verifier4([verifier; 8]),
                owner: Opaque::new(name.as_bytes()).unwrap(),
            },
            flags: ExchangeIdFlags(0),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::default(),
        };
        let reply = self.raw(user(0), &compound(1, &|compound| compound.push(&presented)));
        let mut results = CompoundResults::new(&reply).unwrap();
        let exchanged: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).unwrap();
        let creation = CreateSessionArgs4 {
            clientid: exchanged.clientid,
            sequence: exchanged.sequence,
            flags: CreateSessionFlags(0),
            back: fore.clone(),
            fore,
            callback_program: 123,
            callback_security: VarArray::default(),
        };
        let reply = self.raw(user(0), &compound(1, &|compound| compound.push(&creation)));
        let mut results = CompoundResults::new(&reply).unwrap();
        let created: CreateSessionOk4 = results.next(Nfs4Operation::CreateSession).unwrap();
        TestClient {
            server: self,
            session: created.session,
            sequence: Cell::new(0),
            uid: Cell::new(0),
            anonymous: Cell::new(false),
            minor: 1,
            caches: Cell::new(false),
        }
    }
}

pub(super) fn user(uid: u32) -> OpaqueAuth<'static> {
    let groups = AuthSysGids::first_of(&[]);
    OpaqueAuth::Sys(AuthSys { stamp: 0, machine_name: b"test", uid, gid: uid, groups })
}

/// The arguments of a compound.
pub(super) fn compound(minor: u32, operations: Operations<'_>) -> Vec<u8> {
    let mut arguments = Vec::new();
    let mut encoder = CompoundEncoder::new(&mut arguments, Opaque::new(b"tag").unwrap(), minor);
    operations(&mut encoder);
    encoder.finish();
    arguments
}

pub(super) struct TestClient<'s> {
    pub(super) server: &'s Server,
    pub(super) session: SessionId,
    sequence: Cell<u32>,
    pub(super) uid: Cell<u32>,
    /// Calls with AUTH_NONE.
    pub(super) anonymous: Cell<bool>,
    pub(super) minor: u32,
    /// Whether replies are to be cached.
    pub(super) caches: Cell<bool>,
}

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) stateid: Stateid,
    pub(super) handle: FileHandle,
    pub(super) result: OpenOk4<'static>,
}

impl TestClient<'_> {
    fn credential(&self) -> OpaqueAuth<'static> {
        if self.anonymous.get() { OpaqueAuth::None } else { user(self.uid.get()) }
    }

    /// The reply to a compound of SEQUENCE and these operations.
    pub(super) fn run(&self, operations: Operations<'_>) -> Vec<u8> {
        self.sequence.set(self.sequence.get() + 1);
        self.repeat(operations)
    }

    /// The last compound failed at SEQUENCE, and did not use its sequence id.
    pub(super) fn take_back(&self) {
        self.sequence.set(self.sequence.get() - 1);
    }

    /// As [`Self::run`], in the place of the last compound.
    pub(super) fn repeat(&self, operations: Operations<'_>) -> Vec<u8> {
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(self.sequence.get()),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: self.caches.get(),
        };
        let arguments = compound(self.minor, &|compound| {
            compound.push(&sequence);
            operations(compound);
        });
        self.server.raw(self.credential(), &arguments)
    }

    pub(super) fn status(&self, operations: Operations<'_>) -> NfsStat4 {
        CompoundResults::new(&self.run(operations)).unwrap().header().status
    }

    /// The result of the last of several operations, or the status of the one that failed.
    pub(super) fn last<T: for<'a> Decode<'a>>(
        &self,
        before: &[Nfs4Operation],
        last: Nfs4Operation,
        operations: Operations<'_>,
    ) -> Result<T, NfsStat4> {
        let reply = self.run(operations);
        let mut results = CompoundResults::new(&reply).unwrap();
        let status = results.header().status;
        if status != NfsStat4::Ok {
            return Err(status);
        }
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
        for operation in before {
            assert_eq!(results.status(*operation), Ok(NfsStat4::Ok));
        }
        Ok(results.next(last).unwrap())
    }

    /// The handle at a path from the root.
    pub(super) fn walk(&self, path: &[&str]) -> Result<FileHandle, NfsStat4> {
        let reply = self.run(&|compound| {
            compound.bare(Nfs4Operation::Putrootfh);
            for name in path {
                compound.push(&LookupArgs4 { name: Opaque::new(name.as_bytes()).unwrap() });
            }
            compound.bare(Nfs4Operation::Getfh);
        });
        let mut results = CompoundResults::new(&reply).unwrap();
        if results.header().status != NfsStat4::Ok {
            return Err(results.header().status);
        }
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
        results.status(Nfs4Operation::Putrootfh).unwrap();
        for _ in path {
            results.status(Nfs4Operation::Lookup).unwrap();
        }
        let got: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh).unwrap();
        Ok(got.object.into())
    }

    /// The root of the export /srv/files.
    pub(super) fn files(&self) -> FileHandle {
        self.walk(&["srv", "files"]).unwrap()
    }

    /// Opens by name in a directory.
    pub(super) fn open(&self, directory: &FileHandle, open: &OpenArgs4<'_>) -> Result<Opened, NfsStat4> {
        let reply = self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(directory) });
            compound.push(open);
            compound.bare(Nfs4Operation::Getfh);
        });
        let mut results = CompoundResults::new(&reply).unwrap();
        if results.header().status != NfsStat4::Ok {
            return Err(results.header().status);
        }
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
        results.status(Nfs4Operation::Putfh).unwrap();
        let result: OpenOk4<'_> = results.next(Nfs4Operation::Open).unwrap();
        let delegation = match result.delegation {
            curt_proto::nfs4::OpenDelegation::None => curt_proto::nfs4::OpenDelegation::None,
            curt_proto::nfs4::OpenDelegation::NoneExt(why) => curt_proto::nfs4::OpenDelegation::NoneExt(why),
            curt_proto::nfs4::OpenDelegation::Read { stateid, recall, permissions } => {
                assert_eq!(permissions, curt_proto::nfs4::Nfsace4::default());
                let permissions = curt_proto::nfs4::Nfsace4::default();
                curt_proto::nfs4::OpenDelegation::Read { stateid, recall, permissions }
            }
            other => panic!("a delegation for writing was granted: {other:?}"),
        };
        let got: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh).unwrap();
        let (stateid, handle) = (result.stateid, got.object.into());
        let (directory, flags, attributes_set) = (result.directory, result.flags, result.attributes_set);
        let result = OpenOk4 { stateid, directory, flags, attributes_set, delegation };
        Ok(Opened { stateid, handle, result })
    }

    /// Runs one operation on an object.
    pub(super) fn at(&self, object: &FileHandle, operations: Operations<'_>) -> NfsStat4 {
        self.status(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(object) });
            operations(compound);
        })
    }
}

/// OPEN of a name by an owner.
pub(super) fn opening<'a>(name: &'a str, owner: &'a str, access: u32, deny: u32) -> OpenArgs4<'a> {
    OpenArgs4 {
        seqid: 0,
        share_access: ShareAccess4(access),
        share_deny: deny,
        owner: StateOwner {
            clientid: curt_proto::nfs4::Clientid(0),
            owner: Opaque::new(owner.as_bytes()).unwrap(),
        },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(Opaque::new(name.as_bytes()).unwrap()),
    }
}

/// The OPEN, creating the file if it is missing.
pub(super) fn creating<'a>(name: &'a str, owner: &'a str, access: u32, deny: u32) -> OpenArgs4<'a> {
    let how = OpenHow::Create(CreateHow4::Unchecked(Fattr4::default()));
    OpenArgs4 { how, ..opening(name, owner, access, deny) }
}
