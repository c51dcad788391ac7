//! Events of locks.

use std::sync::Arc;

use curt_client::{ClientOptions, LocalLockOwner, LockArguments, OpenFlags, ops, threads::BackgroundThreads};
use curt_types::{ByteRange, LockType};
use rustix::io::Errno;

use crate::lock_manager::{self, LockManager, SOON};
use crate::world::{World, root};
use crate::{Seen, alone};

#[test]
fn each_step_of_a_lock_is_an_event_also_if_a_close_ends_it() {
    let _alone = alone();
    let (world, manager) = (World::new(), Arc::new(LockManager::default()));
    let threads = Arc::new(BackgroundThreads::new(8));
    let client = lock_manager::client(&manager);
    let mounted = world.mount_locking(ClientOptions::default(), world.way(), client, threads);
    mounted.put(&root(), mounted.client.root(), "f", 0o666, b"0123456789");
    let found = mounted.lookup(&root(), mounted.client.root(), "f").unwrap();
    let file = ops::open(&mounted.client.op(&root()), found.id, OpenFlags::writing()).unwrap().file;
    let handle = mounted.client.file_handle(file.id()).unwrap().as_bytes().to_vec();
    let range = ByteRange::new(3, 7).unwrap();
    manager.other(&handle, range, Some(LockType::Write));

    let seen = Seen::begin("nfs_lock_state");
    let states = || -> Vec<String> {
        let told = seen.told();
        assert!(
            told.iter().all(|line| line.contains("lock_first=3 ") && line.contains("lock_last=7")),
            "{told:?}"
        );
        told.iter()
            .map(|line| line.split("lock_state=").nth(1).unwrap().split(' ').next().unwrap().to_owned())
            .collect()
    };
    let owner = LocalLockOwner::Flock(1);
    let wanted = LockArguments { owner, pid: 0, range, lock_type: LockType::Write, wait: false };
    let lock = || ops::lock_and_wait(&mounted.client.op(&root()), &file, wanted);
    assert_eq!(lock(), Err(Errno::AGAIN));
    assert_eq!(states(), ["asked", "denied"]);
    manager.other(&handle, range, None);
    assert_eq!(lock(), Ok(()));
    assert_eq!(states(), ["asked"]);
    ops::release(&mounted.client, &file);
    let (begun, mut told) = (std::time::Instant::now(), Vec::new());
    while told.len() < 2 {
        told.extend(states());
        assert!(begun.elapsed() < SOON, "{told:?}");
    }
    assert_eq!(told, ["unlocking", "unlocked"]);
}
