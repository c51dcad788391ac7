//! A tree in a process with hardly any free descriptors. A single test, in its own process, because
//! it sets the limit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;

use curt_types::Stability;
use curt_vfs::{Error, FetchOptions, FsCred, LocalOptions, LocalVfs, NodeHandle, Vfs};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

const LIMIT: u64 = 128;
const FILES: u32 = 300;

fn read(vfs: &LocalVfs, handle: &NodeHandle) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    let how = FetchOptions { sendfile: false, wait: true };
    let read = vfs.fetch(&FsCred::ROOT, handle, 0, 100, how, &mut data).unwrap();
    read.value.map(|_| data)
}

fn open_descriptors() -> u64 {
    // One of them is that of the listing itself.
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1
}

/// Uses up all descriptors.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn files_are_served_with_few_descriptors_and_without_any_the_call_fails() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: not root");
        return;
    }
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for number in 0..FILES {
        std::fs::write(directory.path().join(number.to_string()), number.to_be_bytes()).unwrap();
    }
    let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
    let handles: Vec<NodeHandle> = (0..FILES)
        .map(|number| {
            let found = vfs.lookup(&FsCred::ROOT, &vfs.root(), number.to_string().as_bytes());
            found.value.unwrap().handle
        })
        .collect();
    for _ in 0..2 {
        for (number, handle) in (0..FILES).zip(&handles) {
            assert_eq!(read(&vfs, handle), Ok(number.to_be_bytes().to_vec()));
            let written = vfs.write(&FsCred::ROOT, handle, 0, &number.to_be_bytes(), Stability::FileSync);
            assert_eq!(written.value.map(|written| written.count), Ok(4));
            let open = open_descriptors();
            assert!(open <= LIMIT * 95 / 100, "{open} descriptors are open");
        }
    }
    let counters = vfs.file_cache().unwrap();
    assert!(counters.evictions > 0 && counters.allocations > 0, "{counters:?}");
    // Cached descriptors are closed before a request fails.
    let others = take_all();
    assert!(!others.is_empty());
    assert_eq!(read(&vfs, &handles[0]), Ok(0_u32.to_be_bytes().to_vec()));
    let rest = take_all();
    assert!(!rest.is_empty(), "what was given up is free");
    vfs.release_all();
    let last = take_all();
    assert_eq!(read(&vfs, &handles[1]), Err(Error::Os(Errno::MFILE)));
    drop(last);
    drop(rest);
    assert_eq!(read(&vfs, &handles[1]), Ok(1_u32.to_be_bytes().to_vec()));
    drop(others);
}
