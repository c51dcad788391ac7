//! `softreval`: while the server does not reply for too long, cached data are served.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{Caller, ClientOptions, InodeId, Superblock, ops, threads::BackgroundThreads};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use rustix::io::Errno;

use crate::world::{BenchMount, Scripted, World, root};

/// The timeout until cached data are served.
const LIMIT: Duration = Duration::from_millis(20);

/// A server that can stop replying: then the client's wait ends by timeout without a reply.
struct Silent {
    next: Arc<dyn Transport>,
    clock: Arc<Scripted>,
    is_silent: AtomicBool,
}

impl Transport for Silent {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if !self.is_silent.load(Relaxed) {
            return self.next.call(request, interrupt);
        }
        self.clock.pass(LIMIT);
        assert!(interrupt.wait_for(Duration::from_secs(60)), "nobody called it off");
        Err(CallError::Interrupted)
    }
}

fn mount(world: &World, soft_revalidation: Option<Duration>) -> (BenchMount, Arc<Silent>) {
    let clock = Arc::clone(&world.clock);
    let silent = Arc::new(Silent { next: world.way(), clock, is_silent: false.into() });
    let behaviour =
        ClientOptions { cache: CacheOptions::default(), soft_revalidation, ..ClientOptions::default() };
    let mounted = world.mount_in(behaviour, silent.clone(), Arc::new(BackgroundThreads::new(2)));
    (mounted, silent)
}

/// Interrupts the operation after a moment, as a signal does.
fn killed<T>(operate: impl FnOnce(&Caller) -> Result<T, Errno>) -> Errno {
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    std::thread::scope(|scope| {
        let interrupt = caller.interrupt.clone();
        scope.spawn(move || {
            let _ = interrupt.wait_for(Duration::from_millis(100));
            interrupt.raise();
        });
        operate(&caller).err().expect("it cannot succeed")
    })
}

fn look(client: &Superblock, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
    match ops::lookup(&client.op(&root()), directory, name)? {
        curt_client::LookupResult::Positive(_) => Ok(()),
        curt_client::LookupResult::Negative { .. } => Err(Errno::NOENT),
    }
}

// SEMANTICS: rpc-9.
#[test]
fn expired_entries_are_served_while_the_server_is_silent_and_others_are_waited_for() {
    let world = World::new();
    let (mounted, silent) = mount(&world, Some(LIMIT));
    let client = &mounted.client;
    let top = client.root();
    let file = mounted.put(&root(), top, "f", 0o644, b"text");
    mounted.cat(&root(), file.id).unwrap();
    let _ = mounted.lookup(&root(), top, "missing");
    world.seconds(100);
    silent.is_silent.store(true, Relaxed);
    let stat = ops::getattr(&client.op(&root()), file.id).unwrap();
    assert_eq!((stat.attributes.size, stat.valid), (4, Duration::ZERO), "and nobody is promised anything");
    assert_eq!(look(client, top, b"f"), Ok(()));
    assert_eq!(look(client, top, b"missing"), Err(Errno::NOENT));
    assert_eq!(ops::access(&client.op(&root()), file.id, 4), Ok(()));
    let opened = ops::open(&client.op(&root()), file.id, curt_client::OpenFlags::reading()).unwrap();
    ops::release(client, &opened.file);
    assert!(mounted.counter(ClientCounter::SoftRevalidation) >= 5);
    assert_eq!(killed(|me| ops::lookup(&client.op(me), top, b"never seen")), Errno::INTR);
    silent.is_silent.store(false, Relaxed);
    mounted.sent();
    ops::getattr(&client.op(&root()), file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "a server that answers is asked again");
}

#[test]
fn without_softreval_every_request_waits() {
    let world = World::new();
    let (mounted, silent) = mount(&world, None);
    let file = mounted.put(&root(), mounted.client.root(), "f", 0o644, b"text");
    world.seconds(100);
    silent.is_silent.store(true, Relaxed);
    assert_eq!(killed(|me| ops::getattr(&mounted.client.op(me), file.id)), Errno::INTR);
}
