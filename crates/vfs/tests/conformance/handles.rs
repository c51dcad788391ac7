//! Handles: the same after a restart, and valid only for their object.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use curt_types::{SetAttributes, Timestamp};
use curt_vfs::{
    CreateMode, Error, FsCred, HandleChoice, HandleScheme, LocalOptions, LocalVfs, MemoryOptions,
    MemoryTreeBuilder, NewNode, NodeHandle, Vfs,
};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::trees::{
    OWNER, Place, ROOT, ReadBytes as _, Tree, all, disk, errno, everywhere, is_root, local, tmpfs,
};

fn local_kinds() -> Vec<Tree> {
    all().into_iter().filter(|tree| tree.place.is_some()).collect()
}

#[test]
fn a_removed_directory_that_somebody_has_open_is_gone_before_anything_else_is_wrong() {
    for tree in local_kinds() {
        let (root, place) = (tree.root(), tree.place.as_ref().unwrap());
        let gone = tree.directory(&root, "gone", 0o777).handle;
        let link =
            tree.vfs.make(&ROOT, &root, b"link", NewNode::Symlink(b"target", &SetAttributes::default()));
        let link = link.value.unwrap().node.handle;
        let path = place.served.join("gone");
        let _open = std::fs::File::open(&path).unwrap();
        std::fs::remove_dir(&path).unwrap();
        for (from, to) in [(&gone, &link), (&link, &gone)] {
            let refused = tree.vfs.rename(&OWNER, from, b"a", to, b"b").value;
            assert_eq!(errno(refused), Some(Errno::STALE), "{}", tree.name);
        }
    }
}

#[test]
fn handles_and_exclusive_verifiers_survive_a_restart() {
    for tree in local_kinds() {
        let root = tree.root();
        let directory = tree.directory(&root, "directory", 0o777).handle;
        let file = tree.file(&directory, "file", 0o644).handle;
        let create =
            |vfs: &dyn Vfs| vfs.create(&OWNER, &directory, b"new", CreateMode::Exclusive([9; 8])).value;
        let made = create(&*tree.vfs).unwrap();
        tree.vfs.rename(&ROOT, &root, b"directory", &root, b"renamed").value.unwrap();
        let identity = tree.vfs.identity();
        drop(tree.vfs);
        let place = tree.place.unwrap();
        let again = place.serve();
        assert_eq!((again.root(), again.identity()), (root, identity), "{}", tree.name);
        assert_eq!(again.lookup(&ROOT, &root, b"renamed").value.unwrap().handle, directory);
        assert_eq!(again.lookup(&ROOT, &directory, b"file").value.unwrap().handle, file);
        assert_eq!(again.attributes(&file).unwrap().mode, 0o644, "{}", tree.name);
        assert_eq!(
            create(&again).map(|created| (created.new, created.node.handle)),
            Ok((false, made.node.handle))
        );
    }
}

#[test]
fn a_handle_that_was_never_given_opens_nothing() {
    everywhere(|tree| {
        let file = tree.file(&tree.root(), "file", 0o644).handle;
        for at in 0..file.bytes().len() {
            let mut bytes = file.bytes().to_vec();
            bytes[at] ^= 0x40;
            let forged = NodeHandle::new(file.scheme(), file.kind(), &bytes).unwrap();
            let answer = tree.vfs.attributes(&forged);
            assert!(matches!(answer, Err(Error::BadHandle | Error::Os(Errno::STALE))), "{answer:?}");
        }
        for length in [0, 1, 3, 19, 21, 44] {
            for scheme in [HandleScheme::Memory, HandleScheme::Kernel, HandleScheme::Table] {
                for kind in [0, 1, 2, 0x81, 255] {
                    let forged = NodeHandle::new(scheme, kind, &vec![0xa5; length]).unwrap();
                    let answer = tree.vfs.attributes(&forged);
                    let refused = matches!(answer, Err(Error::BadHandle | Error::Os(Errno::STALE)));
                    assert!(refused, "{forged:?}: {answer:?}");
                }
            }
        }
        assert!(NodeHandle::new(HandleScheme::Kernel, 1, &[0; 45]).is_none());
    });
}

#[test]
fn a_new_file_under_an_old_name_has_another_handle() {
    everywhere(|tree| {
        let root = tree.root();
        let mut handles = std::collections::HashSet::new();
        for _ in 0..50 {
            let file = tree.file(&root, "file", 0o644).handle;
            assert!(handles.insert(file), "given twice");
            tree.vfs.remove(&ROOT, &root, b"file").value.unwrap();
            assert_eq!(tree.vfs.attributes(&file), Err(Error::STALE));
        }
    });
}

