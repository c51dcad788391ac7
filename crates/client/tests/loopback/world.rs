//! A server over a tree in memory, any number of clients in the same process, and a clock that only
//! the tests and the requests advance.

use std::{
    fmt,
    net::Ipv4Addr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_client::{
    Background, BackgroundTask, Caller, ChangeObserver, ClientOptions, Clock, Environment, FoundInode,
    InodeId, LookupResult, MountedRoot, Superblock,
    caller::RpcSecurity,
    mounting::ExportSource,
    ops,
    protocol::{
        RpcCaller, RpcClient,
        v3::{NfsV3, nlm::NlmClient},
        v4::{
            self, NfsV4,
            identity::ClientIdentity,
            mounting::{Callbacks, EstablishError, Nfs4Export, Nfs4Mount},
        },
    },
    threads::SuspendedTime,
};
use curt_loopback::{LoopbackStep, LoopbackTransport};
use curt_observe::{ClientCounter, ClientSnapshot};
use curt_policy::CacheOptions;
use curt_proto::mount3;
use curt_rpc::{
    auth::{MachineName, RpcCredential},
    client::{Interrupt, PortSource, RecoveryMode, RpcRequest, ServerName, TcpOptions, Transport},
};
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};
use curt_types::{FileHandle, Timestamp};
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::Decode;
use parking_lot::Mutex;
use rustix::io::Errno;

/// The duration of a request, half of it in each direction.
pub(crate) const REQUEST: Duration = Duration::from_micros(200);

/// Seconds since 1970 at the start of a world; odd, so that the clock does not look coarser than it
/// is.
const BEGIN: i64 = 1_700_000_001;

/// Called in a pause of a client, with the interrupt that ends it.
type InPause = Box<dyn FnOnce(&Interrupt) + Send>;

/// A clock that a test advances, for the clients and the server's tree.
pub(crate) struct Scripted {
    base: Instant,
    passed: AtomicU64,
    /// The part of it in suspend.
    suspended: AtomicU64,
    /// The number of readings by clients.
    pub(crate) read: AtomicU64,
    in_pause: Mutex<Option<InPause>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl Scripted {
    pub(crate) fn pass(&self, duration: Duration) {
        self.passed.fetch_add(u64::try_from(duration.as_nanos()).unwrap(), Relaxed);
    }
}

impl Scripted {
    /// The time since the start of the world.
    pub(crate) fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Relaxed))
    }

    /// Calls `in_pause` in the next pause of a client.
    pub(crate) fn in_next_pause(&self, in_pause: impl FnOnce(&Interrupt) + Send + 'static) {
        *self.in_pause.lock() = Some(Box::new(in_pause));
    }
}

impl Clock for Scripted {
    fn now(&self) -> Instant {
        self.read.fetch_add(1, Relaxed);
        self.base + Duration::from_nanos(self.passed.load(Relaxed))
    }

    fn suspended(&self) -> SuspendedTime {
        let suspended = Duration::from_nanos(self.suspended.load(Relaxed));
        SuspendedTime { at_least: suspended, at_most: suspended }
    }

    fn pause(&self, duration: Duration, interrupt: &Interrupt) {
        let in_pause = self.in_pause.lock().take();
        if let Some(in_pause) = in_pause {
            in_pause(interrupt);
        }
        self.pass(duration);
    }
}

fn server_time(clock: &Scripted) -> Timestamp {
    let passed = Duration::from_nanos(clock.passed.load(Relaxed) + 123_456_789);
    Timestamp::new(BEGIN + i64::try_from(passed.as_secs()).unwrap(), passed.subsec_nanos())
}

/// Runs work at once and delayed work never (no test here waits for it).
#[derive(Debug)]
struct Inline;

impl Background for Inline {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

/// Records the files whose contents, attributes or pages were invalidated, and the reads that found
/// a change.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) contents: Mutex<Vec<InodeId>>,
    pub(crate) attributes: Mutex<Vec<InodeId>>,
    pub(crate) void: Mutex<Vec<(InodeId, u64)>>,
    pub(crate) found_by_reads: Mutex<Vec<(Range<u64>, u64)>>,
}

