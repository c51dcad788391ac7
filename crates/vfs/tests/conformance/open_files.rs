//! Cached open files of a local tree: they grant no permission, keep no space, and block no other
//! operation.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use curt_types::{Access, SetAttributes, Stability};
use curt_vfs::{
    CreateMode, Error, FetchOptions, FetchResult, FileCaching, FsCred, LocalOptions, LocalVfs, MayBlock,
    NodeHandle, Vfs,
};
use rustix::io::Errno;

use crate::trees::{OTHER, OWNER, Place, ROOT, ReadBytes as _, Tree, all, disk, errno, is_root, tmpfs};

/// As in fdinfo.
const O_PATH: u32 = 0o10_000_000;

/// Longer than an unused descriptor may stay open.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a test on each kind of local tree, on all of them concurrently: some wait for seconds.
fn on_disk(claim: impl Fn(&Tree, &Path) + Sync) {
    let trees = all();
    std::thread::scope(|scope| {
        let local = trees.iter().filter_map(|tree| Some((tree, tree.place.as_ref()?)));
        let claim = &claim;
        let tried: Vec<_> =
            local.map(|(tree, place)| (tree.name, scope.spawn(|| claim(tree, &place.served)))).collect();
        for (name, thread) in tried {
            assert!(thread.join().is_ok(), "on {name}");
        }
    });
}

/// Identifies a file: a file system may soon give a removed file's inode number to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    number: (u64, u64),
    born: SystemTime,
}

impl FileIdentity {
    fn of(path: &Path) -> std::io::Result<Self> {
        let status = std::fs::metadata(path)?;
        Ok(Self { number: (status.dev(), status.ino()), born: status.created()? })
    }
}

/// The descriptors of a file open for I/O in this process; `true` if open for writing.
fn descriptors(identity: &FileIdentity) -> Vec<bool> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let opened = entries.filter_map(|entry| {
        let number = entry.ok()?.file_name();
        let is_it =
            FileIdentity::of(&Path::new("/proc/self/fd").join(&number)).is_ok_and(|found| found == *identity);
        if !is_it {
            return None;
        }
        let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(&number)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        (flags & O_PATH == 0).then_some(flags & 3 != 0)
    });
    let mut opened: Vec<bool> = opened.collect();
    opened.sort_unstable();
    opened
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} never came true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `work` as root without the tree: this thread may have the last caller's credentials.
fn past<T>(tree: &Tree, work: impl FnOnce() -> T) -> T {
    assert!(tree.vfs.lookup(&ROOT, &tree.root(), b".").value.is_ok());
    work()
}

fn read(tree: &Tree, caller: &FsCred<'_>, handle: &NodeHandle) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    let read = tree.vfs.read(caller, handle, 0, 100, &mut data);
    read.value.map(|_| data)
}

/// A file of [`OWNER`] that is open for reading and, if requested, for writing.
fn opened(tree: &Tree, name: &str, write: bool) -> (NodeHandle, FileIdentity) {
    let node = tree.file(&tree.root(), name, 0o644);
    let place = tree.place.as_ref().unwrap();
    let identity = past(tree, || FileIdentity::of(&place.served.join(name)).unwrap());
    let expected: &[bool] = if write { &[false, true] } else { &[false] };
    // On a busy machine a descriptor may be closed before this thread checks.
    eventually("it is open", || {
        let written = tree.vfs.write(&OWNER, &node.handle, 0, b"content", Stability::FileSync);
        written.value.unwrap();
        if !write {
            tree.vfs.release_all();
        }
        assert_eq!(read(tree, &OWNER, &node.handle).unwrap(), b"content");
        descriptors(&identity) == expected
    });
    (node.handle, identity)
}

