//! A server over a tree in memory that can lose its unstable data between any two requests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use curt_client::{
    ClientOptions, Environment, MountedRoot, Superblock,
    caller::RpcSecurity,
    protocol::{RpcCaller, RpcClient, v3::NfsV3},
    threads::MonotonicClock,
    threads::{Background, Clock},
};
use curt_loopback::LoopbackTransport;
use curt_proto::mount3;
use curt_rpc::{
    auth::{MachineName, RpcCredential},
    client::{CallError, CallReply, Interrupt, RpcRequest, Transport},
};
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};
use curt_types::FileHandle;
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::{Opaque, decode_all};
use parking_lot::{Mutex, RwLock};

/// A server that can restart.
pub(crate) struct Server {
    pub(crate) vfs: Arc<MemoryVfs>,
    life: RwLock<LoopbackTransport>,
    /// The number of further WRITE and COMMIT calls before a power cut; 0: none.
    pub(crate) cut_in: AtomicU64,
    /// Power cuts so far.
    pub(crate) cuts: AtomicU64,
    seen: Mutex<Vec<u32>>,
}

fn life(vfs: &Arc<MemoryVfs>) -> LoopbackTransport {
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let export = ExportDefinition::for_everyone(b"/".to_vec(), vfs.clone(), rules);
    let setup = NfsServiceConfig {
        state: PersistentState::with_key([7; 16]),
        exports: vec![export],
        counters: Arc::default(),
    };
    LoopbackTransport::new(Arc::new(NfsService::new(setup).unwrap()))
}

impl Server {
    pub(crate) fn new(options: MemoryOptions) -> Arc<Self> {
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions { root_mode: 0o777, ..options }));
        Arc::new(Self {
            life: RwLock::new(life(&vfs)),
            vfs,
            cut_in: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            seen: Mutex::default(),
        })
    }

    /// Drops what was not committed, and starts the server again.
    pub(crate) fn power_cut(&self) {
        self.vfs.lose_unstable_data();
        *self.life.write() = life(&self.vfs);
        self.cuts.fetch_add(1, Relaxed);
    }

    /// Procedures called since the last use of this function.
    pub(crate) fn take_seen(&self) -> Vec<u32> {
        std::mem::take(&mut self.seen.lock())
    }

    fn root(&self) -> FileHandle {
        let path = mount3::DirPath(Opaque::new(b"/").unwrap());
        let request = RpcRequest {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            procedure: mount3::MountProcedure::Mount.number(),
            credential: &RpcCredential::None,
            arguments: &path,
            results_max: 4096,
        };
        let reply = self.life.read().call(&request, &Interrupt::never()).unwrap();
        match decode_all(reply.results()).unwrap() {
            mount3::MountReply::Ok(ok) => ok.root.into(),
            mount3::MountReply::Failed(status) => panic!("{status}"),
        }
    }

    pub(crate) fn mount(
        self: &Arc<Self>,
        behaviour: &ClientOptions,
        background: Arc<dyn Background>,
    ) -> Superblock {
        let clock: Arc<dyn Clock> = Arc::new(MonotonicClock);
        let transport: Arc<dyn Transport> = self.clone();
        let wire = Arc::new(RpcClient::new(transport, Arc::clone(&clock)));
        let root = self.root();
        let never = Interrupt::never();
        let caller = RpcCaller { credential: &RpcCredential::None, interrupt: &never };
        let protocol = NfsV3::new(wire);
        let answer = protocol.limits(caller, &root).unwrap();
        let (limits, path_limits) = answer.outcome.unwrap();
        let root = MountedRoot { handle: root, limits, path_limits };
        let environment = Environment { clock, background, observer: None };
        let security = RpcSecurity::Sys(MachineName::new(b"tester"));
        Superblock::new(&root, protocol, security, behaviour, &environment).unwrap()
    }
}

impl Transport for Server {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if matches!(request.procedure, 7 | 21) {
            let left = self.cut_in.load(Relaxed);
            if left > 0 {
                self.cut_in.store(left - 1, Relaxed);
                if left == 1 {
                    self.power_cut();
                }
            }
        }
        self.seen.lock().push(request.procedure);
        self.life.read().call(request, interrupt)
    }
}
