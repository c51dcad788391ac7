//! Operations beside a request of NFSv4.1 that the server delays: the return of a delegation, and
//! the close of a file.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::{
    delegations::{DelegatedMount, mounted_on_timers},
    nfs4_faults::times,
    scripted_server::{ScriptedServer, op, status},
    world::{World, root, user},
};

/// Compounds since the counts were taken last: all, those that return a delegation, and those with
/// a CLOSE that the server executes.
#[derive(Default)]
struct Counts([AtomicU32; 3]);

impl Counts {
    fn take(&self) -> [u32; 3] {
        self.0.each_ref().map(|count| count.swap(0, Relaxed))
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_delays_a_return_for_long_delays_neither_requests_nor_closes() {
    let DelegatedMount { world, server, timers, mounted } = DelegatedMount::new(&["read"]);
    let counts = Arc::<Counts>::default();
    let (counted, clock) = (Arc::clone(&counts), Arc::clone(&world.clock));
    let until = world.clock.passed() + Duration::from_secs(60);
    server.script(move |asked| {
        let [all, returns, closes] = &counted.0;
        all.fetch_add(1, Relaxed);
        if asked.does(op::DELEGRETURN) {
            returns.fetch_add(1, Relaxed);
            if clock.passed() < until {
                return Some(asked.answer(2, status::DELAY, &[op::PUTFH, 0, op::DELEGRETURN, status::DELAY]));
            }
        }
        closes.fetch_add(u32::from(asked.does(op::CLOSE)), Relaxed);
        None
    });
    mounted.client.set_options(CacheOptions { delegations: false, ..CacheOptions::default() });
    assert_eq!(counts.take(), [2, 1, 0], "the second is without the return");
    mounted.put(&root(), mounted.client.root(), "written", 0o644, b"x");
    counts.take();
    timers.pass(Duration::from_millis(20));
    // The open that the delegation kept is closed too.
    assert_eq!(counts.take(), [1, 0, 1], "at once");
    let (mut returns, mut requests) = (0, 0);
    for _ in 0..38 {
        world.seconds(1);
        timers.pass(Duration::from_secs(1));
        returns += counts.take()[1];
        world.pass(Duration::from_millis(500));
        assert!(ops::statfs(&mounted.client.op(&root()), mounted.client.root()).is_ok());
        requests += counts.take()[0];
    }
    assert!(requests < 38 + 5, "{requests} compounds for 38 requests: at first the pauses are shorter");
    assert!((30..=60).contains(&returns), "{returns} returns");
    assert!(world.clock.passed() < until);
    world.seconds(3);
    timers.pass(Duration::from_secs(1));
    assert_eq!(counts.take()[1], 1);
    for _ in 0..3 {
        world.seconds(1);
        timers.pass(Duration::from_secs(1));
    }
    assert_eq!(counts.take()[1], 0, "once");
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_delays_each_close_for_long_gets_few_more_requests() {
    const FILES: usize = 300;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let (mounted, timers) = mounted_on_timers(&world, &server);
    let names: Vec<_> = (0..FILES).map(|number| format!("file{number}")).collect();
    for name in &names {
        mounted.put(&root(), mounted.client.root(), name, 0o644, b"x");
    }
    world.seconds(2);
    timers.pass(Duration::from_secs(1));
    let (counts, is_obeying) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
    let (counted, obeys) = (Arc::clone(&counts), Arc::clone(&is_obeying));
    server.script(move |asked| {
        let [all, _, closes] = &counted.0;
        all.fetch_add(1, Relaxed);
        if !asked.does(op::CLOSE) || obeys.load(Relaxed) {
            return None;
        }
        closes.fetch_add(1, Relaxed);
        Some(asked.answer(2, status::DELAY, &[op::PUTFH, 0, op::CLOSE, status::DELAY]))
    });
    mounted.sent();
    let mut opened = Vec::new();
    for name in &names {
        let found = mounted.lookup(&root(), mounted.client.root(), name).unwrap().id;
        opened.push(ops::open(&mounted.client.op(&root()), found, OpenFlags::writing()).unwrap());
    }
    counts.take();
    for opened in &opened {
        world.pass(Duration::from_millis(1));
        ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
        let set = SetAttributes::with_mode(0o755);
        ops::setattr(&mounted.client.op(&root()), mounted.client.root(), &set).unwrap();
    }
    let closes = counts.take()[2];
    assert!((5..=10).contains(&closes), "{closes} in 300 ms");
    let mut most = 0;
    for _ in 0..20 {
        world.seconds(1);
        timers.pass(Duration::from_secs(1));
        most = most.max(counts.take()[0]);
    }
    assert!((1..=4).contains(&most), "{most} requests in a second");
    is_obeying.store(true, Relaxed);
    let before = server.executed(op::CLOSE);
    for _ in 0..2 {
        world.seconds(1);
        timers.pass(Duration::from_secs(1));
    }
    assert!(server.executed(op::CLOSE) - before >= FILES, "all");
}

// SEMANTICS: sessions-6.
#[test]
fn a_return_that_is_refused_beside_a_request_of_another_user_is_sent_with_its_own_credential() {
    let DelegatedMount { server, timers, mounted, .. } = DelegatedMount::new(&["read"]);
    let found = mounted.lookup(&root(), mounted.client.root(), "read").unwrap().id;
    // The open is not closed with the return.
    let opened = ops::open(&mounted.client.op(&root()), found, OpenFlags::reading()).unwrap();
    let is_first = times(1);
    server.script(move |asked| match asked.main() {
        _ if asked.does(op::DELEGRETURN) && is_first() => {
            Some(asked.answer(2, status::ACCESS, &[op::PUTFH, 0, op::DELEGRETURN, status::ACCESS]))
        }
        // A server that changes the file would recall the delegation.
        op::SETATTR => Some(asked.answer(1, status::ACCESS, &[op::PUTFH, status::ACCESS])),
        _ => None,
    });
    let set = SetAttributes::with_mode(0o600);
    let changed = ops::setattr(&mounted.client.op(&user(7)), found, &set);
    assert_eq!(changed.map(drop), Err(Errno::ACCESS));
    assert_eq!(server.executed(op::DELEGRETURN), 0);
    timers.pass(Duration::from_secs(1));
    assert_eq!(server.executed(op::DELEGRETURN), 1, "nobody sends another request");
    drop(opened);
}

// SEMANTICS: sessions-6.
#[test]
fn an_operation_whose_result_is_malformed_is_sent_once_more() {
    for operation in [op::DELEGRETURN, op::CLOSE] {
        let DelegatedMount { world, server, timers, mounted } = DelegatedMount::new(&["read"]);
        let sent = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&sent);
        server.script(move |asked| {
            let is_sent = asked.does(operation);
            counted.fetch_add(u32::from(is_sent), Relaxed);
            // The DELEGRETURN precedes the CLOSE of the same file.
            let results = match asked.does(op::DELEGRETURN) {
                true if operation == op::CLOSE => {
                    vec![op::PUTFH, 0, op::DELEGRETURN, 0, op::PUTFH, 0, op::GETATTR, 0]
                }
                _ => vec![op::PUTFH, 0, op::GETATTR, 0],
            };
            is_sent.then(|| asked.answer(u32::try_from(results.len()).unwrap() / 2, 0, &results))
        });
        mounted.client.set_options(CacheOptions { delegations: false, ..CacheOptions::default() });
        for _ in 0..9 {
            world.seconds(2);
            timers.pass(Duration::from_secs(1));
        }
        assert_eq!(sent.load(Relaxed), 2, "operation {operation}");
        assert!(ops::statfs(&mounted.client.op(&root()), mounted.client.root()).is_ok());
    }
}
