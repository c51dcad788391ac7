//! A simple file system behind a real mount, for tests against the kernel. Needs root and
//! /dev/fuse.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unreachable_pub, unused_imports, reason = "each test program is a crate of its own")]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

mod calls;
pub mod sys;
mod tree;
mod waits;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use curt_fuse::{
    FuseMount, FuseSession, FuseSessionEnd, FuseSessionOptions, MountFlags, MountOptions, Notifier,
    RequestedFeatures,
};
use tempfile::TempDir;

pub use tree::Toy;
pub use waits::Stuck;

/// A mount of the test file system, unmounted when dropped.
pub struct Fixture {
    pub toy: Arc<Toy>,
    pub session: FuseSession<Toy>,
    pub notifier: Notifier,
    pub mount: FuseMount,
    directory: TempDir,
}

pub fn session_options() -> FuseSessionOptions {
    FuseSessionOptions {
        features: RequestedFeatures { posix_locks: true, flock_locks: true, ..RequestedFeatures::default() },
        ..FuseSessionOptions::default()
    }
}

impl Fixture {
    pub fn new(toy: Toy) -> Self {
        Self::with(toy, &session_options())
    }

    pub fn with(toy: Toy, options: &FuseSessionOptions) -> Self {
        let directory = tempfile::Builder::new().prefix("curt-fuse-").tempdir().unwrap();
        let target = directory.path().join("mnt");
        fs::create_dir(&target).unwrap();
        let mount_options = MountOptions {
            source: "toy:/tree".into(),
            subtype: "toy".into(),
            flags: MountFlags { nosuid: true, nodev: true, ..MountFlags::default() },
            allow_other: true,
        };
        let (mount, device) =
            FuseMount::new(&target, &mount_options).expect("a mount (root and /dev/fuse are needed)");
        let toy = Arc::new(toy);
        let notifier = device.notifier();
        let session = FuseSession::start(device, toy.clone(), options).unwrap();
        Self { toy, session, notifier, mount, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.target().join(name)
    }

    pub fn root(&self) -> &Path {
        self.mount.target()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.toy.stuck.release();
        self.session.interrupt_all();
        let _ = self.mount.detach_if_there();
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.session.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !std::thread::panicking() {
            assert_eq!(self.session.ended(), Some(FuseSessionEnd::Unmounted));
            assert!(self.session.wait_for_threads(deadline), "every thread ends with the mount");
        }
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
