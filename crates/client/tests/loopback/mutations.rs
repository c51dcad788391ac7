//! Create, remove, rename, link; files removed while open.

use curt_client::{DirEmit, InodeId, OpenFlags, RenameMode, ops};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_types::{Device, FileKind, SetAttributes, SetTime, Timestamp};
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

pub(crate) fn list(mounted: &BenchMount, directory: InodeId) -> Vec<String> {
    let open = ops::opendir(&mounted.client.op(&root()), directory).unwrap();
    let mut names = Vec::new();
    let mut listener = |entry: &curt_client::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        DirEmit::Taken
    };
    ops::readdir(&mounted.client.op(&root()), &open, 0, false, &mut listener).unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

#[test]
fn create_opens_the_new_file_without_a_further_request() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = user(1000);
    mounted.sent();
    let (found, opened) =
        ops::create(&mounted.client.op(&me), mounted.client.root(), b"f", 0o200, OpenFlags::writing())
            .unwrap();
    assert_eq!(mounted.sent(), "CREATE 1");
    assert_eq!(found.attributes.mode, 0o200);
    assert_eq!(found.attributes.uid, 1000);
    ops::write(&mounted.client.op(&me), &opened.file, 0, b"x").unwrap();
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    assert_eq!(mounted.lookup(&me, mounted.client.root(), "f").unwrap().id, found.id);
}

#[test]
fn exclusive_create_refuses_what_is_there_and_sets_the_mode_of_what_is_not() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = user(1000);
    let flags = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    mounted.sent();
    let (found, _open) =
        ops::create(&mounted.client.op(&me), mounted.client.root(), b"f", 0o640, flags).unwrap();
    assert_eq!(mounted.sent(), "SETATTR 1 CREATE 1");
    let stat = ops::getattr(&mounted.client.op(&me), found.id).unwrap().attributes;
    assert_eq!(stat.mode, 0o640);
    assert!(stat.mtime.seconds() > 1_600_000_000, "the verifier in the times is gone");
    let again = ops::create(&mounted.client.op(&me), mounted.client.root(), b"f", 0o640, flags).map(|_| ());
    assert_eq!(again, Err(Errno::EXIST));
}

#[test]
fn create_of_an_existing_file_opens_it_and_leaves_its_mode() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = user(1000);
    assert!(one.lookup(&me, one.client.root(), "f").is_err());
    two.put(&me, two.client.root(), "f", 0o600, b"theirs");
    let flags = OpenFlags::writing();
    let (found, opened) = ops::create(&one.client.op(&me), one.client.root(), b"f", 0o666, flags).unwrap();
    assert_eq!(found.attributes.mode, 0o600);
    assert_eq!(ops::read(&one.client.op(&me), &opened.file, 0, 10).unwrap().to_vec(), b"theirs");
}

#[test]
fn every_kind_of_object_can_be_made_and_removed() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let client = &mounted.client;
    let top = client.root();
    let (none, device) = (Device::default(), Device { major: 1, minor: 3 });
    let made = [
        ("directory", ops::mkdir(&client.op(&me), top, b"directory", 0o755).unwrap(), FileKind::Directory),
        ("link", ops::symlink(&client.op(&me), top, b"link", b"where/to").unwrap(), FileKind::Symlink),
        (
            "fifo",
            ops::mknod(&client.op(&me), top, b"fifo", FileKind::Fifo, none, 0o600).unwrap(),
            FileKind::Fifo,
        ),
        (
            "socket",
            ops::mknod(&client.op(&me), top, b"socket", FileKind::Socket, none, 0o600).unwrap(),
            FileKind::Socket,
        ),
        (
            "null",
            ops::mknod(&client.op(&me), top, b"null", FileKind::CharacterDevice, device, 0o600).unwrap(),
            FileKind::CharacterDevice,
        ),
        (
            "disk",
            ops::mknod(&client.op(&me), top, b"disk", FileKind::BlockDevice, device, 0o600).unwrap(),
            FileKind::BlockDevice,
        ),
        ("file", ops::make_file(&client.op(&me), top, b"file", 0o600).unwrap(), FileKind::Regular),
    ];
    let mut names: Vec<_> = made.iter().map(|(name, ..)| (*name).to_owned()).collect();
    names.sort();
    assert_eq!(list(&mounted, top), names);
    for (name, found, kind) in made {
        assert_eq!(found.attributes.kind, kind, "{name}");
        match kind {
            FileKind::Directory => ops::rmdir(&client.op(&me), top, name.as_bytes()).unwrap(),
            FileKind::CharacterDevice | FileKind::BlockDevice => {
                assert_eq!(found.attributes.rdev, device);
                ops::unlink(&client.op(&me), top, name.as_bytes()).unwrap();
            }
            FileKind::Regular | FileKind::Symlink | FileKind::Socket | FileKind::Fifo => {
                ops::unlink(&client.op(&me), top, name.as_bytes()).unwrap();
            }
        }
    }
    assert!(list(&mounted, top).is_empty());
}

