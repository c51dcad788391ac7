//! The files and directories that the kernel has open, by the numbers that we gave it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use curt_fuse::FuseFh;
use parking_lot::RwLock;
use rustix::io::Errno;

/// Open files or directories by their number. Numbers are never used twice.
#[derive(Debug)]
pub(super) struct FuseFhTable<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for FuseFhTable<T> {
    fn default() -> Self {
        Self { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> FuseFhTable<T> {
    /// Keeps what was opened.
    pub(super) fn add(&self, opened: Arc<T>) -> FuseFh {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, opened);
        FuseFh(number)
    }

    /// What a number stands for.
    ///
    /// # Errors
    /// EBADF: nothing is open under it, which only a faulty kernel can ask.
    pub(super) fn get(&self, fh: FuseFh) -> Result<Arc<T>, Errno> {
        self.open.read().get(&fh.0).cloned().ok_or(Errno::BADF)
    }

    /// Everything that is open, by number: first those above `last`, then the others.
    pub(super) fn all_from(&self, last: FuseFh) -> Vec<(FuseFh, Arc<T>)> {
        let open = self.open.read();
        let mut all: Vec<_> = open.iter().map(|(number, of)| (FuseFh(*number), Arc::clone(of))).collect();
        drop(open);
        all.sort_unstable_by_key(|(number, _)| (number.0 <= last.0, number.0));
        all
    }

    /// Forgets a number and returns what it stood for.
    pub(super) fn remove(&self, fh: FuseFh) -> Option<Arc<T>> {
        self.open.write().remove(&fh.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: cto-5.
    #[test]
    fn iteration_continues_after_the_last_number_and_wraps_to_the_first() {
        let handles = FuseFhTable::default();
        let fhs: Vec<_> = (0..5).map(|number| handles.add(Arc::new(number))).collect();
        let order =
            |last: FuseFh| -> Vec<i32> { handles.all_from(last).into_iter().map(|(_, of)| *of).collect() };
        assert_eq!(order(FuseFh(0)), [0, 1, 2, 3, 4]);
        assert_eq!(order(fhs[1]), [2, 3, 4, 0, 1]);
        assert_eq!(order(fhs[4]), [0, 1, 2, 3, 4]);
        assert!(handles.remove(fhs[2]).is_some());
        assert_eq!(order(fhs[2]), [3, 4, 0, 1], "what was last may be closed meanwhile");
    }
}
