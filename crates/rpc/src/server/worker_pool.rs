//! The threads that serve.
//!
//! Owns how many there are: one is started when there is work that no idle thread takes, up to a
//! limit, and ends after some idle time. Work belongs to somebody, and nobody has more than a share
//! of the threads: what is beyond waits in line until work ends, its owner's own or anybody's. An
//! owner takes one more only while it has fewer than are free: one alone has half of them, several
//! come to have equal parts, and whoever comes next finds some. Must not know what the work is.
//!
//! Invariants: a thread and a share outlive a fault in the work; work that no thread can be had for
//! is refused, never left; what waits in line waits for its owner's share alone, and no later work
//! of the same owner is done before it.
//!
//! Locks: the crew's, then a share's.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::TimeSource;

/// How long a thread waits for work before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// With more threads than this, none of them waits long for a connection that is idle.
const LINGERING_MAX: usize = 64;

/// A serving thread's stack: enough for a directory's worth of recursion that nobody does, and
/// small when there are 500.
const STACK_SIZE: usize = 1 << 20;

/// Does one piece of work; a thread's own buffers are kept in `W` between pieces.
pub(super) trait JobHandler<W>: Send + Sync {
    type Job: Send;

    /// A panic costs the thread its `own`, and nothing else.
    fn run(self: &Arc<Self>, job: Self::Job, own: &mut W);

    /// There is no thread that could do it, and none can be started.
    fn refuse(self: &Arc<Self>, job: Self::Job);
}

pub(super) struct WorkerPool<J> {
    state: Mutex<WorkerPoolState<J>>,
    job_available: Condvar,
    clock: TimeSource,
    threads_max: usize,
    quota_max: usize,
    stack_size: usize,
    /// A [`PoolPressure`]. Changed under the lock; whoever looks without it only parks a connection
    /// early or late.
    pressure: AtomicU8,
}

/// How much threads are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolPressure {
    /// More can be started.
    None = 0,
    /// There are many, or as many as there may be.
    Full = 1,
    /// And work waits for one.
    Short = 2,
}

/// One owner's part of the threads.
pub(super) struct ClientQuota<J> {
    state: Mutex<ClientQuotaState<J>>,
    /// Whether work waits for the owner's own: a copy, for whoever looks without the lock.
    short: AtomicBool,
    /// It may have no more threads than it has: none of them is to linger.
    full: AtomicBool,
}

struct ClientQuotaState<J> {
    /// Jobs that are being done, or wait for any thread.
    running: usize,
    /// Jobs that wait until the owner may have one thread more.
    waiting: VecDeque<J>,
}

impl<J> Default for ClientQuota<J> {
    fn default() -> Self {
        Self {
            state: Mutex::new(ClientQuotaState {
                running: 0,
                waiting: VecDeque::new(),
            }),
            short: AtomicBool::new(false),
            full: AtomicBool::new(false),
        }
    }
}

struct WorkerPoolState<J> {
    jobs: VecDeque<(J, Arc<ClientQuota<J>>)>,
    /// Shares with jobs that wait for them, each once; each has jobs that are being done as well.
    waiting_clients: VecDeque<Arc<ClientQuota<J>>>,
    /// Jobs of all owners that are being done, or wait for any thread.
    running: usize,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl<J: Send + 'static> WorkerPool<J> {
    /// At most `threads_max` threads, and never more than `share_max` of them for one owner.
    pub(super) fn new(threads_max: usize, share_max: usize, clock: TimeSource) -> Self {
        Self {
            state: Mutex::new(WorkerPoolState {
                jobs: VecDeque::new(),
                waiting_clients: VecDeque::new(),
                running: 0,
                idle: 0,
                threads: 0,
                stopping: false,
            }),
            job_available: Condvar::new(),
            clock,
            threads_max,
            quota_max: share_max,
            stack_size: STACK_SIZE,
            pressure: AtomicU8::new(0),
        }
    }