impl ChangeObserver for Told {
    fn contents_changed(&self, id: InodeId, _: Option<u64>) {
        self.contents.lock().push(id);
    }

    fn invalidate_pages(&self, id: InodeId, size: u64) {
        self.void.lock().push((id, size));
    }

    fn read_found_change(&self, _: InodeId, range: Range<u64>, size: u64) {
        self.found_by_reads.lock().push((range, size));
    }

    fn attributes_changed(&self, id: InodeId) {
        self.attributes.lock().push(id);
    }
}

pub(crate) struct World {
    pub(crate) clock: Arc<Scripted>,
    /// The tree of the server, for injecting faults.
    pub(crate) vfs: Arc<MemoryVfs>,
    service: Arc<NfsService>,
    root: FileHandle,
}

/// How a client of NFSv4.1 is mounted.
pub(crate) struct V4Setup<'a> {
    pub(crate) options: ClientOptions,
    /// The client's name.
    pub(crate) name: &'a str,
    /// `None`: one of its own.
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) callbacks: Callbacks,
    /// Runs delayed work.
    pub(crate) background: Arc<dyn Background>,
    pub(crate) recovery: RecoveryMode,
}

impl Default for V4Setup<'_> {
    fn default() -> Self {
        Self {
            options: ClientOptions::default(),
            name: "one",
            transport: None,
            callbacks: Callbacks::default(),
            background: Arc::new(Inline),
            recovery: RecoveryMode::Hard,
        }
    }
}

