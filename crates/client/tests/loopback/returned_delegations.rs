//! Delegations that are returned: in which compound, and before what.

use std::{sync::Arc, time::Duration};

use curt_client::{InodeId, OpenFlags, RenameMode, ops};
use curt_policy::CacheOptions;
use curt_types::SetAttributes;
use parking_lot::Mutex;

use crate::{
    delegations::{self, DelegatedMount},
    scripted_server::op,
    world::{BenchMount, root},
};

/// A mount to which the file is delegated, and the compounds with DELEGRETURN that it sends: what
/// precedes or is their main operation.
fn recorded() -> (DelegatedMount, Arc<Mutex<Vec<Vec<u32>>>>) {
    let delegated = DelegatedMount::new(&["file"]);
    let compounds = Arc::<Mutex<Vec<Vec<u32>>>>::default();
    let recorded = Arc::clone(&compounds);
    delegated.server.script(move |asked| {
        if asked.does(op::DELEGRETURN) {
            recorded.lock().push(asked.first_operations());
        }
        None
    });
    (delegated, compounds)
}

// SEMANTICS: sessions-14.
#[test]
fn a_delegation_is_returned_in_the_compound_of_a_change_and_before_it() {
    type Change = fn(&BenchMount, InodeId);
    let changes: [(u32, Change); 5] = [
        (op::SETATTR, |mounted, file| {
            let set = SetAttributes::with_mode(0o600);
            ops::setattr(&mounted.client.op(&root()), file, &set).unwrap();
        }),
        (op::REMOVE, |mounted, _| {
            ops::unlink(&mounted.client.op(&root()), mounted.client.root(), b"file").unwrap();
        }),
        (op::RENAME, |mounted, _| {
            let (op, top) = (mounted.client.op(&root()), mounted.client.root());
            ops::rename(&op, top, b"file", top, b"other", RenameMode::Replace).unwrap();
        }),
        (op::LINK, |mounted, file| {
            let top = mounted.client.root();
            ops::link(&mounted.client.op(&root()), file, top, b"link").unwrap();
        }),
        (op::OPEN, |mounted, file| {
            let opened = ops::open(&mounted.client.op(&root()), file, OpenFlags::writing()).unwrap();
            ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
        }),
    ];
    for (main, change) in changes {
        let (delegated, compounds) = recorded();
        let DelegatedMount { server, mounted, .. } = &delegated;
        let file = mounted.lookup(&root(), mounted.client.root(), "file").unwrap().id;
        change(mounted, file);
        let compounds = compounds.lock();
        let [compound] = &compounds[..] else { panic!("{main}: {compounds:?}") };
        assert_eq!(compound.last(), Some(&main), "{compound:?}");
        assert_eq!(server.executed(op::DELEGRETURN), 1);
    }
}

// SEMANTICS: sessions-13.
#[test]
fn the_compound_that_returns_a_recalled_delegation_closes_the_file() {
    let (delegated, compounds) = recorded();
    let DelegatedMount { world, timers, .. } = &delegated;
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    delegations::write(&writer, "file", b"two");
    timers.pass(Duration::from_secs(1));
    let expected = [op::SEQUENCE, op::PUTFH, op::DELEGRETURN, op::PUTFH, op::CLOSE];
    assert_eq!(*compounds.lock(), [expected]);
}
