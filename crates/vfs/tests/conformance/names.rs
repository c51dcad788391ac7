//! Creating, looking up, removing, renaming and linking names.

use std::sync::atomic::{AtomicBool, Ordering};

use curt_types::{SetAttributes, SetTime, Stability, Timestamp};
use curt_vfs::{CreateMode, Error, HandleChoice, LookupUse, NewNode, SpecialFile, VfsNode};
use rustix::io::Errno;

use crate::trees::{OTHER, OWNER, ROOT, disk, errno, everywhere, local, tmpfs};

#[test]
fn dot_is_the_directory_and_dot_dot_never_leads_out() {
    everywhere(|tree| {
        let root = tree.root();
        let outer = tree.directory(&root, "outer", 0o755).handle;
        let inner = tree.directory(&outer, "inner", 0o755).handle;
        let handle = |directory, name| tree.lookup(directory, name).unwrap().handle;
        assert_eq!(handle(&inner, "."), inner);
        assert_eq!(handle(&inner, ".."), outer);
        assert_eq!(handle(&outer, ".."), root);
        assert_eq!(handle(&root, ".."), root);
        assert_eq!(handle(&root, "."), root);
        let closed = tree.directory(&root, "closed", 0o700).handle;
        for name in [".", ".."] {
            let refused = tree.vfs.lookup(&OTHER, &closed, name.as_bytes()).value;
            assert_eq!(errno(refused), Some(Errno::ACCESS), "{name}");
        }
    });
}

/// ext4 has a limit below this size, tmpfs has none.
#[test]
fn a_creation_that_fails_leaves_no_file() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes { size: Some(1 << 60), ..SetAttributes::with_mode(0o644) };
        for how in [CreateMode::Guarded(&set), CreateMode::Unchecked(&set)] {
            let create = || errno(tree.vfs.create(&ROOT, &root, b"large", how).value);
            if let Some(failed) = create() {
                assert_eq!((failed, create()), (Errno::FBIG, Some(Errno::FBIG)));
                assert_eq!(errno(tree.lookup(&root, "large")), Some(Errno::NOENT));
            }
        }
    });
}

#[test]
fn names_that_cannot_be_are_refused_by_every_operation() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644).handle;
        let long = [b'n'; 256];
        let set = SetAttributes::with_mode(0o755);
        let rows: [(&[u8], Errno); 6] = [
            (b"", Errno::INVAL),
            (b"a/b", Errno::INVAL),
            (b"a\0b", Errno::INVAL),
            (&long, Errno::NAMETOOLONG),
            (b".", Errno::INVAL),
            (b"..", Errno::EXIST),
        ];
        for (name, expected) in rows {
            let answers = [
                errno(tree.vfs.create(&ROOT, &root, name, CreateMode::Guarded(&set)).value),
                errno(tree.vfs.create(&ROOT, &root, name, CreateMode::Unchecked(&set)).value),
                errno(tree.vfs.create(&ROOT, &root, name, CreateMode::Exclusive([1; 8])).value),
                errno(tree.vfs.make(&ROOT, &root, name, NewNode::Directory(&set)).value),
                errno(tree.vfs.make(&ROOT, &root, name, NewNode::Symlink(b"target", &set)).value),
                errno(tree.vfs.make(&ROOT, &root, name, NewNode::Special(SpecialFile::Fifo, &set)).value),
                errno(tree.vfs.remove(&ROOT, &root, name).value),
                errno(tree.vfs.remove_directory(&ROOT, &root, name).value),
                errno(tree.vfs.rename(&ROOT, &root, name, &root, b"to").value),
                errno(tree.vfs.rename(&ROOT, &root, b"file", &root, name).value),
                errno(tree.vfs.link(&ROOT, &file, &root, name).directory.value),
            ];
            assert_eq!(answers, [Some(expected); 11], "{name:?}");
        }
        for (name, expected) in &rows[..4] {
            assert_eq!(errno(tree.vfs.lookup(&ROOT, &root, name).value), Some(*expected), "{name:?}");
        }
        assert_eq!(tree.names(&root, 0, 100).0.len(), 3);
    });
}

