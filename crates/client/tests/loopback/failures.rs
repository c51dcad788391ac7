//! Stale handles, shared requests, interruption, lost replies, malformed replies.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use curt_client::{Caller, ClientOptions, OpenFlags, RenameMode, ops};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_proto::nfs3::{self, NfsProcedure};
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::world::{World, root};

/// Intervenes in the next request of one procedure.
pub(crate) struct Trouble {
    next: Arc<dyn Transport>,
    planned: Mutex<Option<(u32, Kind)>>,
}

#[derive(Clone)]
pub(crate) enum Kind {
    /// The server executes it, but the reply is lost.
    LoseReply,
    /// The reply is these bytes.
    Nonsense(Vec<u8>),
    /// The call waits at both barriers before it is sent.
    Meet(Arc<Barrier>, Arc<Barrier>),
    /// The server executes it, and the reply waits at both barriers.
    MeetAfter(Arc<Barrier>, Arc<Barrier>),
}

impl Trouble {
    pub(crate) fn before(next: Arc<dyn Transport>) -> Arc<Self> {
        Arc::new(Self { next, planned: Mutex::default() })
    }

    pub(crate) fn plan(&self, procedure: NfsProcedure, kind: Kind) {
        *self.planned.lock() = Some((procedure.number(), kind));
    }
}

impl Transport for Trouble {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        let kind = {
            let mut planned = self.planned.lock();
            match &*planned {
                Some((procedure, _)) if *procedure == request.procedure => {
                    planned.take().map(|(_, kind)| kind)
                }
                _ => None,
            }
        };
        match kind {
            None => self.next.call(request, interrupt),
            Some(Kind::LoseReply) => {
                self.next.call(request, interrupt)?;
                Err(CallError::TimedOut { softerr: false })
            }
            Some(Kind::Nonsense(bytes)) => Ok(CallReply::from_results(bytes)),
            Some(Kind::Meet(here, there)) => {
                here.wait();
                there.wait();
                self.next.call(request, interrupt)
            }
            Some(Kind::MeetAfter(here, there)) => {
                let reply = self.next.call(request, interrupt);
                here.wait();
                there.wait();
                reply
            }
        }
    }
}

// SEMANTICS: name-10.
#[test]
fn a_replaced_files_name_is_looked_up_again_when_its_handle_is_stale() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let old = one.put(&me, one.client.root(), "f", 0o644, b"old");
    two.put(&me, two.client.root(), "g", 0o644, b"new");
    ops::rename(&two.client.op(&me), two.client.root(), b"g", two.client.root(), b"f", RenameMode::Replace)
        .unwrap();
    let stale = ops::open(&one.client.op(&me), old.id, OpenFlags::reading()).map(|_| ());
    assert_eq!(stale, Err(Errno::STALE));
    one.sent();
    let new = one.lookup(&me, one.client.root(), "f").unwrap();
    assert_eq!(one.sent(), "LOOKUP 1", "the name is not served any more, however fresh its directory");
    assert_ne!(new.id, old.id);
    assert_eq!(one.cat(&me, new.id).unwrap(), b"new");
    assert_eq!(one.counter(ClientCounter::StaleRetry), 1);
}

#[test]
fn concurrent_stats_of_one_file_share_one_request() {
    let world = World::new();
    let trouble = Trouble::before(world.way());
    let mounted = world.mount_over(ClientOptions::default(), trouble.clone());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"x");
    world.seconds(10);
    mounted.sent();
    let (here, there) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    trouble.plan(NfsProcedure::Getattr, Kind::Meet(here.clone(), there.clone()));
    thread::scope(|scope| {
        let first = scope.spawn(|| ops::getattr(&mounted.client.op(&me), file.id));
        here.wait();
        let others: Vec<_> =
            (0..4).map(|_| scope.spawn(|| ops::getattr(&mounted.client.op(&me), file.id))).collect();
        let impatient = Caller { interrupt: Interrupt::new(), ..me.clone() };
        let interrupted = scope.spawn({
            let impatient = impatient.clone();
            let client = &mounted.client;
            move || ops::getattr(&client.op(&impatient), file.id)
        });
        while mounted.counter(ClientCounter::AttrShared) < 5 {
            thread::yield_now();
        }
        impatient.interrupt.raise();
        assert_eq!(interrupted.join().unwrap().map(|_| ()), Err(Errno::INTR));
        there.wait();
        assert!(first.join().unwrap().is_ok());
        assert!(others.into_iter().all(|other| other.join().unwrap().is_ok()));
    });
    let sent = mounted.sent();
    let count: u32 = sent.strip_prefix("GETATTR ").unwrap().parse().unwrap();
    assert!(count <= 2, "those who began before the request was sent may ask once more: {sent}");
}