// SEMANTICS: serve-3.
#[test]
fn what_is_removed_replaced_or_changes_hands_is_closed_before_the_answer() {
    on_disk(|tree, _| {
        let (vfs, root) = (&tree.vfs, tree.root());
        let mut number = 0;
        let mut closes = |what: &str, change: &dyn Fn(&str, &NodeHandle)| {
            number += 1;
            let name = format!("file{number}");
            let (handle, identity) = opened(tree, &name, true);
            change(&name, &handle);
            assert_eq!(descriptors(&identity), [false; 0], "{what}");
        };
        closes("remove", &|name, _| vfs.remove(&ROOT, &root, name.as_bytes()).value.unwrap());
        closes("remove of one name of two", &|name, handle| {
            vfs.link(&ROOT, handle, &root, b"second").directory.value.unwrap();
            vfs.remove(&ROOT, &root, name.as_bytes()).value.unwrap();
        });
        closes("rename over it", &|name, _| {
            tree.file(&root, "other", 0o644);
            vfs.rename(&ROOT, &root, b"other", &root, name.as_bytes()).value.unwrap();
        });
        let set = |set: SetAttributes| {
            move |_: &str, handle: &NodeHandle| tree.set(&ROOT, handle, &set).value.unwrap()
        };
        closes("chmod", &set(SetAttributes::with_mode(0o600)));
        let mut changed = [SetAttributes::default(); 3];
        changed[0].uid = Some(OTHER.uid);
        changed[1].gid = Some(OTHER.gid);
        changed[2].size = Some(3);
        for (what, changed) in ["chown", "chgrp", "truncate"].into_iter().zip(changed) {
            closes(what, &set(changed));
        }
        closes("the end of an export", &|_, _| vfs.release_all());
    });
}

#[test]
fn what_changes_a_name_alone_leaves_a_file_open() {
    on_disk(|tree, _| {
        let (vfs, root) = (&tree.vfs, tree.root());
        // If this thread is in time to see it.
        let mut number = 0;
        eventually("a name's change closes nothing", || {
            number += 1;
            let (name, moved) = (format!("stays{number}"), format!("moved{number}"));
            let (handle, identity) = opened(tree, &name, true);
            let renamed = vfs.rename(&ROOT, &root, name.as_bytes(), &root, moved.as_bytes());
            renamed.value.unwrap();
            let _answered = vfs.access(&OWNER, &handle, Access::READ);
            descriptors(&identity) == [false, true]
        });
    });
}

// SEMANTICS: serve-2.
#[test]
fn idle_descriptors_close_by_themselves_and_those_to_write_first() {
    on_disk(|tree, _| {
        let (_, identity) = opened(tree, "file", true);
        eventually("the writer is closed", || !descriptors(&identity).contains(&true));
        eventually("the reader is closed", || descriptors(&identity).is_empty());
    });
}

/// A file that was just copied can be executed: at once if its mode was set afterwards, otherwise
/// half a second later.
// SEMANTICS: serve-2.
#[test]
fn what_was_written_can_be_executed() {
    if !is_root() {
        return;
    }
    // The temporary directory may be mounted noexec, like /dev/shm often is.
    let tree = crate::trees::local("disk by handle", disk(), curt_vfs::HandleChoice::Kernel);
    let place = tree.place.as_ref().unwrap();
    std::fs::set_permissions(place.served.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = tree.file(&tree.root(), "program", 0o644).handle;
            let program = std::fs::read("/bin/true").unwrap();
            let path = place.served.join("program");
            let execute = || std::process::Command::new(&path).status().map(|status| status.success());
            let busy = |result: &std::io::Result<bool>| {
                matches!(result, Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy)
            };
            tree.write(&OWNER, &file, 0, &program).unwrap();
            tree.set(&ROOT, &file, &SetAttributes::with_mode(0o755)).value.unwrap();
            // Another test's new process may have inherited the descriptor for a moment.
            let mut last = execute();
            eventually("nobody else has it open to write", || {
                last = execute();
                !busy(&last)
            });
            assert_eq!(last.ok(), Some(true));
            eventually("it is open to write", || {
                tree.write(&OWNER, &file, 0, &program[..1]).unwrap();
                busy(&execute())
            });
            eventually("nobody writes it", || !busy(&execute()));
            assert_eq!(execute().ok(), Some(true), "what watches for errors is in nobody's way");
        });
    });
}

