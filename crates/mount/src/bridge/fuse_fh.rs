//! Open files and directories, by the file handle numbers (fh) of FUSE.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use curt_fuse::FuseFh;
use parking_lot::RwLock;
use rustix::io::Errno;

/// Open files or directories by number. Numbers are never reused.
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
    /// Adds an open file or directory.
    pub(super) fn add(&self, opened: Arc<T>) -> FuseFh {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, opened);
        FuseFh(number)
    }

    /// The file or directory with this number.
    ///
    /// # Errors
    /// EBADF: the number is unknown, which only a faulty kernel sends.
    pub(super) fn get(&self, fh: FuseFh) -> Result<Arc<T>, Errno> {
        self.open.read().get(&fh.0).cloned().ok_or(Errno::BADF)
    }

    /// All open files or directories by number: first those above `last`, then the others.
    pub(super) fn all_from(&self, last: FuseFh) -> Vec<(FuseFh, Arc<T>)> {
        let open = self.open.read();
        let mut all: Vec<_> = open.iter().map(|(number, of)| (FuseFh(*number), Arc::clone(of))).collect();
        drop(open);
        all.sort_unstable_by_key(|(number, _)| (number.0 <= last.0, number.0));
        all
    }

    /// Removes a number and returns its file or directory.
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
