//! The serving threads.
//!
//! A thread is started when there is a job and no idle thread, up to a limit, and ends after some
//! idle time. Each job belongs to a client, and a client has a quota of the threads: further jobs
//! wait until a job ends, of this client or another. A client gets another thread only while it has
//! fewer threads than are free: one client alone gets half of them, several get equal parts, and a
//! new client finds some. It does not depend on what the jobs are.
//!
//! Invariants: a thread and a quota survive a panic in a job; a job for which no thread can be
//! started is refused, not dropped; a waiting job waits only for its client's quota, and jobs of
//! one client start in order.
//!
//! Lock order: the pool's, then a quota's.

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

/// Idle time after which a thread ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// With more threads than this, none of them waits long for an idle connection.
const LINGERING_MAX: usize = 64;

/// A serving thread's stack: large enough for the deepest calls, and small for 500 threads.
const STACK_SIZE: usize = 1 << 20;

/// Executes a job; a thread keeps its buffers in `W` between jobs.
pub(super) trait JobHandler<W>: Send + Sync {
    type Job: Send;

    /// A panic drops the thread's `own`, and nothing else.
    fn run(self: &Arc<Self>, job: Self::Job, own: &mut W);

    /// No thread is available, and none can be started.
    fn refuse(self: &Arc<Self>, job: Self::Job);
}

pub(super) struct WorkerPool<J> {
    state: Mutex<WorkerPoolState<J>>,
    job_available: Condvar,
    clock: TimeSource,
    threads_max: usize,
    quota_max: usize,
    stack_size: usize,
    /// A [`PoolPressure`]. Changed under the lock; a reader without the lock may make a connection
    /// idle too early or too late.
    pressure: AtomicU8,
}

/// How scarce threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolPressure {
    /// More can be started.
    None = 0,
    /// There are many, or the maximum.
    Full = 1,
    /// The maximum, and jobs wait.
    Short = 2,
}

/// One client's quota of threads.
pub(super) struct ClientQuota<J> {
    state: Mutex<ClientQuotaState<J>>,
    /// Whether jobs wait for the client's threads: a copy, readable without the lock.
    short: AtomicBool,
    /// Whether the client has its maximum of threads: none of them should wait long.
    full: AtomicBool,
}

struct ClientQuotaState<J> {
    /// Jobs in progress, or waiting for any thread.
    running: usize,
    /// Jobs that wait for the client's quota.
    waiting: VecDeque<J>,
}

impl<J> Default for ClientQuota<J> {
    fn default() -> Self {
        Self {
            state: Mutex::new(ClientQuotaState { running: 0, waiting: VecDeque::new() }),
            short: AtomicBool::new(false),
            full: AtomicBool::new(false),
        }
    }
}

struct WorkerPoolState<J> {
    jobs: VecDeque<(J, Arc<ClientQuota<J>>)>,
    /// Quotas with waiting jobs, each once; each has jobs in progress as well.
    waiting_clients: VecDeque<Arc<ClientQuota<J>>>,
    /// Jobs of all clients in progress, or waiting for any thread.
    running: usize,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl<J: Send + 'static> WorkerPool<J> {
    /// At most `threads_max` threads, and at most `share_max` of them for one client.
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

    /// Has an idle thread execute `job`, once its client is below its quota. Returns whether this
    /// is now.
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

    /// Starts a thread that is already counted.
    fn start_thread<W, T>(self: &Arc<Self>, work: &Arc<T>)
    where
        W: Default,
        T: JobHandler<W, Job = J> + 'static,
    {
        let (pool, serving) = (Arc::clone(self), Arc::clone(work));
        let thread = thread::Builder::new().name("curt-serve".into()).stack_size(self.stack_size);
        if let Err(error) = thread.spawn(move || pool.serve(&serving)) {
            tracing::warn!("cannot start a serving thread: {error}");
            for job in self.no_thread() {
                work.refuse(job);
            }
        }
    }

    /// Whether a client with `own` threads may have one more, while `running` are in use.
    const fn may_have_more(&self, own: usize, running: usize) -> bool {
        let free = self.threads_max.saturating_sub(running);
        own == 0 || (own < self.quota_max && own < free)
    }

    /// Reserves a thread for `job`, or queues the job until one is available.
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

    /// Releases a thread, and starts waiting jobs that may now run; returns their number.
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

    /// A thread could not be started. Returns the jobs to be refused, because no other thread will
    /// execute them.
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

    /// How scarce threads are, for all clients or for the client of `share`.
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

    /// Number of threads.
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

    /// Makes sure that threads execute the `count` jobs that were started, in addition to the one
    /// for which there is a thread.
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
            // This thread executes one of the jobs.
            let enough = state.idle + 1 >= state.jobs.len();
            if enough || state.threads >= self.threads_max {
                self.job_available.notify_one();
            } else {
                state.threads += 1;
                MutexGuard::unlocked(state, || self.start_thread(work));
            }
        }
    }

    /// The next job, or `None` if this thread is to end. It has just completed a job of the client
    /// of `done`.
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
            // This thread executes one of the started jobs.
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