#[test]
fn a_links_text_is_read_once() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let link = ops::symlink(&mounted.client.op(&root()), mounted.client.root(), b"l", b"where").unwrap();
    mounted.sent();
    for _ in 0..3 {
        assert_eq!(&*ops::readlink(&mounted.client.op(&root()), link.id).unwrap(), b"where");
    }
    assert_eq!(mounted.sent(), "READLINK 1");
    world.seconds(5);
    assert_eq!(&*ops::readlink(&mounted.client.op(&root()), link.id).unwrap(), b"where");
    assert_eq!(mounted.sent(), "GETATTR 1");
}

// SEMANTICS: name-12, posix-10.
#[test]
fn a_file_removed_while_open_lives_until_its_last_close() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let file = mounted.put(&me, top, "f", 0o644, b"still here");
    let first = ops::open(&mounted.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    let second = ops::open(&mounted.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    ops::unlink(&mounted.client.op(&me), top, b"f").unwrap();
    assert!(mounted.lookup(&me, top, "f").is_err());
    let names = list(&mounted, top);
    assert_eq!(names.len(), 1);
    assert!(names[0].starts_with(".nfs"), "{names:?}");
    assert_eq!(ops::unlink(&mounted.client.op(&me), top, names[0].as_bytes()), Err(Errno::BUSY));
    assert_eq!(ops::read(&mounted.client.op(&me), &first.file, 0, 100).unwrap().to_vec(), b"still here");
    ops::close(&mounted.client.op(&me), &first.file).unwrap();
    assert_eq!(list(&mounted, top).len(), 1);
    ops::close(&mounted.client.op(&me), &second.file).unwrap();
    assert!(list(&mounted, top).is_empty());
    assert_eq!(mounted.counter(ClientCounter::SillyRename), 1);
    assert_eq!(mounted.counter(ClientCounter::SillyRemove), 1);
    ops::release(&mounted.client, &second.file);
    assert_eq!(mounted.counter(ClientCounter::SillyRemove), 1, "releasing twice does nothing");
}

#[test]
fn a_file_removed_while_open_lives_although_its_name_was_not_cached() {
    let world = World::new();
    let (mounted, other) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let (me, top) = (root(), mounted.client.root());
    let file = mounted.put(&me, top, "f", 0o644, b"still here");
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    // Here the name that the other client gives it is not cached.
    let there = other.client.root();
    let moved = ops::rename(&other.client.op(&me), there, b"f", there, b"g", RenameMode::Replace);
    moved.unwrap();
    ops::unlink(&mounted.client.op(&me), top, b"g").unwrap();
    assert_eq!(mounted.counter(ClientCounter::SillyRename), 1);
    world.clock.pass(std::time::Duration::from_secs(120));
    let bytes = ops::read(&mounted.client.op(&me), &opened.file, 0, 100).unwrap();
    assert_eq!(bytes.to_vec(), b"still here");
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    assert!(list(&mounted, top).is_empty());
}

// SEMANTICS: name-12.
#[test]
fn a_file_replaced_while_open_lives_until_its_last_close() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let old = mounted.put(&me, top, "f", 0o644, b"old");
    mounted.put(&me, top, "g", 0o644, b"new");
    let opened = ops::open(&mounted.client.op(&me), old.id, OpenFlags::reading()).unwrap();
    ops::rename(&mounted.client.op(&me), top, b"g", top, b"f", RenameMode::Replace).unwrap();
    assert_eq!(ops::read(&mounted.client.op(&me), &opened.file, 0, 100).unwrap().to_vec(), b"old");
    let new = mounted.lookup(&me, top, "f").unwrap();
    assert_eq!(mounted.cat(&me, new.id).unwrap(), b"new");
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    assert_eq!(list(&mounted, top), ["f"]);
}

