//! Requests in progress: their callers, the interruption of their waits, and whether all requests
//! that the kernel has sent have arrived.
//!
//! Each thread has an [`InFlightRequest`] for its current request. INTERRUPT names a request; a
//! wait for a lock then ends at once, any other only if its caller is being killed. The kernel
//! sends no second INTERRUPT when a fatal signal follows another signal. So one thread checks such
//! callers every 100 ms; it exists only while there are some. To register a request for these
//! checks costs a flag: most requests are complete before the first check.
//!
//! Invariants: an INTERRUPT that is read before its request is registered is not lost: its reader
//! stores it before it searches, the reader of the request registers before it searches the stored
//! ones, and both lock the mutex of the `InFlightRequest`. An interruption is raised only under
//! that mutex, and only for the request that it belongs to.
//!
//! Each thread has a [`WorkerStage`], which shows whether all requests that the kernel has sent so
//! far have reached the file system. A request is under way from the system call until the file
//! system has counted it ([`FuseContext::mark_received`]). There is no counter of the requests in
//! the kernel's queue or just read from it, so [`RequestBarrier`] checks both: the queue is empty
//! if the descriptor is not readable, and no request has just been read if each thread that reads
//! sleeps in read(2).

use std::{
    collections::VecDeque,
    fmt, fs,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
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

/// The server counts as silent after this time without a reply.
const SERVER_SILENCE: Duration = Duration::from_secs(1);
/// Stack of each thread; only used pages take memory.
pub(crate) const STACK_BYTES: usize = 512 * 1024;

/// Interval of the checks of callers.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of stored INTERRUPTs of unknown requests. Most belong to requests that were
/// completed meanwhile.
const EARLY_MAX: usize = 1024;
/// Number of checks without a caller after which the checking thread ends.
const IDLE_CHECKS_MAX: u32 = 20;

/// The current request of one thread.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    state: Mutex<InFlightRequestState>,
}

#[derive(Debug)]
struct InFlightRequestState {
    /// 0: none.
    unique: u64,
    waits_for_lock: bool,
    tid: u32,
    interrupted: bool,
    on_silence: bool,
    on_exit: bool,
    /// Ends the waits of a request whose caller no longer waits. One is used for successive
    /// requests until it is raised.
    interruption: Interrupt,
}

/// All requests in progress.
pub(crate) struct InFlightRequests {
    all: Mutex<Vec<Arc<InFlightRequest>>>,
    early: Mutex<VecDeque<u64>>,
    early_count: AtomicUsize,
    /// Whether the checking thread runs. Set to false before its last check, so that a thread that
    /// sets a flag too late for that check sees this (both lock the request's mutex in between).
    is_checking: AtomicBool,
    silent_for: Box<dyn Fn() -> Option<Duration> + Send + Sync>,
}

impl InFlightRequests {
    pub(crate) fn new(silent_for: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self {
            all: Mutex::default(),
            early: Mutex::default(),
            early_count: AtomicUsize::new(0),
            is_checking: AtomicBool::new(false),
            silent_for: Box::new(silent_for),
        }
    }

