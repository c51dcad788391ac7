//! Which jobs start, which wait, and in which order, by the quotas of clients.

use std::{sync::atomic::AtomicUsize, time::Instant};

use super::*;

/// Jobs of two clients that wait until the test lets them end.
#[derive(Default)]
struct Gate {
    open: Mutex<[bool; 2]>,
    wakeup: Condvar,
    begun: [AtomicUsize; 2],
}

impl JobHandler<()> for Gate {
    type Job = usize;

    fn run(self: &Arc<Self>, owner: usize, (): &mut ()) {
        self.begun[owner].fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !open[owner] {
            self.wakeup.wait(&mut open);
        }
    }

    fn refuse(self: &Arc<Self>, _: usize) {
        unreachable!("there are threads enough");
    }
}

/// Jobs of which every second one panics.
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
    let pool = Arc::new(WorkerPool::new(2, 2, TimeSource::System));
    let work = Arc::new(Faulty::default());
    let share = Arc::new(ClientQuota::default());
    for job in 0..20 {
        pool.dispatch(&work, job, &share);
    }
    while work.begun.load(Ordering::SeqCst) < 20 {
        thread::yield_now();
    }
    pool.stop();
    while pool.threads() > 0 {
        thread::yield_now();
    }
    assert_eq!(share.state.lock().running, 0);
    assert!(work.refused.lock().is_empty());
}

#[test]
fn what_no_thread_can_be_started_for_is_refused() {
    let mut pool = WorkerPool::new(2, 2, TimeSource::System);
    // More than the address space.
    pool.stack_size = 1 << 60;
    let pool = Arc::new(pool);
    let work = Arc::new(Faulty::default());
    let share = Arc::new(ClientQuota::default());
    pool.dispatch(&work, 7, &share);
    pool.dispatch(&work, 9, &share);
    assert_eq!(*work.refused.lock(), [7, 9]);
    assert_eq!((pool.threads(), share.state.lock().running), (0, 0));
    assert_eq!(work.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn one_owner_never_has_more_than_its_share_and_leaves_room_for_others() {
    let pool = Arc::new(WorkerPool::new(8, 3, TimeSource::System));
    let gate = Arc::new(Gate::default());
    let shares = [Arc::new(ClientQuota::default()), Arc::new(ClientQuota::default())];
    let at_once: Vec<bool> = (0..20).map(|_| pool.dispatch(&gate, 0, &shares[0])).collect();
    // It would have half of them, but this is above the limit of one client.
    assert_eq!(at_once.iter().filter(|begun| **begun).count(), 3);
    assert_eq!(pool.pressure(&shares[0]), PoolPressure::Short);
    assert_eq!(pool.pressure(&shares[1]), PoolPressure::None);
    for _ in 0..3 {
        assert!(pool.dispatch(&gate, 1, &shares[1]));
    }
    let begun = || gate.begun.each_ref().map(|count| count.load(Ordering::SeqCst));
    while begun() != [3, 3] {
        thread::yield_now();
    }
    *gate.open.lock() = [true; 2];
    gate.wakeup.notify_all();
    while begun() != [20, 3] {
        thread::yield_now();
    }
    pool.stop();
    while pool.threads() > 0 {
        thread::yield_now();
    }
    assert!(shares.iter().all(|share| share.state.lock().running == 0));
    assert_eq!(pool.state.lock().running, 0);
}

#[test]
fn several_owners_who_take_what_they_can_leave_some_to_the_next() {
    let pool = Arc::new(WorkerPool::new(64, 64, TimeSource::System));
    let gate = Arc::new(Gate::default());
    for expected in [32, 16, 8, 4, 2, 1] {
        let share = Arc::new(ClientQuota::default());
        let at_once = (0..64).filter(|_| pool.dispatch(&gate, 0, &share)).count();
        assert_eq!(at_once, expected);
        assert_eq!(pool.pressure(&ClientQuota::default()), PoolPressure::None);
    }
    *gate.open.lock() = [true; 2];
    gate.wakeup.notify_all();
    while gate.begun[0].load(Ordering::SeqCst) < 6 * 64 {
        thread::yield_now();
    }
    pool.stop();
    while pool.threads() > 0 {
        thread::yield_now();
    }
}
#[test]
fn what_waits_for_its_owners_share_begins_when_others_free_threads() {
    let pool = Arc::new(WorkerPool::new(8, 8, TimeSource::System));
    let gate = Arc::new(Gate::default());
    let shares = [Arc::new(ClientQuota::default()), Arc::new(ClientQuota::default())];
    let at_once = [1, 1, 1, 1, 0, 0, 0].map(|owner: usize| pool.dispatch(&gate, owner, &shares[owner]));
    assert_eq!(at_once, [true, true, true, true, true, true, false]);
    assert_eq!(pool.pressure(&shares[0]), PoolPressure::Short);
    // The other client's job ends, and none of this one's.
    gate.open.lock()[1] = true;
    gate.wakeup.notify_all();
    let begun = || gate.begun.each_ref().map(|count| count.load(Ordering::SeqCst));
    let end = Instant::now() + Duration::from_secs(60);
    while begun() != [3, 4] {
        assert!(Instant::now() < end, "it waits for its owner's own: {:?}", begun());
        thread::yield_now();
    }
    assert_ne!(pool.pressure(&shares[0]), PoolPressure::Short);
    assert!(pool.state.lock().waiting_clients.is_empty());
    *gate.open.lock() = [true; 2];
    gate.wakeup.notify_all();
    pool.stop();
    while pool.threads() > 0 {
        thread::yield_now();
    }
    assert_eq!(pool.state.lock().running, 0);
}
