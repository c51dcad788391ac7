//! The threads that serve.
//!
//! Owns how many there are: one is started when there is work that no idle thread takes, up to a limit, and ends after some
//! idle time. Work belongs to somebody, and nobody has more than a share of the threads: what is beyond waits in line until work
//! ends, its owner's own or anybody's. An owner takes one more only while it has fewer than are free: one alone has half of them,
//! several come to have equal parts, and whoever comes next finds some. Must not know what the work is.
//!
//! Invariants: a thread and a share outlive a fault in the work; work that no thread can be had for is refused, never left; what
//! waits in line waits for its owner's share alone, and no later work of the same owner is done before it.
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
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long a thread waits for work before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// With more threads than this, none of them waits long for a connection that is idle.
const LINGERING_MAX: usize = 64;

/// A serving thread's stack: enough for a directory's worth of recursion that nobody does, and small when there are 500.
const STACK_SIZE: usize = 1 << 20;

/// Does one piece of work; a thread's own buffers are kept in `W` between pieces.
pub(super) trait Work<W>: Send + Sync {
    type Job: Send;

    /// A panic costs the thread its `own`, and nothing else.
    fn run(self: &Arc<Self>, job: Self::Job, own: &mut W);

    /// There is no thread that could do it, and none can be started.
    fn refuse(self: &Arc<Self>, job: Self::Job);
}

pub(super) struct Crew<J> {
    state: Mutex<State<J>>,
    bell: Condvar,
    threads_max: usize,
    share_max: usize,
    stack_size: usize,
    /// A [`Pressure`]. Changed under the lock; whoever looks without it only parks a connection early or late.
    pressure: AtomicU8,
}

/// How much threads are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// More can be started.
    None = 0,
    /// There are many, or as many as there may be.
    Full = 1,
    /// And work waits for one.
    Short = 2,
}

/// One owner's part of the threads.
pub(super) struct Share<J> {
    own: Mutex<Own<J>>,
    /// Whether work waits for the owner's own: a copy, for whoever looks without the lock.
    short: AtomicBool,
    /// It may have no more threads than it has: none of them is to linger.
    full: AtomicBool,
}

struct Own<J> {
    /// Jobs that are being done, or wait for any thread.
    running: usize,
    /// Jobs that wait until the owner may have one thread more.
    waiting: VecDeque<J>,
}

impl<J> Default for Share<J> {
    fn default() -> Self {
        Self {
            own: Mutex::new(Own {
                running: 0,
                waiting: VecDeque::new(),
            }),
            short: AtomicBool::new(false),
            full: AtomicBool::new(false),
        }
    }
}