    /// Registers one more thread.
    pub(crate) fn join(&self) -> Arc<InFlightRequest> {
        let flight = Arc::new(InFlightRequest {
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
        self.all.lock().push(flight.clone());
        flight
    }

    pub(crate) fn leave(&self, flight: &Arc<InFlightRequest>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, flight));
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
        if self.early_count.load(Ordering::SeqCst) > 0 && self.take_early(header.unique) {
            self.interrupt_flight(flight, header.unique);
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

    /// The caller of request `unique` got a signal.
    pub(crate) fn interrupt(self: &Arc<Self>, unique: u64) {
        self.remember_early(unique);
        let flight = self.all.lock().iter().find(|flight| flight.state.lock().unique == unique).cloned();
        if let Some(flight) = flight {
            self.take_early(unique);
            self.interrupt_flight(&flight, unique);
        }
    }

    /// Ends the wait of all requests in progress.
    pub(crate) fn interrupt_all(&self) {
        for flight in self.all.lock().iter() {
            flight.state.lock().interruption.raise();
        }
    }

    fn remember_early(&self, unique: u64) {
        let mut early = self.early.lock();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        self.early_count.store(early.len(), Ordering::SeqCst);
    }

    fn take_early(&self, unique: u64) -> bool {
        let mut early = self.early.lock();
        let place = early.iter().position(|&other| other == unique);
        if let Some(place) = place {
            early.remove(place);
            self.early_count.store(early.len(), Ordering::SeqCst);
        }
        place.is_some()
    }

    fn interrupt_flight(self: &Arc<Self>, flight: &Arc<InFlightRequest>, unique: u64) {
        let tid = {
            let mut now = flight.state.lock();
            if now.unique != unique {
                return;
            }
            if now.waits_for_lock {
                now.interruption.raise();
                return;
            }
            now.interrupted = true;
            now.tid
        };
        if caller_state::is_being_killed(tid) {
            flight.raise(unique);
        } else {
            self.start_caller_checks();
        }
    }

    /// Has each request with a flag checked until it is complete.
    fn start_caller_checks(self: &Arc<Self>) {
        if self.is_checking.swap(true, Ordering::SeqCst) {
            return;
        }
        let flights = self.clone();
        let spawned = thread::Builder::new()
            .name("fuse-watch".into())
            .stack_size(STACK_BYTES)
            .spawn(move || flights.run_caller_checks());
        if let Err(error) = spawned {
            self.is_checking.store(false, Ordering::SeqCst);
            tracing::warn!("cannot start the thread that detects killed callers: {error}");
        }
    }

    fn run_caller_checks(&self) {
        let mut idle_looks = 0;
        loop {
            thread::sleep(CHECK_INTERVAL);
            idle_looks = if self.check_callers() { 0 } else { idle_looks + 1 };
            if idle_looks < IDLE_CHECKS_MAX {
                continue;
            }
            self.is_checking.store(false, Ordering::SeqCst);
            if !self.check_callers() || self.is_checking.swap(true, Ordering::SeqCst) {
                return;
            }
            idle_looks = 0;
        }
    }

    /// Checks each request with a flag; returns whether any are left.
    fn check_callers(&self) -> bool {
        let flagged: Vec<_> = self
            .all
            .lock()
            .iter()
            .filter_map(|flight| Some((flight.caller_check()?, flight.clone())))
            .collect();
        if flagged.is_empty() {
            return false;
        }
        let silent = (self.silent_for)().is_some_and(|silence| silence >= SERVER_SILENCE);
        let mut left = false;
        for (request, flight) in flagged {
            left |= flight.apply_caller_check(&request, silent);
        }
        left
    }
}

/// What to check for a request.
#[derive(Clone, Copy, Debug)]
struct CallerCheck {
    unique: u64,
    tid: u32,
    interrupted: bool,
    on_silence: bool,
    on_exit: bool,
}

impl InFlightRequest {
    /// The interruption of the current request.
    pub(crate) fn interruption(&self) -> Interrupt {
        self.state.lock().interruption.clone()
    }

    fn raise(&self, unique: u64) {
        let now = self.state.lock();
        if now.unique == unique {
            now.interruption.raise();
        }
    }

    /// The current request, if it has a flag and still waits.
    fn caller_check(&self) -> Option<CallerCheck> {
        let now = self.state.lock();
        let InFlightRequestState { unique, tid, interrupted, on_silence, on_exit, .. } = *now;
        let any = interrupted || on_silence || on_exit;
        (unique != 0 && any && !now.interruption.is_raised()).then_some(CallerCheck {
            unique,
            tid,
            interrupted,
            on_silence,
            on_exit,
        })
    }

    /// Ends the wait of a request if there is a reason; returns whether to check it again.
    fn apply_caller_check(&self, request: &CallerCheck, silent: bool) -> bool {
        let ends = silent && request.on_silence
            || request.interrupted && caller_state::is_being_killed(request.tid)
            || silent && request.on_exit && caller_state::is_exiting(request.tid);
        if ends {
            self.raise(request.unique);
        }
        !ends
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
    use crate::abi::opcode;
    use crate::message_fields::NodeId;

    /// A thread that does not exist counts as being killed.
    const DEAD: u32 = u32::MAX;

    fn header(unique: u64, opcode: u32, tid: u32) -> InHeader {
        InHeader { unique, opcode, node: NodeId(1), uid: 0, gid: 0, tid }
    }

    fn flights(silence: Option<Duration>) -> (Arc<InFlightRequests>, Arc<InFlightRequest>) {
        let flights = Arc::new(InFlightRequests::new(move || silence));
        let flight = flights.join();
        (flights, flight)
    }

    #[test]
    fn a_wait_for_a_lock_ends_with_any_signal_and_others_with_a_fatal_one() {
        let living = std::process::id();
        for (opcode, waits_for_lock, tid, ends) in [
            (opcode::SETLKW, true, living, true),
            (opcode::SETLKW, true, DEAD, true),
            // An unlock.
            (opcode::SETLKW, false, living, false),
            (opcode::SETLKW, false, DEAD, true),
            (opcode::READ, false, DEAD, true),
            (opcode::READ, false, living, false),
            (opcode::SETLK, false, living, false),
        ] {
            let (flights, flight) = flights(None);
            flights.begin(&flight, &header(8, opcode, tid), waits_for_lock);
            flights.interrupt(8);
            assert_eq!(flight.interruption().is_raised(), ends, "{opcode} {tid}");
        }
    }

    #[test]
    fn an_interrupt_that_comes_before_its_request_is_remembered() {
        let (flights, flight) = flights(None);
        flights.interrupt(10);
        flights.begin(&flight, &header(8, opcode::SETLKW, 1), true);
        assert!(!flight.interruption().is_raised(), "it was meant for another");
        flights.end(&flight);
        flights.begin(&flight, &header(10, opcode::SETLKW, 1), true);
        assert!(flight.interruption().is_raised());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (flights, flight) = flights(None);
        for unique in 0..=2 * EARLY_MAX as u64 {
            flights.interrupt(2 * unique + 2);
        }
        assert_eq!(flights.early.lock().len(), EARLY_MAX);
        flights.begin(&flight, &header(2, opcode::SETLKW, 1), true);
        assert!(!flight.interruption().is_raised(), "the oldest was forgotten");
    }

    #[test]
    fn the_next_request_of_a_thread_is_not_interrupted_with_the_last() {
        let (flights, flight) = flights(None);
        flights.begin(&flight, &header(8, opcode::SETLKW, 1), true);
        flights.interrupt(8);
        flights.end(&flight);
        flights.begin(&flight, &header(10, opcode::SETLKW, 1), true);
        flights.interrupt(8);
        assert!(!flight.interruption().is_raised());
    }

    // SEMANTICS: rpc-13.
    #[test]
    fn interrupted_requests_end_on_silence_or_exit_as_marked() {
        let long = Some(SERVER_SILENCE);
        for (silence, on_silence, on_exit, tid, ends) in [
            (long, true, false, std::process::id(), true),
            (long, false, true, DEAD, true),
            (long, false, true, std::process::id(), false),
            (long, false, false, DEAD, false),
            (None, true, true, DEAD, false),
            (Some(SERVER_SILENCE / 2), true, true, DEAD, false),
        ] {
            let (flights, flight) = flights(silence);
            flights.is_checking.store(true, Ordering::SeqCst);
            flights.begin(&flight, &header(8, opcode::FLUSH, tid), false);
            let stages = WorkerStages::default();
            let stage = stages.join();
            let context = FuseContext {
                uid: 0,
                gid: 0,
                tid,
                interruption: &flight.interruption(),
                requests: &flights,
                request: &flight,
                stage: &stage,
                stages: &stages,
            };
            if on_silence {
                context.give_up_on_silence();
            }
            if on_exit {
                context.give_up_on_exit();
            }
            flights.check_callers();
            assert_eq!(flight.interruption().is_raised(), ends, "{silence:?} {on_silence} {on_exit} {tid}");
        }
    }

    #[test]
    fn an_answered_request_is_looked_at_no_more() {
        let (flights, flight) = flights(None);
        flights.is_checking.store(true, Ordering::SeqCst);
        flights.begin(&flight, &header(8, opcode::READ, std::process::id()), false);
        flights.interrupt(8);
        assert!(flights.check_callers());
        flights.end(&flight);
        assert!(!flights.check_callers());
    }
}