#[test]
fn bytes_that_are_no_text_are_a_name() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes::with_mode(0o644);
        for name in [&b"\xff\xfe"[..], b"...", b" ", b"\n", &[b'n'; 255]] {
            let made = tree.vfs.create(&ROOT, &root, name, CreateMode::Guarded(&set)).value.unwrap();
            assert_eq!(tree.vfs.lookup(&ROOT, &root, name).value.unwrap().handle, made.node.handle);
        }
    });
}

#[test]
fn guarded_refuses_and_unchecked_takes_what_exists_and_sets_its_size_alone() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644).handle;
        tree.write(&OWNER, &file, 0, b"content").unwrap();
        let set = SetAttributes { size: Some(3), ..SetAttributes::with_mode(0o600) };
        let guarded = tree.vfs.create(&OWNER, &root, b"file", CreateMode::Guarded(&set)).value;
        assert_eq!(errno(guarded), Some(Errno::EXIST));
        let created = tree.vfs.create(&OWNER, &root, b"file", CreateMode::Unchecked(&set)).value.unwrap();
        assert_eq!((created.new, created.node.handle), (false, file));
        assert_eq!((created.node.attributes.size, created.node.attributes.mode), (3, 0o644));
        let refused = tree.vfs.create(&OTHER, &root, b"file", CreateMode::Unchecked(&set)).value;
        assert_eq!(errno(refused), Some(Errno::ACCESS));
        tree.directory(&root, "directory", 0o755);
        let refused = tree.vfs.create(&ROOT, &root, b"directory", CreateMode::Unchecked(&set)).value;
        assert_eq!(errno(refused), Some(Errno::ISDIR));
        tree.vfs.make(&ROOT, &root, b"link", NewNode::Symlink(b"file", &set)).value.unwrap();
        let refused = tree.vfs.create(&ROOT, &root, b"link", CreateMode::Unchecked(&set)).value;
        assert_eq!(errno(refused), Some(Errno::EXIST));
        let made = tree.vfs.create(&ROOT, &root, b"new", CreateMode::Unchecked(&set)).value.unwrap();
        assert_eq!((made.new, made.node.attributes.size, made.node.attributes.mode), (true, 3, 0o600));
    });
}

#[test]
fn an_exclusive_create_is_answered_again_until_somebody_touches_the_file() {
    everywhere(|tree| {
        let root = tree.directory(&tree.root(), "directory", 0o777).handle;
        let verifier = [0xf1, 2, 3, 4, 0xf5, 6, 7, 8];
        let create =
            |verifier| tree.vfs.create(&OTHER, &root, b"file", CreateMode::Exclusive(verifier)).value;
        let made = create(verifier).unwrap();
        assert_eq!((made.new, made.node.attributes.uid, made.node.attributes.mode), (true, OTHER.uid, 0));
        let again = create(verifier).unwrap();
        assert_eq!((again.new, again.node.handle), (false, made.node.handle));
        assert_eq!(errno(create([0xf1, 2, 3, 4, 0xf5, 6, 7, 9])), Some(Errno::EXIST));
        // The client sets the attributes, and may write although the mode is 0.
        assert_eq!(tree.write(&OTHER, &made.node.handle, 0, b"x"), Ok(1));
        let set = SetAttributes {
            mtime: SetTime::ServerTime,
            atime: SetTime::ServerTime,
            ..SetAttributes::with_mode(0o644)
        };
        assert_eq!(errno(tree.set(&OTHER, &made.node.handle, &set).value), None);
        assert_eq!(errno(create(verifier)), Some(Errno::EXIST));
    });
}

#[test]
fn a_create_sets_the_requested_attributes_and_leaves_those_that_may_not_be_set() {
    everywhere(|tree| {
        let root = tree.directory(&tree.root(), "directory", 0o777).handle;
        let time = Timestamp::new(1_000_000_000, 5);
        let set = SetAttributes {
            uid: Some(5000),
            gid: Some(6000),
            size: Some(10),
            mtime: SetTime::Time(time),
            ..SetAttributes::with_mode(0o6755)
        };
        let by_root =
            tree.vfs.create(&ROOT, &root, b"root", CreateMode::Guarded(&set)).value.unwrap().node.attributes;
        assert_eq!((by_root.uid, by_root.gid, by_root.size, by_root.mtime), (5000, 6000, 10, time));
        assert_eq!(by_root.mode, 0o755, "no rights for another owner");
        let by_other = tree
            .vfs
            .create(&OTHER, &root, b"other", CreateMode::Guarded(&set))
            .value
            .unwrap()
            .node
            .attributes;
        assert_eq!((by_other.uid, by_other.gid, by_other.size, by_other.mtime), (2000, 2000, 10, time));
    });
}

