//! Invalidating the kernel's caches after changes that the client found by itself, on a thread of its own.
//!
//! The client finds them during operations that may hold pages of the same file (a READ does): the kernel would wait for
//! those pages while the operation waits for the kernel. An open is different: it notifies the kernel itself, before it is
//! answered, and leaves nothing pending ([`Changes::take`]). When the others are notified: see [`super::pending`].
//!
//! When names of a directory changed the kernel is notified as for a file: it caches attributes, and no names. For attributes alone it
//! is notified at once: that takes no page and no lock of the kernel's that an operation could hold.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use curt_client::{InodeId, Observer};
use curt_fuse::{NodeId, Notifier};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::pending::Pending;

/// The offset that invalidates attributes and no page.
const ATTRIBUTES_ALONE: i64 = -1;

/// How long an open waits while other threads notify the kernel of its file. That takes a moment, unless a page's READ waits for
/// a silent server: the open must not hang with it.
const TELLING: Duration = Duration::from_secs(1);

/// Inodes whose pages in the kernel's cache are invalid, until the kernel has been notified.
#[derive(Debug, Default)]
pub struct Changes {
    state: Mutex<State>,
    /// Signalled when something becomes pending, or has been done.
    moved: Condvar,
    /// How many are pending or in progress: while there are none, replies need not look for any.
    waiting: AtomicUsize,
    notifier: OnceLock<Notifier>,
    /// The kernel drops pages by itself when a reply carries another time or size.
    kernel_compares: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    pending: Pending,
    /// The inodes of which the kernel is being notified.
    telling: Option<InodeId>,
    ended: bool,
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
pub(super) struct Answering<'a> {
    changes: &'a Changes,
    inode: InodeId,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.changes.state.lock().pending.end_answering(self.inode);
    }
}

impl Changes {
    /// Sends notifications through `notifier` until [`Changes::end`] or the end of the mount. `kernel_compares`:
    /// [`curt_fuse::Wishes::reading_revalidates`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn tell(self: &Arc<Self>, notifier: Notifier, kernel_compares: bool) -> std::io::Result<()> {
        self.kernel_compares.store(kernel_compares, Ordering::Relaxed);
        // A mount has one session.
        let _ = self.notifier.set(notifier.clone());
        let changes: Weak<Self> = Arc::downgrade(self);
        let name = "changes".to_owned();
        std::thread::Builder::new()
            .name(name)
            .stack_size(128 * 1024)
            .spawn(move || {
                while let Some(changes) = changes.upgrade() {
                    let Some(inode) = changes.next() else { return };
                    // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
                    let told = notifier.invalidate_inode(NodeId(inode.0), 0, 0);
                    let mut state = changes.state.lock();
                    state.telling = None;
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
    fn next(&self) -> Option<InodeId> {
        let mut state = self.state.lock();
        while !state.ended {
            match state.pending.next(Instant::now()) {
                Ok(inode) => {
                    state.telling = Some(inode);
                    return Some(inode);
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
    fn count(&self, state: &State) {
        let count = state.pending.len() + usize::from(state.telling.is_some());
        self.waiting.store(count, Ordering::Release);
        self.moved.notify_all();
    }

    /// Begins to answer a request for `inode`'s attributes, which may find a change.
    pub(super) fn answering(&self, inode: InodeId) -> Answering<'_> {
        self.state.lock().pending.begin_answering(inode);
        Answering { changes: self, inode }
    }

    /// A reply that is about to be sent gives the kernel this size of `inode`.
    pub(super) fn hears(&self, inode: InodeId, size: u64) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let compares = self.kernel_compares.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        state.pending.hears(inode, size, compares, Instant::now());
        self.count(&state);
    }

    /// Takes over what is pending for `inode`. Returns whether anything was: then the caller has to notify the kernel.
    pub(super) fn take(&self, inode: InodeId) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        let deadline = Instant::now() + TELLING;
        let mut state = self.state.lock();
        while state.telling == Some(inode) {
            if self.moved.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let taken = state.pending.take(inode);
        self.count(&state);
        taken
    }
}

impl Observer for Changes {
    fn contents_changed(&self, id: InodeId, size_before: Option<u64>) {
        let mut state = self.state.lock();
        state.pending.add(id, size_before, Instant::now());
        self.count(&state);
    }

    fn names_changed(&self, id: InodeId) {
        self.contents_changed(id, None);
    }

    fn copies_void(&self, id: InodeId, size: u64) {
        self.take(id);
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