/// A client and the requests that it sent.
pub(crate) struct BenchMount {
    pub(crate) client: Superblock,
    /// The protocol of a mount of NFSv4.1.
    pub(crate) v4: Option<Arc<NfsV4>>,
    pub(crate) told: Arc<Told>,
    seen: Mutex<ClientSnapshot>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_time_step(Duration::from_nanos(1))
    }

    /// A world with this resolution of the server's clock.
    pub(crate) fn with_time_step(time_step: Duration) -> Self {
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        Self::serving(rules, time_step, MemoryVfs::new)
    }

    /// A world that exports the tree built by `make`, with these export rules.
    pub(crate) fn serving(
        rules: ExportRules,
        time_step: Duration,
        make: impl FnOnce(MemoryOptions) -> MemoryVfs,
    ) -> Self {
        let clock = Arc::new(Scripted {
            base: Instant::now(),
            passed: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            read: AtomicU64::new(0),
            in_pause: Mutex::default(),
        });
        let served = Arc::clone(&clock);
        let options = MemoryOptions {
            clock: Arc::new(move || server_time(&served)),
            time_step,
            root_mode: 0o777,
            ..MemoryOptions::default()
        };
        let vfs = Arc::new(make(options));
        let service = serve(&vfs, rules);
        let root = root_handle(&service);
        Self { clock, vfs, service, root }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        self.transport_to(self.service.clone())
    }

    /// The transport to another instance of the server, which knows no client and no open.
    pub(crate) fn way_after_restart(&self) -> Arc<dyn Transport> {
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        self.transport_to(serve(&self.vfs, rules))
    }

    fn transport_to(&self, service: Arc<NfsService>) -> Arc<dyn Transport> {
        Arc::new(self.loopback(service))
    }

    fn loopback(&self, service: Arc<NfsService>) -> LoopbackTransport {
        let clock = Arc::clone(&self.clock);
        let service: Arc<dyn curt_rpc::server::RpcService> = service;
        LoopbackTransport::new(service).with_hook(move |moment, _, _| {
            let (LoopbackStep::Sent | LoopbackStep::Answered) = moment;
            clock.pass(REQUEST / 2);
        })
    }

    /// Lets the server call clients, as far as their transports allow that.
    pub(crate) fn serve_callbacks(&self) {
        self.service.serve_callbacks().unwrap();
    }

    /// A transport over which the server can call `callbacks`.
    pub(crate) fn way_with(&self, callbacks: &Callbacks) -> Arc<dyn Transport> {
        Arc::new(self.loopback(Arc::clone(&self.service)).with_callbacks(callbacks.service()))
    }

    pub(crate) fn mount(&self, cache: CacheOptions) -> BenchMount {
        self.mount_with(ClientOptions { cache, ..ClientOptions::default() })
    }

    pub(crate) fn mount_with(&self, behaviour: ClientOptions) -> BenchMount {
        self.mount_over(behaviour, self.transport())
    }

    pub(crate) fn mount_over(&self, behaviour: ClientOptions, transport: Arc<dyn Transport>) -> BenchMount {
        self.mount_in(behaviour, transport, Arc::new(Inline))
    }

    /// Also with an executor for delayed work.
    pub(crate) fn mount_in(
        &self,
        behaviour: ClientOptions,
        transport: Arc<dyn Transport>,
        background: Arc<dyn Background>,
    ) -> BenchMount {
        self.mount_told(behaviour, transport, background, None, |_| {})
    }

    /// A mount with locks by `nlm`, over `transport`.
    pub(crate) fn mount_locking(
        &self,
        behaviour: ClientOptions,
        transport: Arc<dyn Transport>,
        nlm: NlmClient,
        background: Arc<dyn Background>,
    ) -> BenchMount {
        self.mount_told(behaviour, transport, background, Some(nlm), |_| {})
    }

    /// A mount of a server whose limits are modified by `change`.
    pub(crate) fn mount_limited(&self, change: impl FnOnce(&mut MountedRoot)) -> BenchMount {
        self.mount_told(ClientOptions::default(), self.transport(), Arc::new(Inline), None, change)
    }

    /// A client of NFSv4.1.
    pub(crate) fn mount_v4(&self, cache: CacheOptions) -> BenchMount {
        self.mount_v4_over(cache, "one", self.transport())
    }

    /// A client of NFSv4.1 with this name, over a transport.
    pub(crate) fn mount_v4_over(
        &self,
        cache: CacheOptions,
        name: &str,
        transport: Arc<dyn Transport>,
    ) -> BenchMount {
        self.mount_v4_calling(cache, name, transport, &Callbacks::default())
    }

    /// A client of NFSv4.1 with this name, which the server can call.
    pub(crate) fn mount_called_back(&self, cache: CacheOptions, name: &str) -> BenchMount {
        let callbacks = Callbacks::default();
        self.mount_v4_calling(cache, name, self.way_with(&callbacks), &callbacks)
    }

    /// A client of NFSv4.1 over a transport of [`Self::way_with`].
    pub(crate) fn mount_v4_calling(
        &self,
        cache: CacheOptions,
        name: &str,
        transport: Arc<dyn Transport>,
        callbacks: &Callbacks,
    ) -> BenchMount {
        let options = ClientOptions { cache, ..ClientOptions::default() };
        let (transport, callbacks) = (Some(transport), callbacks.clone());
        self.mount_v4_as(V4Setup { options, name, transport, callbacks, ..V4Setup::default() })
    }

    /// As [`Self::mount_v4_calling`], but with an executor for delayed work.
    pub(crate) fn mount_v4_calling_on(
        &self,
        cache: CacheOptions,
        transport: Arc<dyn Transport>,
        callbacks: &Callbacks,
        background: Arc<dyn Background>,
    ) -> BenchMount {
        let options = ClientOptions { cache, ..ClientOptions::default() };
        let (transport, callbacks) = (Some(transport), callbacks.clone());
        self.mount_v4_as(V4Setup { options, transport, callbacks, background, ..V4Setup::default() })
    }

    pub(crate) fn mount_v4_as(&self, setup: V4Setup<'_>) -> BenchMount {
        let V4Setup { options, name, transport, callbacks, background, recovery } = setup;
        let transport = transport.unwrap_or_else(|| self.transport());
        let mut export = Self::export_v4();
        export.transport.recovery = recovery;
        let mount = Nfs4Mount { background: Arc::clone(&background), ..self.identity_v4(name) };
        let mounted = v4::mounting::mount_over(transport, &callbacks, &export, mount).unwrap();
        let clock: Arc<dyn Clock> = self.clock.clone();
        let machine = RpcSecurity::Sys(MachineName::new(b"tester"));
        let root =
            MountedRoot { handle: mounted.root, limits: mounted.limits, path_limits: mounted.path_limits };
        let told = Arc::new(Told::default());
        let environment = Environment { clock, background, observer: Some(told.clone()) };
        let client =
            Superblock::new(&root, Arc::clone(&mounted.protocol) as _, machine, &options, &environment)
                .unwrap();
        let seen = Mutex::new(client.counters());
        BenchMount { client, v4: Some(mounted.protocol), told, seen }
    }

    /// Mounts by NFSv4.1.
    pub(crate) fn establish_v4(
        &self,
        name: &str,
        transport: Arc<dyn Transport>,
        callbacks: &Callbacks,
    ) -> Result<Nfs4Export, EstablishError> {
        v4::mounting::mount_over(transport, callbacks, &Self::export_v4(), self.identity_v4(name))
    }

    /// The root of the server, for a hard mount.
    fn export_v4() -> ExportSource {
        let server = ServerName::Address(Ipv4Addr::LOCALHOST.into());
        let machine = RpcSecurity::Sys(MachineName::new(b"tester"));
        let transport_options = TcpOptions::new(server, PortSource::Fixed(2049));
        let credential = machine.credential(&root());
        ExportSource::new(b"/", transport_options, credential, Duration::from_secs(10))
    }

    fn identity_v4(&self, name: &str) -> Nfs4Mount {
        Nfs4Mount {
            minor_version: 1,
            identity: ClientIdentity::new(name.into()),
            background: Arc::new(Inline),
            clock: self.clock.clone(),
        }
    }

    fn mount_told(
        &self,
        behaviour: ClientOptions,
        transport: Arc<dyn Transport>,
        background: Arc<dyn Background>,
        nlm: Option<NlmClient>,
        change: impl FnOnce(&mut MountedRoot),
    ) -> BenchMount {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let wire = Arc::new(RpcClient::new(transport, Arc::clone(&clock)));
        let never = Interrupt::never();
        let caller = RpcCaller { credential: &RpcCredential::None, interrupt: &never };
        let protocol = match nlm {
            Some(nlm) => NfsV3::with_locks(wire, nlm),
            None => NfsV3::new(wire),
        };
        let answer = protocol.limits(caller, &self.root).unwrap();
        let (limits, path_limits) = answer.outcome.unwrap();
        let mut root = MountedRoot { handle: self.root.clone(), limits, path_limits };
        change(&mut root);
        let told = Arc::new(Told::default());
        let environment = Environment { clock, background, observer: Some(told.clone()) };
        let security = RpcSecurity::Sys(MachineName::new(b"tester"));
        let client = Superblock::new(&root, protocol, security, &behaviour, &environment).unwrap();
        let seen = Mutex::new(client.counters());
        BenchMount { client, v4: None, told, seen }
    }

    /// The transport of a mount, for a test that wraps it.
    pub(crate) fn way(&self) -> Arc<dyn Transport> {
        self.transport()
    }

    pub(crate) fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    /// The machine of the clients is suspended: delayed work is not due earlier.
    pub(crate) fn suspend(&self, duration: Duration) {
        self.pass(duration);
        self.clock.suspended.fetch_add(u64::try_from(duration.as_nanos()).unwrap(), Relaxed);
    }

    pub(crate) fn seconds(&self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }
}