    /// Has `job` done by a thread that has nothing else to do, once its owner has less than its
    /// share of them. Whether that is so already.
    pub(super) fn dispatch<W, T>(self: &Arc<Self>, work: &Arc<T>, job: J, share: &Arc<ClientQuota<J>>) -> bool
    where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        let mut state = self.state.lock();
        let Some(job) = self.acquire(&mut state, share, job) else {
            return false;
        };
        state.jobs.push_back((job, Arc::clone(share)));
        if state.idle >= state.jobs.len() {
            drop(state);
            self.job_available.notify_one();
            return true;
        }
        if state.threads >= self.threads_max {
            self.note_pressure(&state);
            return true;
        }
        state.threads += 1;
        self.note_pressure(&state);
        drop(state);
        self.start_thread(work);
        true
    }

    /// Starts a thread that is counted already.
    fn start_thread<W, T>(self: &Arc<Self>, work: &Arc<T>)
    where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        let (crew, serving) = (Arc::clone(self), Arc::clone(work));
        let thread = thread::Builder::new()
            .name("curt-serve".into())
            .stack_size(self.stack_size);
        if let Err(error) = thread.spawn(move || crew.serve(&serving)) {
            tracing::warn!("cannot start a serving thread: {error}");
            for job in self.no_thread() {
                work.refuse(job);
            }
        }
    }

    /// Whether an owner who has `own` threads may have one more, while so many are `running`.
    const fn may_have_more(&self, own: usize, running: usize) -> bool {
        let free = self.threads_max.saturating_sub(running);
        own == 0 || (own < self.quota_max && own < free)
    }

    /// Takes a place for `job` among its owner's, or keeps it until there is one.
    fn acquire(&self, state: &mut WorkerPoolState<J>, share: &Arc<ClientQuota<J>>, job: J) -> Option<J> {
        let mut own = share.state.lock();
        if own.waiting.is_empty() && self.may_have_more(own.running, state.running) {
            own.running += 1;
            state.running += 1;
            self.note_fullness(&own, state, share);
            return Some(job);
        }
        if own.waiting.is_empty() {
            state.waiting_clients.push_back(Arc::clone(share));
        }
        own.waiting.push_back(job);
        share.short.store(true, Ordering::Relaxed);
        None
    }

    fn note_fullness(&self, own: &ClientQuotaState<J>, state: &WorkerPoolState<J>, share: &ClientQuota<J>) {
        let full = !self.may_have_more(own.running, state.running);
        share.full.store(full, Ordering::Relaxed);
    }

    /// Gives a place back, and has those in line begin that may have it, or could not have one more
    /// while it was taken; how many.
    fn release(&self, state: &mut WorkerPoolState<J>, share: &ClientQuota<J>) -> usize {
        let mut own = share.state.lock();
        own.running -= 1;
        state.running -= 1;
        self.note_fullness(&own, state, share);
        drop(own);
        let (mut at, mut admitted) = (0, 0);
        while let Some(share) = state.waiting_clients.get(at).map(Arc::clone) {
            let mut own = share.state.lock();
            if !self.may_have_more(own.running, state.running) {
                at += 1;
                continue;
            }
            state.waiting_clients.remove(at);
            let Some(job) = own.waiting.pop_front() else {
                continue;
            };
            own.running += 1;
            state.running += 1;
            admitted += 1;
            let waits = !own.waiting.is_empty();
            share.short.store(waits, Ordering::Relaxed);
            self.note_fullness(&own, state, &share);
            drop(own);
            if waits {
                state.waiting_clients.push_back(Arc::clone(&share));
            }
            state.jobs.push_back((job, share));
        }
        admitted
    }

    /// A thread could not be started. What is not to be done, for there is no other one that would
    /// come to it.
    fn no_thread(&self) -> Vec<J> {
        let mut refused = Vec::new();
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            while let Some((job, share)) = state.jobs.pop_front() {
                refused.push(job);
                self.release(&mut state, &share);
            }
        }
        self.note_pressure(&state);
        refused
    }

    /// How much threads are wanted, by all or by the owner of `share`.
    pub(super) fn pressure(&self, share: &ClientQuota<J>) -> PoolPressure {
        match self.pressure.load(Ordering::Relaxed) {
            _ if share.short.load(Ordering::Relaxed) => PoolPressure::Short,
            0 if !share.full.load(Ordering::Relaxed) => PoolPressure::None,
            0 | 1 => PoolPressure::Full,
            _ => PoolPressure::Short,
        }
    }

    fn note_pressure(&self, state: &WorkerPoolState<J>) {
        let full = state.threads >= self.threads_max;
        let pressure = match (full, state.jobs.len() > state.idle) {
            (true, true) => PoolPressure::Short,
            (true, false) => PoolPressure::Full,
            (false, _) if state.threads > LINGERING_MAX => PoolPressure::Full,
            (false, _) => PoolPressure::None,
        };
        self.pressure.store(pressure as u8, Ordering::Relaxed);
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Lets idle threads end.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.job_available.notify_all();
    }

    fn serve<W, T>(self: &Arc<Self>, work: &Arc<T>)
    where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        let mut own = W::default();
        let mut done = None;
        while let Some((job, share)) = self.next(done.take(), work) {
            if catch_unwind(AssertUnwindSafe(|| work.run(job, &mut own))).is_err() {
                own = W::default();
            }
            done = Some(share);
        }
    }

    /// Sees to it that somebody does `count` jobs that have begun besides the one for which there
    /// is a thread.
    fn find_threads<W, T>(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, WorkerPoolState<J>>,
        count: usize,
        work: &Arc<T>,
    ) where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        for _ in 0..count {
            // This thread takes one of the jobs.
            let enough = state.idle + 1 >= state.jobs.len();
            if enough || state.threads >= self.threads_max {
                self.job_available.notify_one();
            } else {
                state.threads += 1;
                MutexGuard::unlocked(state, || self.start_thread(work));
            }
        }
    }

    /// The next job, or `None` when this thread is to end. It has just done a job of the owner of
    /// `done`.
    fn next<W, T>(
        self: &Arc<Self>,
        done: Option<Arc<ClientQuota<J>>>,
        work: &Arc<T>,
    ) -> Option<(J, Arc<ClientQuota<J>>)>
    where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        let mut state = self.state.lock();
        if let Some(share) = done {
            // This thread does one of those that begin.
            let others = self.release(&mut state, &share).saturating_sub(1);
            self.find_threads(&mut state, others, work);
        }
        let end = self.clock.now() + IDLE_MAX;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.note_pressure(&state);
                return Some(job);
            }
            state.idle += 1;
            let longest = self.clock.until(end);
            let timed_out = !state.stopping && self.job_available.wait_for(&mut state, longest).timed_out();
            state.idle -= 1;
            if state.jobs.is_empty() && (timed_out || state.stopping) {
                state.threads -= 1;
                self.note_pressure(&state);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
