//! Number of system calls of listings, of a lease and the read after it, and of names that are
//! looked up and removed. Needs only a directory; without permission to trace it prints this and
//! ends.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod sys;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use curt_vfs::{
    FetchOptions, FsCred, LeaseWatcher, LocalOptions, LocalVfs, LookupUse, NodeHandle, ReaddirDetail, Vfs,
};

/// Marks the process whose calls are counted.
const COUNTED: &str = "CURT_COUNTED";
const NAMES: u64 = 2000;
/// A directory two levels below the root, and its names.
const BELOW: [&str; 2] = ["above", "below"];
const NAMES_BELOW: u64 = 100;
/// Number of names with attributes in a reply of 32 KiB.
const NAMES_PER_REPLY: usize = 190;

fn main() -> ExitCode {
    if let Some(directory) = std::env::var_os(COUNTED) {
        list(Path::new(&directory));
        return ExitCode::SUCCESS;
    }
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join(BELOW.join("/"));
    std::fs::create_dir_all(&below).unwrap();
    for number in 0..NAMES_BELOW {
        std::fs::write(below.join(format!("{number:012}")), "").unwrap();
    }
    for number in 0..NAMES {
        std::fs::write(directory.path().join(format!("{number:012}")), "").unwrap();
    }
    let mut command = Command::new("/proc/self/exe");
    let (counts, succeeded) = match sys::count(command.env(COUNTED, directory.path())) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("not tried: tracing is not allowed here");
            return ExitCode::SUCCESS;
        }
        counted => counted.unwrap(),
    };
    assert!(succeeded, "the process that was counted failed");
    let &[first, again, changing, first_changing, plain, below, leased, missing, removed] = counts.as_slice()
    else {
        panic!("{counts:?}");
    };
    // Additional calls of each reply: stat of the directory, open, two reads, close (a debug build
    // checks the descriptor), and three for the directories above it.
    let rows = [
        ("with attributes", first, 2.2, NAMES),
        ("once more", again, 1.1, NAMES),
        ("once more, right after a change", changing, 1.1, NAMES),
        ("with attributes, while it changes", first_changing, 2.2, NAMES),
        ("without attributes", plain, 0.1, NAMES),
        ("a directory of 100 names once more", below, 1.1, NAMES_BELOW),
        // Stat, open, inotify_add_watch and three of fcntl; stat and pread. Nothing else is opened.
        // The thread of the watcher may run in between, with two calls.
        ("a lease and a read of each file", leased, 10.0, NAMES_BELOW),
        ("a missing name in what is a directory", missing, 1.0, NAMES_BELOW),
        // The handle and the status; the status, and unlinkat between two stats of the directory.
        ("a name that is looked up and removed", removed, 6.0, NAMES_BELOW),
    ];
    for (what, count, most, names) in rows {
        let each = count as f64 / names as f64;
        println!("{what}: {each:.3} calls each");
        assert!(each <= most, "{what}: {each:.3} calls each");
    }
    ExitCode::SUCCESS
}

