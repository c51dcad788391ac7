//! A client of a fictitious protocol version, behind a real mount. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../../../rpc/tests/warm/sys.rs"]
mod counting;
#[path = "../../../server/tests/warm/sys.rs"]
mod sys;
mod version;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use curt_client::caller::RpcSecurity;
use curt_client::protocol::{Fsinfo, Pathconf};
use curt_client::threads::{BackgroundThreads, Clock, MonotonicClock};
use curt_client::{CallerTable, ClientOptions, Environment, MountedRoot, Superblock};
use curt_fuse::{FuseMount, FuseSession, FuseSessionOptions, MountFlags, MountOptions};
use curt_mount::bridge::{Bridge, InvalidationQueue};
use curt_mount::explain::Explainer;
use curt_mount::observed::ObservedFilesystem;
use curt_policy::{CacheOptions, TimeoutRange};
use curt_rpc::client::Interrupt;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, statat};

use version::{MadeUpVersion, handle};

/// The clock of the mount, whose readings are counted.
#[derive(Debug, Default)]
struct CountingClock {
    clock: MonotonicClock,
    read: AtomicUsize,
}

impl Clock for CountingClock {
    fn now(&self) -> Instant {
        self.read.fetch_add(1, SeqCst);
        self.clock.now()
    }

    fn pause(&self, duration: Duration, interrupt: &Interrupt) {
        self.clock.pause(duration, interrupt);
    }
}

/// Mounts a new server of the version at `directory` as `curt mount` does, and unmounts it after
/// `work`.
fn with_mount(directory: &Path, cache: CacheOptions, work: impl FnOnce(&CountingClock)) {
    let clock = Arc::new(CountingClock::default());
    let root = MountedRoot { handle: handle(1), limits: Fsinfo::default(), path_limits: Pathconf::default() };
    let changes = Arc::new(InvalidationQueue::default());
    let environment = Environment {
        clock: Arc::<CountingClock>::clone(&clock),
        background: Arc::new(BackgroundThreads::new(4)),
        observer: Some(Arc::<InvalidationQueue>::clone(&changes)),
    };
    let protocol = Arc::new(MadeUpVersion::new());
    let options = ClientOptions { cache, ..ClientOptions::default() };
    let sb = Superblock::new(&root, protocol, RpcSecurity::sys(), &options, &environment).unwrap();
    let sb = Arc::new(sb);
    let callers = CallerTable::new(Arc::<CountingClock>::clone(&clock));
    let bridge = Arc::new(Bridge::new(Arc::clone(&sb), callers, Arc::clone(&changes)));
    let observed =
        ObservedFilesystem::new(Arc::clone(&bridge), Arc::clone(&sb), Arc::new(Explainer::new(sb)));
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
    let session = FuseSession::start(device, Arc::new(observed), &options).unwrap();
    changes.start(session.notifier(), false).unwrap();
    work(&clock);
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
    with_mount(directory.path(), CacheOptions::default(), |_| use_all(directory.path()));
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

/// Held by a test that starts a process: a tracer waits for every child of this one.
static CHILDREN: Mutex<()> = Mutex::new(());

/// Number of counted look-ups.
const LOOKUPS: usize = 2000;

/// The mount point of the traced process.
const MOUNT_POINT: &str = "CURT_TEST_MOUNT";
/// Maximum number of threads that read the device, or have begun to, when counting begins or ends.
const READERS_MAX: usize = 16;
/// Maximum number of system calls with which a thread starts.
const CALLS_OF_A_START: usize = 16;
/// Maximum number of other system calls: a thread does something for the first time, or waits for
/// one that was preempted with a lock. Less than one in 40 look-ups.
const OTHER_CALLS_MAX: usize = 50;

/// How long the client takes a caller for the same task without a check.
const SAME_TASK: Duration = Duration::from_millis(10);

/// The most checks in this time.
fn checks_in(elapsed: Duration) -> usize {
    usize::try_from(elapsed.as_millis() / SAME_TASK.as_millis() + 1).unwrap()
}

/// Each stat(2) makes the kernel look the name up, and nothing expires on a busy machine.
fn lasting_cache() -> CacheOptions {
    let long = TimeoutRange { min: Duration::from_secs(600), max: Duration::from_secs(600) };
    CacheOptions {
        kernel_names: Duration::ZERO,
        files: long,
        directories: long,
        name_lifetime: long.max,
        missing_name_lifetime: long.max,
        ..CacheOptions::default()
    }
}

#[test]
fn a_lookup_from_memory_takes_no_system_calls_but_reading_and_writing_the_device() {
    if let Some(position) = std::env::var_os(MOUNT_POINT) {
        // Until the parent has looked up all names.
        return with_mount(Path::new(&position), lasting_cache(), |_| _ = std::io::stdin().read(&mut [0]));
    }
    let _children = CHILDREN.lock();
    let directory = tempfile::tempdir().unwrap();
    let before = fs::metadata(directory.path()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "a_lookup_from_memory_takes_no_system_calls_but_reading_and_writing_the_device";
    command.args(["--exact", name]).env(MOUNT_POINT, directory.path());
    #[expect(clippy::zombie_processes, reason = "whoever traces it waits for it")]
    let mut child = sys::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null())).unwrap();
    let stdin = child.stdin.take();
    let is_counting = AtomicBool::new(false);
    let elapsed = Mutex::new(Duration::ZERO);
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
                let start = Instant::now();
                for _ in 0..LOOKUPS / 2 {
                    look_up("there");
                    look_up("missing");
                }
                *elapsed.lock() = start.elapsed();
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
    assert!(reads.abs_diff(LOOKUPS) <= READERS_MAX, "{reads}");
    assert!(writes.abs_diff(LOOKUPS) <= 1, "{writes}");
    let (stats, checks) =
        (count(libc::SYS_newfstatat) + count(libc::SYS_statx), checks_in(elapsed.into_inner()));
    assert!(stats <= checks, "{stats} calls, {checks} checks");
    // A thread is started when all of them have requests.
    let started = count(libc::SYS_clone3) + count(libc::SYS_clone);
    // Threads that the machine delays wait for each other's mutexes now and then.
    let waits = count(libc::SYS_futex);
    assert!(waits <= LOOKUPS / 10, "{waits} waits for threads");
    let others: usize = calls.values().sum();
    assert!(others <= OTHER_CALLS_MAX + started * CALLS_OF_A_START, "{calls:?}");
    println!(
        "{LOOKUPS} look-ups: {reads} reads, {writes} writes, {stats} of {checks} checks, {waits} waits, others {calls:?}"
    );
}

