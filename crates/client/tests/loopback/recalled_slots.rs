//! Slots of NFSv4.1 that the server wants not to be used any more.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::ops;
use curt_rpc::client::CallError;
use rustix::io::Errno;

use crate::{
    delegations::mounted_on_timers,
    nfs4_faults::{statfs, times},
    scripted_server::{ScriptedServer, op, refused, set_word, status},
    world::{BenchMount, World, root},
};

/// The word of a request that has the slot, and those of a reply that have the highest slot that
/// the server accepts, and the highest that it wants to be used.
const ASKED_SLOT: usize = 9;
const HIGHEST_SLOT: usize = 11;
const TARGET_SLOT: usize = 12;

// SEMANTICS: sessions-6.
#[test]
fn an_interrupted_request_in_a_slot_that_is_recalled_costs_no_session() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let (mounted, timers) = mounted_on_timers(&world, &server);
    let mounted = Arc::new(mounted);
    let (is_first, is_interrupted, is_executing) = (times(1), times(1), times(1));
    let user: Weak<BenchMount> = Arc::downgrade(&mounted);
    let (outcome, high) = (Arc::new(OnceLock::new()), Arc::new(AtomicU32::new(0)));
    let (interrupted, used) = (Arc::clone(&outcome), Arc::clone(&high));
    server.script(move |asked| {
        if asked.words[3] != op::SEQUENCE {
            return None;
        }
        if asked.words[ASKED_SLOT] > 0 {
            if asked.main() == op::CREATE && is_interrupted() {
                return Some(asked.execute().and(Err(CallError::Interrupted)));
            }
            // The server still executes it when the client asks first.
            if is_executing() {
                return Some(Ok(refused(op::SEQUENCE, status::DELAY)));
            }
            used.fetch_add(1, Relaxed);
            return Some(Ok(refused(op::SEQUENCE, status::BADSLOT)));
        }
        if is_first() {
            // Another request is sent meanwhile.
            let user = user.upgrade()?;
            let made = ops::mkdir(&user.client.op(&root()), user.client.root(), b"d", 0o755);
            interrupted.set(made.map(drop)).unwrap();
        }
        Some(asked.spoil(|reply| {
            set_word(reply, HIGHEST_SLOT, 0);
            set_word(reply, TARGET_SLOT, 0);
        }))
    });
    assert_eq!(statfs(&world, &mounted), Ok(()));
    assert_eq!(outcome.get(), Some(&Err(Errno::INTR)));
    for _ in 0..3 {
        timers.pass(Duration::from_secs(1));
        assert_eq!(statfs(&world, &mounted), Ok(()));
    }
    assert_eq!(high.load(Relaxed), 0, "no request uses a recalled slot");
    assert!(!mounted.sent().contains("CREATE_SESSION"));
}
