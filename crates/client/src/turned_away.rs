//! Opens that failed with ESTALE, because their file was gone or because the kernel may take it for
//! larger than it is, and are retried by the kernel.
//!
//! The kernel then looks the name up and opens what it finds, once. If this mount replaces the file all the time, that one may be gone
//! as well, and a program would see ESTALE, which never happens on a local file system. So the file that the second look-up finds
//! counts as being opened from then on: a replacement keeps it until its last close.
//!
//! Owns which threads were turned away, and which files are held for them. Both the number of threads and the time are bounded; what
//! is held for a thread that does not come back in time is released at the next look-up of any thread.

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
    client::{Asked, Client},
    identity::Caller,
    inode::Inode,
    lookup::Resolved,
    meeting::count_opening,
};

/// Threads that were turned away, at most; more have to do without.
const THREADS_MAX: usize = 1024;

/// Who has not come back by then will not.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a name is looked up for one of them that leads elsewhere each time.
const TRIES: usize = 16;

/// Threads whose opens failed so.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    threads: Mutex<HashMap<u32, Waiter>>,
    /// How many those are. Orders nothing: each thread looks for itself.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Waiter {
    since: Moment,
    held: Option<Arc<Inode>>,
    /// It was turned away because of its file's size, when copies had become void so often and been
    /// dropped.
    copies_void: Option<u32>,
}

impl TurnedAway {
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, Waiter>) -> T) -> T {
        let mut threads = self.threads.lock();
        let result = change(&mut threads);
        self.count.store(threads.len(), Relaxed);
        result
    }
}

impl Client {
    /// The open of `caller` fails with ESTALE; a kernel will look the name up again and come back
    /// once. Whether that will be noticed.
    pub(crate) fn turn_away(&self, caller: &Caller, now: Moment, copies_void: Option<u32>) -> bool {
        if caller.pid == 0 || !self.serves_a_kernel() {
            return false;
        }
        self.turned_away.change(|threads| {
            let has_room = threads.len() < THREADS_MAX;
            if has_room {
                let waiter = Waiter {
                    since: now,
                    held: None,
                    copies_void,
                };
                threads.entry(caller.pid).or_insert(waiter);
            }
            has_room
        })
    }

    /// `caller` came back, or does not want to: whether it was turned away, and what is held for it, to be given up when it has it.
    pub(crate) fn come_back(&self, caller: &Caller) -> Option<HeldFor<'_>> {
        if self.turned_away.is_empty() {
            return None;
        }
        let waiter = self.turned_away.change(|threads| threads.remove(&caller.pid))?;
        Some(HeldFor {
            client: self,
            file: waiter.held,
            copies_void: waiter.copies_void,
        })
    }

    /// If `caller` was turned away, the file that `name` leads to is held for its next open. The name led to `resolved`; it may lead elsewhere
    /// once the file's removals are over.
    pub(crate) fn hold_for_open(
        &self,
        asked: &Asked,
        caller: &Caller,
        (directory, name): (&Arc<Inode>, &[u8]),
        mut resolved: Resolved,
    ) -> Result<Resolved, Errno> {
        if self.turned_away.is_empty() {
            return Ok(resolved);
        }
        self.let_late_ones_go(asked.began);
        if !self.turned_away.threads.lock().contains_key(&caller.pid) {
            return Ok(resolved);
        }
        for _ in 0..TRIES {
            let Resolved::Object(found, _) = &resolved else {
                drop(self.come_back(caller));
                break;
            };
            let found = Arc::clone(found);
            if !count_opening(&found, &asked.interrupt)? {
                break;
            }
            let held = HeldFor {
                client: self,
                file: Some(Arc::clone(&found)),
                copies_void: None,
            };
            resolved = self.resolve(asked, directory, name)?;
            if matches!(&resolved, Resolved::Object(again, _) if Arc::ptr_eq(again, &found)) {
                self.keep_for(caller, held);
                break;
            }
        }
        Ok(resolved)
    }

    fn keep_for<'a>(&'a self, caller: &Caller, mut held: HeldFor<'a>) {
        self.turned_away.change(|threads| {
            if let Some(waiter) = threads.get_mut(&caller.pid) {
                std::mem::swap(&mut waiter.held, &mut held.file);
            }
        });
        // What was held before is given up here, with no lock held.
        drop(held);
    }

    fn let_late_ones_go(&self, now: Moment) {
        let is_late = |waiter: &mut Waiter| now.since(waiter.since) >= PATIENCE;
        let late: Vec<Waiter> = self.turned_away.change(|threads| {
            let late = threads.extract_if(|_, waiter| is_late(waiter));
            late.map(|(_, waiter)| waiter).collect()
        });
        for waiter in late {
            drop(HeldFor {
                client: self,
                file: waiter.held,
                copies_void: None,
            });
        }
    }
}

/// A file that counts as being opened for who was turned away, if there is one. Dropping it gives that up.
#[must_use]
pub(crate) struct HeldFor<'a> {
    client: &'a Client,
    file: Option<Arc<Inode>>,
    copies_void: Option<u32>,
}

impl HeldFor<'_> {
    /// Notes that the kernel knows the size of `inode`, if the look-up's reply certainly told it:
    /// nothing was found of the file since it was turned away that would have had the kernel ignore
    /// the reply.
    pub(crate) fn note_size(&self, inode: &Arc<Inode>) {
        let looked_up = self.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, inode));
        let facts = inode.facts();
        let is_quiet = facts.kept.file_if_any().is_some_and(|file| {
            Some(file.copies_void) == self.copies_void && file.copies_void == file.copies_dropped
        });
        if looked_up && is_quiet {
            inode.seems_no_larger();
        }
    }
}

impl Drop for HeldFor<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            self.client.give_opening_up(file);
        }
    }
}
