//! The callbacks that wait for a thread.
//!
//! Half of the threads are for clients that have answered last time, and no client occupies more
//! than half of these. So clients that do not answer, and new ones, delay each other only.

use std::collections::{HashMap, HashSet, VecDeque};

use curt_proto::nfs4::Clientid;
use parking_lot::{Condvar, Mutex};

/// The threads.
pub(super) const THREADS: usize = 8;
/// Those that may call clients which have not answered last time, or were never called.
const THREADS_FOR_SLOW: usize = THREADS / 2;
/// Callbacks in progress of one client that has answered last time; of others it is one.
const IN_PROGRESS_MAX: usize = THREADS / 4;
/// Clients that have answered; beyond that all are forgotten.
const ANSWERING_MAX: usize = 16_384;

/// The queue. The number of callbacks is limited by those who send them: each waiting lock and
/// each delegation has at most one.
pub(super) struct CallbackQueue<C> {
    waiting: Mutex<Waiting<C>>,
    changed: Condvar,
}

struct Waiting<C> {
    callbacks: HashMap<Clientid, OfClient<C>>,
    /// Clients with callbacks that wait, of which another may be in progress.
    ready: VecDeque<Clientid>,
    /// Clients that have answered the last callback.
    answering: HashSet<Clientid>,
    /// Threads that call other clients.
    slow_threads: usize,
    /// The service has ended.
    is_over: bool,
}

/// The callbacks of a client; it has no record without any.
struct OfClient<C> {
    waiting: VecDeque<C>,
    in_progress: usize,
    /// Whether the client is in the list of those that are ready.
    is_ready: bool,
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

    /// The client has no slot free for a callback: it waits until another one has ended.
    pub(super) fn put_back(&self, client: Clientid, callback: C, is_slow: bool) {
        self.waiting.lock().put_back(client, callback, is_slow);
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
        let own = self.callbacks.entry(client).or_insert_with(|| OfClient {
            waiting: VecDeque::new(),
            in_progress: 0,
            is_ready: false,
        });
        own.waiting.push_back(callback);
        self.make_ready(client);
    }

    /// Lists a client as ready, if another callback of it may begin.
    fn make_ready(&mut self, client: Clientid) {
        let max = if self.answering.contains(&client) { IN_PROGRESS_MAX } else { 1 };
        let Some(own) = self.callbacks.get_mut(&client) else { return };
        if !own.is_ready && !own.waiting.is_empty() && own.in_progress < max {
            own.is_ready = true;
            self.ready.push_back(client);
        }
    }

    fn take(&mut self) -> Option<DequeuedCallback<C>> {
        let may_be_slow = self.slow_threads < THREADS_FOR_SLOW;
        let at = self.ready.iter().position(|client| may_be_slow || self.answering.contains(client))?;
        let client = self.ready.remove(at)?;
        let own = self.callbacks.get_mut(&client)?;
        own.is_ready = false;
        let callback = own.waiting.pop_front()?;
        own.in_progress += 1;
        let is_slow = !self.answering.contains(&client);
        self.slow_threads += usize::from(is_slow);
        self.make_ready(client);
        Some(DequeuedCallback { client, callback, is_slow })
    }

    fn finish(&mut self, client: Clientid, was_slow: bool, has_answered: bool) {
        if has_answered {
            if self.answering.len() >= ANSWERING_MAX {
                self.answering.clear();
            }
            self.answering.insert(client);
        } else {
            self.answering.remove(&client);
        }
        self.end_one(client, was_slow);
        self.make_ready(client);
    }

    fn put_back(&mut self, client: Clientid, callback: C, was_slow: bool) {
        if let Some(own) = self.callbacks.get_mut(&client) {
            own.waiting.push_front(callback);
        }
        self.end_one(client, was_slow);
        // Those in progress use the slots; if they have ended since, nobody else wakes it.
        if self.callbacks.get(&client).is_some_and(|own| own.in_progress == 0) {
            self.make_ready(client);
        }
    }

    /// A callback in progress has ended.
    fn end_one(&mut self, client: Clientid, was_slow: bool) {
        self.slow_threads -= usize::from(was_slow);
        if let Some(own) = self.callbacks.get_mut(&client) {
            own.in_progress -= 1;
            if own.in_progress == 0 && own.waiting.is_empty() {
                self.callbacks.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn add(waiting: &mut Waiting<u64>, client: u64) {
        waiting.add(Clientid(client), client);
    }

    fn take(waiting: &mut Waiting<u64>) -> Option<u64> {
        waiting.take().map(|taken| taken.client.0)
    }

    #[test]
    fn clients_that_have_not_answered_do_not_occupy_all_threads() {
        let mut waiting = Waiting::default();
        add(&mut waiting, 100);
        assert_eq!(take(&mut waiting), Some(100));
        waiting.finish(Clientid(100), true, true);
        let slow = u64::try_from(THREADS_FOR_SLOW).unwrap();
        for client in 1..=2 * slow {
            add(&mut waiting, client);
        }
        for client in 1..=slow {
            assert_eq!(take(&mut waiting), Some(client));
        }
        assert_eq!(take(&mut waiting), None);
        add(&mut waiting, 100);
        let taken = waiting.take().unwrap();
        assert_eq!(taken, DequeuedCallback { client: Clientid(100), callback: 100, is_slow: false });
        waiting.finish(Clientid(1), true, false);
        assert_eq!(take(&mut waiting), Some(slow + 1));
        // The one that does not answer any more is as slow as others.
        waiting.finish(Clientid(100), false, false);
        add(&mut waiting, 100);
        assert_eq!(take(&mut waiting), None);
    }

    #[test]
    fn a_client_that_answers_has_several_callbacks_in_progress_within_its_slots() {
        let mut waiting = Waiting::default();
        (0..IN_PROGRESS_MAX + 3).for_each(|_| add(&mut waiting, 1));
        // It was never called.
        assert_eq!((take(&mut waiting), take(&mut waiting)), (Some(1), None));
        waiting.finish(Clientid(1), true, true);
        for _ in 0..IN_PROGRESS_MAX {
            assert_eq!(take(&mut waiting), Some(1));
        }
        assert_eq!(take(&mut waiting), None);
        // It has one slot less: the callback waits until another one has ended.
        waiting.put_back(Clientid(1), 1, false);
        assert_eq!(take(&mut waiting), None);
        for _ in 1..IN_PROGRESS_MAX {
            waiting.finish(Clientid(1), false, true);
        }
        assert_eq!(take(&mut waiting), Some(1));
        // None of the others uses a slot any more: nobody has to wake it.
        waiting.put_back(Clientid(1), 1, false);
        for _ in 0..IN_PROGRESS_MAX {
            assert_eq!(take(&mut waiting), Some(1));
        }
        for _ in 0..IN_PROGRESS_MAX {
            waiting.finish(Clientid(1), false, true);
        }
        while take(&mut waiting).is_some() {
            waiting.finish(Clientid(1), false, true);
        }
        assert!(waiting.callbacks.is_empty() && waiting.ready.is_empty());
    }
}
