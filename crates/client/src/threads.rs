//! The clock and the threads for background work.
//!
//! The traits [`Clock`] and [`Background`] let tests script time and scheduling: nothing else in
//! this crate reads a clock, sleeps or starts a thread. [`BackgroundThreads`] owns the only threads
//! that this crate starts. A thread is started when a task is queued and none
//! is idle, up to a bound, and ends after some time without work. One more thread holds delayed
//! tasks while there are any.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    sync::{Arc, LazyLock, Weak},
    thread,
    time::{Duration, Instant, SystemTime},
};

use curt_observe::scope;
use curt_rpc::client::Interrupt;
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

/// A clock that can also sleep.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current time; it is monotonic, and advances while the machine is suspended. It is not
    /// comparable with [`Instant::now`], which does not.
    fn now(&self) -> Instant;

    /// How much of the time until now the machine was suspended.
    fn suspended(&self) -> SuspendedTime {
        SuspendedTime::default()
    }

    /// The current time of the wall clock, which may be set back.
    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Sleeps for `duration`, or less if `interrupt` is raised first. A scripted clock advances by
    /// `duration` and returns at once.
    fn pause(&self, duration: Duration, interrupt: &Interrupt);
}

/// Bounds of a time in suspend: clocks cannot be read at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendedTime {
    /// The lower bound.
    pub at_least: Duration,
    /// The upper bound.
    pub at_most: Duration,
}

/// A task for [`Background`].
pub type BackgroundTask = Box<dyn FnOnce() + Send + 'static>;

/// Runs asynchronous work: read-ahead, write-behind, cleanup.
///
/// Every task ends by itself; a task may call [`Background::spawn`] again. A thread that needs a
/// task's result waits on shared state, never on the task, so an implementation may run the task
/// inside `spawn`.
pub trait Background: Send + Sync + fmt::Debug {
    /// Runs `task` soon: on another thread, or (in a test) before this returns.
    fn spawn(&self, task: BackgroundTask);

    /// Runs `task` once `delay` has passed. An implementation with a scripted clock may delay it
    /// until the script releases it.
    fn spawn_after(&self, delay: Duration, task: BackgroundTask);

    /// Other threads, at most `threads_max`, for work that must not wait for the tasks of these.
    /// `None`: its tasks never wait.
    fn separate(&self, _threads_max: usize) -> Option<Arc<dyn Background>> {
        None
    }
}

/// Threads of its own, at most `threads_max`, for work that must not wait for the other tasks of
/// `background`.
pub(crate) fn separate(background: &Arc<dyn Background>, threads_max: usize) -> Arc<dyn Background> {
    background.separate(threads_max).unwrap_or_else(|| Arc::clone(background))
}

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// How long an idle thread waits before it tries again to start the one for delayed tasks.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// The system's monotonic clock that advances while the machine is suspended (`CLOCK_BOOTTIME`): a
/// server does not wait for a client that sleeps. Leases end, and others change files.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

/// A time by both clocks: an [`Instant`] cannot be made of a reading of `CLOCK_BOOTTIME`. The one
/// that stands still in suspend is read last, so that no time in suspend seems negative.
struct ClockOrigin {
    since_boot: Duration,
    instant: Instant,
}

static ORIGIN: LazyLock<ClockOrigin> =
    LazyLock::new(|| ClockOrigin { since_boot: since_boot(), instant: Instant::now() });

/// The time since boot, with that in suspend.
fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        let origin = &*ORIGIN;
        origin.instant + since_boot().saturating_sub(origin.since_boot)
    }

    fn suspended(&self) -> SuspendedTime {
        let (before, awake, after) = (self.now(), Instant::now(), self.now());
        SuspendedTime {
            at_least: before.saturating_duration_since(awake),
            at_most: after.saturating_duration_since(awake),
        }
    }

    fn pause(&self, duration: Duration, interrupt: &Interrupt) {
        let _ = interrupt.wait_for(duration);
    }
}

fn start_thread(name: &str, work: BackgroundTask) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// A bounded number of threads that run tasks in order. Tasks still queued when this is dropped are
/// run.
pub struct BackgroundThreads {
    shared: Arc<BackgroundShared>,
}

