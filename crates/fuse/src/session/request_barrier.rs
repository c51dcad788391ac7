//! Whether all requests that the kernel has sent so far have reached the file system.
//!
//! Each thread has a [`WorkerStage`]. A request is under way from the system call until the file
//! system has counted it ([`crate::FuseContext::mark_received`]). There is no counter of the
//! requests in the kernel's queue or just read from it, so this module checks both: the queue is
//! empty if the descriptor is not readable, and no request has just been read if each thread that
//! reads sleeps in read(2).

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
