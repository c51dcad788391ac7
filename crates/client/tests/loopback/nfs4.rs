//! NFSv4.1: the requests of each operation, and what they come to.

use curt_client::{DirEmit, OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

fn mounted(world: &World) -> BenchMount {
    let mounted = world.mount_v4(CacheOptions::default());
    mounted.sent();
    mounted
}

fn names(mounted: &BenchMount) -> Vec<String> {
    let op = mounted.client.op(&root());
    let directory = ops::opendir(&op, mounted.client.root()).unwrap();
    let mut names = Vec::new();
    let mut emit = |entry: &curt_client::DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        DirEmit::Taken
    };
    ops::readdir(&op, &directory, 0, false, &mut emit).unwrap();
    names.sort();
    names
}

#[test]
fn a_file_is_created_written_closed_and_read_in_one_compound_each() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let made = mounted.put(&root(), top, "file", 0o644, b"some bytes");
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1 NFSv4.WRITE 1", "CLOSE rides");
    assert_eq!(mounted.cat(&root(), made.id), Ok(b"some bytes".to_vec()));
    mounted.sent();
    assert_eq!(names(&mounted), [".", "..", "file"]);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    other.sent();
    assert_eq!(other.cat(&root(), found.id), Ok(b"some bytes".to_vec()));
    assert_eq!(other.sent(), "NFSv4.OPEN 1 NFSv4.READ 1", "OPEN brings attributes and rights");
}

#[test]
fn names_are_made_moved_linked_and_removed() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let directory = ops::mkdir(&op(), top, b"d", 0o755).unwrap().id;
    ops::symlink(&op(), directory, b"link", b"target").unwrap();
    let link = mounted.lookup(&root(), directory, "link").unwrap();
    assert_eq!(&*ops::readlink(&op(), link.id).unwrap(), b"target");
    let file = mounted.put(&root(), directory, "a", 0o600, b"x");
    ops::rename(&op(), directory, b"a", top, b"b", curt_client::RenameMode::Replace).unwrap();
    assert_eq!(mounted.lookup(&root(), directory, "a").unwrap_err(), Errno::NOENT);
    ops::link(&op(), file.id, top, b"c").unwrap();
    assert_eq!(ops::getattr(&op(), file.id).unwrap().attributes.nlink, 2);
    assert_eq!(ops::rmdir(&op(), top, b"b"), Err(Errno::NOTDIR));
    assert_eq!(ops::unlink(&op(), top, b"d").unwrap_err(), Errno::ISDIR);
    assert_eq!(ops::rmdir(&op(), top, b"d"), Err(Errno::NOTEMPTY));
    ops::unlink(&op(), directory, b"link").unwrap();
    ops::rmdir(&op(), top, b"d").unwrap();
    assert_eq!(names(&mounted), [".", "..", "b", "c"]);
    let set = SetAttributes { uid: Some(7), gid: Some(8), ..SetAttributes::with_mode(0o640) };
    let stat = ops::setattr(&op(), file.id, &set).unwrap().attributes;
    assert_eq!((stat.uid, stat.gid, stat.mode), (7, 8, 0o640));
    assert_eq!(mounted.cat(&user(9), file.id).unwrap_err(), Errno::ACCESS);
    assert!(ops::statfs(&op(), top).unwrap().blocks > 0);
}

#[test]
fn an_exclusive_creation_takes_one_request_and_finds_an_existing_file() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let flags = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let op = || mounted.client.op(&root());
    let (_, opened) = ops::create(&op(), top, b"new", 0o640, flags).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1");
    assert_eq!(ops::getattr(&op(), opened.file.id()).unwrap().attributes.mode, 0o640);
    assert_eq!(ops::create(&op(), top, b"new", 0o640, flags).unwrap_err(), Errno::EXIST);
}
