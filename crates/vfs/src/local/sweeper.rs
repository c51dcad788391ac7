//! The thread that closes what is idle. It sleeps while there is nothing to close, and ends with
//! the tree.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

use super::attributes_of;
use super::file_cache::FileCache;
use super::opath_cache::OPathCache;
use super::unstable::UnstableFiles;
use crate::error::Error;

/// How often it looks for open files that are idle.
const INTERVAL: Duration = Duration::from_millis(250);

/// Every how many of these it looks for objects and watched files that are idle: once a second.
const SLOW: u32 = 4;

/// How often it looks whether a file is gone that has data which are not durable, where there is
/// nothing else to do.
const RARE_INTERVAL: Duration = Duration::from_secs(5);

/// When the sweeper looks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextSweep {
    Soon,
    /// Only files are left that wait for somebody to make their data durable.
    Later,
    /// There is nothing to close.
    WhenWoken,
}

/// What is kept open for the next request.
pub(super) struct OpenCaches {
    /// Objects, opened for nothing.
    pub(super) opath_cache: OPathCache,
    /// Files, opened for I/O.
    pub(super) file_cache: FileCache,
    /// Files with data that are not durable, and those that lately had some.
    pub(super) unstable_files: UnstableFiles,
}

impl OpenCaches {
    /// Closes what is idle.
    fn sweep(&self, round: u32) -> NextSweep {
        let files = self.file_cache.sweep();
        if !round.is_multiple_of(SLOW) {
            return NextSweep::Soon;
        }
        let objects = self.opath_cache.sweep();
        let unstable = self.unstable_files.sweep();
        let is_gone = |fd: &OwnedFd| attributes_of(fd.as_fd()) == Err(Error::STALE);
        let watched = self.unstable_files.sweep_removed(is_gone);
        match (files || objects || unstable, watched) {
            (true, _) => NextSweep::Soon,
            (false, true) => NextSweep::Later,
            (false, false) => NextSweep::WhenWoken,
        }
    }

    /// Closes whatever is not in use and stands for no data that could be lost.
    pub(super) fn release_all(&self) {
        self.file_cache.release_all();
        self.opath_cache.release_all();
    }
}

pub(super) struct Sweeper {
    thread: Option<Thread>,
}

impl Sweeper {
    pub(super) fn start(kept: &Arc<OpenCaches>) -> Self {
        let weak = Arc::downgrade(kept);
        let sweeping = std::thread::Builder::new()
            .name("idle files".into())
            .spawn(move || sweep_until_gone(&weak));
        match sweeping {
            Ok(handle) => Self {
                thread: Some(handle.thread().clone()),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread that closes idle files");
                Self { thread: None }
            }
        }
    }

    /// There is something to close later.
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

fn sweep_until_gone(kept: &Weak<OpenCaches>) {
    let mut round = 0_u32;
    while let Some(kept) = kept.upgrade() {
        let next = kept.sweep(round);
        drop(kept);
        round = round.wrapping_add(1);
        match next {
            NextSweep::Soon => std::thread::park_timeout(INTERVAL),
            NextSweep::Later => {
                // The round that comes then looks at everything.
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
    use crate::handle::{HandleScheme, NodeHandle};

    #[test]
    fn the_sweeper_ends_with_what_it_sweeps() {
        let kept = Arc::new(OpenCaches {
            opath_cache: OPathCache::new(1000),
            file_cache: FileCache::new(true),
            unstable_files: UnstableFiles::new(16),
        });
        let sweeper = Sweeper::start(&kept);
        let handle = NodeHandle::new(HandleScheme::Kernel, 1, &[1]).expect("it is short");
        let root = std::fs::File::open("/").expect("the root can be opened");
        if kept.opath_cache.insert(&handle, &Arc::new(root.into())) {
            sweeper.wake();
        }
        let weak = Arc::downgrade(&kept);
        drop(kept);
        drop(sweeper);
        while weak.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