#[test]
fn removing_wants_the_right_kind_and_an_empty_directory() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644);
        let directory = tree.directory(&root, "directory", 0o755).handle;
        tree.file(&directory, "inside", 0o644);
        assert_eq!(errno(tree.vfs.remove(&ROOT, &root, b"directory").value), Some(Errno::ISDIR));
        assert_eq!(errno(tree.vfs.remove_directory(&ROOT, &root, b"file").value), Some(Errno::NOTDIR));
        assert_eq!(errno(tree.vfs.remove_directory(&ROOT, &root, b"directory").value), Some(Errno::NOTEMPTY));
        assert_eq!(errno(tree.vfs.remove(&ROOT, &root, b"missing").value), Some(Errno::NOENT));
        let before = tree.attributes(&root);
        let removed = tree.vfs.remove(&ROOT, &root, b"file");
        assert_eq!(removed.value, Ok(()));
        assert_eq!(removed.before.unwrap().stamp(), before.stamp());
        assert_eq!(removed.after.unwrap(), tree.attributes(&root));
        assert_eq!(tree.vfs.attributes(&file.handle), Err(Error::STALE));
        assert_eq!(errno(tree.lookup(&root, "file")), Some(Errno::NOENT));
        tree.vfs.remove(&ROOT, &directory, b"inside").value.unwrap();
        assert_eq!(tree.vfs.remove_directory(&ROOT, &root, b"directory").value, Ok(()));
        assert_eq!(errno(tree.guarded(&ROOT, &directory, "late", 0o644)), Some(Errno::STALE));
        assert_eq!(tree.attributes(&root).nlink, before.nlink - 1);
    });
}

#[test]
fn a_file_that_was_written_and_removed_is_gone_at_once() {
    everywhere(|tree| {
        let root = tree.root();
        for number in 0..3 {
            let name = format!("file{number}");
            let file = tree.file(&root, &name, 0o644).handle;
            tree.vfs.write(&OWNER, &file, 0, &[7; 65536], Stability::Unstable).value.unwrap();
            match number {
                0 => tree.vfs.remove(&ROOT, &root, name.as_bytes()).value.unwrap(),
                _ => {
                    tree.file(&root, "over", 0o644);
                    tree.vfs.rename(&ROOT, &root, b"over", &root, name.as_bytes()).value.unwrap();
                }
            }
            assert_eq!(tree.vfs.attributes(&file), Err(Error::STALE));
            assert_eq!(errno(tree.write(&OWNER, &file, 0, b"x")), Some(Errno::STALE));
        }
    });
}

#[test]
fn a_rename_keeps_the_handle_and_replaces_only_what_it_may() {
    everywhere(|tree| {
        let root = tree.root();
        let one = tree.directory(&root, "one", 0o755).handle;
        let two = tree.directory(&root, "two", 0o755).handle;
        let file = tree.file(&one, "file", 0o644).handle;
        let renamed = tree.vfs.rename(&ROOT, &one, b"file", &two, b"moved");
        assert_eq!(renamed.value, Ok(()));
        assert_eq!(renamed.to.after, Some(tree.attributes(&two)));
        assert_eq!(renamed.from.after, Some(tree.attributes(&one)));
        assert!(renamed.from.before.is_some() && renamed.to.before.is_some());
        assert_eq!(tree.lookup(&two, "moved").unwrap().handle, file);
        assert_eq!(errno(tree.lookup(&one, "file")), Some(Errno::NOENT));
        let rename = |from, from_name: &[u8], to, to_name: &[u8]| {
            errno(tree.vfs.rename(&ROOT, from, from_name, to, to_name).value)
        };
        assert_eq!(rename(&root, b"missing", &root, b"x"), Some(Errno::NOENT));
        assert_eq!(rename(&root, b"one", &two, b"moved"), Some(Errno::NOTDIR));
        assert_eq!(rename(&two, b"moved", &root, b"one"), Some(Errno::ISDIR));
        assert_eq!(rename(&root, b"one", &root, b"two"), Some(Errno::NOTEMPTY));
        assert_eq!(rename(&root, b"one", &one, b"inside"), Some(Errno::INVAL));
        let below = tree.directory(&two, "below", 0o755).handle;
        assert_eq!(rename(&two, b"below", &root, b"two"), Some(Errno::NOTEMPTY));
        assert_eq!(rename(&root, b"one", &two, b"below"), None);
        assert_eq!(tree.vfs.attributes(&below), Err(Error::STALE));
        assert_eq!(tree.lookup(&one, "..").unwrap().handle, two);
        assert_eq!(tree.attributes(&root).nlink, 3);
    });
}

