//! A server with one export (a second one on request), and calls to it as different callers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use curt_observe::ServerCounters;
use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, Fattr, Filename, LookupOk, MkdirArguments, NfsFh3,
    NfsProcedure, NfsResult, NfsStat3, PROGRAM, Sattr, VERSION, WccData,
};
use curt_rpc::auth::{AuthSys, AuthSysGids, OpaqueAuth};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure, RpcService as _};
use curt_types::Timestamp;
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Decode, Encode, decode_all};

use crate::file_handle::{ExportId, HandleContents};
use crate::v3::wire_handle;
use crate::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};

pub(super) const NOW: Timestamp = Timestamp::new(1_000_000, 7);

/// A server over trees in memory.
pub(super) struct Fixture {
    pub(super) service: NfsService,
    pub(super) vfs: Arc<MemoryVfs>,
    client: SocketAddr,
    uid: u32,
    gid: u32,
    groups: &'static [u32],
}

pub(super) fn rules() -> ExportRules {
    ExportRules { squash: Squash::None, ..ExportRules::default() }
}

pub(super) fn memory(instance: u64) -> Arc<MemoryVfs> {
    let options = MemoryOptions { clock: Arc::new(|| NOW), instance, ..MemoryOptions::default() };
    Arc::new(MemoryVfs::new(options))
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_rules(rules())
    }

    pub(super) fn with_rules(rules: ExportRules) -> Self {
        let vfs = memory(1);
        let served: Arc<dyn Vfs> = Arc::<MemoryVfs>::clone(&vfs);
        let exports = vec![
            ExportDefinition::for_everyone(b"/one".to_vec(), served, rules),
            ExportDefinition::for_everyone(b"/two".to_vec(), memory(2), rules),
        ];
        let setup = NfsServiceConfig {
            state: PersistentState::with_key([9; 16]),
            exports,
            counters: Arc::new(ServerCounters::default()),
        };
        let client = "127.0.0.1:1000".parse().unwrap();
        Self { service: NfsService::new(setup).unwrap(), vfs, client, uid: 0, gid: 0, groups: &[] }
    }

    /// Sets the caller of later calls.
    pub(super) const fn become_user(&mut self, uid: u32, gid: u32) {
        (self.uid, self.gid) = (uid, gid);
    }

    /// Sets the groups of later calls.
    pub(super) const fn send_groups(&mut self, groups: &'static [u32]) {
        self.groups = groups;
    }

    pub(super) fn move_to_port(&mut self, port: u16) {
        self.client.set_port(port);
    }

    /// The handle of the root of export 1 or 2.
    pub(super) fn root_of(&self, export: u32) -> NfsFh3 {
        let export = Arc::clone(self.service.exports.current().by_id(ExportId(export)).unwrap());
        let (id, file_system) = (export.id, export.file_system);
        wire_handle(&self.service.key.sign(&HandleContents {
            export: id,
            file_system,
            node: export.vfs.root(),
            parent: None,
        }))
    }

    pub(super) fn root(&self) -> NfsFh3 {
        self.root_of(1)
    }

    /// Sends bytes as arguments and returns the bytes of the results.
    pub(super) fn raw(&self, procedure: u32, arguments: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let groups = AuthSysGids::first_of(self.groups);
        let sys = AuthSys { stamp: 0, machine_name: b"test", uid: self.uid, gid: self.gid, groups };
        let credential = OpaqueAuth::Sys(sys);
        // Relaxed: the xids only have to differ, because each call here is new.
        static XID: AtomicU32 = AtomicU32::new(1);
        let call = CallMessage {
            xid: XID.fetch_add(1, Ordering::Relaxed),
            program: PROGRAM,
            version: VERSION,
            procedure,
            credential,
            arguments,
        };
        let local = "127.0.0.1:2049".parse().unwrap();
        let mut reply = b"before".to_vec();
        self.service.call(&call, &mut CallContext::detached(self.client, local), &mut reply)?;
        assert_eq!(&reply[..6], b"before", "what is in the reply already is not touched");
        let results = reply.split_off(6);
        assert_eq!(results.len() % 4, 0, "XDR comes in fours");
        Ok(results)
    }

    /// One call whose results must fill the reply exactly.
    pub(super) fn call<T, F>(&self, procedure: NfsProcedure, arguments: &impl Encode) -> NfsResult<T, F>
    where
        NfsResult<T, F>: for<'a> Decode<'a>,
    {
        let results = self.raw(procedure.number(), &bytes_of(arguments)).unwrap();
        decode_all(&results).unwrap()
    }

    pub(super) fn make_file(&self, directory: NfsFh3, name: &[u8], mode: u32) -> NfsFh3 {
        let how = CreateHow::Guarded(Sattr { mode: Some(mode), ..Sattr::default() });
        let arguments = CreateArguments { place: place(directory, name), how };
        made(self.call(NfsProcedure::Create, &arguments))
    }

    pub(super) fn make_directory(&self, directory: NfsFh3, name: &[u8], mode: u32) -> NfsFh3 {
        let attributes = Sattr { mode: Some(mode), ..Sattr::default() };
        let arguments = MkdirArguments { place: place(directory, name), attributes };
        made(self.call(NfsProcedure::Mkdir, &arguments))
    }

    pub(super) fn attributes(&self, file: NfsFh3) -> Fattr {
        match self.call::<Fattr, ()>(NfsProcedure::Getattr, &file) {
            NfsResult::Ok(fattr) => fattr,
            NfsResult::Failed(status, ()) => panic!("{status}"),
        }
    }

    pub(super) fn lookup(&self, directory: NfsFh3, name: &[u8]) -> NfsResult<LookupOk, Option<Fattr>> {
        self.call(NfsProcedure::Lookup, &place(directory, name))
    }
}

fn made(outcome: NfsResult<CreateOk, WccData>) -> NfsFh3 {
    match outcome {
        NfsResult::Ok(created) => created.object.unwrap(),
        NfsResult::Failed(status, _) => panic!("{status}"),
    }
}

pub(super) fn place(directory: NfsFh3, name: &[u8]) -> DirOpArgs<'_> {
    DirOpArgs { directory, name: Filename::new(name).unwrap() }
}

pub(super) fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// The status of a failure that carries attributes after the operation.
pub(super) fn status_of<T: std::fmt::Debug, F>(outcome: &NfsResult<T, F>) -> NfsStat3 {
    outcome.status()
}
