//! Who begins, who waits, and in which order, as the shares of owners allow.

use std::{sync::atomic::AtomicUsize, time::Instant};

use super::*;

/// Work that waits to be told that it may end, of two owners.
#[derive(Default)]
struct Gate {
    open: Mutex<[bool; 2]>,
    bell: Condvar,
    begun: [AtomicUsize; 2],
}

impl JobHandler<()> for Gate {
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

impl JobHandler<()> for Faulty {
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
    let crew = Arc::new(WorkerPool::new(2, 2, TimeSource::System));
    let work = Arc::new(Faulty::default());
    let share = Arc::new(ClientQuota::default());
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
    assert_eq!(share.state.lock().running, 0);
    assert!(work.refused.lock().is_empty());
}

#[test]
fn what_no_thread_can_be_started_for_is_refused() {
    let mut crew = WorkerPool::new(2, 2, TimeSource::System);
    // More than there are addresses.
    crew.stack_size = 1 << 60;
    let crew = Arc::new(crew);
    let work = Arc::new(Faulty::default());
    let share = Arc::new(ClientQuota::default());
    crew.dispatch(&work, 7, &share);
    crew.dispatch(&work, 9, &share);
    assert_eq!(*work.refused.lock(), [7, 9]);
    assert_eq!((crew.threads(), share.state.lock().running), (0, 0));
    assert_eq!(work.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn one_owner_never_has_more_than_its_share_and_leaves_room_for_others() {
    let crew = Arc::new(WorkerPool::new(8, 3, TimeSource::System));
    let gate = Arc::new(Gate::default());
    let shares = [Arc::new(ClientQuota::default()), Arc::new(ClientQuota::default())];
    let at_once: Vec<bool> = (0..20).map(|_| crew.dispatch(&gate, 0, &shares[0])).collect();
    // It would have half of them, but that is beyond what one may ever have.
    assert_eq!(at_once.iter().filter(|begun| **begun).count(), 3);
    assert_eq!(crew.pressure(&shares[0]), PoolPressure::Short);
    assert_eq!(crew.pressure(&shares[1]), PoolPressure::None);
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
    assert!(shares.iter().all(|share| share.state.lock().running == 0));
    assert_eq!(crew.state.lock().running, 0);
}

#[test]
fn several_owners_who_take_what_they_can_leave_some_to_the_next() {
    let crew = Arc::new(WorkerPool::new(64, 64, TimeSource::System));
    let gate = Arc::new(Gate::default());
    for expected in [32, 16, 8, 4, 2, 1] {
        let share = Arc::new(ClientQuota::default());
        let at_once = (0..64).filter(|_| crew.dispatch(&gate, 0, &share)).count();
        assert_eq!(at_once, expected);
        assert_eq!(crew.pressure(&ClientQuota::default()), PoolPressure::None);
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
    let crew = Arc::new(WorkerPool::new(8, 8, TimeSource::System));
    let gate = Arc::new(Gate::default());
    let shares = [Arc::new(ClientQuota::default()), Arc::new(ClientQuota::default())];
    let at_once = [1, 1, 1, 1, 0, 0, 0].map(|owner: usize| crew.dispatch(&gate, owner, &shares[owner]));
    assert_eq!(at_once, [true, true, true, true, true, true, false]);
    assert_eq!(crew.pressure(&shares[0]), PoolPressure::Short);
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
    assert_ne!(crew.pressure(&shares[0]), PoolPressure::Short);
    assert!(crew.state.lock().waiting_clients.is_empty());
    *gate.open.lock() = [true; 2];
    gate.bell.notify_all();
    crew.stop();
    while crew.threads() > 0 {
        thread::yield_now();
    }
    assert_eq!(crew.state.lock().running, 0);
}
