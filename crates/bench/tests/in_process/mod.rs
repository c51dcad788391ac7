//! A server, clients and a scripted clock in one process.
//!
//! Both sides use the scripted clock: it advances only by the script and by each request. Each
//! request is executed on the caller's thread, so that a run with one thread is the same each time.

#![allow(dead_code, reason = "each test uses a part")]

mod tree;

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use curt_bench::tree::WorkloadTree;
use curt_client::caller::RpcSecurity;
use curt_client::mounting::ExportSource;
use curt_client::protocol::{
    Protocol, RpcCaller, RpcClient,
    v3::NfsV3,
    v4::{
        identity::ClientIdentity,
        mounting::{self as v4_mounting, Callbacks, Nfs4Mount},
    },
};
use curt_client::{Background, BackgroundTask, Caller, Clock};
use curt_client::{ChangeObserver, ClientOptions, Environment, MountedRoot, Superblock};
use curt_loopback::{LoopbackStep, LoopbackTransport};
use curt_observe::{CallCounters, CallCounts, Operation, ServerCounters};
use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::{nfs3, nfs4};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{
    AddressFamily, CallError, CallReply, Interrupt, PortSource, RpcRequest, ServerName, TcpOptions, Transport,
};
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState};
use curt_types::{FileHandle, Timestamp};
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Opaque, decode_all};
use parking_lot::Mutex;

/// The server's time at which the trees were made: not a round number, as on real clocks.
const TREE_MADE: Timestamp = Timestamp::new(1_700_000_000, 123_456_789);
/// The age of the trees when a script begins.
const TREE_AGE: Duration = Duration::from_secs(3600);
/// The path of the export.
const PATH: &[u8] = b"/export";
/// Maximum size of MNT's results in bytes.
const MOUNT_RESULTS_MAX: usize = 4096;

/// A clock that advances only on request.
#[derive(Debug)]
pub(crate) struct ScriptedClock {
    start: Instant,
    /// Nanoseconds since `start`.
    passed: AtomicU64,
}

impl ScriptedClock {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), passed: AtomicU64::new(0) })
    }

    /// Advances the clock by `duration`.
    pub(crate) fn advance(&self, duration: Duration) {
        self.passed.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Advances the clock to `since_start`, unless it is later.
    pub(crate) fn advance_to(&self, since_start: Duration) {
        self.passed.fetch_max(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The time since the script began.
    #[must_use]
    pub(crate) fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Relaxed))
    }
}

impl Clock for ScriptedClock {
    fn now(&self) -> Instant {
        self.start + self.passed()
    }

    fn pause(&self, duration: Duration, _: &Interrupt) {
        self.advance(duration);
    }
}

/// The server's time, which follows the script's clock.
fn server_time(clock: &ScriptedClock) -> Timestamp {
    let since = Duration::new(0, TREE_MADE.nanoseconds()) + TREE_AGE + clock.passed();
    Timestamp::new(
        TREE_MADE.seconds() + i64::try_from(since.as_secs()).unwrap_or(i64::MAX / 2),
        since.subsec_nanos(),
    )
}

/// Runs tasks at once when they are submitted, and delayed tasks on request.
#[derive(Default)]
struct InlineBackground {
    later: Mutex<Vec<BackgroundTask>>,
}

impl Background for InlineBackground {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, task: BackgroundTask) {
        self.later.lock().push(task);
    }
}

impl fmt::Debug for InlineBackground {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InlineBackground").finish_non_exhaustive()
    }
}

/// Why a server or mount cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InProcessServerError {
    /// The tree does not fit into memory.
    #[error("the tree does not fit into memory: {0}")]
    Tree(rustix::io::Errno),
    /// The server cannot start.
    #[error("the server cannot begin: {0}")]
    Server(#[from] curt_server::NfsServiceError),
    /// The server refuses the mount.
    #[error("the mount is refused: {0}")]
    Mount(String),
}

/// A server and its clock.
pub(crate) struct InProcessServer {
    clock: Arc<ScriptedClock>,
    vfs: Arc<MemoryVfs>,
    service: Arc<NfsService>,
    delegates: AtomicBool,
}

/// A client of a [`InProcessServer`].
pub(crate) struct InProcessMount {
    /// The client.
    pub(crate) client: Superblock,
    requests: Arc<CallCounters>,
    /// Requests of NFSv4.
    compounds: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    background: Arc<InlineBackground>,
}

/// Passes calls on, and counts the bytes of their results.
struct CountingTransport {
    server: LoopbackTransport,
    received: Arc<AtomicU64>,
}