fn serve(vfs: &Arc<MemoryVfs>, rules: ExportRules) -> Arc<NfsService> {
    let export = ExportDefinition::for_everyone(b"/".to_vec(), Arc::<MemoryVfs>::clone(vfs), rules);
    let state = PersistentState::with_key([7; 16]);
    Arc::new(
        NfsService::new(NfsServiceConfig { state, exports: vec![export], counters: Arc::default() }).unwrap(),
    )
}

fn root_handle(service: &Arc<NfsService>) -> FileHandle {
    let loopback = LoopbackTransport::new(service.clone() as Arc<dyn curt_rpc::server::RpcService>);
    let path = mount3::DirPath(curt_xdr::Opaque::new(b"/").unwrap());
    let request = RpcRequest {
        program: mount3::PROGRAM,
        version: 3,
        procedure: mount3::MountProcedure::Mount.number(),
        credential: &RpcCredential::None,
        arguments: &path,
        results_max: 4096,
    };
    let reply = loopback.call(&request, &Interrupt::never()).unwrap();
    match mount3::MountReply::decode(&mut curt_xdr::Decoder::new(reply.results())).unwrap() {
        mount3::MountReply::Ok(ok) => ok.root.into(),
        other => panic!("MNT was refused: {other:?}"),
    }
}