// SEMANTICS: serve-1.
#[test]
fn a_right_that_others_take_back_is_gone_with_the_next_request() {
    on_disk(|tree, served| {
        let (handle, _) = opened(tree, "file", true);
        assert_eq!(read(tree, &OTHER, &handle).unwrap(), b"content");
        past(tree, || std::fs::set_permissions(served.join("file"), PermissionsExt::from_mode(0o000)))
            .unwrap();
        assert_eq!(errno(read(tree, &OTHER, &handle)), Some(Errno::ACCESS));
        assert_eq!(read(tree, &OWNER, &handle).unwrap(), b"content", "its owner may have opened it before");
        assert_eq!(tree.write(&OWNER, &handle, 0, b"C"), Ok(1));
        past(tree, || std::os::unix::fs::chown(served.join("file"), Some(OTHER.uid), None)).unwrap();
        assert_eq!(errno(tree.write(&OWNER, &handle, 0, b"D")), Some(Errno::ACCESS));
        assert_eq!(errno(read(tree, &OWNER, &handle)), Some(Errno::ACCESS));
        assert_eq!(read(tree, &OTHER, &handle).unwrap(), b"Content");
    });
}

// SEMANTICS: serve-3.
#[test]
fn what_others_remove_is_stale_and_its_space_is_given_back() {
    on_disk(|tree, served| {
        let (handle, identity) = opened(tree, "file", true);
        past(tree, || std::fs::remove_file(served.join("file"))).unwrap();
        assert_eq!(errno(read(tree, &OWNER, &handle)), Some(Errno::STALE));
        assert_eq!(descriptors(&identity), [false; 0]);
        // Uncommitted data do not keep it open either.
        let (handle, identity) = opened(tree, "unstable", true);
        tree.write(&OWNER, &handle, 0, b"uncommitted").unwrap();
        past(tree, || std::fs::remove_file(served.join("unstable"))).unwrap();
        assert_eq!(errno(tree.vfs.commit(&OWNER, &handle, 0, 0).value), Some(Errno::STALE));
        assert_eq!(descriptors(&identity), [false; 0]);
        let (handle, identity) = opened(tree, "second", true);
        past(tree, || std::fs::remove_file(served.join("second"))).unwrap();
        assert_eq!(errno(tree.write(&OWNER, &handle, 0, b"x")), Some(Errno::STALE));
        assert_eq!(descriptors(&identity), [false; 0]);
        // No client will commit these.
        let (_, identity) = opened(tree, "third", false);
        past(tree, || std::fs::remove_file(served.join("third"))).unwrap();
        eventually("it is closed", || descriptors(&identity).is_empty());
        let (handle, identity) = opened(tree, "fourth", true);
        tree.write(&OWNER, &handle, 0, b"uncommitted").unwrap();
        past(tree, || std::fs::remove_file(served.join("fourth"))).unwrap();
        eventually("nobody waits for a commit", || descriptors(&identity).is_empty());
    });
}

/// A caller that has such a file open may write anywhere in it: only the open fails.
#[test]
fn a_file_that_may_only_grow_from_now_on_is_not_written_to() {
    on_disk(|tree, served| {
        let (handle, _) = opened(tree, "file", true);
        let flag = |flags| {
            past(tree, || {
                let file = std::fs::File::open(served.join("file")).unwrap();
                rustix::fs::ioctl_setflags(&file, flags)
            })
        };
        if flag(rustix::fs::IFlags::APPEND).is_err() {
            eprintln!("not tried on {}: it has no such flag", tree.name);
            return;
        }
        let written = tree.write(&OWNER, &handle, 0, b"over what was there");
        flag(rustix::fs::IFlags::empty()).unwrap();
        assert_eq!(errno(written), Some(Errno::PERM));
    });
}

