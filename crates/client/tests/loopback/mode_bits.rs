//! Access by mode bits: where the server decides otherwise, they are no longer used.

use curt_client::ops;
use std::{sync::Arc, time::Duration};

use curt_observe::ClientCounter;
use curt_policy::{AccessMode, CacheOptions};
use curt_server::{ExportRules, Squash};
use curt_types::Timestamp;
use curt_vfs::{ContentFormula, MemoryOptions, MemoryTreeBuilder, MemoryVfs};
use rustix::io::Errno;

use crate::world::{World, user};

struct Zeros;

impl ContentFormula for Zeros {
    fn fill(&self, _: &[u8], _: u64, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

/// Files of uid 1000 without permissions for others, about an hour old.
fn private_files(options: MemoryOptions) -> MemoryVfs {
    let time = Timestamp::new(1_600_000_000, 7);
    let mut tree = MemoryTreeBuilder::new(options, Arc::new(Zeros), time);
    tree.owner(1000, 1000).modes(0o755, 0o600);
    for name in ["f", "g", "h"] {
        tree.file(name.as_bytes(), 10).unwrap();
    }
    tree.build()
}

/// A server that maps every user to `anonymous`.
fn world(anonymous: u32) -> World {
    let rules = ExportRules {
        squash: Squash::All,
        anonymous_uid: anonymous,
        anonymous_gid: anonymous,
        ..ExportRules::default()
    };
    World::serving(rules, Duration::from_nanos(1), private_files)
}

fn noaccesscheck() -> CacheOptions {
    CacheOptions { access: AccessMode::ModeBits, ..CacheOptions::default() }
}

// SEMANTICS: perm-6.
#[test]
fn a_denial_by_mode_bits_that_the_server_overturns_ends_their_use_for_that_file() {
    let world = world(1000);
    let mounted = world.mount(noaccesscheck());
    world.seconds(1);
    let top = mounted.client.root();
    let file = mounted.lookup(&user(2000), top, "f").unwrap();
    mounted.sent();
    assert_eq!(mounted.cat(&user(2000), file.id).unwrap().len(), 10);
    assert_eq!(mounted.sent(), "ACCESS 1 READ 1", "the denial is confirmed, and is none");
    assert_eq!(mounted.counter(ClientCounter::AccessDenyOverturned), 1);
    // The result is cached as long as the attributes are.
    assert_eq!(mounted.cat(&user(2000), file.id).unwrap().len(), 10);
    assert_eq!(mounted.sent(), "GETATTR 1");
    // The owner, to whom the bits grant everything, is checked by the server on this file ...
    assert_eq!(ops::access(&mounted.client.op(&user(1000)), file.id, 4), Ok(()));
    assert_eq!(mounted.sent(), "ACCESS 1");
    // ... and by the bits on another.
    let other = mounted.lookup(&user(1000), top, "g").unwrap();
    mounted.sent();
    assert_eq!(ops::access(&mounted.client.op(&user(1000)), other.id, 4), Ok(()));
    assert_eq!(mounted.sent(), "");
}

// SEMANTICS: perm-6.
#[test]
fn a_credential_that_the_server_maps_to_another_is_checked_by_the_server_from_then_on() {
    let world = world(65_534);
    let mounted = world.mount(noaccesscheck());
    let (me, top) = (user(1000), mounted.client.root());
    let [first, second, third] = ["f", "g", "h"].map(|name| mounted.lookup(&me, top, name).unwrap().id);
    mounted.sent();
    // The bits let the owner open; the server maps the owner to another user and denies the READ.
    assert_eq!(mounted.cat(&me, first), Err(Errno::ACCESS));
    let sent = mounted.sent();
    assert!(!sent.contains("ACCESS"), "{sent}");
    world.seconds(2);
    assert_eq!(mounted.cat(&me, first), Err(Errno::ACCESS));
    let sent = mounted.sent();
    assert!(sent.contains("ACCESS 1") && !sent.contains("READ"), "{sent}");
    // Now the mapping is known.
    assert_eq!(
        ops::open(&mounted.client.op(&me), second, curt_client::OpenFlags::reading()).map(|_| ()),
        Err(Errno::ACCESS)
    );
    assert_eq!(mounted.sent(), "ACCESS 1");
    // Other users are still checked by the bits: a denial is confirmed, a grant is not.
    assert_eq!(ops::access(&mounted.client.op(&user(2000)), third, 4), Err(Errno::ACCESS));
    assert!(mounted.sent().contains("ACCESS 1"));
    assert_eq!(ops::access(&mounted.client.op(&user(2000)), top, 4), Ok(()));
    assert_eq!(mounted.sent(), "");
}

#[test]
fn with_accesscheck_a_caller_that_the_server_maps_to_another_opens_nothing() {
    let mounted = world(65_534).mount(CacheOptions::default());
    let me = user(1000);
    let file = mounted.lookup(&me, mounted.client.root(), "f").unwrap();
    mounted.sent();
    assert_eq!(mounted.cat(&me, file.id), Err(Errno::ACCESS));
    let sent = mounted.sent();
    assert!(!sent.contains("READ"), "{sent}");
}