#[test]
fn without_the_capability_the_table_is_used_and_without_a_table_the_error_names_the_reason() {
    if !is_root() {
        return;
    }
    let place = Place::new(disk(), HandleChoice::Auto);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = capabilities(None).unwrap();
            let without = CapabilitySet::all() & !CapabilitySet::DAC_READ_SEARCH;
            let sets = CapabilitySets {
                effective: held.effective & without,
                permitted: held.permitted & without,
                inheritable: held.inheritable & without,
            };
            set_capabilities(None, sets).unwrap();
            let vfs = place.serve();
            assert_eq!(vfs.handle_scheme(), HandleScheme::Table);
            let set = SetAttributes::with_mode(0o600);
            let made = vfs.create(&ROOT, &vfs.root(), b"file", CreateMode::Guarded(&set)).value.unwrap();
            assert_eq!(vfs.attributes(&made.node.handle), Ok(made.node.attributes));
            let options = LocalOptions::default();
            let refused = LocalVfs::open(&place.served, &options).err().unwrap().to_string();
            assert!(
                refused.contains("CAP_DAC_READ_SEARCH") && refused.contains("state directory"),
                "{refused}"
            );
        });
    });
    assert_eq!(place.serve().handle_scheme(), HandleScheme::Kernel);
}

#[test]
fn the_table_is_its_owners_alone() {
    if !is_root() {
        return;
    }
    let tree = local("table", tmpfs(), HandleChoice::Table);
    let table = tree.place.as_ref().unwrap().served.with_file_name("table");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(table).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_table_finds_what_lies_in_directories_that_the_caller_may_not_search() {
    if !is_root() {
        return;
    }
    let tree = local("table", disk(), HandleChoice::Table);
    let closed = tree.directory(&tree.root(), "closed", 0o700).handle;
    let file = tree.file(&closed, "file", 0o644).handle;
    let other = FsCred::new(3000, 3000, &[]);
    let mut data = Vec::new();
    assert_eq!(tree.vfs.read(&other, &file, 0, 1, &mut data).value.map(|read| read.count), Ok(0));
}

#[test]
fn dot_dot_of_what_was_moved_out_of_a_sub_directory_leads_nowhere() {
    if !is_root() {
        return;
    }
    for choice in [HandleChoice::Kernel, HandleChoice::Table] {
        let place = Place::new(disk(), choice);
        std::fs::create_dir_all(place.served.join("inside/below")).unwrap();
        let vfs = place.serve();
        let inside = vfs.lookup(&ROOT, &vfs.root(), b"inside").value.unwrap().handle;
        assert_eq!(vfs.lookup(&ROOT, &inside, b"..").value.unwrap().handle, vfs.root());
        std::fs::rename(place.served.join("inside"), place.served.with_file_name("outside")).unwrap();
        assert_eq!(errno(vfs.lookup(&ROOT, &inside, b"..").value), Some(Errno::STALE), "{choice:?}");
    }
}

#[test]
fn directories_that_are_swapped_for_symlinks_meanwhile_lead_nowhere_else() {
    if !is_root() {
        return;
    }
    let place = Place::new(disk(), HandleChoice::Kernel);
    let (inside, outside) = (place.served.join("name"), place.served.with_file_name("outside"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "").unwrap();
    std::os::unix::fs::symlink(&outside, place.served.join("link")).unwrap();
    let vfs = place.serve();
    std::thread::scope(|scope| {
        let (vfs, served) = (&vfs, &place.served);
        let looking = scope.spawn(move || {
            let (mut directories, mut links) = (0, 0);
            let end = Instant::now() + Duration::from_secs(60);
            while directories <= 20 || links <= 20 || directories + links < 1_000 {
                assert!(Instant::now() < end, "{directories} directories and {links} links");
                let found = vfs.lookup(&ROOT, &vfs.root(), b"name").value.unwrap();
                match found.attributes.kind {
                    curt_types::FileKind::Directory => directories += 1,
                    _ => links += 1,
                }
                assert!(vfs.lookup(&ROOT, &found.handle, b"secret").value.is_err());
            }
        });
        scope.spawn(move || {
            while !looking.is_finished() {
                let (one, other) = (served.join("name"), served.join("link"));
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, exchange).unwrap();
            }
        });
    });
}

#[test]
fn a_mount_point_shows_the_directory_that_it_covers() {
    if !is_root() {
        return;
    }
    let place = Place::new(disk(), HandleChoice::Kernel);
    let point = place.served.join("point");
    std::fs::create_dir(&point).unwrap();
    std::fs::write(point.join("covered"), "covered").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // In its own mount namespace, so that no mount remains.
            let private = rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::FS;
            #[expect(
                deprecated,
                reason = "this thread owns no descriptor table of its own that it could lose"
            )]
            let unshared = rustix::thread::unshare(private);
            if unshared.is_err() {
                eprintln!("left out: no mount namespace can be had");
                return;
            }
            let flags =
                rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", flags).unwrap();
            let nothing = rustix::mount::MountFlags::empty();
            rustix::mount::mount("none", &point, "tmpfs", nothing, None).unwrap();
            std::fs::write(point.join("covering"), "covering").unwrap();
            let vfs = place.serve();
            let found = vfs.lookup(&ROOT, &vfs.root(), b"point").value.unwrap();
            assert_eq!(found.attributes.fsid, vfs.attributes(&vfs.root()).unwrap().fsid);
            assert_eq!(errno(vfs.lookup(&ROOT, &found.handle, b"covering").value), Some(Errno::NOENT));
            assert_eq!(errno(vfs.lookup(&ROOT, &found.handle, b"covered").value), None);
            assert_eq!(vfs.lookup(&ROOT, &found.handle, b"..").value.unwrap().handle, vfs.root());
        });
    });
}

