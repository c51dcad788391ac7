//! Whether everything that the kernel has asked so far has come as far as the file system.
//!
//! Owns a [`WorkerStage`] for each thread: where the thread is with its request. A request is on
//! its way from when a process asks until the file system says that it has it
//! ([`crate::Context::arrived`]); nobody counts those that lie in the kernel or have just left it,
//! so it is looked where they can be. Nothing lies in the kernel if its descriptor has nothing to
//! read, and nothing has just left it if every thread that reads sleeps in read(2).

use std::{
    fmt, fs,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::gettid,
};

/// How soon it is looked again whether a thread has a request, and how often: where /proc is not to
/// be seen none would ever sleep.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
const POLLS_MAX: u32 = 5000;

/// In read(2), or on the way into or out of it.
const READING: u8 = 0;
/// It has a request that the file system has not.
const RECEIVED: u8 = 1;
/// It has none, or the file system has it.
const IDLE: u8 = 2;

/// Where one thread is.
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
        // Release: who sees this stage (Acquire in `is_reading`) sees what was done in those
        // before.
        self.stage.store(stage, Ordering::Release);
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// Whether no request is on its way here.
    fn has_no_request_on_its_way(&self) -> bool {
        match self.stage() {
            IDLE => true,
            // Looked at once more: a thread that has taken a request may sleep elsewhere, but says
            // so before.
            READING => is_sleeping(self.thread) && self.stage() != RECEIVED,
            _ => false,
        }
    }
}

fn is_sleeping(thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything. After it: the state (proc(5)).
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// All threads of a session.
#[derive(Debug, Default)]
pub(crate) struct WorkerStages(Mutex<Vec<Arc<WorkerStage>>>);

impl WorkerStages {
    /// A desk for the calling thread.
    pub(crate) fn join(&self) -> Arc<WorkerStage> {
        let desk = Arc::new(WorkerStage {
            thread: gettid().as_raw_nonzero().get().unsigned_abs(),
            stage: AtomicU8::new(READING),
        });
        self.0.lock().push(Arc::clone(&desk));
        desk
    }

    /// Waits until nothing is on its way that was read before this was called, by others than
    /// `own`, until `is_over` says that nobody cares, or for about a second.
    pub(crate) fn wait_for_earlier(&self, own: &WorkerStage, is_over: impl Fn() -> bool) {
        let others: Vec<_> = {
            let desks = self.0.lock();
            desks
                .iter()
                .filter(|desk| !std::ptr::eq(&***desk, own))
                .cloned()
                .collect()
        };
        let mut looks = 0;
        for desk in others {
            while !desk.has_no_request_on_its_way() && looks < POLLS_MAX && !is_over() {
                looks += 1;
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    pub(crate) fn leave(&self, desk: &Arc<WorkerStage>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, desk));
    }
}

/// Tells whether the file system has all that was asked.
#[derive(Clone)]
pub struct RequestBarrier {
    device: Arc<OwnedFd>,
    stages: Arc<WorkerStages>,
}

impl fmt::Debug for RequestBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl RequestBarrier {
    pub(crate) const fn new(device: Arc<OwnedFd>, desks: Arc<WorkerStages>) -> Self {
        Self {
            device,
            stages: desks,
        }
    }

    /// Whether every request that the kernel had for the file system when this was called has
    /// arrived there. (The kernel holds back some that nobody waits for, until others of that kind
    /// are answered: these come after.) False means: ask again a moment later.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        !self.has_queued_requests()
            && self
                .stages
                .0
                .lock()
                .iter()
                .all(|desk| desk.has_no_request_on_its_way())
    }

    fn has_queued_requests(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A mount that has ended says so by an error: there is nothing any more.
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::IN)
    }
}
