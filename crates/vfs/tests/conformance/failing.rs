//! File systems that are full, read-only or faulty, in separate mount namespaces.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use curt_types::{Access, SetAttributes, Stability};
use curt_vfs::{
    CreateMode, Error, LocalOptions, LocalVfs, MetadataDurability, NewNode, NodeHandle, ReaddirDetail, Vfs,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, capabilities, set_capabilities};
use tempfile::TempDir;

use crate::trees::{OTHER, OWNER, ROOT, disk, errno, is_root};

/// Runs `test` with a directory, on a thread with its own mount namespace.
fn with_private_mounts(test: impl FnOnce(&Path) + Send) {
    if !is_root() {
        return;
    }
    let directory = TempDir::new_in(disk()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            #[expect(deprecated, reason = "nothing of this thread depends on what is no longer shared")]
            rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::FS).unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).unwrap();
            test(directory.path());
        });
    });
}

fn mount_point(directory: &Path, name: &str) -> PathBuf {
    let point = directory.join(name);
    std::fs::create_dir(&point).unwrap();
    point
}

fn small_tmpfs(directory: &Path, name: &str, options: &std::ffi::CStr) -> PathBuf {
    let point = mount_point(directory, name);
    rustix::mount::mount("none", &point, "tmpfs", MountFlags::empty(), options).unwrap();
    point
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

#[test]
fn a_full_disk_is_reported_and_written_data_stay() {
    with_private_mounts(|directory| {
        let point = small_tmpfs(directory, "small", c"size=1m,nr_inodes=5");
        let vfs = LocalVfs::open(&point, &LocalOptions::default()).unwrap();
        let set = SetAttributes::with_mode(0o666);
        let create = |name: &[u8]| vfs.create(&ROOT, &vfs.root(), name, CreateMode::Guarded(&set)).value;
        let file = create(b"file").unwrap().node.handle;
        let data = vec![7; 1 << 20];
        let write = |offset, data: &[u8]| {
            vfs.write(&OWNER, &file, offset, data, Stability::Unstable).value.map(|written| written.count)
        };
        assert_eq!(write(0, &data[..1000]), Ok(1000));
        let fits = (1 << 20) - 4096;
        assert_eq!(write(4096, &data), Ok(fits), "as much as there is room for");
        assert_eq!(write(1 << 20, &data), Err(Error::Os(Errno::NOSPC)));
        assert_eq!(vfs.attributes(&file).unwrap().size, 1 << 20);
        assert_eq!(write(0, &data), Ok(1 << 20), "what has its room can be written again");
        assert_eq!(vfs.commit(&OWNER, &file, 0, 0).value, Ok(()));
        let names: Vec<String> = (0..8).map(|number| format!("file{number}")).collect();
        let made: Vec<_> = names.iter().map(|name| errno(create(name.as_bytes()))).collect();
        assert_eq!(made.last(), Some(&Some(Errno::NOSPC)), "{made:?}");
        assert_eq!(vfs.space(&file).value.unwrap().files_available, 0);
    });
}

#[test]
fn a_read_only_file_system_refuses_every_change_by_its_name() {
    with_private_mounts(|directory| {
        let point = small_tmpfs(directory, "frozen", c"size=1m");
        let vfs = LocalVfs::open(&point, &LocalOptions::default()).unwrap();
        let set = SetAttributes::with_mode(0o777);
        let root = vfs.root();
        let file = vfs.create(&ROOT, &root, b"file", CreateMode::Guarded(&set)).value.unwrap().node.handle;
        rustix::mount::mount_remount(&point, MountFlags::RDONLY, c"").unwrap();
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let answers = [
            errno(vfs.write(&ROOT, &file, 0, b"x", Stability::Unstable).value),
            errno(vfs.set_attributes(&ROOT, &file, &set, None).value),
            errno(vfs.set_attributes(&ROOT, &file, &size, None).value),
            errno(vfs.create(&ROOT, &root, b"new", CreateMode::Guarded(&set)).value),
            errno(vfs.create(&ROOT, &root, b"new", CreateMode::Exclusive([1; 8])).value),
            errno(vfs.make(&ROOT, &root, b"new", NewNode::Directory(&set)).value),
            errno(vfs.make(&ROOT, &root, b"new", NewNode::Symlink(b"x", &set)).value),
            errno(vfs.remove(&ROOT, &root, b"file").value),
            errno(vfs.rename(&ROOT, &root, b"file", &root, b"new").value),
            errno(vfs.link(&ROOT, &file, &root, b"new").directory.value),
        ];
        assert_eq!(answers, [Some(Errno::ROFS); 10]);
        let all = Access::from_bits(0x3f);
        assert_eq!(vfs.access(&ROOT, &file, all).value, Ok(Access::READ.with(Access::EXECUTE)));
        assert_eq!(vfs.access(&OTHER, &root, all).value, Ok(Access::READ.with(Access::LOOKUP)));
    });
}

/// Runs `test` with a tree on a disk that did not accept data of a file, after another process's
/// sync got the error. Also passes the file's handle and the mount point.
fn with_lost_data(test: impl FnOnce(&LocalVfs, &NodeHandle, &Path) + Send) {
    with_private_mounts(|directory| {
        // A disk that reports 64 MiB and has 8.
        let behind = small_tmpfs(directory, "behind", c"size=8m");
        let image = behind.join("image");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let point = mount_point(directory, "broken");
        let (image, shown) = (image.to_str().unwrap(), point.to_str().unwrap());
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", image]);
        run("mount", &["-o", "loop", image, shown]);
        let vfs = LocalVfs::open(&point, &LocalOptions::default()).unwrap();
        let set = SetAttributes::with_mode(0o666);
        let made = vfs.create(&ROOT, &vfs.root(), b"file", CreateMode::Guarded(&set)).value.unwrap();
        let file = made.node.handle;
        let data = vec![7; 1 << 20];
        for megabyte in 0..30 {
            let written = vfs.write(&OWNER, &file, megabyte << 20, &data, Stability::Unstable);
            assert_eq!(written.value.map(|written| written.count), Ok(1 << 20));
        }
        let _fails = Command::new("sync").args(["-f", shown]).status().unwrap();
        test(&vfs, &file, &point);
        drop(vfs);
        run("umount", &["-l", shown]);
    });
}

fn is_lost<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost(Errno::IO | Errno::NOSPC)))
}

