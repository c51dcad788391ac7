//! Events of names: create, remove, and remove of open files.

use curt_client::OpenFlags;
use curt_client::ops;
use curt_policy::CacheOptions;
use rustix::io::Errno;

use crate::world::{World, root};
use crate::{Seen, alone};

#[test]
fn a_file_that_is_removed_while_it_is_open_is_renamed_first_and_removed_at_its_last_close() {
    let _alone = alone();
    let world = World::new();
    let mine = world.mount(CacheOptions::default());
    let (me, top) = (root(), mine.client.root());
    let dir = ops::getattr(&mine.client.op(&me), top).unwrap().attributes.fileid;
    mine.put(&me, top, "closed", 0o644, b"");
    let file = mine.put(&me, top, "open", 0o644, b"");
    let opened = ops::open(&mine.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    let seen = Seen::begin("nfs_remove_*,nfs_async_rename_done,nfs_sillyrename_unlink");
    ops::unlink(&mine.client.op(&me), top, b"closed").unwrap();
    assert_eq!(
        seen.told(),
        [
            format!("nfs_remove_enter: dir={dir} name=closed"),
            format!("nfs_remove_exit: dir={dir} name=closed error=0"),
        ]
    );
    ops::unlink(&mine.client.op(&me), top, b"open").unwrap();
    let told = seen.told();
    assert_eq!(told.len(), 1, "{told:?}");
    let begins = format!("nfs_async_rename_done: dir={dir} name=open new_dir={dir} new_name=.nfs");
    assert!(told[0].starts_with(&begins) && told[0].ends_with(" error=0"), "{told:?}");
    let silly = told[0].split("new_name=").nth(1).unwrap().split(' ').next().unwrap();
    ops::release(&mine.client, &opened.file);
    assert_eq!(
        seen.told(),
        [
            format!("nfs_remove_enter: dir={dir} name={silly}"),
            format!("nfs_remove_exit: dir={dir} name={silly} error=0"),
            format!("nfs_sillyrename_unlink: dir={dir} name={silly} error=0"),
        ]
    );
}

#[test]
fn the_event_of_a_create_has_the_fileid_or_the_error() {
    let _alone = alone();
    let world = World::new();
    let mine = world.mount(CacheOptions::default());
    let other = world.mount(CacheOptions::default());
    let (me, top) = (root(), mine.client.root());
    let dir = ops::getattr(&mine.client.op(&me), top).unwrap().attributes.fileid;
    let seen = Seen::begin("nfs_create_*");
    let file = mine.put(&me, top, "new", 0o640, b"");
    let number = file.attributes.fileid;
    assert_eq!(
        seen.told(),
        [
            // O_RDWR, O_CREAT and O_TRUNC.
            format!("nfs_create_enter: pid=0 uid=0 dir={dir} name=new flags=0o1102 mode=0o640"),
            format!("nfs_create_exit: dir={dir} name=new fileid={number} error=0"),
        ]
    );
    // Created by another client: the server refuses, and the existing file is opened.
    other.put(&me, other.client.root(), "theirs", 0o640, b"");
    seen.told();
    mine.put(&me, top, "theirs", 0o640, b"");
    let told = seen.told();
    assert_eq!(told[1], format!("nfs_create_exit: dir={dir} name=theirs fileid=0 error=-17 (EEXIST)"));
    assert_eq!(ops::make_file(&mine.client.op(&me), top, b"new", 0o600).map(drop), Err(Errno::EXIST));
    assert!(seen.told()[0].contains(" flags=0o300 "), "O_CREAT and O_EXCL");
}