pub(crate) fn root() -> Caller {
    Caller::new(0, 0, &[])
}

pub(crate) fn user(uid: u32) -> Caller {
    Caller::new(uid, uid, &[])
}

impl BenchMount {
    /// The requests since the last call, as "GETATTR 1 LOOKUP 2", ordered by procedure number.
    pub(crate) fn sent(&self) -> String {
        let now = self.client.counters();
        let mut seen = self.seen.lock();
        let difference = now.requests.since(&seen.requests);
        *seen = now;
        let words: Vec<String> = difference
            .iter()
            .filter(|(_, calls)| *calls > 0)
            .map(|(name, calls)| format!("{name} {calls}"))
            .collect();
        words.join(" ")
    }

    pub(crate) fn counter(&self, counter: ClientCounter) -> u64 {
        self.client.counters().events.value(counter)
    }

    pub(crate) fn lookup(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &str,
    ) -> Result<FoundInode, Errno> {
        match ops::lookup(&self.client.op(caller), directory, name.as_bytes())? {
            LookupResult::Positive(found) => Ok(found),
            LookupResult::Negative { .. } => Err(Errno::NOENT),
        }
    }

    /// Lets the client learn the server's time, by a change of its own, and waits until that change
    /// is old enough.
    pub(crate) fn teach_time(&self, world: &World) {
        let top = self.client.root();
        ops::mkdir(&self.client.op(&root()), top, b"now", 0o755).unwrap();
        ops::rmdir(&self.client.op(&root()), top, b"now").unwrap();
        world.pass(Duration::from_millis(100));
        self.sent();
    }

    /// Makes a file with these bytes.
    pub(crate) fn put(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &str,
        mode: u32,
        bytes: &[u8],
    ) -> FoundInode {
        let flags = curt_client::OpenFlags { truncate: true, ..curt_client::OpenFlags::writing() };
        let (found, opened) =
            ops::create(&self.client.op(caller), directory, name.as_bytes(), mode, flags).unwrap();
        if !bytes.is_empty() {
            assert_eq!(ops::write(&self.client.op(caller), &opened.file, 0, bytes), Ok(bytes.len()));
        }
        ops::close(&self.client.op(caller), &opened.file).unwrap();
        found
    }

    /// Opens, reads all, closes.
    pub(crate) fn cat(&self, caller: &Caller, id: InodeId) -> Result<Vec<u8>, Errno> {
        let opened = ops::open(&self.client.op(caller), id, curt_client::OpenFlags::reading())?;
        let bytes = ops::read(&self.client.op(caller), &opened.file, 0, 1 << 20)?.to_vec();
        ops::close(&self.client.op(caller), &opened.file)?;
        Ok(bytes)
    }
}

impl fmt::Debug for BenchMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}
