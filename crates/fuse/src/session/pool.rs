//! How many threads read the device, and where the others are.
//!
//! Owns the counting. A thread is reading (or about to), answering, or parked. Invariants: when the last reader takes a
//! request, a parked thread is woken or a new one asked for before the request is answered; more than `keep` threads never
//! read at a time; a thread that stayed parked for `idle` ends. Knows nothing of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Counts the threads of a session.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Threads in read(2) or on their way to it. Changed without the mutex; it is a count, and orders no other memory.
    readers: AtomicUsize,
    keep: usize,
    threads_max: usize,
    idle: Duration,
    state: Mutex<State>,
    all_ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    parked: Vec<Arc<Place>>,
    threads: usize,
    ended: bool,
    told_of_limit: bool,
}

/// Where one thread is parked.
#[derive(Debug, Default)]
struct Place {
    go: Mutex<bool>,
    bell: Condvar,
}

/// What the taker of a request has to do before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Succession {
    /// Others read.
    Assured,
    /// Start a thread; it is counted already.
    Spawn,
    /// Nobody reads until a thread is done with its request.
    LimitReached {
        /// It is the first time.
        tell: bool,
    },
}

/// What a thread that has answered does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Next {
    Read,
    End,
}

impl Pool {
    pub(crate) fn new(keep: usize, threads_max: usize, idle: Duration) -> Self {
        Self {
            readers: AtomicUsize::new(0),
            keep: keep.clamp(1, threads_max.max(1)),
            threads_max,
            idle,
            state: Mutex::default(),
            all_ended: Condvar::new(),
        }
    }

    /// Counts the threads that a session starts with, and says how many.
    pub(crate) fn start(&self) -> usize {
        self.readers.store(self.keep, Ordering::SeqCst);
        self.state.lock().threads = self.keep;
        self.keep
    }

    /// The calling reader took a request.
    pub(crate) fn took(&self) -> Succession {
        if self.readers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return Succession::Assured;
        }
        let mut state = self.state.lock();
        if state.ended {
            return Succession::Assured;
        }
        if let Some(place) = state.parked.pop() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            drop(state);
            *place.go.lock() = true;
            place.bell.notify_one();
            Succession::Assured
        } else if state.threads < self.threads_max {
            state.threads += 1;
            self.readers.fetch_add(1, Ordering::SeqCst);
            Succession::Spawn
        } else {
            let tell = !state.told_of_limit;
            state.told_of_limit = true;
            Succession::LimitReached { tell }
        }
    }

    /// The thread that was asked for could not be started.
    pub(crate) fn spawn_failed(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.thread_ended();
    }

    /// The calling thread has answered: parks it if enough others read.
    pub(crate) fn answered(&self) -> Next {
        if self.try_read() {
            return Next::Read;
        }
        let place = Arc::new(Place::default());
        {
            let mut state = self.state.lock();
            if state.ended {
                return Next::End;
            }
            // Looked at again under the mutex: a taker that found nobody parked has counted itself out before.
            if self.try_read() {
                return Next::Read;
            }
            state.parked.push(place.clone());
        }
        let end = Instant::now() + self.idle;
        let mut go = place.go.lock();
        while !*go {
            if place.bell.wait_until(&mut go, end).timed_out() {
                break;
            }
        }
        if *go {
            return Next::Read;
        }
        drop(go);
        let mut state = self.state.lock();
        let parked = state.parked.iter().position(|other| Arc::ptr_eq(other, &place));
        match parked {
            Some(index) => {
                state.parked.remove(index);
                Next::End
            }
            // Woken just now, and counted as a reader by who woke it, unless all is over (then reading says so).
            None => Next::Read,
        }
    }

    fn try_read(&self) -> bool {
        self.readers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |readers| {
                (readers < self.keep).then_some(readers + 1)
            })
            .is_ok()
    }

    /// The mount has ended: parked threads wake up to see it.
    pub(crate) fn end(&self) {
        let parked = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.parked)
        };
        for place in parked {
            *place.go.lock() = true;
            place.bell.notify_one();
        }
    }

    pub(crate) fn thread_ended(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.all_ended.notify_all();
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Waits until every thread has ended, or the deadline; says which.
    pub(crate) fn wait_all_ended(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.threads > 0 {
            if self.all_ended.wait_until(&mut state, deadline).timed_out() {
                return state.threads == 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pool(keep: usize, threads_max: usize) -> Pool {
        let pool = Pool::new(keep, threads_max, Duration::from_secs(60));
        assert_eq!(pool.start(), keep);
        pool
    }

    #[test]
    fn the_last_reader_finds_a_successor_before_it_answers() {
        let pool = pool(2, 4);
        assert_eq!(pool.took(), Succession::Assured);
        assert_eq!(pool.took(), Succession::Spawn);
        assert_eq!(pool.took(), Succession::Spawn);
        assert_eq!(pool.took(), Succession::LimitReached { tell: true });
        assert_eq!(pool.answered(), Next::Read);
        assert_eq!(pool.took(), Succession::LimitReached { tell: false });
    }

    #[test]
    fn enough_readers_park_the_next_and_the_last_taker_wakes_it() {
        let pool = pool(1, 8);
        assert_eq!(pool.took(), Succession::Spawn);
        thread::scope(|scope| {
            let parked = scope.spawn(|| pool.answered());
            while pool.state.lock().parked.is_empty() {
                thread::yield_now();
            }
            assert_eq!(pool.took(), Succession::Assured);
            assert_eq!(parked.join().expect("it does not panic"), Next::Read);
        });
        assert_eq!(pool.readers.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_thread_nobody_needs_ends() {
        let pool = Pool::new(1, 8, Duration::ZERO);
        assert_eq!(pool.start(), 1);
        assert_eq!(pool.answered(), Next::End);
        assert!(pool.state.lock().parked.is_empty());
    }

    #[test]
    fn the_end_wakes_everybody() {
        let pool = pool(1, 8);
        thread::scope(|scope| {
            let parked = scope.spawn(|| pool.answered());
            while pool.state.lock().parked.is_empty() {
                thread::yield_now();
            }
            pool.end();
            assert_eq!(
                parked.join().expect("it does not panic"),
                Next::Read,
                "reading tells it of the end"
            );
        });
        assert_eq!(pool.answered(), Next::End);
        assert!(!pool.wait_all_ended(Instant::now()));
        pool.thread_ended();
        assert!(pool.wait_all_ended(Instant::now()));
    }
}
