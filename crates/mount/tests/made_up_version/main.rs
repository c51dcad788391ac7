//! A client of a fictitious protocol version, behind a real mount. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../../../server/tests/warm/sys.rs"]
mod sys;
mod version;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::caller::RpcSecurity;
use curt_client::protocol::{Fsinfo, Pathconf};
use curt_client::threads::{BackgroundThreads, MonotonicClock};
use curt_client::{CallerTable, ClientOptions, Environment, MountedRoot, Superblock};
use curt_fuse::{FuseMount, FuseSession, FuseSessionOptions, MountFlags, MountOptions};
use curt_mount::bridge::{Bridge, InvalidationQueue};
use curt_policy::CacheOptions;

use version::{MadeUpVersion, handle};

/// Mounts a new server of the version at `directory`, and unmounts it after `work`.
fn with_mount(directory: &Path, cache: CacheOptions, work: impl FnOnce()) {
    let root = MountedRoot { handle: handle(1), limits: Fsinfo::default(), path_limits: Pathconf::default() };
    let changes = Arc::new(InvalidationQueue::default());
    let environment = Environment {
        clock: Arc::new(MonotonicClock),
        background: Arc::new(BackgroundThreads::new(4)),
        observer: Some(Arc::<InvalidationQueue>::clone(&changes)),
    };
    let protocol = Arc::new(MadeUpVersion::new());
    let options = ClientOptions { cache, ..ClientOptions::default() };
    let sb = Superblock::new(&root, protocol, RpcSecurity::sys(), &options, &environment).unwrap();
    let callers = CallerTable::new(Arc::new(MonotonicClock));
    let bridge = Bridge::new(Arc::new(sb), callers, Arc::clone(&changes));
    let options = MountOptions {
        source: "made:/up".into(),
        subtype: "curt".into(),
        flags: MountFlags::default(),
        allow_other: true,
    };
    let mounted = FuseMount::new(directory, &options);
    let (mount, device) = mounted.expect("a mount (root and /dev/fuse are needed)");
    bridge.set_notifier(device.notifier());
    let options = FuseSessionOptions::default();
    let session = FuseSession::start(device, Arc::new(bridge), &options).unwrap();
    changes.start(session.notifier(), false).unwrap();
    work();
    mount.detach_if_there().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    assert!(session.wait_for_threads(deadline), "every thread ends with the mount");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_version_that_does_not_exist_can_be_mounted() {
    let directory = tempfile::tempdir().unwrap();
    with_mount(directory.path(), CacheOptions::default(), || use_all(directory.path()));
}

fn use_all(directory: &Path) {
    let at = |name: &str| directory.join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), b"first").unwrap();
    let mut options = fs::OpenOptions::new();
    let options = options.create_new(true).read(true).append(true);
    let mut file = options.open(at("other")).unwrap();
    file.write_all(b"second").unwrap();
    file.sync_all().unwrap();
    std::os::unix::fs::symlink("sub/file", at("link")).unwrap();
    assert_eq!(names(directory), ["link", "other", "sub"]);
    assert_eq!(fs::read(at("link")).unwrap(), b"first");
    // Over an open file, which its server keeps: it needs no silly rename.
    fs::rename(at("sub/file"), at("other")).unwrap();
    assert_eq!(names(directory), ["link", "other", "sub"]);
    assert_eq!(fs::read(at("other")).unwrap(), b"first");
    fs::remove_file(at("other")).unwrap();
    assert_eq!(names(&at("sub")), [""; 0]);
    fs::remove_dir(at("sub")).unwrap();
    assert_eq!(names(directory), ["link"]);
    let mut content = String::new();
    file.write_all(b" and more").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "second and more");
    drop(file);
}

/// Number of counted look-ups.
const LOOKUPS: usize = 200;

/// The mount point of the traced process.
const MOUNT_POINT: &str = "CURT_TEST_MOUNT";
/// Maximum number of system calls with which a thread starts.
const CALLS_OF_A_START: usize = 16;

#[test]
fn a_lookup_from_memory_takes_no_system_calls_but_reading_and_writing_the_device() {
    if let Some(position) = std::env::var_os(MOUNT_POINT) {
        // Until the parent has looked up all names.
        let cache = CacheOptions { kernel_names: Duration::ZERO, ..CacheOptions::default() };
        return with_mount(Path::new(&position), cache, || _ = std::io::stdin().read(&mut [0]));
    }
    let directory = tempfile::tempdir().unwrap();
    let before = fs::metadata(directory.path()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "a_lookup_from_memory_takes_no_system_calls_but_reading_and_writing_the_device";
    command.args(["--exact", name]).env(MOUNT_POINT, directory.path());
    #[expect(clippy::zombie_processes, reason = "whoever traces it waits for it")]
    let mut child = sys::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null())).unwrap();
    let stdin = child.stdin.take();
    let is_counting = AtomicBool::new(false);
    let mut calls: BTreeMap<i64, usize> = BTreeMap::new();
    thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let device = std::os::unix::fs::MetadataExt::dev;
            let deadline = Instant::now() + Duration::from_secs(60);
            while fs::metadata(directory.path()).is_ok_and(|now| device(&now) == device(&before)) {
                assert!(Instant::now() < deadline, "it is mounted");
                thread::sleep(Duration::from_millis(5));
            }
            fs::write(directory.path().join("there"), b"").unwrap();
            let look_up = |name: &str| _ = fs::symlink_metadata(directory.path().join(name));
            for round in 0..2 {
                is_counting.store(round == 1, SeqCst);
                for _ in 0..LOOKUPS / 2 {
                    look_up("there");
                    look_up("missing");
                }
            }
            is_counting.store(false, SeqCst);
            drop(stdin);
        });
        sys::trace(|event| {
            if let (true, Some(number)) = (is_counting.load(SeqCst), event.number) {
                *calls.entry(number).or_default() += 1;
            }
        })
        .unwrap();
        driver.join().unwrap();
    });
    let mut count = |call| calls.remove(&call).unwrap_or(0);
    let (reads, writes) = (count(libc::SYS_read), count(libc::SYS_write));
    // A thread may be about to read, or have begun to, when counting begins and when it ends.
    assert!(reads.abs_diff(LOOKUPS) <= LOOKUPS / 20, "{reads}");
    assert!(writes.abs_diff(LOOKUPS) <= 1, "{writes}");
    // Every 10 ms the client checks whether the caller is still the same task.
    let _ = count(libc::SYS_newfstatat) + count(libc::SYS_statx);
    // Occasionally a thread does something for the first time, waits for one that was preempted
    // with a lock, or another one is started because all of them have requests.
    let started = count(libc::SYS_clone3) + count(libc::SYS_clone);
    assert!(calls.values().sum::<usize>() <= LOOKUPS / 4 + started * CALLS_OF_A_START, "{calls:?}");
}