impl Transport for CountingTransport {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        let reply = self.server.call(request, interrupt)?;
        self.received.fetch_add(reply.results().len() as u64, Relaxed);
        Ok(reply)
    }
}

impl InProcessServer {
    /// A server of `tree` in memory, which is one hour old.
    ///
    /// # Errors
    /// [`InProcessServerError`].
    pub(crate) fn new(tree: &WorkloadTree) -> Result<Self, InProcessServerError> {
        Self::with_rules(tree, ExportRules::default(), MemoryOptions::default())
    }

    /// A server with other rules and options of the file system; its time is always the script's.
    ///
    /// # Errors
    /// [`InProcessServerError`].
    pub(crate) fn with_rules(
        tree: &WorkloadTree,
        rules: ExportRules,
        options: MemoryOptions,
    ) -> Result<Self, InProcessServerError> {
        let clock = ScriptedClock::new();
        let served = Arc::clone(&clock);
        let options = MemoryOptions { clock: Arc::new(move || server_time(&served)), ..options };
        let vfs = Arc::new(tree::memory(tree, options, TREE_MADE).map_err(InProcessServerError::Tree)?);
        let export = ExportDefinition::for_everyone(
            PATH.to_vec(),
            Arc::<MemoryVfs>::clone(&vfs) as Arc<dyn Vfs>,
            rules,
        );
        let service = NfsService::new(NfsServiceConfig {
            state: PersistentState::ephemeral().map_err(curt_server::NfsServiceError::from)?,
            exports: vec![export],
            counters: Arc::new(ServerCounters::default()),
        })?;
        Ok(Self { clock, vfs, service: Arc::new(service), delegates: AtomicBool::new(false) })
    }

    /// The clock.
    #[must_use]
    pub(crate) const fn clock(&self) -> &Arc<ScriptedClock> {
        &self.clock
    }

    /// The exported tree, for local changes at the server.
    #[must_use]
    pub(crate) const fn vfs(&self) -> &Arc<MemoryVfs> {
        &self.vfs
    }

    /// A client, each of whose requests takes `request` of the scripted time.
    ///
    /// # Errors
    /// [`InProcessServerError::Mount`].
    pub(crate) fn mount(
        &self,
        behaviour: &ClientOptions,
        request: Duration,
        observer: Option<Arc<dyn ChangeObserver>>,
    ) -> Result<InProcessMount, InProcessServerError> {
        let requests = Arc::new(CallCounters::default());
        let (clock, count) = (Arc::clone(&self.clock), Arc::clone(&requests));
        let service = Arc::<NfsService>::clone(&self.service);
        let transport = LoopbackTransport::new(service).with_hook(move |moment, program, procedure| {
            clock.advance(request / 2);
            if let (LoopbackStep::Sent, nfs3::PROGRAM, Some(operation)) =
                (moment, program, Operation::nfs3(procedure))
            {
                count.count(operation);
            }
        });
        let background = Arc::<InlineBackground>::default();
        let environment = Environment {
            clock: Arc::<ScriptedClock>::clone(&self.clock),
            background: Arc::<InlineBackground>::clone(&background),
            observer,
        };
        let received = Arc::<AtomicU64>::default();
        let transport: Arc<dyn Transport> =
            Arc::new(CountingTransport { server: transport, received: Arc::clone(&received) });
        let wire = Arc::new(RpcClient::new(transport, Arc::<ScriptedClock>::clone(&self.clock)));
        let protocol = NfsV3::new(wire);
        let root = ask_root(&protocol)?;
        let client =
            Superblock::new(&root, protocol, RpcSecurity::sys(), behaviour, &environment).map_err(refused)?;
        Ok(InProcessMount { client, requests, compounds: Arc::default(), received, background })
    }

    /// Lets the server grant delegations to clients of NFSv4.1 that are mounted later.
    ///
    /// # Errors
    /// [`InProcessServerError::Server`].
    pub(crate) fn delegate(&self) -> Result<(), InProcessServerError> {
        self.service.serve_callbacks()?;
        self.delegates.store(true, Relaxed);
        Ok(())
    }

