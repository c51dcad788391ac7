//! Invalidating the kernel's caches after changes that the client found by itself, on a thread of
//! its own.
//!
//! The client finds them during operations that may hold pages of the same file (a READ does): the
//! kernel would wait for those pages while the operation waits for the kernel. An open is
//! different: it notifies the kernel itself, before it is answered, and leaves nothing pending
//! ([`InvalidationQueue::take_pending`]). A read that finds a change waits until all pages but its
//! own are dropped. When the others are notified: see
//! [`crate::kernel_quirks::late_attributes`].
//!
//! When names of a directory changed the kernel is notified as for a file: it caches attributes,
//! and no names. For attributes alone it is notified at once: that takes no page and no lock of the
//! kernel's that an operation could hold.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use curt_client::{ChangeObserver, InodeId};
use curt_fuse::{NodeId, Notifier};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::kernel_quirks::late_attributes::PendingInvalidations;

/// The offset that invalidates attributes and no page.
const ATTRIBUTES_ALONE: i64 = -1;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// How long an open, or a read that found a change, waits while other threads notify the kernel of
/// its file. That takes a moment, unless a page's READ waits for a silent server: they must not
/// hang with it.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// How many reads may wait for that at once; more are answered at once.
const AROUND_MAX: usize = 64;

/// Inodes whose pages in the kernel's cache are invalid, until the kernel has been notified.
#[derive(Debug, Default)]
pub struct InvalidationQueue {
    state: Mutex<InvalidationQueueState>,
    /// Signalled when something becomes pending, or has been done.
    moved: Condvar,
    /// How many are pending or in progress: while there are none, replies need not look for any.
    unfinished: AtomicUsize,
    notifier: OnceLock<Notifier>,
    /// The kernel drops pages by itself when a reply carries another time or size.
    kernel_compares: AtomicBool,
}

#[derive(Debug, Default)]
struct InvalidationQueueState {
    pending: PendingInvalidations,
    /// The inodes of which the kernel is being notified.
    notifying: Option<InodeId>,
    /// What reads wait for, of one inode each; the first is in progress.
    around: VecDeque<Around>,
    /// How many reads have had what they waited for.
    arounds_done: u64,
    /// Since when the first of `around` is in progress.
    around_since: Option<Instant>,
    ended: bool,
}

/// The pages of a file but those that a read holds, which waits until they are dropped.
#[derive(Clone, Debug)]
struct Around {
    inode: InodeId,
    held: Range<u64>,
    /// The file's size.
    size: u64,
}

/// What the kernel is to be notified of.
enum Notice {
    All(InodeId),
    Around(Around),
}

impl Around {
    /// The first byte of the first page that is held, and that behind the last one.
    fn pages(&self) -> Range<u64> {
        let start = self.held.start - self.held.start % PAGE;
        start..self.held.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Has the kernel drop the pages, and take the file for no smaller than it is if that touches
    /// none of those that are held. Otherwise it asks at the next read: its attributes are void.
    fn drop_pages(&self, notifier: &Notifier) {
        let (node, held) = (NodeId(self.inode.0), self.pages());
        let last = self.size.saturating_sub(1);
        if let Ok(length @ 1..) = i64::try_from(held.start) {
            let _ = notifier.invalidate_inode(node, 0, length);
        }
        // Behind the largest offset there is nothing but attributes.
        let behind = i64::try_from(held.end).unwrap_or(ATTRIBUTES_ALONE);
        let _ = notifier.invalidate_inode(node, behind, 0);
        if !held.contains(&last) {
            let _ = notifier.enlarge(node, self.size);
        }
    }
}

/// Has the kernel drop what it keeps of a file, and take it for no smaller than `size`: whoever
/// maps it need not have asked how large it is, and what is stored behind its end is lost.
pub(super) fn renew(notifier: &Notifier, node: NodeId, size: u64) {
    // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
    let _ = notifier.invalidate_inode(node, 0, 0);
    let _ = notifier.enlarge(node, size);
}

/// While it lives, a request for an inode's attributes is being answered.
#[derive(Debug)]
pub(super) struct AttributeReplyGuard<'a> {
    changes: &'a InvalidationQueue,
    inode: InodeId,
}

impl Drop for AttributeReplyGuard<'_> {
    fn drop(&mut self) {
        self.changes.state.lock().pending.end_answering(self.inode);
    }
}

