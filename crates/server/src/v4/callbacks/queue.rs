//! The callbacks that wait for a thread.
//!
//! Only one callback of a client is in progress at a time. Half of the threads are for clients that
//! have answered last time. So clients that do not answer, and new ones, delay each other only.

use std::collections::{HashMap, HashSet, VecDeque};

use curt_proto::nfs4::Clientid;
use parking_lot::{Condvar, Mutex};

/// The threads.
pub(super) const THREADS: usize = 4;
/// Those that may call clients which have not answered last time, or were never called.
const THREADS_FOR_SLOW: usize = THREADS / 2;
/// Clients that have answered; beyond that all are forgotten.
const ANSWERING_MAX: usize = 16_384;

/// The queue. The number of callbacks is limited by those who send them: each waiting lock and
/// each delegation has at most one.
pub(super) struct CallbackQueue<C> {
    waiting: Mutex<Waiting<C>>,
    changed: Condvar,
}

struct Waiting<C> {
    callbacks: HashMap<Clientid, VecDeque<C>>,
    /// Clients with callbacks, none of which is in progress.
    ready: VecDeque<Clientid>,
    /// Clients that have answered the last callback.
    answering: HashSet<Clientid>,
    /// Threads that call other clients.
    slow_threads: usize,
    /// The service has ended.
    is_over: bool,
}

/// A callback that a thread has taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DequeuedCallback<C> {
    pub(super) client: Clientid,
    pub(super) callback: C,
    is_slow: bool,
}

impl<C> Default for CallbackQueue<C> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new() }
    }
}

impl<C> CallbackQueue<C> {
    pub(super) fn add(&self, client: Clientid, callback: C) {
        self.waiting.lock().add(client, callback);
        self.changed.notify_one();
    }

    /// The next callback; none at the end.
    pub(super) fn next(&self) -> Option<DequeuedCallback<C>> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(taken) = waiting.take() {
                return Some(taken);
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// The callback of a client has ended.
    pub(super) fn finish(&self, client: Clientid, is_slow: bool, has_answered: bool) {
        self.waiting.lock().finish(client, is_slow, has_answered);
        self.changed.notify_one();
    }

    /// Lets the threads end.
    pub(super) fn end(&self) {
        self.waiting.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl<C> DequeuedCallback<C> {
    /// The client, and whether its callback counts as one of a slow client.
    pub(super) fn split(self) -> (Clientid, C, bool) {
        (self.client, self.callback, self.is_slow)
    }
}

impl<C> Default for Waiting<C> {
    fn default() -> Self {
        Self {
            callbacks: HashMap::new(),
            ready: VecDeque::new(),
            answering: HashSet::new(),
            slow_threads: 0,
            is_over: false,
        }
    }
}

impl<C> Waiting<C> {
    fn add(&mut self, client: Clientid, callback: C) {
        let queue = self.callbacks.entry(client).or_insert_with(|| {
            self.ready.push_back(client);
            VecDeque::new()
        });
        queue.push_back(callback);
    }

    fn take(&mut self) -> Option<DequeuedCallback<C>> {
        let may_be_slow = self.slow_threads < THREADS_FOR_SLOW;
        let at = self.ready.iter().position(|client| may_be_slow || self.answering.contains(client))?;
        let client = self.ready.remove(at)?;
        let callback = self.callbacks.get_mut(&client)?.pop_front()?;
        let is_slow = !self.answering.contains(&client);
        self.slow_threads += usize::from(is_slow);
        Some(DequeuedCallback { client, callback, is_slow })
    }

    fn finish(&mut self, client: Clientid, was_slow: bool, has_answered: bool) {
        self.slow_threads -= usize::from(was_slow);
        if has_answered {
            if self.answering.len() >= ANSWERING_MAX {
                self.answering.clear();
            }
            self.answering.insert(client);
        } else {
            self.answering.remove(&client);
        }
        if self.callbacks.get(&client).is_some_and(VecDeque::is_empty) {
            self.callbacks.remove(&client);
        } else {
            self.ready.push_back(client);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn clients_that_have_not_answered_do_not_occupy_all_threads() {
        let mut waiting = Waiting::default();
        let add = |waiting: &mut Waiting<u64>, client| waiting.add(Clientid(client), client);
        add(&mut waiting, 9);
        assert_eq!(waiting.take().unwrap().client, Clientid(9));
        waiting.finish(Clientid(9), true, true);
        for client in 1..=4 {
            add(&mut waiting, client);
        }
        for client in 1..=2 {
            assert_eq!(waiting.take().unwrap().client, Clientid(client));
        }
        assert!(waiting.take().is_none());
        add(&mut waiting, 9);
        let taken = waiting.take().unwrap();
        assert_eq!(taken, DequeuedCallback { client: Clientid(9), callback: 9, is_slow: false });
        waiting.finish(Clientid(1), true, false);
        assert_eq!(waiting.take().unwrap().client, Clientid(3));
        // The one that does not answer any more is as slow as others.
        waiting.finish(Clientid(9), false, false);
        add(&mut waiting, 9);
        assert!(waiting.take().is_none());
    }
}
