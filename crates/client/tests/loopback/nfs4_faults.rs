//! NFSv4.1: servers that are restarted, slow or wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{Caller, InodeId, OpenFlags, RenameMode, ops};
use curt_policy::CacheOptions;
use rustix::io::Errno;

use crate::{
    scripted_server::{ScriptedServer, op},
    world::{BenchMount, REQUEST, World, user},
};

fn mounted(world: &World, server: &Arc<ScriptedServer>) -> BenchMount {
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<ScriptedServer>::clone(server));
    mounted.sent();
    mounted
}

/// Whether something happens for one of the first `count` times.
fn times(count: u32) -> impl Fn() -> bool {
    let left = AtomicU32::new(count);
    move || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn me() -> Caller {
    user(500)
}

/// A server that is restarted before it replies to a change.
struct RestartedServer {
    mounted: BenchMount,
    server: Arc<ScriptedServer>,
    world: World,
    /// The client takes it for an outage of the network.
    seems_an_outage: AtomicBool,
}

impl RestartedServer {
    fn new() -> Self {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        mounted.teach_time(&world);
        Self { mounted, server, world, seems_an_outage: AtomicBool::new(false) }
    }

    /// The result of `change`, whose operation the server executes before it is restarted, or does
    /// not.
    fn restart_at<T>(
        &self,
        operation: u32,
        is_executed: bool,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        // Earlier changes are in the past.
        self.world.pass(Duration::from_millis(100));
        let (next, clock) = (self.world.way_after_restart(), Arc::clone(&self.world.clock));
        let (is_first, server) = (times(1), Arc::downgrade(&self.server));
        let seems_restarted = !self.seems_an_outage.load(Relaxed);
        self.server.script(move |asked| {
            if asked.main() != operation || !is_first() {
                return None;
            }
            if is_executed {
                asked.execute().unwrap();
            }
            asked.lost.set(Some((REQUEST, seems_restarted)));
            clock.pass(Duration::from_secs(5));
            server.upgrade()?.replace(Arc::clone(&next));
            None
        });
        let result = change().map(drop);
        self.server.obey();
        assert!(self.mounted.sent().contains("NFSv4.EXCHANGE_ID 1"), "the server was restarted");
        result
    }

    /// The same for a change that is executed.
    fn executed<T>(&self, operation: u32, change: impl FnOnce() -> Result<T, Errno>) -> Result<(), Errno> {
        self.restart_at(operation, true, change)
    }

    fn id(&self, name: &str) -> InodeId {
        self.mounted.lookup(&me(), self.mounted.client.root(), name).unwrap().id
    }
}

// SEMANTICS: rpc-12.
#[test]
fn a_change_that_a_restarted_server_had_executed_is_no_error_over_v4() {
    for seems_an_outage in [false, true] {
        let bed = RestartedServer::new();
        bed.seems_an_outage.store(seems_an_outage, Relaxed);
        let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
        let op = || client.op(&me());
        bed.mounted.put(&me(), top, "f", 0o640, b"x");
        assert_eq!(bed.executed(op::CREATE, || ops::mkdir(&op(), top, b"d", 0o750)), Ok(()));
        assert_eq!(bed.executed(op::CREATE, || ops::symlink(&op(), top, b"s", b"to")), Ok(()));
        assert_eq!(bed.executed(op::OPEN, || ops::make_file(&op(), top, b"made", 0o640)), Ok(()));
        let create = || ops::create(&op(), top, b"readonly", 0o400, OpenFlags::writing());
        assert_eq!(bed.executed(op::OPEN, create), Ok(()));
        let file = bed.id("f");
        assert_eq!(bed.executed(op::LINK, || ops::link(&op(), file, top, b"l")), Ok(()));
        assert_eq!(bed.id("l"), bed.id("f"));
        let rename = || ops::rename(&op(), top, b"d", top, b"e", RenameMode::Replace);
        let directory = bed.id("d");
        assert_eq!(bed.executed(op::RENAME, rename), Ok(()));
        assert_eq!(bed.id("e"), directory);
        for (name, is_directory) in [("e", true), ("l", false), ("s", false)] {
            bed.id(name);
            let remove = || match is_directory {
                true => ops::rmdir(&op(), top, name.as_bytes()).map(drop),
                false => ops::unlink(&op(), top, name.as_bytes()).map(drop),
            };
            assert_eq!(bed.executed(op::REMOVE, remove), Ok(()), "{name}");
            assert_eq!(bed.mounted.lookup(&me(), top, name).unwrap_err(), Errno::NOENT);
        }
    }
}

// SEMANTICS: rpc-12.
#[test]
fn a_restarted_server_recognises_an_exclusive_creation_and_whose_it_is() {
    let bed = RestartedServer::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let create = |name: &'static [u8]| move || ops::create(&client.op(&me()), top, name, 0o600, exclusive);
    assert_eq!(bed.executed(op::OPEN, create(b"ours")), Ok(()));
    let other = bed.world.mount_v4_over(CacheOptions::default(), "two", bed.world.way());
    ops::create(&other.client.op(&me()), other.client.root(), b"theirs", 0o600, exclusive).unwrap();
    assert_eq!(bed.restart_at(op::OPEN, false, create(b"theirs")), Err(Errno::EXIST));
}
