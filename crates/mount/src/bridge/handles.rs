//! What the kernel has open, by the numbers that we gave it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use curt_fuse::FuseFh;
use parking_lot::RwLock;
use rustix::io::Errno;

/// Open files or directories by their number. Numbers are never used twice.
#[derive(Debug)]
pub(super) struct Handles<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self {
            open: RwLock::default(),
            next: AtomicU64::new(1),
        }
    }
}

impl<T> Handles<T> {
    /// Keeps what was opened.
    pub(super) fn add(&self, opened: Arc<T>) -> FuseFh {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, opened);
        FuseFh(number)
    }

    /// What a number stands for.
    ///
    /// # Errors
    /// EBADF: nothing, which only a kernel that errs can ask.
    pub(super) fn get(&self, fh: FuseFh) -> Result<Arc<T>, Errno> {
        self.open.read().get(&fh.0).cloned().ok_or(Errno::BADF)
    }

    /// All that is open.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.open.read().values().cloned().collect()
    }

    /// Forgets a number and gives back what it stood for.
    pub(super) fn remove(&self, fh: FuseFh) -> Option<Arc<T>> {
        self.open.write().remove(&fh.0)
    }
}