/// A name of another file with the same inode number is never mistaken for the old one.
// SEMANTICS: serve-4.
#[test]
fn a_name_that_is_made_anew_leads_to_the_new_file() {
    on_disk(|tree, served| {
        let path = served.join("name");
        let mut earlier = std::collections::HashSet::new();
        for round in 0..300_u32 {
            let mut new = None;
            past(tree, || std::fs::write(&path, round.to_be_bytes())).unwrap();
            // Twice: the second result may be from the cache.
            for _ in 0..2 {
                let found = tree.vfs.lookup(&OWNER, &tree.root(), b"name").value.unwrap();
                assert_eq!(found.attributes.fileid, std::fs::metadata(&path).unwrap().ino());
                assert_eq!(read(tree, &ROOT, &found.handle).unwrap(), round.to_be_bytes());
                assert!(!earlier.contains(&found.handle), "the handle of a file that is gone");
                new = Some(found.handle);
            }
            past(tree, || std::fs::remove_file(&path)).unwrap();
            earlier.extend(new);
            assert_eq!(
                errno(tree.vfs.lookup(&OWNER, &tree.root(), b"name").value.map(|_| ())),
                Some(Errno::NOENT)
            );
        }
    });
}

// SEMANTICS: serve-4.
#[test]
fn a_remembered_name_is_looked_at_each_time() {
    on_disk(|tree, served| {
        let path = served.join("name");
        past(tree, || std::fs::write(&path, b"old")).unwrap();
        let old_enough =
            || std::fs::metadata(&path).unwrap().modified().unwrap().elapsed().unwrap_or_default();
        eventually("the file is old enough to be remembered", || old_enough() > Duration::from_millis(30));
        let look_up = |caller: &FsCred<'_>| tree.vfs.lookup(caller, &tree.root(), b"name").value;
        let first = look_up(&OTHER).unwrap();
        past(tree, || std::fs::write(&path, b"longer")).unwrap();
        let second = look_up(&OTHER).unwrap();
        assert_eq!((second.handle, second.attributes.size), (first.handle, 6));
        // A caller without search permission finds nothing in it.
        past(tree, || std::fs::set_permissions(served, PermissionsExt::from_mode(0o700))).unwrap();
        assert_eq!(errno(look_up(&OTHER)), Some(Errno::ACCESS));
        assert!(look_up(&ROOT).is_ok());
        past(tree, || std::fs::rename(&path, served.join("moved"))).unwrap();
        past(tree, || std::fs::write(&path, b"another")).unwrap();
        assert_ne!(look_up(&ROOT).unwrap().handle, first.handle);
    });
}

// SEMANTICS: serve-1.
#[test]
fn a_verdict_holds_only_for_the_file_as_it_was() {
    on_disk(|tree, served| {
        let (handle, _) = opened(tree, "file", false);
        let all = Access::READ.with(Access::MODIFY).with(Access::EXTEND);
        let ask = |caller: &FsCred<'_>| tree.vfs.access(caller, &handle, all).value.unwrap();
        let path = served.join("file");
        for (mode, other) in [(0o644, Access::READ), (0o600, Access::default()), (0o666, all)] {
            past(tree, || std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))).unwrap();
            let past = || {
                let status = std::fs::metadata(&path).unwrap();
                let changed = Duration::new(
                    u64::try_from(status.ctime()).unwrap(),
                    u32::try_from(status.ctime_nsec()).unwrap(),
                );
                let now = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
                now.saturating_sub(changed) > Duration::from_millis(30)
            };
            for _ in 0..2 {
                assert_eq!((ask(&OTHER), ask(&OWNER)), (other, all), "{mode:o}");
                eventually("verdicts may be kept", past);
            }
            assert_eq!((ask(&OTHER), ask(&OWNER)), (other, all), "{mode:o}, remembered");
        }
    });
}