struct State<J> {
    jobs: VecDeque<(J, Arc<Share<J>>)>,
    /// Shares with jobs that wait for them, each once; each has jobs that are being done as well.
    line: VecDeque<Arc<Share<J>>>,
    /// Jobs of all owners that are being done, or wait for any thread.
    running: usize,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl<J: Send + 'static> Crew<J> {
    /// At most `threads_max` threads, and never more than `share_max` of them for one owner.
    pub(super) fn new(threads_max: usize, share_max: usize) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                line: VecDeque::new(),
                running: 0,
                idle: 0,
                threads: 0,
                stopping: false,
            }),
            bell: Condvar::new(),
            threads_max,
            share_max,
            stack_size: STACK_SIZE,
            pressure: AtomicU8::new(0),
        }
    }

    /// Has `job` done by a thread that has nothing else to do, once its owner has less than its share of them. Whether that
    /// is so already.
    pub(super) fn dispatch<W, T>(self: &Arc<Self>, work: &Arc<T>, job: J, share: &Arc<Share<J>>) -> bool
    where
        W: Default,
        T: Work<W, Job = J> + 'static,
    {
        let mut state = self.state.lock();
        let Some(job) = self.enter(&mut state, share, job) else {
            return false;
        };
        state.jobs.push_back((job, Arc::clone(share)));
        if state.idle >= state.jobs.len() {
            drop(state);
            self.bell.notify_one();
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
        T: Work<W, Job = J> + 'static,
    {
        let (crew, serving) = (Arc::clone(self), Arc::clone(work));
        let thread = thread::Builder::new()
            .name("curt-serve".into())
            .stack_size(self.stack_size);
        if let Err(error) = thread.spawn(move || crew.serve(&serving)) {
            tracing::warn!("no thread to serve with: {error}");
            for job in self.no_thread() {
                work.refuse(job);
            }
        }
    }

    /// Whether an owner who has `own` threads may have one more, while so many are `running`.
    const fn may_have_more(&self, own: usize, running: usize) -> bool {
        let free = self.threads_max.saturating_sub(running);
        own == 0 || (own < self.share_max && own < free)
    }

    /// Takes a place for `job` among its owner's, or keeps it until there is one.
    fn enter(&self, state: &mut State<J>, share: &Arc<Share<J>>, job: J) -> Option<J> {
        let mut own = share.own.lock();
        if own.waiting.is_empty() && self.may_have_more(own.running, state.running) {
            own.running += 1;
            state.running += 1;
            self.note_fullness(&own, state, share);
            return Some(job);
        }
        if own.waiting.is_empty() {
            state.line.push_back(Arc::clone(share));
        }
        own.waiting.push_back(job);
        share.short.store(true, Ordering::Relaxed);
        None
    }

    fn note_fullness(&self, own: &Own<J>, state: &State<J>, share: &Share<J>) {
        let full = !self.may_have_more(own.running, state.running);
        share.full.store(full, Ordering::Relaxed);
    }

    /// Gives a place back, and has those in line begin that may have it, or could not have one more while it was taken; how many.
    fn leave(&self, state: &mut State<J>, share: &Share<J>) -> usize {
        let mut own = share.own.lock();
        own.running -= 1;
        state.running -= 1;
        self.note_fullness(&own, state, share);
        drop(own);
        let (mut at, mut admitted) = (0, 0);
        while let Some(share) = state.line.get(at).map(Arc::clone) {
            let mut own = share.own.lock();
            if !self.may_have_more(own.running, state.running) {
                at += 1;
                continue;
            }
            state.line.remove(at);
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
                state.line.push_back(Arc::clone(&share));
            }
            state.jobs.push_back((job, share));
        }
        admitted
    }

    /// A thread could not be started. What is not to be done, for there is no other one that would come to it.
    fn no_thread(&self) -> Vec<J> {
        let mut refused = Vec::new();
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            while let Some((job, share)) = state.jobs.pop_front() {
                refused.push(job);
                self.leave(&mut state, &share);
            }
        }
        self.note_pressure(&state);
        refused
    }

    /// How much threads are wanted, by all or by the owner of `share`.
    pub(super) fn pressure(&self, share: &Share<J>) -> Pressure {
        match self.pressure.load(Ordering::Relaxed) {
            _ if share.short.load(Ordering::Relaxed) => Pressure::Short,
            0 if !share.full.load(Ordering::Relaxed) => Pressure::None,
            0 | 1 => Pressure::Full,
            _ => Pressure::Short,
        }
    }

    fn note_pressure(&self, state: &State<J>) {
        let full = state.threads >= self.threads_max;
        let pressure = match (full, state.jobs.len() > state.idle) {
            (true, true) => Pressure::Short,
            (true, false) => Pressure::Full,
            (false, _) if state.threads > LINGERING_MAX => Pressure::Full,
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

    fn serve<W, T>(self: &Arc<Self>, work: &Arc<T>)
    where
        W: Default,
        T: Work<W, Job = J> + 'static,
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

    /// Sees to it that somebody does `count` jobs that have begun besides the one for which there is a thread.
    fn find_threads<W, T>(self: &Arc<Self>, state: &mut MutexGuard<'_, State<J>>, count: usize, work: &Arc<T>)
    where
        W: Default,
        T: Work<W, Job = J> + 'static,
    {
        for _ in 0..count {
            // This thread takes one of the jobs.
            let enough = state.idle + 1 >= state.jobs.len();
            if enough || state.threads >= self.threads_max {
                self.bell.notify_one();
            } else {
                state.threads += 1;
                MutexGuard::unlocked(state, || self.start_thread(work));
            }
        }
    }

    /// The next job, or `None` when this thread is to end. It has just done a job of the owner of `done`.
    fn next<W, T>(self: &Arc<Self>, done: Option<Arc<Share<J>>>, work: &Arc<T>) -> Option<(J, Arc<Share<J>>)>
    where
        W: Default,
        T: Work<W, Job = J> + 'static,
    {
        let mut state = self.state.lock();
        if let Some(share) = done {
            // This thread does one of those that begin.
            let others = self.leave(&mut state, &share).saturating_sub(1);
            self.find_threads(&mut state, others, work);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Work that waits to be told that it may end, of two owners.
    #[derive(Default)]
    struct Gate {
        open: Mutex<[bool; 2]>,
        bell: Condvar,
        begun: [AtomicUsize; 2],
    }

    impl Work<()> for Gate {
        type Job = usize;

        fn run(self: &Arc<Self>, owner: usize, (): &mut ()) {
            self.begun[owner].fetch_add(1, Ordering::SeqCst);
            let mut open = self.open.lock();
            while !open[owner] {
                self.bell.wait(&mut open);
            }
        }

        fn refuse(self: &Arc<Self>, _: usize) {
            unreachable!("there are threads enough");
        }
    }

    /// Work that fails each second time.
    #[derive(Default)]
    struct Faulty {
        begun: AtomicUsize,
        refused: Mutex<Vec<usize>>,
    }

    impl Work<()> for Faulty {
        type Job = usize;

        fn run(self: &Arc<Self>, job: usize, (): &mut ()) {
            self.begun.fetch_add(1, Ordering::SeqCst);
            assert!(!job.is_multiple_of(2), "a fault, as the test wants it");
        }

        fn refuse(self: &Arc<Self>, job: usize) {
            self.refused.lock().push(job);
        }
    }

    #[test]
    fn faults_cost_no_thread_and_no_share() {
        let crew = Arc::new(Crew::new(2, 2));
        let work = Arc::new(Faulty::default());
        let share = Arc::new(Share::default());
        for job in 0..20 {
            crew.dispatch(&work, job, &share);
        }
        while work.begun.load(Ordering::SeqCst) < 20 {
            thread::yield_now();
        }
        crew.stop();
        while crew.threads() > 0 {
            thread::yield_now();
        }
        assert_eq!(share.own.lock().running, 0);
        assert!(work.refused.lock().is_empty());
    }

    #[test]
    fn what_no_thread_can_be_started_for_is_refused() {
        let mut crew = Crew::new(2, 2);
        // More than there are addresses.
        crew.stack_size = 1 << 60;
        let crew = Arc::new(crew);
        let work = Arc::new(Faulty::default());
        let share = Arc::new(Share::default());
        crew.dispatch(&work, 7, &share);
        crew.dispatch(&work, 9, &share);
        assert_eq!(*work.refused.lock(), [7, 9]);
        assert_eq!((crew.threads(), share.own.lock().running), (0, 0));
        assert_eq!(work.begun.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn one_owner_never_has_more_than_its_share_and_leaves_room_for_others() {
        let crew = Arc::new(Crew::new(8, 3));
        let gate = Arc::new(Gate::default());
        let shares = [Arc::new(Share::default()), Arc::new(Share::default())];
        let at_once: Vec<bool> = (0..20).map(|_| crew.dispatch(&gate, 0, &shares[0])).collect();
        // It would have half of them, but that is beyond what one may ever have.
        assert_eq!(at_once.iter().filter(|begun| **begun).count(), 3);
        assert_eq!(crew.pressure(&shares[0]), Pressure::Short);
        assert_eq!(crew.pressure(&shares[1]), Pressure::None);
        for _ in 0..3 {
            assert!(crew.dispatch(&gate, 1, &shares[1]));
        }
        let begun = || gate.begun.each_ref().map(|count| count.load(Ordering::SeqCst));
        while begun() != [3, 3] {
            thread::yield_now();
        }
        *gate.open.lock() = [true; 2];
        gate.bell.notify_all();
        while begun() != [20, 3] {
            thread::yield_now();
        }
        crew.stop();
        while crew.threads() > 0 {
            thread::yield_now();
        }
        assert!(shares.iter().all(|share| share.own.lock().running == 0));
        assert_eq!(crew.state.lock().running, 0);
    }

    #[test]
    fn several_owners_who_take_what_they_can_leave_some_to_the_next() {
        let crew = Arc::new(Crew::new(64, 64));
        let gate = Arc::new(Gate::default());
        for expected in [32, 16, 8, 4, 2, 1] {
            let share = Arc::new(Share::default());
            let at_once = (0..64).filter(|_| crew.dispatch(&gate, 0, &share)).count();
            assert_eq!(at_once, expected);
            assert_eq!(crew.pressure(&Share::default()), Pressure::None);
        }
        *gate.open.lock() = [true; 2];
        gate.bell.notify_all();
        while gate.begun[0].load(Ordering::SeqCst) < 6 * 64 {
            thread::yield_now();
        }
        crew.stop();
        while crew.threads() > 0 {
            thread::yield_now();
        }
    }
    #[test]
    fn what_waits_for_its_owners_share_begins_when_others_free_threads() {
        let crew = Arc::new(Crew::new(8, 8));
        let gate = Arc::new(Gate::default());
        let shares = [Arc::new(Share::default()), Arc::new(Share::default())];
        let at_once = [1, 1, 1, 1, 0, 0, 0].map(|owner: usize| crew.dispatch(&gate, owner, &shares[owner]));
        assert_eq!(at_once, [true, true, true, true, true, true, false]);
        assert_eq!(crew.pressure(&shares[0]), Pressure::Short);
        // The other owner's work ends, and none of this one's.
        gate.open.lock()[1] = true;
        gate.bell.notify_all();
        let begun = || gate.begun.each_ref().map(|count| count.load(Ordering::SeqCst));
        let end = Instant::now() + Duration::from_secs(60);
        while begun() != [3, 4] {
            assert!(
                Instant::now() < end,
                "it waits for its owner's own: {:?}",
                begun()
            );
            thread::yield_now();
        }
        assert_ne!(crew.pressure(&shares[0]), Pressure::Short);
        assert!(crew.state.lock().line.is_empty());
        *gate.open.lock() = [true; 2];
        gate.bell.notify_all();
        crew.stop();
        while crew.threads() > 0 {
            thread::yield_now();
        }
        assert_eq!(crew.state.lock().running, 0);
    }
}