/// Lists the directory once it is old enough, in each way, between marks.
fn list(directory: &Path) {
    let vfs = LocalVfs::open(directory, &LocalOptions::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while directory.metadata().unwrap().modified().unwrap().elapsed().unwrap() < Duration::from_millis(200) {
        assert!(Instant::now() < deadline, "it is being changed");
        std::thread::yield_now();
    }
    let mark = || {
        let _ = rustix::process::getppid();
    };
    let root = vfs.root();
    let counted = |wanted| {
        mark();
        let names = pass(&vfs, &root, wanted, &mut || ());
        mark();
        names
    };
    assert_eq!(counted(ReaddirDetail::Nodes), NAMES + 3);
    assert_eq!(counted(ReaddirDetail::Nodes), NAMES + 3);
    std::fs::write(directory.join("new"), "").unwrap();
    assert_eq!(counted(ReaddirDetail::Nodes), NAMES + 4);
    list_changing(directory, mark);
    let names = pass(&vfs, &root, ReaddirDetail::Names, &mut || ());
    // One-time calls are not part of a name's cost.
    assert_eq!(counted(ReaddirDetail::Names), names);
    let below = BELOW.iter().fold(root, |at, name| {
        let found = vfs.lookup(&FsCred::ROOT, &at, name.as_bytes());
        found.value.unwrap().handle
    });
    let list_below = || pass(&vfs, &below, ReaddirDetail::Nodes, &mut || ());
    assert_eq!(list_below(), NAMES_BELOW + 2);
    mark();
    list_below();
    mark();
    lease_and_read(mark);
    look_up_and_remove(mark);
}

/// Looks up missing names, and names that are then removed.
fn look_up_and_remove(mark: impl Fn()) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
    let names: Vec<_> = (0..=NAMES_BELOW).map(|number| number.to_string()).collect();
    let look_up = |name: &String, wanted| {
        vfs.lookup_child(&FsCred::ROOT, &vfs.root(), name.as_bytes(), wanted, true).unwrap().value
    };
    let look_for_missing = |name| assert!(look_up(name, LookupUse::Object).is_err());
    // One-time calls are not part of a name's cost.
    look_for_missing(&names[0]);
    mark();
    names[1..].iter().for_each(look_for_missing);
    mark();
    names.iter().for_each(|name| std::fs::write(directory.path().join(name), "data").unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while directory.path().metadata().unwrap().modified().unwrap().elapsed().unwrap()
        < Duration::from_millis(50)
    {
        assert!(Instant::now() < deadline, "it is being changed");
        std::thread::yield_now();
    }
    let remove = |name: &String| {
        look_up(name, LookupUse::Name).unwrap();
        vfs.remove(&FsCred::ROOT, &vfs.root(), name.as_bytes()).value.unwrap();
    };
    remove(&names[0]);
    mark();
    names[1..].iter().for_each(remove);
    mark();
}

/// Takes a lease on files that were looked up, and reads them.
fn lease_and_read(mark: impl Fn()) {
    // On a file system that has leases.
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
    let watcher = LeaseWatcher::start().unwrap();
    let files: Vec<_> = (0..NAMES_BELOW)
        .map(|number| {
            let name = number.to_string();
            std::fs::write(directory.path().join(&name), "data").unwrap();
            vfs.lookup(&FsCred::ROOT, &vfs.root(), name.as_bytes()).value.unwrap().handle
        })
        .collect();
    let (mut leases, mut data) = (Vec::with_capacity(files.len()), Vec::with_capacity(1 << 16));
    let how = FetchOptions { sendfile: false, wait: true };
    let mut lease_and_read = |file| {
        leases.push(vfs.lease(&FsCred::ROOT, file, &watcher, Box::new(|| ())).unwrap());
        vfs.fetch(&FsCred::ROOT, file, 0, 4, how, &mut data).unwrap().value.unwrap();
    };
    // One-time calls are not part of a file's cost.
    lease_and_read(&files[0]);
    mark();
    files[1..].iter().for_each(lease_and_read);
    mark();
    assert_eq!(data, b"data".repeat(files.len()));
}

/// Lists it with empty caches, and creates a file for every 40th name.
fn list_changing(directory: &Path, mark: impl Fn()) {
    let vfs = LocalVfs::open(directory, &LocalOptions::default()).unwrap();
    let (mut until, mut made) = (0, 0);
    let mut change = || {
        until += 1;
        if until % 40 == 0 {
            made += 1;
            std::fs::File::create(directory.join(format!("made-{made}"))).unwrap();
        }
    };
    mark();
    let names = pass(&vfs, &vfs.root(), ReaddirDetail::Nodes, &mut change);
    mark();
    assert!(names >= NAMES + 4, "{names}");
    assert!(made >= NAMES / 40, "{made}");
}

fn pass(vfs: &LocalVfs, directory: &NodeHandle, wanted: ReaddirDetail, change: &mut dyn FnMut()) -> u64 {
    let (mut cookie, mut names) = (0, 0);
    loop {
        let (mut room, mut next) = (NAMES_PER_REPLY, cookie);
        let answer = vfs.read_directory(&FsCred::ROOT, directory, cookie, wanted, &mut |entry| {
            if room == 0 {
                return ControlFlow::Break(());
            }
            assert!(wanted == ReaddirDetail::Names || entry.node.is_some());
            (room, next) = (room - 1, entry.cookie);
            names += 1;
            change();
            ControlFlow::Continue(())
        });
        if answer.value.unwrap() {
            return names;
        }
        cookie = next;
    }
}
