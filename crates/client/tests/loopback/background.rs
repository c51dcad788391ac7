//! Work in the background: it is begun when it is due, and waits for no threads that are busy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use curt_client::{Background, OpenFlags, ops, threads::BackgroundThreads};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_types::SetAttributes;
use parking_lot::Mutex;

use crate::{
    scripted_server::{ScriptedServer, op},
    world::{BenchMount, V4Setup, World, root, user},
};

/// Far longer than what is waited for takes.
const LONG: Duration = Duration::from_secs(60);

fn wait_until(is_so: impl Fn() -> bool, otherwise: &str) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{otherwise}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_session_is_maintained_while_all_threads_wait_for_the_server() {
    let world = World::new();
    let threads = Arc::new(BackgroundThreads::new(1));
    let server = ScriptedServer::new(&world);
    let mounted = world.mount_v4_as(V4Setup {
        transport: Some(Arc::<ScriptedServer>::clone(&server)),
        background: Arc::<BackgroundThreads>::clone(&threads),
        ..V4Setup::default()
    });
    let (end, ended) = mpsc::channel::<()>();
    threads.spawn(Box::new(move || ended.recv().unwrap_or_default()));
    mounted.put(&root(), mounted.client.root(), "file", 0o644, b"");
    wait_until(|| server.executed(op::CLOSE) == 1, "the file is not closed");
    drop(end);
}

/// A mount on threads, over a server that can call it, if it `is_called`.
fn on_threads(world: &World, cache: CacheOptions, is_called: bool) -> (BenchMount, Arc<ScriptedServer>) {
    let server = if is_called { ScriptedServer::calling_back(world) } else { ScriptedServer::new(world) };
    let threads = Arc::new(BackgroundThreads::new(2));
    let transport = Arc::<ScriptedServer>::clone(&server);
    let mounted = world.mount_v4_calling_on(cache, transport, &server.callbacks, threads);
    (mounted, server)
}

// SEMANTICS: sessions-1.
#[test]
fn an_open_that_a_delegation_has_kept_for_another_user_is_closed() {
    let world = World::new();
    world.serve_callbacks();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"x");
    maker.lookup(&root(), maker.client.root(), "none").unwrap_err();
    let (mounted, server) = on_threads(&world, CacheOptions::default(), true);
    let file = mounted.lookup(&user(500), mounted.client.root(), "file").unwrap();
    mounted.cat(&user(500), file.id).unwrap();
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 1);
    ops::setattr(&mounted.client.op(&root()), file.id, &SetAttributes::with_mode(0o600)).unwrap();
    wait_until(|| server.executed(op::CLOSE) == 1, "the open stays");
}

// SEMANTICS: sessions-1.
#[test]
fn an_open_whose_last_user_has_gone_before_the_reply_is_closed() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "large", 0o644, &[7; 300_000]);
    maker.lookup(&root(), maker.client.root(), "none").unwrap_err();
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let (mounted, server) = on_threads(&world, sloppy, false);
    let mounted = Arc::new(mounted);
    let found = mounted.lookup(&root(), mounted.client.root(), "large").unwrap();
    let opened = ops::open(&mounted.client.op(&root()), found.id, OpenFlags::reading()).unwrap().file;
    let (weak, released) = (Arc::downgrade(&mounted), Arc::clone(&opened));
    server.script(move |asked| {
        if asked.main() == op::OPEN
            && let Some(mounted) = weak.upgrade()
        {
            ops::release(&mounted.client, &released);
        }
        None
    });
    ops::read(&mounted.client.op(&root()), &opened, 0, 9).unwrap();
    wait_until(|| server.executed(op::CLOSE) == 1, "the open stays");
}

// SEMANTICS: sessions-6.
#[test]
fn the_lease_is_renewed_while_a_server_holds_the_replies_to_closes() {
    let world = World::new();
    let (mounted, server) = on_threads(&world, CacheOptions::default(), false);
    let create = |name: &str| {
        let (op, top) = (mounted.client.op(&root()), mounted.client.root());
        ops::create(&op, top, name.as_bytes(), 0o644, OpenFlags::writing()).unwrap().1.file
    };
    let files = ["a", "b", "c", "d", "e", "f", "g"].map(create);
    let (held, renewed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (end, ended) = mpsc::channel::<()>();
    let (ended, closes, renewals) = (Mutex::new(ended), Arc::clone(&held), Arc::clone(&renewed));
    server.script(move |asked| {
        if asked.does(op::CLOSE) {
            closes.fetch_add(1, Relaxed);
            let _ = ended.lock().recv_timeout(LONG);
        } else if asked.operations() == 1 && closes.load(Relaxed) > 0 {
            renewals.fetch_add(1, Relaxed);
        }
        None
    });
    for (file, number) in files.iter().zip(1..) {
        ops::close(&mounted.client.op(&root()), file).unwrap();
        world.pass(Duration::from_millis(100));
        // One thread closes all. If each close had one, it would begin within this time.
        let end = Instant::now() + Duration::from_millis(200);
        while held.load(Relaxed) < number && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    wait_until(|| held.load(Relaxed) > 0, "nothing is closed");
    let before = renewed.load(Relaxed);
    world.seconds(60);
    wait_until(|| renewed.load(Relaxed) > before, "the lease is not renewed");
    assert_eq!(held.load(Relaxed), 1, "at a time");
    drop(end);
    wait_until(|| server.executed(op::CLOSE) == 7, "files stay open");
}
