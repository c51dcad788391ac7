//! Listing directories.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use curt_types::Attributes;
use curt_vfs::{Error, HandleChoice, ReaddirDetail, VfsNode};
use rustix::io::Errno;

use crate::trees::{OTHER, ROOT, errno, everywhere};

#[test]
fn each_name_is_listed_once_whatever_the_size_of_the_pieces() {
    everywhere(|tree| {
        let root = tree.root();
        let mut expected = BTreeSet::from([".".to_owned(), "..".to_owned()]);
        for number in 0..150 {
            let name = format!("name{number:0width$}", width = 1 + number);
            tree.file(&root, &name, 0o644);
            expected.insert(name);
        }
        for piece in [1, 2, 7, 1000] {
            let (mut listed, mut cookie, mut pieces) = (Vec::new(), 0, 0);
            loop {
                let (names, end) = tree.names(&root, cookie, piece);
                cookie = names.last().map_or(cookie, |(_, cookie)| *cookie);
                listed.extend(names.into_iter().map(|(name, _)| name));
                pieces += 1;
                if end {
                    break;
                }
            }
            assert_eq!(listed.len(), expected.len(), "in {pieces} pieces of {piece}");
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    });
}

#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    everywhere(|tree| {
        let root = tree.root();
        for number in 0..100 {
            tree.file(&root, &format!("stays{number}"), 0o644);
            tree.file(&root, &format!("goes{number}"), 0o644);
        }
        let (mut seen, mut cookie, mut turn) = (BTreeMap::<String, u32>::new(), 0, 0);
        loop {
            let (names, end) = tree.names(&root, cookie, 9);
            cookie = names.last().map_or(cookie, |(_, cookie)| *cookie);
            for (name, _) in names {
                *seen.entry(name).or_default() += 1;
            }
            if end {
                break;
            }
            tree.file(&root, &format!("comes{turn}"), 0o644);
            tree.vfs.remove(&ROOT, &root, format!("goes{turn}").as_bytes()).value.unwrap();
            turn += 1;
        }
        for number in 0..100 {
            assert_eq!(seen.get(&format!("stays{number}")), Some(&1), "stays{number}");
        }
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    });
}