/// Set for the process that counts the costs of its own look-ups.
const COUNTS: &str = "CURT_TEST_COUNTS";

/// Most allocations of one such check.
const CHECK_ALLOCATIONS_MAX: usize = 4;
/// Most allocations of threads that start or begin to wait for requests: less than one in 20
/// look-ups.
const THREAD_ALLOCATIONS_MAX: usize = 90;

/// Most rounds of look-ups.
const ROUNDS: usize = 5;

/// In a process of its own, because allocations of all its threads are counted.
#[test]
fn a_lookup_from_memory_through_the_device_reads_the_clock_once_and_allocates_nothing() {
    let name = "a_lookup_from_memory_through_the_device_reads_the_clock_once_and_allocates_nothing";
    if std::env::var_os(COUNTS).is_none() {
        let _children = CHILDREN.lock();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let status = command.args(["--exact", name, "--nocapture"]).env(COUNTS, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    with_mount(directory.path(), lasting_cache(), |clock| {
        fs::write(directory.path().join("there"), b"").unwrap();
        let path =
            |name: &str| CString::new(directory.path().join(name).into_os_string().into_vec()).unwrap();
        let (there, missing) = (path("there"), path("missing"));
        let look_up = || {
            for _ in 0..LOOKUPS / 2 {
                assert!(statat(CWD, &there, AtFlags::SYMLINK_NOFOLLOW).is_ok());
                assert!(statat(CWD, &missing, AtFlags::SYMLINK_NOFOLLOW).is_err());
            }
        };
        look_up();
        let round = || {
            let (start, read, allocated) = (Instant::now(), clock.read.load(SeqCst), counting::allocations());
            look_up();
            let allocated = counting::allocations() - allocated;
            let read = clock.read.load(SeqCst) - read;
            let checks = checks_in(start.elapsed());
            // Other threads of the client have work now and then.
            assert!((LOOKUPS..=LOOKUPS + checks).contains(&read), "{read} readings, {checks} checks");
            println!("{LOOKUPS} look-ups: {read} readings, {allocated} allocations, {checks} checks");
            allocated <= checks * CHECK_ALLOCATIONS_MAX + THREAD_ALLOCATIONS_MAX
        };
        // On a busy machine more threads start and wait in one round than in another.
        assert!((0..ROUNDS).any(|_| round()), "there are more allocations in each round");
    });
}