#[test]
fn two_names_are_one_file_until_the_last_goes() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644).handle;
        let linked = tree.vfs.link(&OWNER, &file, &tree.directory(&root, "d", 0o777).handle, b"again");
        assert_eq!((linked.directory.value, linked.node.unwrap().nlink), (Ok(()), 2));
        let directory = tree.lookup(&root, "d").unwrap().handle;
        assert_eq!(tree.lookup(&directory, "again").unwrap().handle, file);
        assert_eq!(errno(tree.vfs.link(&ROOT, &file, &root, b"file").directory.value), Some(Errno::EXIST));
        assert_eq!(errno(tree.vfs.link(&ROOT, &directory, &root, b"e").directory.value), Some(Errno::PERM));
        assert_eq!(errno(tree.vfs.rename(&ROOT, &root, b"file", &directory, b"again").value), None);
        assert_eq!(tree.attributes(&file).nlink, 2, "renaming one onto the other does nothing");
        tree.vfs.remove(&ROOT, &root, b"file").value.unwrap();
        assert_eq!(tree.attributes(&file).nlink, 1);
        tree.vfs.remove(&ROOT, &directory, b"again").value.unwrap();
        assert_eq!(tree.vfs.attributes(&file), Err(Error::STALE));
    });
}

#[test]
fn what_is_no_directory_has_no_names() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o777).handle;
        let set = SetAttributes::with_mode(0o644);
        let answers = [
            errno(tree.vfs.lookup(&ROOT, &file, b"x").value),
            errno(tree.vfs.lookup(&ROOT, &file, b".").value),
            errno(tree.vfs.lookup(&ROOT, &file, b"..").value),
            errno(tree.vfs.create(&ROOT, &file, b"x", CreateMode::Guarded(&set)).value),
            errno(tree.vfs.make(&ROOT, &file, b"x", NewNode::Directory(&set)).value),
            errno(tree.vfs.remove(&ROOT, &file, b"x").value),
            errno(tree.vfs.rename(&ROOT, &root, b"file", &file, b"x").value),
            errno(tree.vfs.rename(&ROOT, &file, b"x", &root, b"y").value),
            errno(tree.vfs.link(&ROOT, &file, &file, b"x").directory.value),
            errno(
                tree.vfs
                    .read_directory(&ROOT, &file, 0, curt_vfs::ReaddirDetail::Names, &mut |_| panic!())
                    .value,
            ),
        ];
        assert_eq!(answers, [Some(Errno::NOTDIR); 10]);
    });
}

