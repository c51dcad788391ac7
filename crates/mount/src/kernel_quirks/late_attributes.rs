//! The kernel ignores attributes that arrive after a notification. This module has the inodes whose
//! pages the kernel has to invalidate, and the times of the notifications. It has no clock and no
//! thread.
//!
//! After a notification the kernel ignores the attributes in each reply to an earlier request
//! (Linux, `fuse_change_attributes`): for that caller the file keeps its old size, so that a read
//! ends too early or a mapping is truncated. A change is often found by just such a request, and
//! its reply has the new size, at which the kernel drops the file's pages itself. So the
//! notification is sent somewhat later than the reply, and never while a request for the inode's
//! attributes is in progress.
//!
//! Kernels: Linux up to 6.18, the newest that was tested. Shown by
//! `what_shrank_elsewhere_is_read_and_appended_to_at_its_new_end`
//! (tests/tests/file_size_changes.rs). It can be removed when a notification contains the new
//! attributes.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use curt_client::InodeId;

/// Time for the reply that shows the change to reach the kernel.
const REPLY_TIME: Duration = Duration::from_millis(20);
/// Delay of the notification if a reply had another size: the kernel may have had that size
/// already, from its own writes.
const REMINDER_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay of a notification by other requests for attributes.
const DELAY_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct PendingInvalidations {
    inodes: HashMap<InodeId, InodeInvalidation>,
    /// When they are due, in order.
    dues: BTreeSet<(Instant, u64)>,
    /// The number of requests in progress for each inode's attributes.
    answering: HashMap<InodeId, usize>,
}

/// The pending invalidation of one inode.
#[derive(Clone, Copy, Debug)]
struct InodeInvalidation {
    due: Instant,
    /// From then on the kernel is notified even if requests are in progress.
    latest: Instant,
    reason: InvalidationReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InvalidationReason {
    /// No reply shows the change.
    NotInReply,
    /// The previous size; a reply with another one is sufficient.
    SizeBefore(u64),
    /// Such a reply was sent.
    Reminder,
}

impl PendingInvalidations {
    pub(crate) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// The contents of `inode` changed. `size_before`: the kernel's size, if a reply may show the
    /// change.
    pub(crate) fn add(&mut self, inode: InodeId, size_before: Option<u64>, now: Instant) {
        let reason = size_before.map_or(InvalidationReason::NotInReply, InvalidationReason::SizeBefore);
        let delay = size_before.map_or(Duration::ZERO, |_| REPLY_TIME);
        let due = now + delay;
        let new = InodeInvalidation { due, latest: due + DELAY_MAX, reason };
        let void = match self.remove(inode) {
            Some(pending) if pending.reason != InvalidationReason::Reminder => InodeInvalidation {
                due: pending.due.min(due),
                latest: pending.latest.min(new.latest),
                // The kernel may still have the size from before the first change.
                reason: if reason == InvalidationReason::NotInReply { reason } else { pending.reason },
            },
            _ => new,
        };
        self.insert(inode, void);
    }

    /// A reply has this size of `inode`; the kernel drops pages itself if its size differs.
    /// `compares`: it also does if only the time differs, so that no notification is needed.
    pub(crate) fn note_replied_size(&mut self, inode: InodeId, size: u64, compares: bool, now: Instant) {
        let Some(InodeInvalidation { reason: InvalidationReason::SizeBefore(before), .. }) =
            self.inodes.get(&inode)
        else {
            return;
        };
        if *before == size {
            return;
        }
        self.remove(inode);
        if !compares {
            let due = now + REMINDER_DELAY;
            let reminder =
                InodeInvalidation { due, latest: due + DELAY_MAX, reason: InvalidationReason::Reminder };
            self.insert(inode, reminder);
        }
    }

    /// Removes `inode`; returns whether it was pending.
    pub(crate) fn take(&mut self, inode: InodeId) -> bool {
        self.remove(inode).is_some()
    }

    pub(crate) fn begin_answering(&mut self, inode: InodeId) {
        *self.answering.entry(inode).or_default() += 1;
    }