#[test]
fn entries_bring_handles_and_attributes_on_demand() {
    everywhere(|tree| {
        let root = tree.root();
        let directory = tree.directory(&root, "directory", 0o755).handle;
        tree.file(&directory, "file", 0o640);
        tree.directory(&directory, "below", 0o711);
        for (node, parent) in [(directory, root), (root, root)] {
            let mut seen = 0;
            let listed = tree.vfs.read_directory(&ROOT, &node, 0, ReaddirDetail::Nodes, &mut |entry| {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                let found = entry.node.clone().unwrap();
                // Listing sets the directory's atime.
                let looked_up = tree.lookup(&node, &name).unwrap();
                let expected = Attributes { atime: found.attributes.atime, ..looked_up.attributes };
                assert_eq!(found, VfsNode { handle: looked_up.handle, attributes: expected }, "{name}");
                assert_eq!(entry.fileid, found.attributes.fileid, "{name}");
                if name == ".." {
                    assert_eq!(found.handle, parent);
                }
                seen += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(listed.value, Ok(true));
            assert_eq!(listed.attributes.unwrap().ctime, tree.attributes(&node).ctime);
            assert!(seen >= 3);
        }
    });
}

#[test]
fn who_may_read_but_not_search_learns_names_alone() {
    everywhere(|tree| {
        let directory = tree.directory(&tree.root(), "directory", 0o754).handle;
        tree.file(&directory, "file", 0o644);
        let mut names = Vec::new();
        let listed = tree.vfs.read_directory(&OTHER, &directory, 0, ReaddirDetail::Nodes, &mut |entry| {
            assert_eq!(entry.node, None);
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        });
        names.sort();
        assert_eq!((listed.value, names), (Ok(true), vec![b".".to_vec(), b"..".to_vec(), b"file".to_vec()]));
        let closed = tree.directory(&tree.root(), "closed", 0o711).handle;
        let refused = tree.vfs.read_directory(&OTHER, &closed, 0, ReaddirDetail::Names, &mut |_| panic!());
        assert_eq!(errno(refused.value), Some(Errno::ACCESS));
    });
}

#[test]
fn what_cannot_be_a_cookie_is_refused() {
    everywhere(|tree| {
        for cookie in [1 << 63, u64::MAX] {
            let refused =
                tree.vfs.read_directory(&ROOT, &tree.root(), cookie, ReaddirDetail::Names, &mut |_| panic!());
            assert_eq!(refused.value, Err(Error::BadCookie), "{cookie}");
        }
    });
}

#[test]
fn a_rename_in_memory_keeps_its_place_in_a_listing() {
    let tree = crate::trees::memory();
    let root = tree.root();
    for number in 0..10 {
        tree.file(&root, &format!("name{number}"), 0o644);
    }
    let (names, _) = tree.names(&root, 0, 5);
    let cookie = names.last().unwrap().1;
    tree.vfs.rename(&ROOT, &root, b"name0", &root, b"other0").value.unwrap();
    tree.vfs.rename(&ROOT, &root, b"name9", &root, b"other9").value.unwrap();
    let rest: Vec<String> = tree.names(&root, cookie, 100).0.into_iter().map(|(name, _)| name).collect();
    assert_eq!(rest.len(), 7);
    assert!(rest.contains(&"other9".to_owned()) && !rest.contains(&"other0".to_owned()));
}

#[test]
fn cookies_hold_after_a_restart_and_when_the_name_they_came_with_is_gone() {
    everywhere(|tree| {
        let root = tree.root();
        for number in 0..60 {
            tree.file(&root, &format!("name{number}"), 0o644);
        }
        let (first, _) = tree.names(&root, 0, 20);
        let (last, cookie) = first.last().unwrap().clone();
        tree.vfs.remove(&ROOT, &root, last.as_bytes()).value.unwrap();
        // Only one server can use a handle table at a time; the cookies are the file system's.
        let again = tree.place.as_ref().filter(|place| place.choice == HandleChoice::Kernel);
        let (rest, end) = match again.map(|place| place.serve()) {
            Some(again) => crate::trees::names(&again, &root, cookie, 100),
            None => tree.names(&root, cookie, 100),
        };
        let all: BTreeSet<String> = first.into_iter().chain(rest.clone()).map(|(name, _)| name).collect();
        assert!(end, "{}", tree.name);
        assert_eq!((all.len(), rest.len()), (62, 42), "{}", tree.name);
    });
}

/// Sets the flag at the end of the test, also on a panic.
struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn handle_and_attributes_are_of_one_object_while_names_are_exchanged() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};
    everywhere(|tree| {
        let Some(place) = &tree.place else { return };
        let root = tree.root();
        for number in 0..40 {
            tree.file(&root, &format!("name{number}"), 0o644);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let path = |number: u32| place.served.join(format!("name{number}"));
                while !over.load(Ordering::Relaxed) {
                    for number in 0..39 {
                        let (from, to) = (path(number), path(number + 1));
                        renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            });
            let _over = Over(&over);
            let mut seen = 0;
            for _ in 0..30 {
                let visit = &mut |entry: &curt_vfs::VfsDirEntry<'_>| {
                    if let Some(node) = &entry.node {
                        let now = tree.attributes(&node.handle);
                        assert_eq!(now.fileid, node.attributes.fileid, "{}", tree.name);
                        seen += 1;
                    }
                    ControlFlow::Continue(())
                };
                let listed = tree.vfs.read_directory(&ROOT, &root, 0, ReaddirDetail::Nodes, visit);
                assert_eq!(listed.value, Ok(true));
            }
            assert!(seen > 30 * 30, "{seen}");
        });
    });
}
