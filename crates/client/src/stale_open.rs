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
use rustix::io::Errno;

use crate::{
    client::{Client, OpContext},
    identity::Caller,
    inode::Inode,
    lookup::ResolvedName,
    open_unlink::begin_open,
};

/// Threads that were turned away, at most; more have to do without.
const THREADS_MAX: usize = 1024;

/// Who has not come back by then will not.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a name is looked up for one of them that leads elsewhere each time.
const LOOKUPS_MAX: usize = 16;

/// Threads whose opens failed so.
#[derive(Debug, Default)]
pub(crate) struct StaleOpenRetries {
    threads: Mutex<HashMap<u32, StaleOpenRetry>>,
    /// How many those are. Orders nothing: each thread looks for itself.
    count: AtomicUsize,
}

#[derive(Debug)]
struct StaleOpenRetry {
    since: Moment,
    held: Option<Arc<Inode>>,
    /// It was turned away because of its file's size, when copies had become void so often and been
    /// dropped.
    copies_void: Option<u32>,
}

impl StaleOpenRetries {
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, StaleOpenRetry>) -> T) -> T {
        let mut threads = self.threads.lock();
        let result = change(&mut threads);
        self.count.store(threads.len(), Relaxed);
        result
    }
}

impl Client {
    /// The open of `caller` fails with ESTALE; a kernel will look the name up again and come back
    /// once. Whether that will be noticed.
    pub(crate) fn note_stale_open(&self, caller: &Caller, now: Moment, copies_void: Option<u32>) -> bool {
        if caller.pid == 0 || !self.serves_a_kernel() {
            return false;
        }
        self.stale_opens.change(|threads| {
            let has_room = threads.len() < THREADS_MAX;
            if has_room {
                let waiter = StaleOpenRetry {
                    since: now,
                    held: None,
                    copies_void,
                };
                threads.entry(caller.pid).or_insert(waiter);
            }
            has_room
        })
    }

    /// `caller` came back, or does not want to: whether it was turned away, and what is held for
    /// it, to be given up when it has it.
    pub(crate) fn take_stale_open(&self, caller: &Caller) -> Option<StaleOpenHold<'_>> {
        if self.stale_opens.is_empty() {
            return None;
        }
        let waiter = self.stale_opens.change(|threads| threads.remove(&caller.pid))?;
        Some(StaleOpenHold {
            client: self,
            file: waiter.held,
            copies_void: waiter.copies_void,
        })
    }

    /// If `caller` was turned away, the file that `name` leads to is held for its next open. The
    /// name led to `resolved`; it may lead elsewhere once the file's removals are over.
    pub(crate) fn hold_for_open(
        &self,
        asked: &OpContext,
        caller: &Caller,
        directory: &Arc<Inode>,
        name: &[u8],
        mut resolved: ResolvedName,
    ) -> Result<ResolvedName, Errno> {
        if self.stale_opens.is_empty() {
            return Ok(resolved);
        }
        self.expire_stale_opens(asked.began);
        if !self.stale_opens.threads.lock().contains_key(&caller.pid) {
            return Ok(resolved);
        }
        for _ in 0..LOOKUPS_MAX {
            let ResolvedName::Object(found, _) = &resolved else {
                drop(self.take_stale_open(caller));
                break;
            };
            let found = Arc::clone(found);
            if !begin_open(&found, &asked.interrupt)? {
                break;
            }
            let held = StaleOpenHold {
                client: self,
                file: Some(Arc::clone(&found)),
                copies_void: None,
            };
            resolved = self.resolve(asked, directory, name)?;
            if matches!(&resolved, ResolvedName::Object(again, _) if Arc::ptr_eq(again, &found)) {
                self.store_hold(caller, held);
                break;
            }
        }
        Ok(resolved)
    }

    fn store_hold<'a>(&'a self, caller: &Caller, mut held: StaleOpenHold<'a>) {
        self.stale_opens.change(|threads| {
            if let Some(waiter) = threads.get_mut(&caller.pid) {
                std::mem::swap(&mut waiter.held, &mut held.file);
            }
        });
        // What was held before is given up here, with no lock held.
        drop(held);
    }

    fn expire_stale_opens(&self, now: Moment) {
        let is_late = |waiter: &mut StaleOpenRetry| now.since(waiter.since) >= RETRY_TIMEOUT;
        let late: Vec<StaleOpenRetry> = self.stale_opens.change(|threads| {
            let late = threads.extract_if(|_, waiter| is_late(waiter));
            late.map(|(_, waiter)| waiter).collect()
        });
        for waiter in late {
            drop(StaleOpenHold {
                client: self,
                file: waiter.held,
                copies_void: None,
            });
        }
    }
}

/// A file that counts as being opened for who was turned away, if there is one. Dropping it gives
/// that up.
#[must_use]
pub(crate) struct StaleOpenHold<'a> {
    client: &'a Client,
    file: Option<Arc<Inode>>,
    copies_void: Option<u32>,
}

impl StaleOpenHold<'_> {
    /// Notes that the kernel knows the size of `inode`, if the look-up's reply certainly told it:
    /// nothing was found of the file since it was turned away that would have had the kernel ignore
    /// the reply, and nobody may have written to it (Linux, `attr_version`).
    pub(crate) fn note_size(&self, inode: &Arc<Inode>) {
        let looked_up = self.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, inode));
        let facts = inode.facts();
        let is_quiet = facts.by_type.file_if_any().is_some_and(|file| {
            Some(file.copies_invalidated) == self.copies_void
                && file.copies_invalidated == file.copies_dropped
                && file.write_opens == 0
        });
        if looked_up && is_quiet {
            inode.seems_no_larger();
        }
    }
}

impl Drop for StaleOpenHold<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            self.client.cancel_open(file);
        }
    }
}
