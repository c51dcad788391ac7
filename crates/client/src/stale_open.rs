//! Opens that fail with ESTALE and are retried by the kernel. They fail because the file was
//! removed, or because the kernel may assume a size larger than the file's.
//!
//! The kernel retries once: it looks the name up again and opens the result. If this mount replaces
//! the file continuously, that file may be removed as well, and a program would see ESTALE, which a
//! local file system never returns. So the file that the second lookup finds counts as being opened
//! from that lookup on: a replacement keeps it until its last close.
//!
//! The same kernel retries truncate(2), stat(2) and access(2) of a path. Nothing is held for them,
//! but no name that was cached before is served to their retry.
//!
//! Owns which threads have a failed open, and the files that are held for them. The number of
//! threads and the time are bounded. A file held for a thread that does not retry in time is
//! released at the next lookup of any thread.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_policy::MonotonicTime;
use parking_lot::Mutex;

use crate::inode::Inode;

/// Most threads with a failed open; for further ones no file is held.
const THREADS_MAX: usize = 1024;

/// Time within which a thread must retry its open.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of another operation's retry, for which nothing is held. Its retry may end with a
/// look-up, which shows no end here; until then the thread's look-ups of other names are sent, too.
const PATH_RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// The threads whose opens failed with ESTALE.
#[derive(Debug, Default)]
pub(crate) struct StaleOpenRetries {
    threads: Mutex<HashMap<u32, StaleOpenRetry>>,
    /// The number of threads. Relaxed accesses: each thread only needs its own entry.
    count: AtomicUsize,
}

/// A thread whose open, or other operation on a path, failed with ESTALE.
#[derive(Debug)]
pub(crate) struct StaleOpenRetry {
    since: MonotonicTime,
    /// The failed operation was an open.
    opens: bool,
    pub(crate) held: Option<Arc<Inode>>,
    /// If the open failed because of the file's size: the count of invalidations of the kernel's
    /// copies at that time, all of which were dropped.
    pub(crate) copies_invalidated: Option<u32>,
}

impl StaleOpenRetry {
    fn is_late(&self, now: MonotonicTime) -> bool {
        now.since(self.since) >= if self.opens { RETRY_TIMEOUT } else { PATH_RETRY_TIMEOUT }
    }
}

impl StaleOpenRetries {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Records that the open of thread `pid` failed at `now`; returns whether there was room.
    pub(crate) fn note(&self, pid: u32, now: MonotonicTime, copies_invalidated: Option<u32>) -> bool {
        self.change(|threads| {
            let has_room = threads.len() < THREADS_MAX;
            if has_room {
                let retry = StaleOpenRetry { since: now, opens: true, held: None, copies_invalidated };
                threads.retain(|other, former| *other != pid || former.opens);
                threads.entry(pid).or_insert(retry);
            }
            has_room
        })
    }

    /// Records that another operation on a path failed, of thread `pid` at `now`.
    pub(crate) fn note_path(&self, pid: u32, now: MonotonicTime) {
        self.change(|threads| {
            if threads.len() < THREADS_MAX {
                let retry = StaleOpenRetry { since: now, opens: false, held: None, copies_invalidated: None };
                let known = threads.entry(pid).or_insert(retry);
                if !known.opens {
                    known.since = now;
                }
            }
        });
    }

    /// Removes the entry of thread `pid` unless its open failed.
    pub(crate) fn end_path(&self, pid: u32) {
        self.change(|threads| {
            if threads.get(&pid).is_some_and(|retry| !retry.opens) {
                threads.remove(&pid);
            }
        });
    }

    /// Whether the open of thread `pid` failed and was not retried.
    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.threads.lock().get(&pid).is_some_and(|retry| retry.opens)
    }

    /// Whether a name that was learned by a request sent at `sent_at` must not be served to thread
    /// `pid` at `now`, since its open or other operation failed later and found an object gone.
    pub(crate) fn is_outdated(&self, pid: u32, sent_at: MonotonicTime, now: MonotonicTime) -> bool {
        let is_outdated = |retry: &StaleOpenRetry| {
            retry.copies_invalidated.is_none() && sent_at < retry.since && !retry.is_late(now)
        };
        self.threads.lock().get(&pid).is_some_and(is_outdated)
    }

    /// Removes the entry of thread `pid`, which retries its open or does something else.
    pub(crate) fn take(&self, pid: u32) -> Option<StaleOpenRetry> {
        self.change(|threads| threads.remove(&pid)).filter(|retry| retry.opens)
    }

    /// Holds `file` for thread `pid`; returns a file that the caller must release: the one held
    /// before, or `file` itself if the thread has no entry.
    pub(crate) fn hold_file(&self, pid: u32, file: Arc<Inode>) -> Option<Arc<Inode>> {
        self.change(|threads| match threads.get_mut(&pid) {
            Some(retry) => retry.held.replace(file),
            None => Some(file),
        })
    }

    /// Removes the entries of threads that did not retry in time; returns their files, which the
    /// caller must release.
    pub(crate) fn expire(&self, now: MonotonicTime) -> Vec<Arc<Inode>> {
        self.change(|threads| {
            let late = threads.extract_if(|_, retry| retry.is_late(now));
            late.filter_map(|(_, retry)| retry.held).collect()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, StaleOpenRetry>) -> T) -> T {
        let mut threads = self.threads.lock();
        let result = change(&mut threads);
        self.count.store(threads.len(), Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn names_cached_before_a_failure_are_outdated_until_the_thread_succeeds() {
        let retries = StaleOpenRetries::default();
        retries.note_path(7, at(5));
        assert!(retries.is_outdated(7, at(4), at(5)) && !retries.is_outdated(7, at(5), at(5)));
        assert!(!retries.is_outdated(8, at(4), at(5)), "another thread");
        assert!(!retries.is_outdated(7, at(4), at(6)), "it is retried at once or never");
        assert!(!retries.contains(7), "no file is held for it");
        retries.end_path(7);
        assert!(retries.is_empty());
        assert!(retries.note(7, at(6), None));
        retries.end_path(7);
        assert!(retries.is_outdated(7, at(5), at(7)) && retries.contains(7), "its open is still to come");
        assert!(retries.take(7).is_some());
        assert!(retries.note(7, at(6), Some(1)));
        assert!(!retries.is_outdated(7, at(5), at(6)), "the name is right, the size is not");
    }

    #[test]
    fn an_open_after_another_failure_is_no_retry_of_an_open() {
        let retries = StaleOpenRetries::default();
        retries.note_path(7, at(5));
        retries.note_path(8, at(5));
        assert!(retries.expire(at(6)).is_empty());
        assert!(retries.is_empty(), "its time is short");
        retries.note_path(7, at(6));
        assert!(retries.take(7).is_none());
        assert!(retries.is_empty());
    }
}
