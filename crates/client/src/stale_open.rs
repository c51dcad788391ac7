//! Opens that failed with ESTALE, because their file was gone or because the kernel may take it for
//! larger than it is, and are retried by the kernel.
//!
//! The kernel then looks the name up and opens what it finds, once. If this mount replaces the file
//! all the time, that one may be gone as well, and a program would see ESTALE, which never happens
//! on a local file system. So the file that the second look-up finds counts as being opened from
//! then on: a replacement keeps it until its last close.
//!
//! Owns which threads were turned away, and which files are held for them. Both the number of
//! threads and the time are bounded; what is held for a thread that does not come back in time is
//! released at the next look-up of any thread.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_policy::Moment;
use parking_lot::Mutex;

use crate::inode::Inode;

/// Threads that were turned away, at most; more have to do without.
const THREADS_MAX: usize = 1024;

/// Who has not come back by then will not.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Threads whose opens failed so.
#[derive(Debug, Default)]
pub(crate) struct StaleOpenRetries {
    threads: Mutex<HashMap<u32, StaleOpenRetry>>,
    /// How many those are. Orders nothing: each thread looks for itself.
    count: AtomicUsize,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct StaleOpenRetry {
    since: Moment,
    pub(crate) held: Option<Arc<Inode>>,
    /// It was turned away because of its file's size, when copies had become void so often and been
    /// dropped.
    pub(crate) copies_void: Option<u32>,
}

impl StaleOpenRetries {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// The open of thread `pid` failed at `now`; whether that will be noticed.
    pub(crate) fn note(&self, pid: u32, now: Moment, copies_void: Option<u32>) -> bool {
        self.change(|threads| {
            let has_room = threads.len() < THREADS_MAX;
            if has_room {
                let waiter = StaleOpenRetry { since: now, held: None, copies_void };
                threads.entry(pid).or_insert(waiter);
            }
            has_room
        })
    }

    /// Whether the open of thread `pid` failed.
    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.threads.lock().contains_key(&pid)
    }

    /// Thread `pid` came back, or does not want to.
    pub(crate) fn take(&self, pid: u32) -> Option<StaleOpenRetry> {
        self.change(|threads| threads.remove(&pid))
    }

    /// Holds `file` for thread `pid`; gives what is held for nobody then.
    pub(crate) fn hold(&self, pid: u32, file: Arc<Inode>) -> Option<Arc<Inode>> {
        self.change(|threads| match threads.get_mut(&pid) {
            Some(waiter) => waiter.held.replace(file),
            None => Some(file),
        })
    }

    /// Gives what is held for those who did not come back in time.
    pub(crate) fn expire(&self, now: Moment) -> Vec<Arc<Inode>> {
        let is_late = |waiter: &mut StaleOpenRetry| now.since(waiter.since) >= RETRY_TIMEOUT;
        self.change(|threads| {
            let late = threads.extract_if(|_, waiter| is_late(waiter));
            late.filter_map(|(_, waiter)| waiter.held).collect()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, StaleOpenRetry>) -> T) -> T {
        let mut threads = self.threads.lock();
        let result = change(&mut threads);
        self.count.store(threads.len(), Relaxed);
        result
    }
}
