//! Invalidates the kernel's caches after changes that the client detected, on a separate thread.
//!
//! The client detects changes during operations that may hold pages of the same file (a READ does):
//! the kernel would wait for those pages while the operation waits for the kernel. An open differs:
//! it notifies the kernel itself before its reply, and leaves nothing pending
//! ([`InvalidationQueue::take_pending`]). A read that detects a change waits until all pages except
//! its own are dropped. For the time of the other notifications see
//! [`crate::kernel_quirks::late_attributes`].
//!
//! Nothing of a symbolic link is compared by the kernel, so it is notified of each change of a link
//! at once, and replies that show the change wait for that.
//!
//! A directory whose names changed is treated as a file: the kernel's cached attributes are
//! dropped, and names that it caches expire by themselves. A change of attributes alone is notified
//! at once, because that takes no page and no kernel lock that an operation could hold.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use curt_client::{ChangeObserver, InodeId};
use curt_fuse::{NodeId, Notifier};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::kernel_quirks::late_attributes::PendingInvalidations;

/// The offset that invalidates attributes and no pages.
const ATTRIBUTES_ALONE: i64 = -1;

/// The size of a page in bytes.
const PAGE: u64 = 4096;

/// Maximum time for which an open, or a read that detected a change, waits while other threads
/// notify the kernel about its file. Usually this is short, unless a page's READ waits for a silent
/// server, which must not block the open or read.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of reads that wait for that at once; further ones do not wait.
const AROUND_MAX: usize = 64;

/// Inodes whose pages in the kernel's cache are invalid, until the kernel has been notified.
#[derive(Debug, Default)]
pub struct InvalidationQueue {
    state: Mutex<InvalidationQueueState>,
    /// Signalled when an inode becomes pending, or a notification is complete.
    moved: Condvar,
    /// Number of pending notifications and those in progress: while it is zero, replies skip the
    /// check.
    unfinished: AtomicUsize,
    notifier: OnceLock<Notifier>,
    /// The kernel drops pages itself when a reply contains another time or size.
    kernel_compares: AtomicBool,
}

#[derive(Debug, Default)]
struct InvalidationQueueState {
    pending: PendingInvalidations,
    /// Symbolic links whose cached targets are invalid. They are notified at once.
    links: BTreeSet<u64>,
    /// The inodes for which a notification is in progress.
    notifying: Option<InodeId>,
    /// Notifications for which reads wait, each of one inode; the first is in progress.
    around: VecDeque<PagesExceptRead>,
    /// Number of completed notifications for reads.
    arounds_done: u64,
    /// The time since which the first of `around` is in progress.
    around_since: Option<Instant>,
    ended: bool,
}

/// The pages of a file except those of a read, which waits until they are dropped.
#[derive(Clone, Debug)]
struct PagesExceptRead {
    inode: InodeId,
    held: Range<u64>,
    /// The file's size.
    size: u64,
}

/// A notification to the kernel.
enum KernelNotification {
    All(InodeId),
    ExceptRead(PagesExceptRead),
}