impl InvalidationQueue {
    /// Sends notifications through `notifier` until [`InvalidationQueue::end`] or the end of the
    /// mount. `kernel_compares`: [`curt_fuse::RequestedFeatures::reading_revalidates`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self: &Arc<Self>, notifier: Notifier, kernel_compares: bool) -> std::io::Result<()> {
        self.kernel_compares.store(kernel_compares, Ordering::Relaxed);
        // A mount has one session.
        let _ = self.notifier.set(notifier.clone());
        let changes: Weak<Self> = Arc::downgrade(self);
        let name = "changes".to_owned();
        std::thread::Builder::new().name(name).stack_size(128 * 1024).spawn(move || {
            while let Some(changes) = changes.upgrade() {
                let inode = match changes.next() {
                    None => return,
                    Some(Notice::All(inode)) => inode,
                    Some(Notice::Around(around)) => {
                        around.drop_pages(&notifier);
                        let mut state = changes.state.lock();
                        state.around.pop_front();
                        state.around_since = None;
                        state.arounds_done += 1;
                        changes.count(&state);
                        continue;
                    }
                };
                // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
                let told = notifier.invalidate_inode(NodeId(inode.0), 0, 0);
                let mut state = changes.state.lock();
                state.notifying = None;
                changes.count(&state);
                if told == Err(Errno::NODEV) {
                    return;
                }
            }
        })?;
        Ok(())
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.moved.notify_all();
    }

    /// Waits until the kernel is to be notified of an inode, and returns it.
    fn next(&self) -> Option<Notice> {
        let mut state = self.state.lock();
        while !state.ended {
            if let Some(around) = state.around.front().cloned() {
                state.around_since = Some(Instant::now());
                return Some(Notice::Around(around));
            }
            match state.pending.next(Instant::now()) {
                Ok(inode) => {
                    state.notifying = Some(inode);
                    return Some(Notice::All(inode));
                }
                Err(Some(due)) => {
                    self.moved.wait_until(&mut state, due);
                }
                Err(None) => self.moved.wait(&mut state),
            }
        }
        None
    }

    /// To be called after every change of the state.
    fn count(&self, state: &InvalidationQueueState) {
        let count = state.pending.len() + usize::from(state.notifying.is_some());
        self.unfinished.store(count, Ordering::Release);
        self.moved.notify_all();
    }

    /// Begins to answer a request for `inode`'s attributes, which may find a change.
    pub(super) fn answering(&self, inode: InodeId) -> AttributeReplyGuard<'_> {
        self.state.lock().pending.begin_answering(inode);
        AttributeReplyGuard { changes: self, inode }
    }

    /// A reply that is about to be sent gives the kernel this size of `inode`.
    pub(super) fn note_replied_size(&self, inode: InodeId, size: u64) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let compares = self.kernel_compares.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        state.pending.note_replied_size(inode, size, compares, Instant::now());
        self.count(&state);
    }

    /// Takes over what is pending for `inode`. Returns whether anything was: then the caller has to
    /// notify the kernel.
    pub(super) fn take_pending(&self, inode: InodeId) -> bool {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return false;
        }
        let deadline = Instant::now() + NOTIFY_TIMEOUT;
        let mut state = self.state.lock();
        while state.notifying == Some(inode) {
            if self.moved.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let taken = state.pending.take(inode);
        self.count(&state);
        taken
    }
}

impl ChangeObserver for InvalidationQueue {
    fn contents_changed(&self, id: InodeId, size_before: Option<u64>) {
        let mut state = self.state.lock();
        state.pending.add(id, size_before, Instant::now());
        self.count(&state);
    }

    fn names_changed(&self, id: InodeId) {
        self.contents_changed(id, None);
    }

    /// The read holds pages of its own, which nobody may wait for before it is answered. If another
    /// read of the same file has pages dropped at this moment, this one is answered at once; so it
    /// is if the thread has long been waiting for a page.
    fn read_found_change(&self, id: InodeId, range: Range<u64>, size: u64) {
        let mut state = self.state.lock();
        let is_stuck = state.around_since.is_some_and(|since| since.elapsed() >= NOTIFY_TIMEOUT);
        let is_busy = is_stuck
            || state.notifying == Some(id)
            || state.around.len() >= AROUND_MAX
            || state.around.iter().any(|around| around.inode == id);
        if is_busy || state.ended || self.notifier.get().is_none() {
            return;
        }
        state.pending.take(id);
        state.around.push_back(Around { inode: id, held: range, size });
        self.count(&state);
        let own = state.arounds_done + state.around.len() as u64;
        let deadline = Instant::now() + NOTIFY_TIMEOUT;
        while state.arounds_done < own && !state.ended {
            if self.moved.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
    }

    fn copies_void(&self, id: InodeId, size: u64) {
        self.take_pending(id);
        if let Some(notifier) = self.notifier.get() {
            renew(notifier, NodeId(id.0), size);
        }
    }

    fn attributes_changed(&self, id: InodeId) {
        if let Some(notifier) = self.notifier.get() {
            // ENOENT: the kernel keeps none. ENODEV: the mount has ended.
            let _ = notifier.invalidate_inode(NodeId(id.0), ATTRIBUTES_ALONE, 0);
        }
    }
}
