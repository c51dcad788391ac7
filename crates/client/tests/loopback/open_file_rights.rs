//! The rights of an open file descriptor for writing, after changes of the file's mode and owner.

use std::sync::Arc;

use curt_client::{Caller, ClientOptions, InodeId, OpenFile, OpenFlags, ops};
use curt_policy::{AccessMode, CacheOptions};
use curt_server::{ExportRules, Squash};
use curt_types::SetAttributes;
use curt_vfs::MemoryVfs;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

const BOTH: [AccessMode; 2] = [AccessMode::Server, AccessMode::ModeBits];

fn by(access: AccessMode) -> CacheOptions {
    CacheOptions { access, ..CacheOptions::default() }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn owner(uid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), gid: Some(uid), ..SetAttributes::default() }
}

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

/// truncate(2).
fn truncate(mounted: &BenchMount, caller: &Caller, id: InodeId, length: u64) -> Result<u64, Errno> {
    let stat = ops::setattr(&mounted.client.op(caller), id, &size(length))?;
    Ok(stat.attributes.size)
}

/// ftruncate(2).
fn truncate_open(mounted: &BenchMount, caller: &Caller, file: &OpenFile, length: u64) -> Result<u64, Errno> {
    let stat = ops::setattr_open(&mounted.client.op(caller), file, &size(length))?;
    Ok(stat.attributes.size)
}

/// A file "f" of `caller`, open for writing, whose bytes are all unsent.
fn written(mounted: &BenchMount, caller: &Caller, mode: u32, bytes: &[u8]) -> Arc<OpenFile> {
    let top = mounted.client.root();
    let (_, opened) = ops::create(&mounted.client.op(caller), top, b"f", mode, OpenFlags::writing()).unwrap();
    assert_eq!(ops::write(&mounted.client.op(caller), &opened.file, 0, bytes), Ok(bytes.len()));
    opened.file
}

// SEMANTICS: perm-8.
#[test]
fn a_file_is_truncated_by_its_path_only_by_those_who_may_write_it() {
    for access in BOTH {
        let world = World::new();
        let mounted = world.mount(by(access));
        let me = user(1000);
        let file = mounted.put(&me, mounted.client.root(), "f", 0o444, b"0123456789");
        assert_eq!(truncate(&mounted, &me, file.id, 5), Err(Errno::ACCESS), "{access:?}");
        let flags = OpenFlags { truncate: true, ..OpenFlags::reading() };
        let opened = ops::open(&mounted.client.op(&me), file.id, flags).map(|_| ());
        assert_eq!(opened, Err(Errno::ACCESS), "{access:?}");
        assert!(!mounted.sent().contains("SETATTR"), "{access:?}");
        assert_eq!(mounted.cat(&me, file.id).unwrap(), b"0123456789");
        assert_eq!(truncate(&mounted, &root(), file.id, 7), Ok(7), "{access:?}");
        ops::setattr(&mounted.client.op(&me), file.id, &mode(0o200)).unwrap();
        assert_eq!(truncate(&mounted, &me, file.id, 4), Ok(4), "{access:?}");
        assert_eq!(truncate(&mounted, &user(2000), file.id, 2), Err(Errno::ACCESS));
    }
}

// SEMANTICS: posix-6.
#[test]
fn truncating_a_file_to_the_size_that_it_has_sets_its_times() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let file = mounted.put(&root(), mounted.client.root(), "f", 0o644, b"0123");
    let before = ops::getattr(&mounted.client.op(&root()), file.id).unwrap().attributes;
    world.seconds(1);
    assert_eq!(truncate(&mounted, &root(), file.id, 4), Ok(4));
    let after = ops::getattr(&mounted.client.op(&root()), file.id).unwrap().attributes;
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
}

// SEMANTICS: perm-8.
#[test]
fn the_server_decides_which_files_root_may_truncate() {
    let rules = ExportRules { squash: Squash::Root, ..ExportRules::default() };
    let world = World::serving(rules, std::time::Duration::from_nanos(1), MemoryVfs::new);
    for access in BOTH {
        let mounted = world.mount(by(access));
        let name = format!("{access:?}");
        let file = mounted.put(&user(1000), mounted.client.root(), &name, 0o644, b"0123");
        let sent = truncate(&mounted, &root(), file.id, 1);
        assert_eq!(sent, Err(Errno::ACCESS), "{access:?}");
        assert!(mounted.sent().contains("ACCESS 1"), "{access:?}");
    }
}

