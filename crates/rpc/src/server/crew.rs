//! The threads that serve.
//!
//! Owns how many there are: one is started when there is work that no idle thread takes, up to a limit, and ends after some
//! idle time. Must not know what the work is.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for work before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A serving thread's stack: enough for a directory's worth of recursion that nobody does, and small when there are 500.
const STACK_SIZE: usize = 1 << 20;

/// Does one piece of work; a thread's own buffers are kept in `W` between pieces.
pub(super) trait Work<W>: Send + Sync {
    type Job: Send;

    fn run(self: &Arc<Self>, job: Self::Job, own: &mut W);
}

pub(super) struct Crew<J> {
    state: Mutex<State<J>>,
    bell: Condvar,
    threads_max: usize,
    /// A [`Pressure`]. Changed under the lock; whoever looks without it only parks a connection early or late.
    pressure: AtomicU8,
}

/// How much threads are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// More can be started.
    None = 0,
    /// There are as many as there may be.
    Full = 1,
    /// And work waits for one.
    Short = 2,
}

struct State<J> {
    jobs: VecDeque<J>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl<J: Send + 'static> Crew<J> {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                idle: 0,
                threads: 0,
                stopping: false,
            }),
            bell: Condvar::new(),
            threads_max,
            pressure: AtomicU8::new(0),
        }
    }

    /// Has `job` done by a thread that has nothing else to do.
    pub(super) fn dispatch<W, T>(self: &Arc<Self>, work: &Arc<T>, job: J)
    where
        W: Default,
        T: Work<W, Job = J> + 'static,
    {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            drop(state);
            self.bell.notify_one();
            return;
        }
        if state.threads >= self.threads_max {
            self.note_pressure(&state);
            return;
        }
        state.threads += 1;
        drop(state);
        let (crew, work) = (Arc::clone(self), Arc::clone(work));
        let thread = thread::Builder::new()
            .name("curt-serve".into())
            .stack_size(STACK_SIZE);
        if let Err(error) = thread.spawn(move || crew.serve(&work)) {
            self.state.lock().threads -= 1;
            tracing::warn!("no thread to serve with: {error}");
        }
    }

    /// How much threads are wanted.
    pub(super) fn pressure(&self) -> Pressure {
        match self.pressure.load(Ordering::Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Full,
            _ => Pressure::Short,
        }
    }

    fn note_pressure(&self, state: &State<J>) {
        let pressure = match (state.threads >= self.threads_max, state.jobs.len() > state.idle) {
            (true, true) => Pressure::Short,
            (true, false) => Pressure::Full,
            (false, _) => Pressure::None,
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
        self.bell.notify_all();
    }

    fn serve<W, T>(&self, work: &Arc<T>)
    where
        W: Default,
        T: Work<W, Job = J>,
    {
        let mut own = W::default();
        while let Some(job) = self.next() {
            work.run(job, &mut own);
        }
    }

    /// The next job, or `None` when this thread is to end.
    fn next(&self) -> Option<J> {
        let mut state = self.state.lock();
        let end = Instant::now() + IDLE_MAX;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.note_pressure(&state);
                return Some(job);
            }
            state.idle += 1;
            let timed_out = !state.stopping && self.bell.wait_until(&mut state, end).timed_out();
            state.idle -= 1;
            if state.jobs.is_empty() && (timed_out || state.stopping) {
                state.threads -= 1;
                self.note_pressure(&state);
                return None;
            }
        }
    }
}