impl PagesExceptRead {
    /// The offsets of the first page of the read, and of the end of its last page.
    fn pages(&self) -> Range<u64> {
        let start = self.held.start - self.held.start % PAGE;
        start..self.held.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Makes the kernel drop the pages, and keep at least its size of the file if that touches no
    /// page of the read. Otherwise the kernel requests the size at the next read, because its
    /// attributes are invalid.
    fn drop_pages(&self, notifier: &Notifier) {
        let (node, held) = (NodeId(self.inode.0), self.pages());
        let last = self.size.saturating_sub(1);
        if let Ok(length @ 1..) = i64::try_from(held.start) {
            let _ = notifier.invalidate_inode(node, 0, length);
        }
        // An offset beyond the largest one invalidates only attributes.
        let behind = i64::try_from(held.end).unwrap_or(ATTRIBUTES_ALONE);
        let _ = notifier.invalidate_inode(node, behind, 0);
        if !held.contains(&last) {
            let _ = notifier.enlarge(node, self.size);
        }
    }
}

/// Makes the kernel drop its cache of a file, and sets a size of at least `size`: a program that
/// maps the file need not have requested its size, and stores beyond the end are lost.
pub(super) fn renew(notifier: &Notifier, node: NodeId, size: u64) {
    // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
    let _ = notifier.invalidate_inode(node, 0, 0);
    let _ = notifier.enlarge(node, size);
}

/// A request for an inode's attributes is in progress while this lives.
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
                    Some(KernelNotification::All(inode)) => inode,
                    Some(KernelNotification::ExceptRead(around)) => {
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
                let notified = notifier.invalidate_inode(NodeId(inode.0), 0, 0);
                let mut state = changes.state.lock();
                state.notifying = None;
                changes.count(&state);
                if notified == Err(Errno::NODEV) {
                    return;
                }
            }
        })?;
        Ok(())
    }

    /// Stops the thread.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.moved.notify_all();
    }

    /// Waits for a pending inode, and returns it.
    fn next(&self) -> Option<KernelNotification> {
        let mut state = self.state.lock();
        while !state.ended {
            if let Some(around) = state.around.front().cloned() {
                state.around_since = Some(Instant::now());
                return Some(KernelNotification::ExceptRead(around));
            }
            if let Some(link) = state.links.pop_first().map(InodeId) {
                state.notifying = Some(link);
                return Some(KernelNotification::All(link));
            }
            match state.pending.next(Instant::now()) {
                Ok(inode) => {
                    state.notifying = Some(inode);
                    return Some(KernelNotification::All(inode));
                }
                Err(Some(due)) => {
                    self.moved.wait_until(&mut state, due);
                }
                Err(None) => self.moved.wait(&mut state),
            }
        }
        None
    }

    /// Called after every change of the state.
    fn count(&self, state: &InvalidationQueueState) {
        let count = state.pending.len() + state.links.len() + usize::from(state.notifying.is_some());
        self.unfinished.store(count, Ordering::Release);
        self.moved.notify_all();
    }

    /// Begins a request for `inode`'s attributes, which may detect a change.
    pub(super) fn answering(&self, inode: InodeId) -> AttributeReplyGuard<'_> {
        self.state.lock().pending.begin_answering(inode);
        AttributeReplyGuard { changes: self, inode }
    }

    /// Records that a reply, which is about to be sent, contains this size of `inode`.
    pub(super) fn note_replied_size(&self, inode: InodeId, size: u64) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let compares = self.kernel_compares.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        state.pending.note_replied_size(inode, size, compares, Instant::now());
        self.count(&state);
    }

    /// Removes the pending notification for `inode`. Returns whether there was one: then the caller
    /// has to notify the kernel.
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

impl InvalidationQueueState {
    fn is_target_pending(&self, link: InodeId) -> bool {
        !self.ended && (self.notifying == Some(link) || self.links.contains(&link.0))
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

    fn target_changed(&self, id: InodeId) {
        let mut state = self.state.lock();
        state.links.insert(id.0);
        self.count(&state);
    }

    /// The notification itself waits for a READLINK of the link.
    fn await_target_dropped(&self, id: InodeId) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let deadline = Instant::now() + NOTIFY_TIMEOUT;
        let mut state = self.state.lock();
        while state.is_target_pending(id) {
            if self.moved.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
    }

    fn keeps_changed_target(&self, id: InodeId) -> bool {
        self.unfinished.load(Ordering::Acquire) != 0 && self.state.lock().is_target_pending(id)
    }

    /// The read holds pages of its own, for which no thread may wait before the reply. The reply is
    /// sent at once if pages for another read of the same file are being dropped now, or if the
    /// thread has long been waiting for a page.
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
        state.around.push_back(PagesExceptRead { inode: id, held: range, size });
        self.count(&state);
        let own = state.arounds_done + state.around.len() as u64;
        let deadline = Instant::now() + NOTIFY_TIMEOUT;
        while state.arounds_done < own && !state.ended {
            if self.moved.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
    }

    fn invalidate_pages(&self, id: InodeId, size: u64) {
        self.take_pending(id);
        if let Some(notifier) = self.notifier.get() {
            renew(notifier, NodeId(id.0), size);
        }
    }

    fn attributes_changed(&self, id: InodeId) {
        if let Some(notifier) = self.notifier.get() {
            // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
            let _ = notifier.invalidate_inode(NodeId(id.0), ATTRIBUTES_ALONE, 0);
        }
    }
}
