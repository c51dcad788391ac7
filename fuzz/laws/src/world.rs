//! A server with a small tree in memory, and calls to it with arbitrary bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use curt_observe::ServerCounters;
use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::nfs3::{self, LookupOk, NfsFh3, NfsProcedure, NfsResult};
use curt_proto::nfs4;
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::message::{CallMessage, ProcedureId, encode_call_header};
use curt_rpc::server::{CallContext, CallFailure, RpcService as _};
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::{Encode, Opaque, decode_all, put_fixed};
use tempfile::TempDir;

/// The path of the export.
pub(crate) const EXPORT: &[u8] = b"/export";
/// Size limit of the tree: small, so that no input is expensive.
const BYTES_MAX: u64 = 1 << 20;
const FILES_MAX: u64 = 64;
/// Maximum size of a reply: that of a READ, and some more.
const REPLY_MAX: usize = nfs3::DATA_MAX + 4096;

/// The server, and handles of the root, a file, a directory and a symbolic link.
pub(crate) struct World {
    service: NfsService,
    pub(crate) handles: Vec<NfsFh3>,
}

/// The credential of a caller.
pub(crate) fn credential(uid: u32) -> RpcCredential {
    RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"fuzz"),
        uid,
        gid: uid,
        groups: AuthSysGids::first_of(&[]),
    })
}

thread_local! {
    /// The server's state directory, one per thread: its key stays the same, so that an input has
    /// the same meaning each time.
    static STATE: TempDir = tempfile::tempdir().expect("a directory for state");
}

impl World {
    pub(crate) fn new() -> Self {
        let vfs = MemoryVfs::new(MemoryOptions {
            bytes_max: BYTES_MAX,
            files_max: FILES_MAX,
            root_mode: 0o777,
            ..MemoryOptions::default()
        });
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        let exports = vec![ExportDefinition::for_everyone(EXPORT.to_vec(), Arc::new(vfs), rules)];
        let service = NfsService::new(NfsServiceConfig {
            state: STATE.with(|directory| PersistentState::open(directory.path()).expect("state")),
            exports,
            counters: Arc::new(ServerCounters::default()),
        })
        .expect("a service");
        let mut world = Self { service, handles: Vec::new() };
        world.plant();
        world
    }

    /// Creates the initial objects of the tree.
    fn plant(&mut self) {
        let path = bytes(&DirPath(Opaque::new(EXPORT).expect("a short path")));
        let mounted =
            self.mount(mount3::VERSION, mount3::MountProcedure::Mount, &path).expect("MNT is answered");
        let MountReply::Ok(ok) = decode_all(&mounted).expect("MNT's reply") else {
            panic!("the export cannot be mounted");
        };
        let root = ok.root;
        // Guarded, of mode 0666 and size 5; a directory of mode 0777; a link to "file".
        let attributes = [1, 0o666, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        let unset = [1, 0o777, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        let guarded = [1_u32.to_be_bytes().as_slice(), &attributes].concat();
        let mut target = unset.clone();
        put_string(&mut target, b"file");
        let entries = [
            (NfsProcedure::Create, b"file".as_slice(), guarded),
            (NfsProcedure::Mkdir, b"directory", unset),
            (NfsProcedure::Symlink, b"link", target),
        ];
        self.handles.push(root);
        for (procedure, name, rest) in entries {
            let mut place = bytes(&root);
            put_string(&mut place, name);
            let looked = place.clone();
            place.extend(rest);
            self.nfs(procedure, 0, &place).expect("the tree can be made");
            let found = self.nfs(NfsProcedure::Lookup, 0, &looked).expect("LOOKUP is answered");
            match decode_all::<NfsResult<LookupOk, Option<nfs3::Fattr>>>(&found) {
                Ok(NfsResult::Ok(ok)) => self.handles.push(ok.object),
                other => panic!("{procedure}: {other:?}"),
            }
        }
    }

    pub(crate) fn nfs(
        &self,
        procedure: NfsProcedure,
        uid: u32,
        arguments: &[u8],
    ) -> Result<Vec<u8>, CallFailure> {
        let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
        self.call(ProcedureId { program, version, procedure: procedure.number() }, uid, arguments)
    }

    pub(crate) fn mount(
        &self,
        version: u32,
        procedure: mount3::MountProcedure,
        arguments: &[u8],
    ) -> Result<Vec<u8>, CallFailure> {
        let (program, procedure) = (mount3::PROGRAM, procedure.number());
        self.call(ProcedureId { program, version, procedure }, 0, arguments)
    }

    /// A call of NFSv4's COMPOUND.
    pub(crate) fn compound(&self, uid: u32, arguments: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let (program, version) = (nfs4::PROGRAM, nfs4::VERSION);
        let procedure = nfs4::Nfs4Procedure::Compound.number();
        self.call(ProcedureId { program, version, procedure }, uid, arguments)
    }

    /// A call as received over a connection.
    fn call(&self, target: ProcedureId, uid: u32, arguments: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let mut record = Vec::new();
        let ProcedureId { program, version, procedure } = target;
        encode_call_header(&mut record, 1, program, version, procedure, &credential(uid));
        put_fixed(&mut record, arguments);
        let call = CallMessage::decode(&record).expect("our own call is understood");
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut results = Vec::new();
        let mut context = CallContext::detached(address(1023), address(nfs3::PORT));
        self.service.call(&call, &mut context, &mut results)?;
        assert!(results.len() <= REPLY_MAX, "a reply of {} bytes", results.len());
        Ok(results)
    }
}

pub(crate) fn bytes(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    curt_xdr::put_opaque(out, text);
}
