//! The threads that wait for replies to requests for locks, and how many.
//!
//! At most `INLINE_SENDERS_MAX` threads of events and `SENDER_THREADS` others wait for replies to
//! LOCK, and as many for those to UNLOCK and CANCEL, which a server that is slow to grant must not
//! delay; the other requests are records in a queue.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::threads::{Background, separate};

/// Threads that send requests of one kind besides those whose events cause them.
const SENDER_THREADS: usize = 4;

/// Threads whose events cause requests of one kind, and that wait for the replies.
const INLINE_SENDERS_MAX: usize = 3;

/// Kinds of lock requests. Each kind has its own limit on threads that wait for replies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// LOCK.
    Lock,
    /// UNLOCK and CANCEL.
    Release,
}

/// The senders of one kind of request.
pub(super) struct RequestSenders {
    pub(super) threads: Arc<dyn Background>,
    /// Threads of other operations that wait for a reply to this kind. Relaxed: it is only a count.
    waiting: AtomicUsize,
}

/// A thread may send a request, and is counted until this is dropped.
pub(super) struct SendPermit<'a>(Option<&'a AtomicUsize>);

impl SendPermit<'_> {
    /// The permit of a thread that is one of the senders.
    pub(super) const OWN: Self = Self(None);
}

impl RequestSenders {
    /// Senders with threads of their own.
    pub(super) fn new(background: &Arc<dyn Background>) -> Self {
        Self { threads: separate(background, SENDER_THREADS), waiting: AtomicUsize::new(0) }
    }

    /// A permit for a thread that is none of these, unless too many such threads send.
    pub(super) fn permit(&self) -> Option<SendPermit<'_>> {
        let more = |count| (count < INLINE_SENDERS_MAX).then_some(count + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(SendPermit(Some(&self.waiting)))
    }
}

impl Drop for SendPermit<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
