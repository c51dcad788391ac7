//! Drops the kernel's pages of a file before the grant of a lock in it is answered.
//!
//! The kernel waits for pages that READs hold, so this can take long. One thread at a time does it
//! for a file: others leave it their grants and go on. What it begins then serves all grants that
//! were left before: a thousand grants at once, after a server's restart, need few invalidations.

use std::collections::HashMap;

use curt_fuse::NodeId;
use parking_lot::Mutex;

/// Grants that wait until the kernel has dropped the pages of their files. `R` answers one.
pub(super) struct GrantedLocks<R> {
    /// A file is in here while a thread drops its pages.
    waiting: Mutex<HashMap<NodeId, Vec<R>>>,
}

impl<R> Default for GrantedLocks<R> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
    }
}

impl<R> GrantedLocks<R> {
    /// Passes the reply to `send` after `drop_pages`, unless another thread does both.
    pub(super) fn reply(&self, node: NodeId, reply: R, drop_pages: impl Fn(), send: impl Fn(R)) {
        {
            let mut waiting = self.waiting.lock();
            if let Some(replies) = waiting.get_mut(&node) {
                return replies.push(reply);
            }
            waiting.insert(node, vec![reply]);
        }
        while let Some(replies) = self.take(node) {
            drop_pages();
            replies.into_iter().for_each(&send);
        }
    }

    /// The grants that wait; `None`: there are none, and the file is done.
    fn take(&self, node: NodeId) -> Option<Vec<R>> {
        let mut waiting = self.waiting.lock();
        let replies = waiting.get_mut(&node).map(std::mem::take).filter(|replies| !replies.is_empty());
        if replies.is_none() {
            waiting.remove(&node);
        }
        replies
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn grants_that_come_during_an_invalidation_share_the_next_one() {
        let granted = GrantedLocks::default();
        let (one, other) = (NodeId(2), NodeId(3));
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel();
        let (sent, log) = mpsc::channel();
        let granted = &granted;
        thread::scope(|scope| {
            let first = sent.clone();
            scope.spawn(move || {
                let drop_pages = || {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    first.send("dropped").unwrap();
                };
                granted.reply(one, "first", drop_pages, |reply| first.send(reply).unwrap());
            });
            has_begun.recv().unwrap();
            for reply in ["second", "third"] {
                granted.reply(one, reply, || unreachable!(), |_| unreachable!());
            }
            granted.reply(other, "other file", || (), |reply| sent.send(reply).unwrap());
            assert_eq!(log.recv(), Ok("other file"));
            end.send(()).unwrap();
            end.send(()).unwrap();
        });
        let log: Vec<_> = log.try_iter().collect();
        assert_eq!(log, ["dropped", "first", "dropped", "second", "third"]);
        assert!(granted.waiting.lock().is_empty());
    }
}
