//! The thread that closes idle descriptors. It sleeps while there are none, and ends with the tree.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

use super::attributes_of;
use super::file_cache::FileCache;
use super::opath_cache::OPathCache;
use super::pins::PinnedObjects;
use super::unstable::UnstableFiles;
use crate::error::Error;
use crate::handle::NodeHandle;

/// Interval of the sweeps of the file cache.
const INTERVAL: Duration = Duration::from_millis(250);

/// Objects and watched files are swept in each fourth of these: once a second.
const SLOW: u32 = 4;

/// Interval of the checks for removed files with unstable data, if there is nothing else to do.
const RARE_INTERVAL: Duration = Duration::from_secs(5);

/// When the next sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextSweep {
    Soon,
    /// Only files with unstable data are left.
    Later,
    /// There is nothing to close.
    WhenWoken,
}

/// Descriptors kept open for following requests.
pub(super) struct OpenCaches {
    /// Objects, opened with O_PATH.
    pub(super) opath_cache: OPathCache,
    /// Files, opened for I/O.
    pub(super) file_cache: FileCache,
    /// Files with unstable data, and those that recently had some.
    pub(super) unstable_files: UnstableFiles,
    /// Objects that clients have open.
    pub(super) pins: Arc<PinnedObjects>,
}

impl OpenCaches {
    /// Closes idle descriptors.
    fn sweep(&self, round: u32) -> NextSweep {
        let files = self.file_cache.sweep();
        if !round.is_multiple_of(SLOW) {
            return NextSweep::Soon;
        }
        let objects = self.opath_cache.sweep();
        let unstable = self.unstable_files.sweep();
        let is_gone = |handle: &NodeHandle, fd: &OwnedFd| {
            attributes_of(fd.as_fd()) == Err(Error::STALE) && !self.pins.contains(handle)
        };
        let watched = self.unstable_files.sweep_removed(is_gone);
        match (files || objects || unstable, watched) {
            (true, _) => NextSweep::Soon,
            (false, true) => NextSweep::Later,
            (false, false) => NextSweep::WhenWoken,
        }
    }

    /// Closes all descriptors that are not in use and protect no unstable data.
    pub(super) fn release_all(&self) {
        self.file_cache.release_all();
        self.opath_cache.release_all();
    }
}

pub(super) struct Sweeper {
    thread: Option<Thread>,
}

impl Sweeper {
    pub(super) fn start(open_caches: &Arc<OpenCaches>) -> Self {
        let weak = Arc::downgrade(open_caches);
        let sweeping =
            std::thread::Builder::new().name("idle files".into()).spawn(move || sweep_until_gone(&weak));
        match sweeping {
            Ok(handle) => Self { thread: Some(handle.thread().clone()) },
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread that closes idle files");
                Self { thread: None }
            }
        }
    }

    /// Called when there is something to close later.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.wake();
    }
}

fn sweep_until_gone(open_caches: &Weak<OpenCaches>) {
    let mut round = 0_u32;
    while let Some(open_caches) = open_caches.upgrade() {
        let next = open_caches.sweep(round);
        drop(open_caches);
        round = round.wrapping_add(1);
        match next {
            NextSweep::Soon => std::thread::park_timeout(INTERVAL),
            NextSweep::Later => {
                // The next round sweeps everything.
                round = 0;
                std::thread::park_timeout(RARE_INTERVAL);
            }
            NextSweep::WhenWoken => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    #[test]
    fn the_sweeper_ends_with_what_it_sweeps() {
        let open_caches = Arc::new(OpenCaches {
            opath_cache: OPathCache::new(1000),
            file_cache: FileCache::new(true),
            unstable_files: UnstableFiles::new(16),
            pins: Arc::new(PinnedObjects::new(16)),
        });
        let sweeper = Sweeper::start(&open_caches);
        let handle = NodeHandle::new(HandleScheme::Kernel, 1, &[1]).expect("it is short");
        let root = std::fs::File::open("/").expect("the root can be opened");
        if open_caches.opath_cache.insert(&handle, &Arc::new(root.into())) {
            sweeper.wake();
        }
        let weak = Arc::downgrade(&open_caches);
        drop(open_caches);
        drop(sweeper);
        while weak.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
