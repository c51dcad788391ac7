//! The limits that a server reports by FSINFO and PATHCONF, and their use.

use curt_client::{OpenFlags, RenameMode, ops};
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root};

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

/// The result of each operation that takes a name for `name`.
fn refusals(mounted: &BenchMount, name: &[u8]) -> Vec<Result<(), Errno>> {
    let (client, me, top) = (&mounted.client, root(), mounted.client.root());
    let known = ops::make_file(&client.op(&me), top, b"known", 0o644).unwrap();
    let refusals = vec![
        ops::lookup(&client.op(&me), top, name).map(drop),
        ops::make_file(&client.op(&me), top, name, 0o644).map(drop),
        ops::create(&client.op(&me), top, name, 0o644, OpenFlags::writing()).map(drop),
        ops::mkdir(&client.op(&me), top, name, 0o755).map(drop),
        ops::symlink(&client.op(&me), top, name, b"known").map(drop),
        ops::link(&client.op(&me), known.id, top, name).map(drop),
        ops::rename(&client.op(&me), top, b"known", top, name, RenameMode::Replace),
        ops::rename(&client.op(&me), top, name, top, b"known", RenameMode::Replace),
        ops::unlink(&client.op(&me), top, name),
        ops::rmdir(&client.op(&me), top, name),
    ];
    ops::unlink(&client.op(&me), top, b"known").unwrap();
    refusals
}

// SEMANTICS: posix-3.
#[test]
fn names_have_255_bytes_at_most_whatever_the_server_says() {
    for (said, longest) in [(1024, 255), (255, 255), (0, 255), (100, 100)] {
        let world = World::new();
        let mounted = world.mount_limited(|root| root.path_limits.name_max = said);
        let (me, top) = (root(), mounted.client.root());
        let told = ops::statfs(&mounted.client.op(&me), top).unwrap().name_max;
        assert_eq!(told, longest, "{said}");
        let name = vec![b'n'; usize::try_from(longest).unwrap() + 1];
        ops::make_file(&mounted.client.op(&me), top, &name[1..], 0o644).unwrap();
        ops::unlink(&mounted.client.op(&me), top, &name[1..]).unwrap();
        mounted.sent();
        for (number, refusal) in refusals(&mounted, &name).into_iter().enumerate() {
            assert_eq!(refusal, Err(Errno::NAMETOOLONG), "{said}: operation {number}");
        }
        assert_eq!(mounted.sent(), "CREATE 1 REMOVE 1", "{said}: of the file that is known");
    }
}

// SEMANTICS: write-5.
#[test]
fn no_byte_is_accepted_beyond_the_servers_maxfilesize() {
    let world = World::new();
    let mounted = world.mount_limited(|root| root.limits.file_size_max = 10_000);
    let (me, top) = (root(), mounted.client.root());
    let flags = OpenFlags::writing();
    let (found, opened) = ops::create(&mounted.client.op(&me), top, b"f", 0o644, flags).unwrap();
    let file = opened.file;
    assert_eq!(ops::write(&mounted.client.op(&me), &file, 9_990, &[7; 20]), Ok(10));
    assert_eq!(ops::write(&mounted.client.op(&me), &file, 10_000, &[7]), Err(Errno::FBIG));
    assert_eq!(ops::write(&mounted.client.op(&me), &file, u64::MAX, &[7]), Err(Errno::FBIG));
    assert_eq!(ops::close(&mounted.client.op(&me), &file), Ok(()), "nothing was lost");
    let appending = OpenFlags { append: true, ..flags };
    let log = ops::open(&mounted.client.op(&me), found.id, appending).unwrap().file;
    assert_eq!(ops::write(&mounted.client.op(&me), &log, 0, &[7]), Err(Errno::FBIG));
    assert_eq!(ops::setattr_open(&mounted.client.op(&me), &log, &size(10_001)).map(drop), Err(Errno::FBIG));
    assert_eq!(ops::setattr(&mounted.client.op(&me), found.id, &size(10_001)).map(drop), Err(Errno::FBIG));
    let cut = ops::setattr(&mounted.client.op(&me), found.id, &size(9_999)).unwrap();
    assert_eq!(cut.attributes.size, 9_999);
    assert_eq!(ops::write(&mounted.client.op(&me), &log, 0, &[7; 2]), Ok(1));
    ops::close(&mounted.client.op(&me), &log).unwrap();
    assert_eq!(mounted.cat(&me, found.id).unwrap().len(), 10_000);
}

// SEMANTICS: write-5.
#[test]
fn without_maxfilesize_any_file_size_is_allowed() {
    for said in [0, u64::MAX] {
        let world = World::new();
        let mounted = world.mount_limited(|root| root.limits.file_size_max = said);
        let file = mounted.put(&root(), mounted.client.root(), "f", 0o644, b"x");
        let largest = i64::MAX.unsigned_abs();
        let set = ops::setattr(&mounted.client.op(&root()), file.id, &size(largest)).unwrap();
        assert_eq!(set.attributes.size, largest);
        let beyond = ops::setattr(&mounted.client.op(&root()), file.id, &size(largest + 1)).map(drop);
        assert_eq!(beyond, Err(Errno::FBIG));
    }
}
