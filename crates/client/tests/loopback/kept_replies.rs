//! Sessions of NFSv4.1 whose server keeps only small replies.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{RenameMode, ops};

use crate::{
    nfs4_faults::{limit_session, mounted, times},
    scripted_server::{ScriptedRequest, ScriptedServer, op, refused, status},
    world::{BenchMount, REQUEST, World, root},
};

/// The word of the result of CREATE_SESSION that limits the replies that are kept.
const KEPT_MAX: usize = 14;

/// Whether the server has to keep the reply.
fn is_kept(asked: &ScriptedRequest<'_>) -> bool {
    asked.words[3] == op::SEQUENCE && asked.words[11] == 1
}

/// Creates, renames and removes.
fn change_names(mounted: &BenchMount) {
    let (top, op) = (mounted.client.root(), || mounted.client.op(&root()));
    ops::mkdir(&op(), top, b"made", 0o755).unwrap();
    ops::rename(&op(), top, b"made", top, b"renamed", RenameMode::Replace).unwrap();
    mounted.put(&root(), top, "file", 0o644, b"x");
    ops::unlink(&op(), top, b"file").unwrap();
    ops::rmdir(&op(), top, b"renamed").unwrap();
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_keeps_only_small_replies_is_not_asked_to_keep_those_of_changes() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let limit = limit_session(&[(KEPT_MAX, 300)]);
    let refusals = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&refusals);
    server.script(move |asked| {
        limit(asked).or_else(|| {
            is_kept(asked).then(|| {
                count.fetch_add(1, Relaxed);
                Ok(refused(op::SEQUENCE, status::REP_TOO_BIG_TO_CACHE))
            })
        })
    });
    change_names(&mounted(&world, &server));
    assert_eq!(refusals.load(Relaxed), 0);
}

// SEMANTICS: sessions-6.
#[test]
fn a_change_whose_reply_is_too_large_to_be_kept_is_sent_again() {
    for is_operation in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        let refusals = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&refusals);
        server.script(move |asked| {
            is_kept(asked).then(|| {
                count.fetch_add(1, Relaxed);
                if !is_operation {
                    return Ok(refused(op::SEQUENCE, status::REP_TOO_BIG_TO_CACHE));
                }
                // Behind PUTFH.
                let next = asked.words[14 + usize::try_from(asked.words[13]).unwrap().div_ceil(4)];
                let results = [op::PUTFH, 0, next, status::REP_TOO_BIG_TO_CACHE];
                asked.answer(2, status::REP_TOO_BIG_TO_CACHE, &results)
            })
        });
        change_names(&mounted);
        assert!(refusals.load(Relaxed) >= 5, "in the operation: {is_operation}");
    }
}

// SEMANTICS: sessions-6, rpc-12.
#[test]
fn a_change_whose_reply_was_not_kept_and_is_lost_is_no_error() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    server.script(limit_session(&[(KEPT_MAX, 300)]));
    let mounted = mounted(&world, &server);
    mounted.teach_time(&world);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.main() == op::CREATE && is_first()).then(|| {
            asked.execute().unwrap();
            asked.lost.set(Some((REQUEST, false)));
            asked.execute()
        })
    });
    let made = ops::mkdir(&mounted.client.op(&root()), mounted.client.root(), b"made", 0o755);
    assert_eq!(made.map(drop), Ok(()));
}
