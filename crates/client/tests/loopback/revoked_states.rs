//! States of NFSv4.1 that the server has revoked: it is told that the client knows.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{OpenFlags, ops};
use curt_observe::ClientCounter;
use curt_rpc::client::CallError;

use crate::{
    delegations::DelegatedMount,
    nfs4_faults::{mounted, statfs, times},
    scripted_server::{ScriptedServer, op, refused, set_word, status},
    world::{World, root},
};

/// A status flag of SEQUENCE, and the word of a reply that has them.
const ADMIN_STATE_REVOKED: u32 = 0x20;
const FLAGS: usize = 13;

// SEMANTICS: sessions-6.
#[test]
fn a_revoked_open_is_freed_by_another_if_the_first_is_interrupted_or_the_session_is_lost() {
    for is_interrupted in [true, false] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
        world.seconds(2);
        let results = [op::PUTFH, 0, op::CLOSE, status::ADMIN_REVOKED];
        let is_first = times(1);
        server.script(move |asked| match asked.main() {
            op::FREE_STATEID => is_first().then(|| match is_interrupted {
                true => Err(CallError::Interrupted),
                false => Ok(refused(op::SEQUENCE, status::BADSESSION)),
            }),
            _ => asked.does(op::CLOSE).then(|| asked.answer(2, status::ADMIN_REVOKED, &results)),
        });
        for _ in 0..3 {
            let _ = statfs(&world, &mounted);
        }
        assert_eq!(server.executed(op::FREE_STATEID), 1, "the second; is interrupted: {is_interrupted}");
    }
}

// SEMANTICS: sessions-6.
#[test]
fn an_open_that_was_found_revoked_is_kept_until_it_is_freed() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let flags = OpenFlags::writing();
    let (_, opened) =
        ops::create(&mounted.client.op(&root()), mounted.client.root(), b"file", 0o644, flags).unwrap();
    let (has_revoked, is_lost) = (times(1), times(1));
    server.script(move |asked| match asked.main() {
        op::TEST_STATEID => Some(asked.answer(1, 0, &[op::TEST_STATEID, 0, 1, status::ADMIN_REVOKED])),
        op::FREE_STATEID => is_lost().then(|| Ok(refused(op::SEQUENCE, status::BADSESSION))),
        _ => has_revoked().then(|| asked.spoil(|reply| set_word(reply, FLAGS, ADMIN_STATE_REVOKED))),
    });
    for _ in 0..3 {
        assert_eq!(statfs(&world, &mounted), Ok(()));
    }
    assert_eq!(server.executed(op::FREE_STATEID), 1, "the second");
    server.obey();
    ops::write(&mounted.client.op(&root()), &opened.file, 0, b"x").unwrap();
    assert_eq!(ops::fsync(&mounted.client.op(&root()), &opened.file, false), Ok(()), "it is opened again");
}

// SEMANTICS: sessions-6.
#[test]
fn many_revoked_states_are_freed_in_few_requests() {
    let names: Vec<String> = (0..200).map(|number| format!("f{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let delegated = DelegatedMount::new(&names);
    let DelegatedMount { world, server, mounted, .. } = &delegated;
    let has_revoked = times(1);
    let freed = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&freed);
    server.script(move |asked| match asked.main() {
        op::TEST_STATEID => {
            let tested = asked.words[13];
            let statuses = (0..tested).map(|_| status::ADMIN_REVOKED);
            let results: Vec<u32> = [op::TEST_STATEID, 0, tested].into_iter().chain(statuses).collect();
            Some(asked.answer(1, 0, &results))
        }
        op::FREE_STATEID => {
            // Those behind one that is refused are not executed.
            Some(asked.free_states(|_| {
                let is_third = counted.fetch_add(1, Relaxed) == 2;
                if is_third { status::LOCKS_HELD } else { 0 }
            }))
        }
        _ => has_revoked().then(|| asked.spoil(|reply| set_word(reply, FLAGS, ADMIN_STATE_REVOKED))),
    });
    mounted.sent();
    for _ in 0..2 {
        assert_eq!(statfs(world, mounted), Ok(()));
    }
    let sent = mounted.sent();
    assert_eq!(freed.load(Relaxed), 400, "each file has an open too: {sent}");
    // Of 64 operations, for each of four TEST_STATEIDs.
    assert!(sent.contains("NFSv4.FREE_STATEID 10 ") && sent.contains("NFSv4.TEST_STATEID 4"), "{sent}");
    assert_eq!(mounted.client.counters().events.value(ClientCounter::DelegationLost), 200);
}
