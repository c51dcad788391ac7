//! States of NFSv4.1 that the server has revoked: it is told that the client knows.

use curt_client::{OpenFlags, ops};
use curt_rpc::client::CallError;

use crate::{
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
