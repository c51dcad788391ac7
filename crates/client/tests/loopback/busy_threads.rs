//! Work that others wait for does not wait for threads that are busy.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use curt_client::{Background, OpenFlags, ops, threads::BackgroundThreads};

use crate::world::{BenchMount, World, root};

/// Far longer than what is waited for takes.
const LONG: Duration = Duration::from_secs(60);

/// Waits until the client has sent a request that this is part of.
fn wait_for(mounted: &BenchMount, request: &str) {
    let begin = Instant::now();
    while !mounted.sent().contains(request) {
        assert!(begin.elapsed() < LONG, "{request} is not sent");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_session_is_maintained_while_all_threads_wait_for_the_server() {
    let world = World::new();
    let threads = Arc::new(BackgroundThreads::new(1));
    let mounted = world.mount_v4_on(Arc::<BackgroundThreads>::clone(&threads));
    let (end, ended) = mpsc::channel::<()>();
    threads.spawn(Box::new(move || ended.recv().unwrap_or_default()));
    mounted.put(&root(), mounted.client.root(), "file", 0o644, b"");
    mounted.sent();
    wait_for(&mounted, "NFSv4.SEQUENCE 1");
    drop(end);
}

#[test]
fn files_that_are_released_before_their_data_are_sent_do_not_keep_them_from_being_sent() {
    let world = World::new();
    let mounted = world.mount_v4_on(Arc::new(BackgroundThreads::new(1)));
    let op = || mounted.client.op(&root());
    let (_, opened) =
        ops::create(&op(), mounted.client.root(), b"file", 0o644, OpenFlags::writing()).unwrap();
    ops::write(&op(), &opened.file, 0, b"x").unwrap();
    mounted.sent();
    ops::release(&mounted.client, &opened.file);
    wait_for(&mounted, "NFSv4.WRITE 1");
}