    pub(crate) fn end_answering(&mut self, inode: InodeId) {
        if let Some(count) = self.answering.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.answering.remove(&inode);
            }
        }
    }

    /// Removes and returns an inode whose notification is due; otherwise returns when to check
    /// again, if ever.
    pub(crate) fn next(&mut self, now: Instant) -> Result<InodeId, Option<Instant>> {
        loop {
            let Some(&(due, number)) = self.dues.first() else {
                return Err(None);
            };
            if due > now {
                return Err(Some(due));
            }
            let inode = InodeId(number);
            let Some(void) = self.remove(inode) else {
                continue;
            };
            if !self.answering.contains_key(&inode) || void.latest <= now {
                return Ok(inode);
            }
            let due = now + REPLY_TIME;
            self.insert(inode, InodeInvalidation { due, ..void });
        }
    }

    fn insert(&mut self, inode: InodeId, void: InodeInvalidation) {
        self.inodes.insert(inode, void);
        self.dues.insert((void.due, inode.0));
    }

    fn remove(&mut self, inode: InodeId) -> Option<InodeInvalidation> {
        let void = self.inodes.remove(&inode)?;
        self.dues.remove(&(void.due, inode.0));
        Some(void)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const OTHER: InodeId = InodeId(8);

    #[test]
    fn changes_without_a_reply_are_notified_at_once_and_the_others_after_the_reply() {
        let (mut pending, now) = (PendingInvalidations::default(), Instant::now());
        pending.add(FILE, Some(100), now);
        pending.add(OTHER, None, now);
        assert_eq!(pending.next(now), Ok(OTHER));
        assert_eq!(pending.next(now), Err(Some(now + REPLY_TIME)));
        assert_eq!(pending.next(now + REPLY_TIME), Ok(FILE));
        assert_eq!((pending.next(now + REPLY_TIME), pending.len()), (Err(None), 0));
    }

    #[test]
    fn a_reply_with_another_size_leaves_a_reminder_or_nothing() {
        let (mut pending, now) = (PendingInvalidations::default(), Instant::now());
        for (compares, rest) in [(true, Err(None)), (false, Err(Some(now + REMINDER_DELAY)))] {
            pending.add(FILE, Some(100), now);
            pending.note_replied_size(FILE, 100, compares, now);
            assert_eq!(pending.next(now), Err(Some(now + REPLY_TIME)), "that is no news");
            pending.note_replied_size(FILE, 20_000, compares, now);
            assert_eq!(pending.next(now + REPLY_TIME), rest);
        }
        assert_eq!(pending.next(now + REMINDER_DELAY), Ok(FILE));
    }

    #[test]
    fn a_second_change_is_notified_if_the_first_was_not() {
        let (mut pending, now) = (PendingInvalidations::default(), Instant::now());
        pending.add(FILE, Some(100), now);
        pending.add(FILE, Some(200), now);
        pending.note_replied_size(FILE, 100, true, now);
        assert_eq!(pending.next(now + REPLY_TIME), Ok(FILE), "the kernel had 100 all the time");
        pending.add(FILE, Some(100), now);
        pending.note_replied_size(FILE, 200, false, now);
        pending.add(FILE, Some(200), now);
        assert_eq!(pending.next(now), Err(Some(now + REPLY_TIME)), "the reminder gives way");
        pending.note_replied_size(FILE, 300, true, now);
        assert_eq!(pending.next(now + REMINDER_DELAY), Err(None));
    }

    #[test]
    fn notification_waits_for_attribute_replies_but_not_for_ever() {
        let (mut pending, now) = (PendingInvalidations::default(), Instant::now());
        pending.begin_answering(FILE);
        pending.begin_answering(FILE);
        pending.end_answering(FILE);
        pending.add(FILE, Some(100), now);
        pending.add(OTHER, Some(100), now);
        let later = now + REPLY_TIME;
        assert_eq!(pending.next(later), Ok(OTHER));
        assert_eq!(pending.next(later), Err(Some(later + REPLY_TIME)));
        pending.end_answering(FILE);
        assert_eq!(pending.next(later + REPLY_TIME), Ok(FILE));
        pending.begin_answering(FILE);
        pending.add(FILE, Some(100), now);
        assert_eq!(pending.next(now + REPLY_TIME + DELAY_MAX), Ok(FILE));
    }

    #[test]
    fn a_pending_invalidation_is_taken_once() {
        let (mut pending, now) = (PendingInvalidations::default(), Instant::now());
        pending.add(FILE, Some(100), now);
        assert!(pending.take(FILE) && !pending.take(FILE));
        assert_eq!(pending.next(now + REMINDER_DELAY), Err(None));
    }
}
