//! The threads of a session: how many read the device, and what stage each is in.
//!
//! A thread reads (or is about to), handles a request, or is idle. Invariants: when the last reader
//! reads a request, an idle thread is woken or a new one is requested before the request is
//! handled; at most `keep` threads read at a time; a thread that stays idle for `idle` ends.
//!
//! Each thread has a [`WorkerStage`], which shows whether all requests that the kernel has sent so
//! far have reached the file system. A request is under way from the system call until the file
//! system has counted it ([`crate::FuseContext::mark_received`]). There is no counter of the
//! requests in the kernel's queue or just read from it, so [`RequestBarrier`] checks both: the
//! queue is empty if the descriptor is not readable, and no request has just been read if each
//! thread that reads sleeps in read(2).

use std::{
    fmt, fs,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::gettid,
};

/// Counts the threads of a session.
#[derive(Debug)]
pub(crate) struct FuseWorkerPool {
    /// Threads in read(2) or about to be. Changed without the mutex; it is a counter, and orders no
    /// other memory.
    readers: AtomicUsize,
    keep: usize,
    threads_max: usize,
    idle: Duration,
    state: Mutex<FuseWorkerPoolState>,
    all_ended: Condvar,
}

#[derive(Debug, Default)]
struct FuseWorkerPoolState {
    idle: Vec<Arc<IdleWorker>>,
    threads: usize,
    ended: bool,
    is_limit_logged: bool,
}

/// The parking place of an idle thread.
#[derive(Debug, Default)]
struct IdleWorker {
    is_woken: Mutex<bool>,
    wakeup: Condvar,
}

/// What the reader of a request has to do before it handles the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ReaderHandover {
    /// Another thread reads.
    HasReader,
    /// Start a thread, which is already counted.
    Spawn,
    /// No thread reads until a request is complete.
    LimitReached {
        /// Whether this happens for the first time.
        tell: bool,
    },
}

/// The next step of a thread that has completed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum FuseWorkerStep {
    Read,
    End,
}

impl FuseWorkerPool {
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

    /// Counts the threads that a session starts with, and returns their number.
    pub(crate) fn start(&self) -> usize {
        self.readers.store(self.keep, Ordering::SeqCst);
        self.state.lock().threads = self.keep;
        self.keep
    }

