//! A scripted server, one client, and a clock that both read.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_client::{
    Background, BackgroundTask, Caller, ClientOptions, Clock, DirEmit, Environment, Errno, FoundInode,
    InodeId, LookupResult, MountedRoot, Superblock,
    caller::RpcSecurity,
    ops,
    protocol::{Fsinfo, Pathconf, RpcClient, v3::NfsV3},
};
use curt_observe::{ClientCounter, Operation};
use curt_policy::{AccessMode, CacheOptions, FillMode};
use curt_rpc::client::{Interrupt, Transport};
use curt_types::FileHandle;
use parking_lot::Mutex;

use crate::{
    server::{Lie, Server, State},
    tree::{ROOT, Tree},
};

/// Maximum bytes of a reply.
const REPLY_MAX: u32 = 1 << 20;

/// The clock of both sides: each reading advances it by a microsecond.
#[derive(Debug)]
pub(crate) struct Ticking {
    start: Instant,
    passed: AtomicU64,
}

impl Ticking {
    pub(crate) fn pass(&self, duration: Duration) {
        self.passed.fetch_add(u64::try_from(duration.as_nanos()).unwrap(), Relaxed);
    }

    pub(crate) fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Relaxed))
    }
}

impl Clock for Ticking {
    fn now(&self) -> Instant {
        self.pass(Duration::from_micros(1));
        self.start + self.passed()
    }

    fn pause(&self, duration: Duration, _: &Interrupt) {
        self.pass(duration);
    }
}

#[derive(Debug)]
struct Inline;

impl Background for Inline {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

/// A server and one client of it.
pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) client: Superblock,
}

/// The default options of these tests: mode bits decide access, so that no ACCESS is sent.
pub(crate) fn options() -> CacheOptions {
    CacheOptions { access: AccessMode::ModeBits, fill: FillMode::Auto, ..CacheOptions::default() }
}

pub(crate) fn me() -> Caller {
    Caller::new(1000, 1000, &[])
}

impl World {
    /// A server with this fault and a tree that is an hour old, and a client that was mounted a
    /// second ago.
    pub(crate) fn new(lie: Lie, make: impl FnOnce(&mut Tree)) -> Self {
        Self::with(lie, options(), Pathconf::default(), make)
    }

    pub(crate) fn with(
        lie: Lie,
        cache: CacheOptions,
        path_limits: Pathconf,
        make: impl FnOnce(&mut Tree),
    ) -> Self {
        let clock = Arc::new(Ticking { start: Instant::now(), passed: AtomicU64::new(123_456_789) });
        let mut tree = Tree::new();
        tree.now = clock.passed();
        make(&mut tree);
        clock.pass(Duration::from_secs(3600));
        let server = Arc::new(Server {
            state: Mutex::new(State {
                tree,
                lie,
                names_max: usize::MAX,
                step: Duration::from_nanos(1),
                asked: BTreeMap::new(),
                told: RefCell::default(),
                listings: 0,
                events: Vec::new(),
            }),
            clock: Arc::clone(&clock),
        });
        let transport: Arc<dyn Transport> = server.clone();
        let clock: Arc<dyn Clock> = clock;
        let wire = Arc::new(RpcClient::new(transport, Arc::clone(&clock)));
        let root = MountedRoot {
            handle: FileHandle::new(&ROOT.to_be_bytes()).unwrap(),
            limits: Fsinfo { read_max: REPLY_MAX, ..Fsinfo::default() },
            path_limits,
        };
        let environment = Environment { clock, background: Arc::new(Inline), observer: None };
        let behaviour = ClientOptions { cache, ..ClientOptions::default() };
        let client =
            Superblock::new(&root, NfsV3::new(wire), RpcSecurity::sys(), &behaviour, &environment).unwrap();
        let world = Self { server, client };
        ops::getattr(&world.client.op(&me()), world.client.root()).unwrap();
        world.seconds(1);
        world.sent();
        world
    }

    pub(crate) fn seconds(&self, seconds: u64) {
        self.server.clock.pass(Duration::from_secs(seconds));
    }

    /// Sets the number of names per reply of a listing.
    pub(crate) fn names_max(&self, names_max: usize) {
        self.server.state.lock().names_max = names_max;
    }

    /// Sets the resolution of the server's clock, which has just ticked.
    pub(crate) fn ticks(&self, step: Duration) {
        self.server.state.lock().step = step;
        let beyond = self.server.clock.passed().as_nanos() % step.as_nanos();
        let beyond = Duration::from_nanos(u64::try_from(beyond).unwrap());
        self.server.clock.pass(step - beyond);
    }

    /// Changes the tree now.
    pub(crate) fn happens<T>(&self, what: impl FnOnce(&mut Tree) -> T) -> T {
        let mut state = self.server.state.lock();
        state.tree.now = self.server.clock.passed();
        what(&mut state.tree)
    }

    /// Changes the tree before the reply of a future listing, 0 for the next.
    pub(crate) fn before_listing(&self, number: usize, what: impl FnOnce(&mut Tree) + Send + 'static) {
        let mut state = self.server.state.lock();
        state.listings = 0;
        state.events.push((number, Box::new(what)));
    }

    /// The requests since the last use of this function, as "LOOKUP 2 READDIRPLUS 1".
    pub(crate) fn sent(&self) -> String {
        let asked = std::mem::take(&mut self.server.state.lock().asked);
        let words: Vec<String> = asked
            .iter()
            .map(|(number, count)| format!("{} {count}", Operation::nfs3(*number).unwrap().name()))
            .collect();
        words.join(" ")
    }

    pub(crate) fn lookup(&self, directory: InodeId, name: &str) -> Result<FoundInode, Errno> {
        match ops::lookup(&self.client.op(&me()), directory, name.as_bytes())? {
            LookupResult::Positive(found) => Ok(found),
            LookupResult::Negative { .. } => Err(Errno::NOENT),
        }
    }

    /// The fileid of the object of a name; `None`: the name is missing.
    pub(crate) fn id(&self, directory: InodeId, name: &str) -> Option<u64> {
        match self.lookup(directory, name) {
            Ok(found) => Some(found.attributes.fileid),
            Err(Errno::NOENT) => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Looks up these names, checks them against the tree, and returns the requests that were sent.
    #[track_caller]
    pub(crate) fn look(&self, directory: InodeId, number: u64, names: &[&str]) -> String {
        self.sent();
        for name in names {
            let wanted = self.happens(|tree| tree.find(number, name.as_bytes()));
            assert_eq!(self.id(directory, name), wanted, "{name}");
        }
        self.sent()
    }

    /// Whether a reply showed the current state of the directory.
    pub(crate) fn is_told(&self, number: u64) -> bool {
        let state = self.server.state.lock();
        let told = state.told.borrow();
        told.get(&number) >= Some(&state.tree.nodes[&number].changed)
    }

    /// Lists all names, as `ls` does.
    pub(crate) fn list(&self, directory: InodeId) -> Result<Vec<String>, Errno> {
        let open = ops::opendir(&self.client.op(&me()), directory)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let before = cookie;
            ops::readdir(&self.client.op(&me()), &open, cookie, true, &mut |entry| {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                DirEmit::Taken
            })?;
            if cookie == before {
                return Ok(names);
            }
        }
    }

    pub(crate) fn counter(&self, counter: ClientCounter) -> u64 {
        self.client.counters().events.value(counter)
    }
}