// SEMANTICS: perm-8.
#[test]
fn a_file_open_for_writing_can_be_truncated_whatever_its_mode_is() {
    for access in BOTH {
        let world = World::new();
        let mounted = world.mount(by(access));
        let me = user(1000);
        let file = written(&mounted, &me, 0o444, b"0123456789");
        mounted.sent();
        assert_eq!(truncate_open(&mounted, &me, &file, 5), Ok(5));
        assert_eq!(mounted.sent(), "SETATTR 1 WRITE 1", "{access:?}: nobody asks for rights");
        assert_eq!(truncate_open(&mounted, &me, &file, 20), Ok(20));
        assert_eq!(truncate(&mounted, &me, file.id(), 1), Err(Errno::ACCESS), "{access:?}");
        ops::close(&mounted.client.op(&me), &file).unwrap();
    }
}

// SEMANTICS: perm-8.
#[test]
fn an_open_file_is_truncated_with_the_credential_of_its_open() {
    for access in BOTH {
        let world = World::new();
        let mounted = world.mount(by(access));
        let (me, other) = (user(1000), user(2000));
        let file = written(&mounted, &me, 0o600, b"0123456789");
        assert_eq!(truncate_open(&mounted, &other, &file, 5), Ok(5), "{access:?}");
        assert_eq!(truncate(&mounted, &other, file.id(), 3), Err(Errno::ACCESS));
        ops::close(&mounted.client.op(&other), &file).unwrap();
        // A file descriptor for reading grants no right to write.
        let reading = ops::open(&mounted.client.op(&me), file.id(), OpenFlags::reading()).unwrap().file;
        assert_eq!(truncate_open(&mounted, &other, &reading, 3), Err(Errno::ACCESS));
        ops::release(&mounted.client, &reading);
    }
}

// SEMANTICS: write-4.
#[test]
fn bytes_written_before_a_chown_or_chmod_are_not_lost() {
    let wide = vec![7; 3 << 20];
    for bytes in [&b"written"[..], &wide] {
        for taken_away in [owner(0), mode(0o600)] {
            let world = World::new();
            let mounted = world.mount(CacheOptions::default());
            let me = user(1000);
            let file = match taken_away.uid {
                Some(_) => written(&mounted, &me, 0o600, bytes),
                None => {
                    let made = mounted.put(&root(), mounted.client.root(), "f", 0o666, b"");
                    let opened = ops::open(&mounted.client.op(&me), made.id, OpenFlags::writing()).unwrap();
                    ops::write(&mounted.client.op(&me), &opened.file, 0, bytes).unwrap();
                    opened.file
                }
            };
            ops::setattr(&mounted.client.op(&root()), file.id(), &taken_away).unwrap();
            mounted.sent();
            assert_eq!(ops::fsync(&mounted.client.op(&me), &file, false), Ok(()), "{taken_away:?}");
            assert_eq!(ops::close(&mounted.client.op(&me), &file), Ok(()), "{taken_away:?}");
            assert_eq!(mounted.sent(), "", "all was on the server's disk before");
            let other = world.mount_with(ClientOptions::default());
            let found = other.lookup(&root(), other.client.root(), "f").unwrap();
            assert!(other.cat(&root(), found.id).unwrap() == bytes[..bytes.len().min(1 << 20)]);
        }
    }
}

// SEMANTICS: write-4.
#[test]
fn bytes_written_after_a_chown_are_lost_and_that_is_reported_once() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = user(1000);
    let file = written(&mounted, &me, 0o600, b"before");
    ops::setattr(&mounted.client.op(&root()), file.id(), &owner(0)).unwrap();
    assert_eq!(ops::write(&mounted.client.op(&me), &file, 6, b", after"), Ok(7));
    assert_eq!(ops::fsync(&mounted.client.op(&me), &file, false), Err(Errno::ACCESS));
    assert_eq!(truncate_open(&mounted, &me, &file, 1), Err(Errno::ACCESS));
    assert_eq!(ops::close(&mounted.client.op(&me), &file), Ok(()));
    assert_eq!(mounted.cat(&root(), file.id()).unwrap(), b"before");
}

// SEMANTICS: write-4.
#[test]
fn the_loss_of_uncommitted_bytes_after_a_chown_by_another_client_is_reported_once() {
    for bytes in [&b"written"[..], &vec![7; 3 << 20]] {
        let world = World::new();
        let mounted = world.mount(CacheOptions::default());
        let other = world.mount(CacheOptions::default());
        let me = user(1000);
        let file = written(&mounted, &me, 0o600, bytes);
        let found = other.lookup(&root(), other.client.root(), "f").unwrap();
        ops::setattr(&other.client.op(&root()), found.id, &owner(0)).unwrap();
        assert_eq!(ops::fsync(&mounted.client.op(&me), &file, false), Err(Errno::ACCESS));
        assert_eq!(ops::close(&mounted.client.op(&me), &file), Ok(()));
    }
}