#[test]
fn threads_of_many_callers_work_as_themselves() {
    if !is_root() {
        return;
    }
    let tree = local("tmpfs", tmpfs(), HandleChoice::Kernel);
    let root = tree.root();
    tree.set(&ROOT, &root, &SetAttributes::with_mode(0o1777)).value.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let tree = &tree;
            scope.spawn(move || {
                for turn in 0..200_u32 {
                    let groups = [7000 + turn % 5];
                    let uid = 5000 + (thread + turn) % 3;
                    let caller = FsCred::new(uid, 6000 + turn % 2, &groups);
                    let name = format!("{thread}-{turn}");
                    let made = tree.guarded(&caller, &root, &name, 0o600).unwrap().node.attributes;
                    assert_eq!((made.uid, made.gid), (caller.uid, caller.gid));
                    let set = SetAttributes { gid: Some(groups[0]), ..SetAttributes::default() };
                    let handle = tree.lookup(&root, &name).unwrap().handle;
                    assert_eq!(
                        tree.set(&caller, &handle, &set).after.map(|after| after.gid),
                        Some(groups[0])
                    );
                    let stranger = FsCred::new(9999, 9999, &[]);
                    assert_eq!(errno(tree.write(&stranger, &handle, 0, b"x")), Some(Errno::ACCESS));
                }
            });
        }
    });
}

#[test]
fn the_calling_thread_keeps_its_rights_when_a_tree_is_opened() {
    if !is_root() {
        return;
    }
    let place = Place::new(tmpfs(), HandleChoice::Kernel);
    let before = capabilities(None).unwrap().effective;
    drop(place.serve());
    assert_eq!(capabilities(None).unwrap().effective, before);
    assert!(std::io::stdin().as_fd().try_clone_to_owned().is_ok());
}

struct Zeroes;

impl curt_vfs::ContentFormula for Zeroes {
    fn fill(&self, path: &[u8], offset: u64, buffer: &mut [u8]) {
        for (at, byte) in (offset..).zip(buffer) {
            *byte = path[usize::try_from(at).unwrap() % path.len()];
        }
    }
}

#[test]
fn a_big_tree_by_formula_is_built_at_once_and_alike_each_time() {
    let build = || {
        let time = Timestamp::new(1_000_000_000, 0);
        let mut builder = MemoryTreeBuilder::new(MemoryOptions::default(), std::sync::Arc::new(Zeroes), time);
        builder.owner(1000, 1000).modes(0o750, 0o640);
        for number in 0..40_000_u64 {
            let path = format!("d{}/e{}/f{number}", number % 17, number % 113);
            builder.file(path.as_bytes(), number).unwrap();
        }
        builder.symlink(b"d0/link", b"target").unwrap();
        assert_eq!(builder.file(b"d0/e0/f0", 1), Err(Errno::EXIST));
        assert_eq!(builder.file(b"d0/link/x", 1), Err(Errno::NOTDIR));
        builder.build()
    };
    let (one, other) = (build(), build());
    let walk = |vfs: &dyn Vfs| {
        let mut at = vfs.root();
        for name in ["d7", "e3", "f33225"] {
            at = vfs.lookup(&ROOT, &at, name.as_bytes()).value.unwrap().handle;
        }
        at
    };
    assert_eq!(walk(&one), walk(&other));
    let attributes = one.attributes(&walk(&one)).unwrap();
    assert_eq!((attributes.size, attributes.uid, attributes.mode), (33_225, 1000, 0o640));
    let mut data = Vec::new();
    let read = one.read(&OWNER, &walk(&one), 33_220, 100, &mut data).value.unwrap();
    assert_eq!((read.count, read.eof), (5, true));
    assert_eq!(data, b"3/f33", "33,220 is 4 more than a multiple of the path's 12 bytes");
}