struct BackgroundShared {
    work: Mutex<BackgroundQueue>,
    has_task: Condvar,
    has_timer: Condvar,
    threads_max: usize,
    /// Starts a thread with this name; a test can refuse one.
    start: fn(&str, BackgroundTask) -> io::Result<()>,
}

#[derive(Default)]
struct BackgroundQueue {
    tasks: VecDeque<BackgroundTask>,
    threads: usize,
    idle: usize,
    timers: BTreeMap<(Instant, u64), BackgroundTask>,
    timers_set: u64,
    timer_runs: bool,
    closed: bool,
}

impl BackgroundQueue {
    /// There are delayed tasks, and no thread for them.
    fn has_stopped_timers(&self) -> bool {
        !self.timer_runs && !self.timers.is_empty()
    }
}

impl BackgroundThreads {
    /// At most `threads_max` (at least 1) threads at a time.
    #[must_use]
    pub fn new(threads_max: usize) -> Self {
        let shared = BackgroundShared {
            work: Mutex::default(),
            has_task: Condvar::new(),
            has_timer: Condvar::new(),
            threads_max: threads_max.max(1),
            start: start_thread,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Background for BackgroundThreads {
    fn spawn(&self, task: BackgroundTask) {
        BackgroundShared::spawn(&self.shared, scope::in_current_scope(task));
    }

    fn spawn_after(&self, delay: Duration, task: BackgroundTask) {
        let task = scope::in_current_scope_delayed(task);
        let mut work = self.shared.work.lock();
        work.timers_set += 1;
        let due = (Instant::now() + delay, work.timers_set);
        work.timers.insert(due, task);
        self.shared.start_timer(&mut work);
        drop(work);
        self.shared.has_timer.notify_one();
    }

    fn separate(&self, threads_max: usize) -> Option<Arc<dyn Background>> {
        Some(Arc::new(Self::new(threads_max)))
    }
}

impl BackgroundShared {
    fn spawn(self: &Arc<Self>, task: BackgroundTask) {
        let mut work = self.work.lock();
        self.start_timer(&mut work);
        work.tasks.push_back(task);
        // Each queued task takes one idle thread.
        if work.tasks.len() > work.idle && work.threads < self.threads_max {
            work.threads += 1;
            let shared = Arc::clone(self);
            if let Err(error) = (self.start)("curt-behind", Box::new(move || run(&shared))) {
                work.threads -= 1;
                let rescue = if work.threads == 0 { work.tasks.pop_back() } else { None };
                drop(work);
                tracing::warn!(%error, "cannot start a thread for background work: done in the foreground");
                if let Some(task) = rescue {
                    task();
                }
                return;
            }
        }
        drop(work);
        self.has_task.notify_one();
    }

    /// Starts the thread for delayed tasks if there are any and it does not run. If it cannot be
    /// started, that is tried again before each other task, and by idle threads.
    fn start_timer(self: &Arc<Self>, work: &mut BackgroundQueue) {
        if !work.has_stopped_timers() {
            return;
        }
        let shared = Arc::downgrade(self);
        match (self.start)("curt-timer", Box::new(move || keep_time(&shared))) {
            Ok(()) => work.timer_runs = true,
            Err(error) => tracing::warn!(%error, "cannot start a thread for delayed work: trying again"),
        }
    }
}

fn run(shared: &Arc<BackgroundShared>) {
    let mut work = shared.work.lock();
    loop {
        if let Some(task) = work.tasks.pop_front() {
            drop(work);
            task();
            work = shared.work.lock();
            continue;
        }
        shared.start_timer(&mut work);
        let wait = if work.has_stopped_timers() { START_INTERVAL } else { IDLE };
        work.idle += 1;
        let timed_out = !work.closed && shared.has_task.wait_for(&mut work, wait).timed_out();
        work.idle -= 1;
        // Otherwise nothing might start the thread for delayed tasks.
        let is_needed = work.has_stopped_timers() && !work.closed;
        if work.tasks.is_empty() && (timed_out || work.closed) && !is_needed {
            work.threads -= 1;
            return;
        }
    }
}

/// Queues delayed tasks when they are due; ends when there are none.
fn keep_time(shared: &Weak<BackgroundShared>) {
    while let Some(shared) = shared.upgrade() {
        let mut work = shared.work.lock();
        let Some((&(due, number), _)) = work.timers.first_key_value() else {
            work.timer_runs = false;
            return;
        };
        if work.closed {
            work.timer_runs = false;
            return;
        }
        if due <= Instant::now() {
            let task = work.timers.remove(&(due, number));
            drop(work);
            if let Some(task) = task {
                BackgroundShared::spawn(&shared, task);
            }
        } else {
            let _ = shared.has_timer.wait_until(&mut work, due);
        }
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        let mut work = self.shared.work.lock();
        work.closed = true;
        work.timers.clear();
        drop(work);
        self.shared.has_task.notify_all();
        self.shared.has_timer.notify_all();
    }
}

impl fmt::Debug for BackgroundThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.shared.work.lock();
        f.debug_struct("BackgroundThreads")
            .field("threads", &work.threads)
            .field("waiting", &work.tasks.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    };

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn tasks_run_side_by_side_up_to_the_bound() {
        let threads = BackgroundThreads::new(3);
        let (met, meeting) = mpsc::channel();
        let barrier = Arc::new(std::sync::Barrier::new(3));
        for _ in 0..3 {
            let (met, barrier) = (met.clone(), Arc::clone(&barrier));
            threads.spawn(Box::new(move || {
                barrier.wait();
                met.send(()).expect("the test waits");
            }));
        }
        for _ in 0..3 {
            meeting.recv_timeout(SOON).expect("three tasks meet");
        }
        assert!(threads.shared.work.lock().threads <= 3);
    }

    #[test]
    fn more_tasks_than_threads_are_all_run() {
        let threads = BackgroundThreads::new(1);
        let (done, all) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            threads.spawn(Box::new(move || done.send(number).expect("the test waits")));
        }
        for number in 0..100 {
            assert_eq!(all.recv_timeout(SOON), Ok(number));
        }
    }

    #[test]
    fn delayed_tasks_run_in_the_order_of_their_times() {
        let threads = BackgroundThreads::new(1);
        loop {
            let (done, all) = mpsc::channel();
            let began = Instant::now();
            for delay in [30, 10, 20] {
                let done = done.clone();
                let task = move || done.send(delay).expect("the test waits");
                threads.spawn_after(Duration::from_millis(delay), Box::new(task));
            }
            let took = began.elapsed();
            let order: Vec<u64> = (0..3).map(|_| all.recv_timeout(SOON).expect("all run")).collect();
            // Otherwise the times are in another order than the delays.
            if took < Duration::from_millis(10) {
                assert_eq!(order, [10, 20, 30]);
                return;
            }
        }
    }

    #[test]
    fn delayed_tasks_run_although_their_thread_could_not_be_started_at_first() {
        static REFUSED: AtomicU32 = AtomicU32::new(0);
        let mut threads = BackgroundThreads::new(1);
        Arc::get_mut(&mut threads.shared).expect("no thread runs").start = |name, work| {
            let is_refused = name == "curt-timer" && REFUSED.fetch_add(1, Relaxed) < 2;
            if is_refused { Err(io::ErrorKind::WouldBlock.into()) } else { start_thread(name, work) }
        };
        let (done, all) = mpsc::channel();
        let threads = Arc::new(threads);
        let again = Arc::clone(&threads);
        // As the renewal of a lease: nothing else begins a task.
        threads.spawn(Box::new(move || {
            again.spawn_after(Duration::ZERO, Box::new(move || done.send(()).expect("the test waits")));
        }));
        assert_eq!(all.recv_timeout(SOON), Ok(()));
        assert!(REFUSED.load(Relaxed) > 2);
    }

    #[test]
    fn a_wait_ends_when_it_is_interrupted() {
        let interrupt = Interrupt::new();
        interrupt.raise();
        MonotonicClock.pause(SOON, &interrupt);
    }
}