// SEMANTICS: serve-7.
#[test]
fn data_that_the_disk_refused_are_reported_at_commit_even_when_nobody_has_the_file_open() {
    with_lost_data(|vfs, file, point| {
        // Makes the kernel drop unused inodes.
        let opened = std::fs::File::open(point.join("file")).unwrap();
        rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        drop(opened);
        std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        let committed = vfs.commit(&OWNER, file, 0, 0).value;
        assert!(is_lost(&committed), "{committed:?}");
    });
}

/// Two concurrent commits: the kernel reports the error to one of them, and the other one's result
/// must not hide it.
// SEMANTICS: serve-7.
#[test]
fn a_commit_during_a_loss_reports_it() {
    with_lost_data(|vfs, file, _| {
        let before = vfs.losses();
        let begin = std::sync::Barrier::new(4);
        let commit = || {
            begin.wait();
            let committed = vfs.commit(&OWNER, file, 0, 0).value;
            (committed.is_ok(), vfs.losses())
        };
        let results: Vec<(bool, u64)> = std::thread::scope(|scope| {
            let commits = [(); 4].map(|()| scope.spawn(commit));
            commits.map(|commit| commit.join().unwrap()).into()
        });
        assert!(results.iter().all(|(_, losses)| *losses > before), "{results:?}");
        assert!(results.iter().any(|(went_well, _)| !went_well), "{results:?}");
    });
}

/// Stable writes, concurrently by one descriptor: the kernel reports the error to one of them, and
/// no other may return success, because clients do not send such data again.
#[test]
fn no_durable_write_beside_a_loss_goes_well() {
    const WRITERS: u64 = 4;
    with_lost_data(|vfs, file, _| {
        let data = vec![9; 64 << 10];
        for round in 0..8 {
            let begin = std::sync::Barrier::new(4);
            let write = |writer: u64| {
                let offset = (30 << 20) + ((round * WRITERS + writer) << 16);
                begin.wait();
                vfs.write(&OWNER, file, offset, &data, Stability::FileSync).value
            };
            let results: Vec<_> = std::thread::scope(|scope| {
                let write = &write;
                let writes: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
                writes.into_iter().map(|write| write.join().unwrap()).collect()
            });
            assert!(results.iter().all(Result::is_err), "round {round}: {results:?}");
        }
    });
}

/// The kernel reports lost data once: operations that write nothing must not consume the report.
#[test]
fn a_durable_write_that_fails_makes_nothing_durable() {
    with_lost_data(|vfs, file, _| {
        let before = vfs.losses();
        let beyond = u64::try_from(i64::MAX).unwrap();
        let written = vfs.write(&OWNER, file, beyond, b"x", Stability::FileSync).value;
        assert_eq!(written, Err(Error::Os(Errno::FBIG)));
        assert_eq!(vfs.losses(), before);
        assert!(is_lost(&vfs.commit(&OWNER, file, 0, 0).value));
    });
}