/// LINK and REMOVE change the file's own times: this is not visible between the attributes before
/// and after a WRITE.
#[test]
fn names_that_come_and_go_do_not_show_in_a_write() {
    on_disk(|tree, _| {
        let root = tree.root();
        let file = tree.file(&root, "file", 0o644).handle;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..100 {
                    let name = format!("link{round}");
                    tree.vfs.link(&ROOT, &file, &root, name.as_bytes()).directory.value.unwrap();
                    let moved = format!("moved{round}");
                    tree.vfs.rename(&ROOT, &root, name.as_bytes(), &root, moved.as_bytes()).value.unwrap();
                    tree.vfs.remove(&ROOT, &root, moved.as_bytes()).value.unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                let changed = tree.vfs.write(&OWNER, &file, 0, b"data", Stability::Unstable);
                changed.value.unwrap();
                let after = changed.after.unwrap();
                // A write sets both alike, a change of names only the ctime.
                assert_eq!(after.ctime, after.mtime);
            }
        });
    });
}

#[test]
fn a_tree_that_keeps_nothing_open_keeps_nothing_open() {
    if !is_root() {
        return;
    }
    let place = Place::new(tmpfs(), curt_vfs::HandleChoice::Kernel);
    let options = LocalOptions { file_caching: FileCaching::Off, ..LocalOptions::default() };
    let vfs = LocalVfs::open(&place.served, &options).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let made = vfs.create(
                &ROOT,
                &vfs.root(),
                b"file",
                CreateMode::Guarded(&SetAttributes::with_mode(0o600)),
            );
            let node = made.value.unwrap().node;
            let identity = FileIdentity::of(&place.served.join("file")).unwrap();
            for _ in 0..3 {
                let written = vfs.write(&ROOT, &node.handle, 0, b"x", Stability::FileSync);
                written.value.unwrap();
                assert_eq!(descriptors(&identity), [false; 0]);
            }
            let counters = vfs.file_cache().unwrap();
            let lookups = (counters.hits, counters.misses);
            assert_eq!((lookups, counters.uncached, counters.entries), ((0, 3), 3, 0));
        });
    });
}

#[test]
fn a_tree_reports_which_calls_may_block() {
    on_disk(|tree, served| {
        let in_memory = served.starts_with(tmpfs());
        let by_table = tree.name.ends_with("table");
        let never = in_memory && !by_table;
        assert_eq!(tree.vfs.may_block(), if never { MayBlock::Never } else { MayBlock::Data });
        let (handle, _) = opened(tree, "file", true);
        let write = || tree.vfs.write_nowait(&OWNER, &handle, 0, b"data");
        assert!(tree.vfs.is_in_memory(&handle));
        // The kernel refuses a write that does not wait while the disk is busy with the file.
        eventually("the file is written", || write().is_some_and(|changed| changed.value.is_ok()));
        tree.vfs.release_all();
        assert_eq!(tree.vfs.is_in_memory(&handle), in_memory);
        assert_eq!(write().is_some(), in_memory);
        let how = FetchOptions { sendfile: false, wait: false };
        let answer = tree.vfs.fetch(&OWNER, &handle, 0, 100, how, &mut Vec::new());
        assert_eq!(answer.is_some(), in_memory, "opening it may wait");
        let found = tree.vfs.lookup_nowait(&OWNER, &tree.root(), b"file");
        assert_eq!(found.is_some(), !by_table, "a name that was just used is known to the kernel");
        let Some(found) = found else { return };
        assert_eq!(found.value.unwrap().handle, handle);
        let answer = tree.vfs.fetch(&OWNER, &handle, 0, 100, how, &mut Vec::new());
        let fetched = answer.expect("it was just looked up").value.unwrap();
        assert!(matches!(fetched, FetchResult::Copied(read) if read.count == 7));
    });
}