    /// Mounts the server over NFSv4.1.
    ///
    /// # Errors
    /// [`InProcessServerError::Mount`].
    pub(crate) fn mount_v4(
        &self,
        behaviour: &ClientOptions,
        request: Duration,
    ) -> Result<InProcessMount, InProcessServerError> {
        let compounds = Arc::<AtomicU64>::default();
        let (clock, count) = (Arc::clone(&self.clock), Arc::clone(&compounds));
        let service = Arc::<NfsService>::clone(&self.service);
        let callbacks = Callbacks::default();
        let mut server = LoopbackTransport::new(service);
        if self.delegates.load(Relaxed) {
            server = server.with_callbacks(callbacks.service());
        }
        let server = server.with_hook(move |moment, program, procedure| {
            clock.advance(request / 2);
            let compound = nfs4::Nfs4Procedure::Compound.number();
            if matches!(moment, LoopbackStep::Sent) && (program, procedure) == (nfs4::PROGRAM, compound) {
                count.fetch_add(1, Relaxed);
            }
        });
        let received = Arc::<AtomicU64>::default();
        let transport = Arc::new(CountingTransport { server, received: Arc::clone(&received) });
        let background = Arc::<InlineBackground>::default();
        let environment = Environment {
            clock: Arc::<ScriptedClock>::clone(&self.clock),
            background: Arc::<InlineBackground>::clone(&background),
            observer: None,
        };
        let security = RpcSecurity::sys();
        let export = ExportSource {
            path: PATH.to_vec(),
            transport: TcpOptions::new(
                ServerName::Address(Ipv4Addr::LOCALHOST.into()),
                PortSource::Fixed(2049),
            ),
            nfs_port: None,
            mount_server: None,
            mount_family: AddressFamily::Any,
            mount_port: None,
            credential: security.credential(&Caller::new(0, 0, &[])),
            timeout: Duration::from_secs(10),
        };
        let mount = Nfs4Mount {
            minor_version: 1,
            identity: ClientIdentity::new("one".into()),
            background: Arc::clone(&environment.background),
            clock: Arc::clone(&environment.clock),
        };
        let mounted = v4_mounting::mount_over(transport, &callbacks, &export, mount)
            .map_err(|error| InProcessServerError::Mount(format!("{error:?}")))?;
        let root =
            MountedRoot { handle: mounted.root, limits: mounted.limits, path_limits: mounted.path_limits };
        let client = Superblock::new(&root, mounted.protocol, security, behaviour, &environment);
        let client = client.map_err(refused)?;
        Ok(InProcessMount { client, requests: Arc::default(), compounds, received, background })
    }
}

impl fmt::Debug for InProcessServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InProcessServer").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl InProcessMount {
    /// Number of requests received by the server.
    #[must_use]
    pub(crate) fn requests(&self) -> CallCounts {
        self.requests.snapshot()
    }

    /// Number of requests of NFSv4 received by the server.
    #[must_use]
    pub(crate) fn compounds(&self) -> u64 {
        self.compounds.load(Relaxed)
    }

    /// Bytes of all results.
    #[must_use]
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Runs the delayed tasks (write-back, cleaning up).
    pub(crate) fn run_delayed(&self) {
        let due = std::mem::take(&mut *self.background.later.lock());
        due.into_iter().for_each(|task| task());
    }
}

impl fmt::Debug for InProcessMount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InProcessMount").field("client", &self.client).finish_non_exhaustive()
    }
}

fn refused(error: impl fmt::Display) -> InProcessServerError {
    InProcessServerError::Mount(error.to_string())
}

/// The requests of [`curt_client::mounting`].
fn ask_root(protocol: &NfsV3) -> Result<MountedRoot, InProcessServerError> {
    let (credential, interrupt) = (RpcCredential::None, Interrupt::never());
    let path = DirPath(Opaque::new(PATH).map_err(refused)?);
    let request = RpcRequest {
        program: mount3::PROGRAM,
        version: mount3::VERSION,
        procedure: mount3::MountProcedure::Mount.number(),
        credential: &credential,
        arguments: &path,
        results_max: MOUNT_RESULTS_MAX,
    };
    let transport = protocol.rpc().transport();
    let reply = transport.call(&request, &interrupt).map_err(refused)?;
    let handle = match decode_all(reply.results()).map_err(refused)? {
        MountReply::Ok(ok) => FileHandle::from(ok.root),
        MountReply::Failed(status) => return Err(InProcessServerError::Mount(format!("{status:?}"))),
    };
    let asker = RpcCaller { credential: &credential, interrupt: &interrupt };
    let answer = protocol.limits(asker, &handle).map_err(refused)?;
    let status = |status| InProcessServerError::Mount(format!("{status:?}"));
    let (limits, path_limits) = answer.outcome.map_err(status)?;
    Ok(MountedRoot { handle, limits, path_limits })
}
