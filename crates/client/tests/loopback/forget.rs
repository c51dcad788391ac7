//! Requests of a kernel by inode number alone, after FORGET.

use curt_client::{ClientOptions, FoundInode, InodeId, Limits, LookupResult, ops};
use curt_policy::CacheOptions;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root};

/// Maximum inodes that are cached for that reason alone.
const LAST_MAX: u64 = 16_384;

fn by_id(mounted: &BenchMount, id: InodeId) -> Result<FoundInode, Errno> {
    match ops::lookup_id(&mounted.client.op(&root()), id)? {
        LookupResult::Positive(found) => Ok(found),
        LookupResult::Negative { .. } => Err(Errno::NOENT),
    }
}

// SEMANTICS: posix-7.
#[test]
fn a_forgotten_inode_is_found_by_its_number_until_the_server_removes_it() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let (client, me) = (&mounted.client, root());
    client.set_used_by_kernel();
    let directory = ops::mkdir(&client.op(&me), client.root(), b"d", 0o755).unwrap();
    let file = mounted.put(&me, directory.id, "f", 0o644, b"x").id;
    for id in [file, directory.id] {
        client.forget(id, 1);
        assert_eq!(ops::getattr(&client.op(&me), id).map(drop), Err(Errno::STALE), "it is not held");
    }
    mounted.sent();
    let found = by_id(&mounted, file).unwrap();
    assert_eq!((found.id, mounted.sent().as_str()), (file, "GETATTR 1"));
    assert!(ops::getattr(&client.op(&me), file).is_ok(), "it is held again");
    assert_eq!(by_id(&mounted, directory.id).map(|found| found.id), Ok(directory.id));
    let up = ops::lookup(&client.op(&me), directory.id, b"..").unwrap();
    assert!(matches!(up, LookupResult::Positive(up) if up.id == InodeId::ROOT));
    client.forget(file, 1);
    let other = world.mount(CacheOptions::default());
    let place = other.lookup(&me, other.client.root(), "d").unwrap();
    ops::unlink(&other.client.op(&me), place.id, b"f").unwrap();
    assert_eq!(by_id(&mounted, file), Err(Errno::STALE));
    assert_eq!(by_id(&mounted, InodeId(1 << 40)), Err(Errno::STALE), "it never was");
}

// SEMANTICS: posix-7.
#[test]
fn inodes_cached_for_their_number_alone_are_bounded_and_only_for_kernels() {
    let world = World::new();
    let limits = Limits { names: 1, ..Limits::default() };
    let behaviour = ClientOptions { limits, ..ClientOptions::default() };
    let mounted = world.mount_with(behaviour);
    let (client, me) = (&mounted.client, root());
    let make = |number: u64| {
        let name = format!("f{number}");
        let made = ops::make_file(&client.op(&me), client.root(), name.as_bytes(), 0o644);
        let id = made.unwrap().id;
        client.forget(id, 1);
        id
    };
    let early = make(0);
    client.set_used_by_kernel();
    let ids: Vec<InodeId> = (0..LAST_MAX + 1).map(|number| make(1 + number)).collect();
    for gone in [early, ids[0]] {
        assert_eq!(by_id(&mounted, gone), Err(Errno::STALE));
    }
    assert_eq!(by_id(&mounted, ids[1]).map(|found| found.id), Ok(ids[1]));
    let (objects, ..) = client.cached_counts();
    assert_eq!(objects as u64, LAST_MAX + 1, "those and the root");
}