    /// The calling thread has read a request.
    pub(crate) fn request_read(&self) -> ReaderHandover {
        if self.readers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return ReaderHandover::HasReader;
        }
        let mut state = self.state.lock();
        if state.ended {
            return ReaderHandover::HasReader;
        }
        if let Some(place) = state.idle.pop() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            drop(state);
            *place.is_woken.lock() = true;
            place.wakeup.notify_one();
            ReaderHandover::HasReader
        } else if state.threads < self.threads_max {
            state.threads += 1;
            self.readers.fetch_add(1, Ordering::SeqCst);
            ReaderHandover::Spawn
        } else {
            let tell = !state.is_limit_logged;
            state.is_limit_logged = true;
            ReaderHandover::LimitReached { tell }
        }
    }

    /// A requested thread could not be started.
    pub(crate) fn spawn_failed(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.thread_ended();
    }

    /// The calling thread has completed its request: parks it if enough others read.
    pub(crate) fn request_answered(&self) -> FuseWorkerStep {
        if self.try_read() {
            return FuseWorkerStep::Read;
        }
        let place = Arc::new(IdleWorker::default());
        {
            let mut state = self.state.lock();
            if state.ended {
                return FuseWorkerStep::End;
            }
            // Checked again under the mutex: a reader that found no idle thread has decremented the
            // counter before.
            if self.try_read() {
                return FuseWorkerStep::Read;
            }
            state.idle.push(place.clone());
        }
        let end = Instant::now() + self.idle;
        let mut go = place.is_woken.lock();
        while !*go {
            if place.wakeup.wait_until(&mut go, end).timed_out() {
                break;
            }
        }
        if *go {
            return FuseWorkerStep::Read;
        }
        drop(go);
        let mut state = self.state.lock();
        let idle_thread = state.idle.iter().position(|other| Arc::ptr_eq(other, &place));
        match idle_thread {
            Some(index) => {
                state.idle.remove(index);
                FuseWorkerStep::End
            }
            // Just woken, and counted as a reader by the waking thread, unless the mount has ended
            // (then reading fails).
            None => FuseWorkerStep::Read,
        }
    }

    fn try_read(&self) -> bool {
        self.readers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |readers| {
                (readers < self.keep).then_some(readers + 1)
            })
            .is_ok()
    }

    /// The mount has ended: wakes idle threads.
    pub(crate) fn end(&self) {
        let idle_thread = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.idle)
        };
        for place in idle_thread {
            *place.is_woken.lock() = true;
            place.wakeup.notify_one();
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

    /// Waits until all threads have ended, or until the deadline; returns whether all have.
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

/// Interval and number of the checks for threads with a request: without access to /proc no thread
/// would ever count as sleeping.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
const POLLS_MAX: u32 = 5000;

/// In read(2), or just before or after it.
const READING: u8 = 0;
/// It has a request that the file system has not counted.
const RECEIVED: u8 = 1;
/// It has no request, or the file system has counted it.
const IDLE: u8 = 2;

/// The stage of one thread.
#[derive(Debug)]
pub(crate) struct WorkerStage {
    thread: u32,
    stage: AtomicU8,
}

impl WorkerStage {
    pub(crate) fn set_reading(&self) {
        self.set_stage(READING);
    }

    pub(crate) fn set_received(&self) {
        self.set_stage(RECEIVED);
    }

    pub(crate) fn set_idle(&self) {
        self.set_stage(IDLE);
    }

    fn set_stage(&self, stage: u8) {
        // Release: a thread that sees this stage (Acquire in `is_reading`) sees the effects of the
        // stages before.
        self.stage.store(stage, Ordering::Release);
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// Whether this thread has no request under way.
    fn has_no_request_on_its_way(&self) -> bool {
        match self.stage() {
            IDLE => true,
            // Checked again: a thread that has read a request may sleep elsewhere, but sets its
            // stage before.
            READING => is_sleeping(self.thread) && self.stage() != RECEIVED,
            _ => false,
        }
    }
}

fn is_sleeping(thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain any character. The state follows it (proc(5)).
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// All threads of a session.
#[derive(Debug, Default)]
pub(crate) struct WorkerStages(Mutex<Vec<Arc<WorkerStage>>>);

impl WorkerStages {
    /// Registers the calling thread.
    pub(crate) fn join(&self) -> Arc<WorkerStage> {
        let stage = Arc::new(WorkerStage {
            thread: gettid().as_raw_nonzero().get().unsigned_abs(),
            stage: AtomicU8::new(READING),
        });
        self.0.lock().push(Arc::clone(&stage));
        stage
    }

    /// Waits until no request is under way that was read before this call by threads other than
    /// `own`, until `is_over`, or for about a second.
    pub(crate) fn wait_for_earlier(&self, own: &WorkerStage, is_over: impl Fn() -> bool) {
        let others: Vec<_> = {
            let stages = self.0.lock();
            stages.iter().filter(|stage| !std::ptr::eq(&***stage, own)).cloned().collect()
        };
        let mut looks = 0;
        for stage in others {
            while !stage.has_no_request_on_its_way() && looks < POLLS_MAX && !is_over() {
                looks += 1;
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    pub(crate) fn leave(&self, stage: &Arc<WorkerStage>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, stage));
    }
}

/// Reports whether the file system has received all requests.
#[derive(Clone)]
pub struct RequestBarrier {
    device: Arc<OwnedFd>,
    stages: Arc<WorkerStages>,
}

impl fmt::Debug for RequestBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBarrier").finish_non_exhaustive()
    }
}

impl RequestBarrier {
    pub(crate) const fn new(device: Arc<OwnedFd>, stages: Arc<WorkerStages>) -> Self {
        Self { device, stages }
    }

    /// Whether all requests that the kernel had sent when this was called have arrived. (The kernel
    /// delays some requests without a waiting process until others of that kind are answered: these
    /// arrive later.) If false, the caller should call again.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        !self.has_queued_requests()
            && self.stages.0.lock().iter().all(|stage| stage.has_no_request_on_its_way())
    }

    fn has_queued_requests(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After the mount has ended poll(2) reports an error: there are no more requests.
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(keep: usize, threads_max: usize) -> FuseWorkerPool {
        let pool = FuseWorkerPool::new(keep, threads_max, Duration::from_secs(60));
        assert_eq!(pool.start(), keep);
        pool
    }

    #[test]
    fn the_last_reader_finds_a_successor_before_it_answers() {
        let pool = pool(2, 4);
        assert_eq!(pool.request_read(), ReaderHandover::HasReader);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        assert_eq!(pool.request_read(), ReaderHandover::LimitReached { tell: true });
        assert_eq!(pool.request_answered(), FuseWorkerStep::Read);
        assert_eq!(pool.request_read(), ReaderHandover::LimitReached { tell: false });
    }

    #[test]
    fn enough_readers_let_the_next_sleep_and_the_last_to_leave_wakes_it() {
        let pool = pool(1, 8);
        assert_eq!(pool.request_read(), ReaderHandover::Spawn);
        thread::scope(|scope| {
            let idle_thread = scope.spawn(|| pool.request_answered());
            while pool.state.lock().idle.is_empty() {
                thread::yield_now();
            }
            assert_eq!(pool.request_read(), ReaderHandover::HasReader);
            assert_eq!(idle_thread.join().expect("it does not panic"), FuseWorkerStep::Read);
        });
        assert_eq!(pool.readers.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_thread_nobody_needs_ends() {
        let pool = FuseWorkerPool::new(1, 8, Duration::ZERO);
        assert_eq!(pool.start(), 1);
        assert_eq!(pool.request_answered(), FuseWorkerStep::End);
        assert!(pool.state.lock().idle.is_empty());
    }

    #[test]
    fn the_end_wakes_everybody() {
        let pool = pool(1, 8);
        thread::scope(|scope| {
            let idle_thread = scope.spawn(|| pool.request_answered());
            while pool.state.lock().idle.is_empty() {
                thread::yield_now();
            }
            pool.end();
            assert_eq!(
                idle_thread.join().expect("it does not panic"),
                FuseWorkerStep::Read,
                "reading tells it of the end"
            );
        });
        assert_eq!(pool.request_answered(), FuseWorkerStep::End);
        assert!(!pool.wait_all_ended(Instant::now()));
        pool.thread_ended();
        assert!(pool.wait_all_ended(Instant::now()));
    }
}