// SEMANTICS: rpc-10.
#[test]
fn after_a_lost_reply_to_a_change_nothing_cached_is_served() {
    let world = World::new();
    let trouble = Trouble::before(world.way());
    let mounted = world.mount_over(ClientOptions::default(), trouble.clone());
    let me = root();
    let top = mounted.client.root();
    assert!(mounted.lookup(&me, top, "d").is_err());
    mounted.put(&me, top, "f", 0o644, b"x");
    trouble.plan(NfsProcedure::Mkdir, Kind::LoseReply);
    assert_eq!(ops::mkdir(&mounted.client.op(&me), top, b"d", 0o755).map(|_| ()), Err(Errno::IO));
    assert!(mounted.lookup(&me, top, "d").is_ok(), "it was made, and is found");
    trouble.plan(NfsProcedure::Remove, Kind::LoseReply);
    assert_eq!(ops::unlink(&mounted.client.op(&me), top, b"f"), Err(Errno::IO));
    assert!(mounted.lookup(&me, top, "f").is_err());
}

#[test]
fn nonsense_from_a_server_is_eio() {
    let world = World::new();
    let trouble = Trouble::before(world.way());
    let mounted = world.mount_over(ClientOptions::default(), trouble.clone());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"x");
    world.seconds(10);
    for bytes in [vec![], vec![0; 3], vec![0; 4], vec![0xff; 200], vec![0; 83], vec![0; 2000]] {
        trouble.plan(NfsProcedure::Getattr, Kind::Nonsense(bytes.clone()));
        let answer = ops::getattr(&mounted.client.op(&me), file.id).map(|_| ());
        assert_eq!(answer, Err(Errno::IO), "{bytes:?}");
    }
    assert!(ops::getattr(&mounted.client.op(&me), file.id).is_ok());
    let listing = ops::opendir(&mounted.client.op(&me), mounted.client.root()).unwrap();
    let status = nfs3::NfsStat3::Ok.number().to_be_bytes().to_vec();
    trouble.plan(NfsProcedure::ReaddirPlus, Kind::Nonsense(status));
    let mut listener = |_: &curt_client::DirEntry<'_>| curt_client::DirEmit::Taken;
    assert_eq!(ops::readdir(&mounted.client.op(&me), &listing, 0, true, &mut listener), Err(Errno::IO));
}

#[test]
fn a_raised_interrupt_ends_an_operation() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = Caller { interrupt: Interrupt::new(), ..root() };
    me.interrupt.raise();
    let lookup = ops::lookup(&mounted.client.op(&me), mounted.client.root(), b"x").map(|_| ());
    assert_eq!(lookup, Err(Errno::INTR));
    let mkdir = ops::mkdir(&mounted.client.op(&me), mounted.client.root(), b"x", 0o755).map(|_| ());
    assert_eq!(mkdir, Err(Errno::INTR));
    assert!(mounted.lookup(&root(), mounted.client.root(), "x").is_err());
}

#[test]
fn an_unknown_inode_number_is_stale() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"x");
    assert!(ops::getattr(&mounted.client.op(&me), file.id).is_ok());
    mounted.client.forget(file.id, 1);
    assert_eq!(ops::getattr(&mounted.client.op(&me), file.id).map(|_| ()), Err(Errno::STALE));
    mounted.client.forget(mounted.client.root(), 1000);
    assert!(ops::getattr(&mounted.client.op(&me), mounted.client.root()).is_ok(), "the root stays");
}
