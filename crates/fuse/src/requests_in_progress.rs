//! Requests in progress: one for each thread, with its caller.
//!
//! Each thread has an [`InFlightRequest`] for its current request; a method of the file system gets
//! it as a [`FuseContext`]. `interrupt` ends the waits of requests.
//!
//! Each thread also has a [`WorkerStage`], which shows whether all requests that the kernel has
//! sent so far have reached the file system. A request is under way from the system call until the
//! file system has counted it ([`FuseContext::mark_received`]). There is no counter of the requests
//! in the kernel's queue or just read from it, so [`RequestBarrier`] checks both: the queue is
//! empty if the descriptor is not readable, and no request has just been read if each thread that
//! reads sleeps in read(2).
//!
//! Invariant: an interruption is raised only under the mutex of the `InFlightRequest`, and only for
//! the request that it belongs to.

use std::{
    collections::{HashMap, VecDeque},
    fmt, fs,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use curt_sync::Interrupt;
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::gettid,
};

use crate::{caller_state, request::InHeader};

/// Stack of each thread; only used pages take memory.
pub(crate) const STACK_BYTES: usize = 512 * 1024;

/// The current request of one thread.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    /// Its key among all.
    key: u64,
    pub(crate) state: Mutex<InFlightRequestState>,
}

#[derive(Debug)]
pub(crate) struct InFlightRequestState {
    /// 0: none.
    pub(crate) unique: u64,
    pub(crate) waits_for_lock: bool,
    pub(crate) tid: u32,
    pub(crate) interrupted: bool,
    pub(crate) on_silence: bool,
    pub(crate) on_exit: bool,
    /// Ends the waits of a request whose caller no longer waits. One is used for successive
    /// requests until it is raised.
    pub(crate) interruption: Interrupt,
}

/// All requests in progress.
pub(crate) struct InFlightRequests {
    /// The requests by their key. Thousands may wait for locks, each of which comes and goes.
    pub(crate) all: Mutex<HashMap<u64, Arc<InFlightRequest>>>,
    last_key: AtomicU64,
    /// INTERRUPTs of requests that are not registered yet, or no longer, and their number.
    pub(crate) early: Mutex<VecDeque<u64>>,
    pub(crate) early_count: AtomicUsize,
    /// Whether the checking thread runs. Set to false before its last check, so that a thread that
    /// sets a flag too late for that check sees this (both lock the request's mutex in between).
    pub(crate) is_checking: AtomicBool,
    /// How long the server has been silent.
    pub(crate) silent_for: Box<dyn Fn() -> Option<Duration> + Send + Sync>,
}

impl InFlightRequests {
    pub(crate) fn new(silent_for: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self {
            all: Mutex::default(),
            last_key: AtomicU64::new(0),
            early: Mutex::default(),
            early_count: AtomicUsize::new(0),
            is_checking: AtomicBool::new(false),
            silent_for: Box::new(silent_for),
        }
    }

    /// Registers one more thread.
    pub(crate) fn join(&self) -> Arc<InFlightRequest> {
        // Relaxed: the number only has to be unique.
        let key = self.last_key.fetch_add(1, Ordering::Relaxed);
        let flight = Arc::new(InFlightRequest {
            key,
            state: Mutex::new(InFlightRequestState {
                unique: 0,
                waits_for_lock: false,
                tid: 0,
                interrupted: false,
                on_silence: false,
                on_exit: false,
                interruption: Interrupt::new(),
            }),
        });
        self.all.lock().insert(key, flight.clone());
        flight
    }

    pub(crate) fn leave(&self, flight: &Arc<InFlightRequest>) {
        self.all.lock().remove(&flight.key);
    }

    /// `flight` begins to handle the request of `header`.
    /// `waits_for_lock`: any signal ends its wait.
    pub(crate) fn begin(
        self: &Arc<Self>,
        flight: &Arc<InFlightRequest>,
        header: &InHeader,
        waits_for_lock: bool,
    ) {
        {
            let mut now = flight.state.lock();
            now.unique = header.unique;
            now.waits_for_lock = waits_for_lock;
            now.tid = header.tid;
            now.interrupted = false;
            now.on_silence = false;
            now.on_exit = false;
        }
        if self.early_count.load(Ordering::SeqCst) > 0 {
            self.apply_early_interrupt(flight, header.unique);
        }
    }

    /// The request of `flight` is complete.
    pub(crate) fn end(&self, flight: &InFlightRequest) {
        let mut now = flight.state.lock();
        now.unique = 0;
        if now.interruption.is_raised() {
            now.interruption = Interrupt::new();
        }
    }
}

impl InFlightRequest {
    /// The interruption of the current request.
    pub(crate) fn interruption(&self) -> Interrupt {
        self.state.lock().interruption.clone()
    }
}

/// The caller of a request, and how its wait may end.
pub struct FuseContext<'a> {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// The calling thread; 0 if it is in a pid namespace that the daemon cannot see.
    pub tid: u32,
    pub(crate) interruption: &'a Interrupt,
    pub(crate) requests: &'a Arc<InFlightRequests>,
    pub(crate) request: &'a Arc<InFlightRequest>,
    pub(crate) stage: &'a WorkerStage,
    pub(crate) stages: &'a WorkerStages,
}

impl fmt::Debug for FuseContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseContext")
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("tid", &self.tid)
            .finish()
    }
}

impl<'a> FuseContext<'a> {
    /// Raised when the caller is being killed, or a signal ends its wait for a lock.
    #[must_use]
    pub fn interruption(&self) -> &'a Interrupt {
        self.interruption
    }

    /// Also raises the interruption once the server has been silent for 1 s
    /// ([`crate::Filesystem::silent_for`]): the method has an alternative result. Called before the
    /// method waits.
    pub fn give_up_on_silence(&self) {
        self.request.state.lock().on_silence = true;
        self.requests.start_caller_checks();
    }

    /// Also raises the interruption once the server has been silent for 1 s and the caller is
    /// exiting: signals no longer reach it. Called before FLUSH waits.
    pub fn give_up_on_exit(&self) {
        self.request.state.lock().on_exit = true;
        self.requests.start_caller_checks();
    }

    /// Whether the caller's program has this name, which the caller may have changed.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        caller_state::is_called(self.tid, name)
    }

    /// Whether the caller is a kernel thread, such as knfsd's; `false` if unknown.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        caller_state::is_of_kernel(self.tid)
    }

    /// The file system has counted this request: it is no longer under way
    /// ([`RequestBarrier`](crate::RequestBarrier)).
    pub fn mark_received(&self) {
        self.stage.set_idle();
    }

    /// Waits until all requests that the kernel sent before this one have arrived, for about a
    /// second at most. (The kernel delays some requests without a waiting process until others of
    /// that kind are answered: these arrive later.)
    pub fn wait_for_earlier(&self) {
        self.stages.wait_for_earlier(self.stage, || self.interruption.is_raised());
    }
}

/// Interval and number of the checks for threads with a request: without access to /proc no thread
/// would ever count as sleeping.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
const POLLS_MAX: u32 = 5000;

/// In read(2), or just before or after it.
const READING: u8 = 0;
/// The thread has a request that the file system has not counted.
const RECEIVED: u8 = 1;
/// The thread has no request, or the file system has counted it.
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
        // Release: a thread that sees this stage (Acquire in `stage`) sees the effects of the
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