// SEMANTICS: posix-11.
#[test]
fn a_file_that_is_open_keeps_its_name_if_the_server_refuses_to_replace_it() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = user(1000);
    let top = mounted.client.root();
    let closed = ops::mkdir(&mounted.client.op(&root()), top, b"closed", 0o755).unwrap().id;
    mounted.put(&root(), closed, "theirs", 0o644, b"other");
    let open = ops::mkdir(&mounted.client.op(&root()), top, b"open", 0o777).unwrap().id;
    let mine = mounted.put(&me, open, "mine", 0o644, b"mine");
    let opened = ops::open(&mounted.client.op(&me), mine.id, OpenFlags::reading()).unwrap();
    let refused = ops::rename(&mounted.client.op(&me), closed, b"theirs", open, b"mine", RenameMode::Replace);
    assert_eq!(refused, Err(Errno::ACCESS));
    assert_eq!(mounted.lookup(&me, open, "mine").unwrap().id, mine.id);
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    assert_eq!(list(&mounted, open), ["mine"]);
    assert_eq!(mounted.cat(&me, mine.id).unwrap(), b"mine");
    assert_eq!(ops::getattr(&mounted.client.op(&me), mine.id).map(|stat| stat.attributes.nlink), Ok(1));
}

// SEMANTICS: posix-11.
#[test]
fn another_users_open_file_keeps_its_name_too_although_the_server_refuses_links_to_it() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = user(1000);
    let top = mounted.client.root();
    let closed = ops::mkdir(&mounted.client.op(&root()), top, b"closed", 0o755).unwrap().id;
    mounted.put(&root(), closed, "theirs", 0o644, b"other");
    let open = ops::mkdir(&mounted.client.op(&root()), top, b"open", 0o777).unwrap().id;
    let theirs = mounted.put(&root(), open, "theirs", 0o644, b"theirs");
    let opened = ops::open(&mounted.client.op(&me), theirs.id, OpenFlags::reading()).unwrap();
    let linked = ops::link(&mounted.client.op(&me), theirs.id, open, b"link");
    assert_eq!(linked.map(|found| found.id), Err(Errno::PERM));
    let refused =
        ops::rename(&mounted.client.op(&me), closed, b"theirs", open, b"theirs", RenameMode::Replace);
    assert_eq!(refused, Err(Errno::ACCESS));
    assert_eq!(mounted.lookup(&me, open, "theirs").unwrap().id, theirs.id);
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    assert_eq!(list(&mounted, open), ["theirs"]);
    assert_eq!(mounted.cat(&me, theirs.id).unwrap(), b"theirs");
}