#[test]
fn a_child_is_what_a_look_up_of_its_name_finds() {
    everywhere(|tree| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644).handle;
        let inner = tree.directory(&root, "inner", 0o755).handle;
        let closed = tree.directory(&root, "closed", 0o700).handle;
        tree.file(&closed, "file", 0o644);
        let gone = tree.directory(&root, "gone", 0o755).handle;
        let set = SetAttributes::with_mode(0o777);
        let link = tree.vfs.make(&ROOT, &root, b"link", NewNode::Symlink(b"inner", &set)).value.unwrap();
        tree.vfs.remove_directory(&ROOT, &root, b"gone").value.unwrap();
        let long = [b'n'; 256];
        let names: [&[u8]; 7] = [b"file", b"inner", b"link", b"missing", b"", b"a/b", &long];
        let whole = |node: VfsNode| (node.handle, node.attributes);
        for directory in [root, inner, closed, gone, file, link.node.handle] {
            for (caller, name) in [&ROOT, &OTHER].into_iter().flat_map(|who| names.map(|name| (who, name))) {
                let expected = tree.vfs.lookup(caller, &directory, name);
                let is_directory = [root, inner, closed].contains(&directory);
                let expected = expected.value.map(whole);
                for (wanted, is_known) in [
                    (LookupUse::Object, false),
                    (LookupUse::Object, is_directory),
                    (LookupUse::Name, false),
                    (LookupUse::Name, is_directory),
                ] {
                    let found = tree.vfs.lookup_child(caller, &directory, name, wanted, is_known);
                    let Some(found) = found else { continue };
                    let is_stale = matches!(found.value, Err(Error::STALE));
                    assert!(found.attributes.is_some() || found.value.is_ok() || is_known || is_stale);
                    assert_eq!(found.value.map(whole), expected, "{wanted:?}: {}", name.escape_ascii());
                }
            }
        }
    });
}

#[test]
fn a_symlink_is_an_object_and_is_not_followed() {
    everywhere(|tree| {
        let root = tree.root();
        let set = SetAttributes::with_mode(0o777);
        let directory = tree.directory(&root, "directory", 0o755).handle;
        for (name, target) in [("absolute", &b"/etc"[..]), ("up", b"../.."), ("down", b"directory")] {
            let link = tree
                .vfs
                .make(&ROOT, &root, name.as_bytes(), NewNode::Symlink(target, &set))
                .value
                .unwrap()
                .node;
            assert_eq!(tree.lookup(&root, name).unwrap().handle, link.handle);
            assert_eq!(errno(tree.lookup(&link.handle, "passwd")), Some(Errno::NOTDIR));
            assert_eq!(errno(tree.guarded(&ROOT, &link.handle, "x", 0o644)), Some(Errno::NOTDIR));
            let again = tree.vfs.link(&ROOT, &link.handle, &directory, name.as_bytes());
            assert_eq!(again.directory.value, Ok(()));
            assert_eq!(again.node.unwrap().kind, curt_types::FileKind::Symlink);
        }
        for target in [&b""[..], b"a\0b"] {
            let refused = tree.vfs.make(&ROOT, &root, b"bad", NewNode::Symlink(target, &set)).value;
            assert_eq!(errno(refused), Some(Errno::INVAL));
        }
    });
}

/// While objects are renamed over a name, the name and its directory are found all the time.
// SEMANTICS: serve-5.
#[test]
fn a_name_that_is_being_replaced_is_found_and_removed() {
    for (name, parent, choice) in [
        ("disk", disk(), HandleChoice::Auto),
        ("tmpfs", tmpfs(), HandleChoice::Auto),
        ("table", disk(), HandleChoice::Table),
    ] {
        let tree = local(name, parent, choice);
        let root = tree.root();
        tree.file(&root, "a", 0o644);
        let served = tree.place.as_ref().unwrap().served.clone();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = AtTheEnd(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::write(served.join("new"), b"").unwrap();
                    std::fs::rename(served.join("new"), served.join("a")).unwrap();
                }
            });
            let set = SetAttributes::with_mode(0o644);
            for round in 0..2_000 {
                let found = tree.lookup(&root, "a").map(|_| ());
                assert_eq!(found, Ok(()), "{name}: LOOKUP {round}");
                let created = tree.vfs.create(&ROOT, &root, b"a", CreateMode::Unchecked(&set)).value;
                assert_eq!(created.map(|_| ()), Ok(()), "{name}: CREATE {round}");
                let refused = tree.vfs.create(&ROOT, &root, b"a", CreateMode::Guarded(&set)).value;
                assert_eq!(errno(refused), Some(Errno::EXIST), "{name}: CREATE GUARDED {round}");
            }
        });
    }
}

/// Sets a flag at the end of its scope, also on a panic.
struct AtTheEnd<'f>(&'f AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