/// A file that is evicted for another one is synced; the loss of its data does not fail the write
/// to the other.
// SEMANTICS: serve-7.
#[test]
fn a_write_does_not_report_the_loss_of_another_file() {
    with_lost_data(|vfs, _, _| {
        let before = vfs.losses();
        let set = SetAttributes::with_mode(0o666);
        // More files than can be watched, on a disk that accepts no data but has free inodes.
        for number in 0..1100 {
            let name = format!("file{number}");
            let made = vfs.create(&ROOT, &vfs.root(), name.as_bytes(), CreateMode::Guarded(&set));
            let Ok(made) = made.value else { continue };
            let written = vfs.write(&OWNER, &made.node.handle, 0, b"", Stability::Unstable).value;
            assert!(!matches!(written, Err(Error::Lost(_))), "{number}: {written:?}");
        }
        assert!(vfs.losses() > before, "the first file had to make room");
    });
}

#[test]
fn a_commit_reports_lost_data_that_another_process_was_told_of() {
    with_lost_data(|vfs, file, point| {
        let local = std::fs::File::open(point.join("file")).unwrap().sync_all();
        assert!(local.is_err());
        let committed = vfs.commit(&ROOT, file, 0, 0).value;
        assert!(is_lost(&committed), "{committed:?}");
    });
}

/// If a tree was closed meanwhile, as by two reloads of the exports, losses of unstable data are
/// unknown.
#[test]
fn a_tree_that_is_opened_again_has_another_number_of_losses() {
    let directory = TempDir::new_in(disk()).unwrap();
    let losses = || {
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        vfs.losses()
    };
    assert_ne!(losses(), losses());
}

/// The kernel reports lost data once: if a change of attributes gets the report, the next commit
/// does not.
#[test]
fn a_setattr_that_finds_lost_data_reports_it() {
    with_lost_data(|vfs, file, _| {
        let changed = vfs.set_attributes(&ROOT, file, &SetAttributes::with_mode(0o600), None);
        assert!(is_lost(&changed.value), "{:?}", changed.value);
    });
}

/// A retransmission after a crash depends on the file's inode, which is in another block on the
/// disk than its name.
#[test]
fn an_exclusive_create_is_recognised_by_what_is_on_the_disk_when_it_is_answered() {
    with_private_mounts(|directory| {
        let memory = small_tmpfs(directory, "memory", c"size=64m");
        let (image, crashed) = (memory.join("image"), memory.join("crashed"));
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        // Without a journal, which would write both together.
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", &path(&image)]);
        let [before, after] = ["before", "after"].map(|name| mount_point(directory, name));
        run("mount", &["-o", "loop", &path(&image), &path(&before)]);
        // Enough files that the new inode and the directory's own are in different blocks.
        for number in 0..100 {
            std::fs::write(before.join(number.to_string()), "").unwrap();
        }
        run("sync", &["-f", &path(&before)]);
        let create = |point: &Path| {
            let options = LocalOptions { metadata: MetadataDurability::Stable, ..LocalOptions::default() };
            let vfs = LocalVfs::open(point, &options).unwrap();
            let mode = CreateMode::Exclusive([7; 8]);
            let created = vfs.create(&ROOT, &vfs.root(), b"exclusive", mode).value;
            created.map(|created| created.new)
        };
        assert_eq!(create(&before), Ok(true));
        std::fs::copy(&image, &crashed).unwrap();
        run("mount", &["-o", "loop", &path(&crashed), &path(&after)]);
        assert_eq!(create(&after), Ok(false));
        for point in [&before, &after] {
            run("umount", &["-l", &path(point)]);
        }
    });
}

#[test]
fn without_the_right_to_copy_mounts_a_mount_point_is_refused_and_listed_without_a_handle() {
    with_private_mounts(|directory| {
        let served = mount_point(directory, "served");
        std::fs::create_dir(served.join("plain")).unwrap();
        small_tmpfs(&served, "point", c"size=1m");
        let held = capabilities(None).unwrap();
        let without = CapabilitySet::all() & !CapabilitySet::SYS_ADMIN;
        let sets = CapabilitySets {
            effective: held.effective & without,
            permitted: held.permitted & without,
            inheritable: held.inheritable & without,
        };
        set_capabilities(None, sets).unwrap();
        let vfs = LocalVfs::open(&served, &LocalOptions::default()).unwrap();
        let root = vfs.root();
        assert_eq!(errno(vfs.lookup(&ROOT, &root, b"point").value), Some(Errno::ACCESS));
        assert_eq!(errno(vfs.lookup(&ROOT, &root, b"plain").value), None);
        assert_eq!(vfs.lookup(&ROOT, &root, b"..").value.unwrap().handle, root);
        let mut seen = Vec::new();
        let listed = vfs.read_directory(&ROOT, &root, 0, ReaddirDetail::Nodes, &mut |entry| {
            seen.push((entry.name.to_vec(), entry.node.is_some()));
            ControlFlow::Continue(())
        });
        assert_eq!(listed.value, Ok(true));
        seen.sort();
        let expected = [(&b"."[..], true), (b"..", true), (b"plain", true), (b"point", false)];
        assert_eq!(seen, expected.map(|(name, node)| (name.to_vec(), node)));
    });
}