#[test]
fn rename_moves_and_replaces_and_keeps_the_cached_state() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let directory = ops::mkdir(&mounted.client.op(&me), top, b"d", 0o755).unwrap().id;
    let file = mounted.put(&me, top, "f", 0o644, b"x");
    let rename = |old, old_name: &[u8], new, new_name: &[u8]| {
        mounted.sent();
        ops::rename(&mounted.client.op(&me), old, old_name, new, new_name, RenameMode::Replace).unwrap();
        mounted.sent()
    };
    // The target may be open here: it is looked up if it is not cached.
    assert_eq!(rename(top, b"f", directory, b"e"), "LOOKUP 1 RENAME 1");
    assert!(mounted.lookup(&me, directory, "g").is_err());
    assert_eq!(rename(directory, b"e", directory, b"g"), "RENAME 1");
    assert!(mounted.lookup(&me, top, "f").is_err());
    assert_eq!(mounted.lookup(&me, directory, "g").unwrap().id, file.id);
    assert_eq!(mounted.sent(), "");
    for mode in [RenameMode::NoReplace, RenameMode::Exchange] {
        let refused = ops::rename(&mounted.client.op(&me), directory, b"g", top, b"h", mode);
        assert_eq!(refused, Err(Errno::INVAL));
    }
    ops::mkdir(&mounted.client.op(&me), top, b"full", 0o755).unwrap();
    let full = mounted.lookup(&me, top, "full").unwrap().id;
    mounted.put(&me, full, "x", 0o644, b"");
    let refused = ops::rename(&mounted.client.op(&me), top, b"d", top, b"full", RenameMode::Replace);
    assert_eq!(refused, Err(Errno::NOTEMPTY));
}

#[test]
fn renaming_one_name_of_a_file_to_another_of_its_names_removes_neither() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let file = mounted.put(&me, top, "a", 0o644, b"x");
    let linked = ops::link(&mounted.client.op(&me), file.id, top, b"b").unwrap();
    assert_eq!((linked.id, linked.attributes.nlink), (file.id, 2));
    ops::rename(&mounted.client.op(&me), top, b"a", top, b"b", RenameMode::Replace).unwrap();
    assert!(mounted.lookup(&me, top, "a").is_ok());
    assert!(mounted.lookup(&me, top, "b").is_ok());
    ops::unlink(&mounted.client.op(&me), top, b"a").unwrap();
    assert_eq!(ops::getattr(&mounted.client.op(&me), file.id).unwrap().attributes.nlink, 1);
    assert_eq!(mounted.cat(&me, file.id).unwrap(), b"x");
}

#[test]
fn setattr_updates_the_cached_attributes() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"0123456789");
    mounted.sent();
    let time = Timestamp::new(1_000_000, 5);
    let set = SetAttributes {
        mode: Some(0o600),
        uid: Some(5),
        gid: Some(6),
        size: Some(4),
        atime: SetTime::Time(time),
        mtime: SetTime::Time(time),
    };
    let stat = ops::setattr(&mounted.client.op(&me), file.id, &set).unwrap().attributes;
    assert_eq!((stat.mode, stat.uid, stat.gid, stat.size), (0o600, 5, 6, 4));
    assert_eq!((stat.atime, stat.mtime), (time, time));
    ops::getattr(&mounted.client.op(&me), file.id).unwrap();
    assert_eq!(mounted.sent(), "SETATTR 1 ACCESS 1", "the reply says it all");
    assert_eq!(mounted.cat(&me, file.id).unwrap(), b"0123");
    let set = SetAttributes { size: None, ..set };
    let refused = ops::setattr(&mounted.client.op(&user(77)), file.id, &set).map(|_| ());
    assert_eq!(refused, Err(Errno::PERM));
}

#[test]
fn statfs_sends_at_most_one_request_a_second() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    mounted.sent();
    let top = mounted.client.root();
    let first = ops::statfs(&mounted.client.op(&root()), top).unwrap();
    assert!(first.blocks > 0 && first.name_max == 255);
    ops::statfs(&mounted.client.op(&root()), top).unwrap();
    assert_eq!(mounted.sent(), "FSSTAT 1");
    world.seconds(2);
    ops::statfs(&mounted.client.op(&root()), top).unwrap();
    assert_eq!(mounted.sent(), "FSSTAT 1");
    assert_eq!(mounted.client.last_statistics(top), first);
    assert_eq!(mounted.sent(), "");
}
