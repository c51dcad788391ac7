//! A session: from INIT to the end of the mount.
//!
//! Owns the threads that read the device and answer, see [`worker_pool`] for how many there are.
//! [`worker`] is what each thread does, [`serve`] goes from a request's bytes to its reply's.

mod request_barrier;
mod serve;
mod worker;
mod worker_pool;

use std::{
    fmt, io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::{
    channel::FuseDevice,
    filesystem::Filesystem,
    interrupt::InFlightRequests,
    negotiate::{IO_BYTES_MAX, InitReply, NegotiatedFeatures, RequestedFeatures, negotiate},
    notify::Notifier,
    reply,
    request::{self, RequestBody},
    sys::PageBuffer,
};

pub use request_barrier::RequestBarrier;
pub(crate) use request_barrier::{WorkerStage, WorkerStages};

use worker_pool::{FuseWorkerPool, ReaderHandover};

/// After so long without a word, the server counts as silent.
pub(crate) const SERVER_SILENCE: Duration = Duration::from_secs(1);
/// Stack of each thread; only what is used of it takes memory.
pub(crate) const STACK_BYTES: usize = 512 * 1024;
/// A WRITE of the largest size with all that stands before its data.
const REQUEST_BYTES_MAX: usize = IO_BYTES_MAX as usize + 8192;

/// How a request that waits says what may end its wait; see [`crate::Context`].
pub(crate) trait WaitControl {
    fn give_up_on_silence(&self);
    fn give_up_on_exit(&self);
    fn mark_received(&self);
    fn wait_for_earlier(&self);
}

/// How a session is run.
#[derive(Clone, Debug)]
pub struct FuseSessionOptions {
    /// What is asked of the kernel.
    pub features: RequestedFeatures,
    /// Threads that read the device while there is nothing to do; 1 or more.
    pub readers: usize,
    /// Threads at most: so many requests may wait before no more are read.
    pub threads_max: usize,
    /// A thread that is not needed ends after so long.
    pub idle: Duration,
    /// Only this user and root may use the mount, others get EACCES; `None`: whoever the kernel
    /// lets through.
    pub only_user: Option<u32>,
}

impl Default for FuseSessionOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self {
            features: RequestedFeatures::default(),
            readers: (processors + 1).clamp(2, 8),
            threads_max: 16_384,
            idle: Duration::from_secs(10),
            only_user: None,
        }
    }
}

/// Why a session could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseSessionError {
    /// The device could not be read or written.
    #[error("cannot talk to the kernel through /dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// The kernel's protocol is older than 7.23 (Linux 3.15).
    #[error("the kernel's FUSE protocol is version 7.{minor}; 7.23 (Linux 3.15) is needed")]
    KernelTooOld {
        /// The kernel's minor version.
        minor: u32,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseSessionEnd {
    /// The kernel closed the connection: umount(2), also by force.
    Unmounted,
    /// The connection was aborted through fusectl.
    Aborted,
    /// Reading failed in a way that should not happen.
    Failed(Errno),
}

/// Answers a mount's requests until it ends.
pub struct FuseSession<F: Filesystem> {
    shared: Arc<FuseSessionShared<F>>,
}

impl<F: Filesystem> fmt::Debug for FuseSession<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("negotiated", &self.shared.negotiated)
            .finish_non_exhaustive()
    }
}

struct FuseSessionShared<F: Filesystem> {
    device: FuseDevice,
    filesystem: Arc<F>,
    requests: Arc<InFlightRequests<F::Interruption>>,
    stages: Arc<WorkerStages>,
    pool: FuseWorkerPool,
    negotiated: NegotiatedFeatures,
    only_user: Option<u32>,
    ended: Mutex<Option<FuseSessionEnd>>,
    end_seen: Condvar,
}

impl<F: Filesystem> FuseSession<F> {
    /// Agrees with the kernel on versions and features, and starts to answer.
    ///
    /// # Errors
    /// The device fails, the kernel is too old, or no thread can be started.
    pub fn start(
        device: FuseDevice,
        filesystem: Arc<F>,
        options: &FuseSessionOptions,
    ) -> Result<Self, FuseSessionError> {
        let negotiated = agree(&device, options.features)?;
        let asked = filesystem.clone();
        let shared = Arc::new(FuseSessionShared {
            device,
            filesystem,
            requests: Arc::new(InFlightRequests::new(move || asked.silent_for())),
            stages: Arc::default(),
            pool: FuseWorkerPool::new(options.readers, options.threads_max, options.idle),
            negotiated,
            only_user: options.only_user,
            ended: Mutex::new(None),
            end_seen: Condvar::new(),
        });
        for index in 0..shared.pool.start() {
            shared.spawn(index).map_err(FuseSessionError::Thread)?;
        }
        Ok(Self { shared })
    }

    /// What was agreed upon with the kernel.
    #[must_use]
    pub fn negotiated(&self) -> NegotiatedFeatures {
        self.shared.negotiated
    }

    /// Sends notifications to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.shared.device.notifier()
    }

    /// Tells whether the file system has all that was asked. Only one that calls
    /// [`crate::Context::mark_received`] for each request has it before it has answered.
    #[must_use]
    pub fn request_barrier(&self) -> RequestBarrier {
        RequestBarrier::new(self.shared.device.shared(), Arc::clone(&self.shared.stages))
    }

    /// Waits for the end of the mount. Requests may still be being answered then; nobody waits for
    /// their replies.
    #[must_use]
    pub fn wait(&self) -> FuseSessionEnd {
        let mut ended = self.shared.ended.lock();
        loop {
            if let Some(ended) = *ended {
                return ended;
            }
            self.shared.end_seen.wait(&mut ended);
        }
    }

    /// Whether the mount has ended, and how.
    #[must_use]
    pub fn ended(&self) -> Option<FuseSessionEnd> {
        *self.shared.ended.lock()
    }

    /// How many threads read, answer or are parked.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// Ends the wait of every request that is being answered now.
    pub fn interrupt_all(&self) {
        self.shared.requests.interrupt_all();
    }

    /// After the end: waits until every thread is done with its request, at most until `deadline`;
    /// says whether all are.
    #[must_use]
    pub fn wait_for_threads(&self, deadline: Instant) -> bool {
        self.shared.pool.wait_all_ended(deadline)
    }
}

impl<F: Filesystem> FuseSessionShared<F> {
    fn spawn(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = self.clone();
        thread::Builder::new()
            .name("fuse".into())
            .stack_size(STACK_BYTES)
            .spawn(move || worker::work(&shared, index))
            .map(drop)
    }

    /// The calling thread took a request: sees to it that somebody reads on.
    fn hand_reading_over(self: &Arc<Self>) {
        match self.pool.request_taken() {
            ReaderHandover::HasReader => {}
            ReaderHandover::Spawn => {
                if let Err(error) = self.spawn(0) {
                    self.pool.spawn_failed();
                    tracing::warn!("cannot start another thread, requests may have to wait: {error}");
                }
            }
            ReaderHandover::LimitReached { tell } => {
                if tell {
                    tracing::warn!("all threads are busy; further requests wait");
                }
            }
        }
    }

    fn end(&self, how: FuseSessionEnd) {
        let first = self.ended.lock().replace(how).is_none();
        if first {
            self.end_seen.notify_all();
            self.pool.end();
        }
    }
}

/// Reads and answers INIT.
fn agree(device: &FuseDevice, wishes: RequestedFeatures) -> Result<NegotiatedFeatures, FuseSessionError> {
    let failed = |errno: Errno| FuseSessionError::Device(errno.into());
    let mut buffer = PageBuffer::new(REQUEST_BYTES_MAX).map_err(failed)?;
    loop {
        let length = match rustix::io::read(device.descriptor(), &mut *buffer.bytes()) {
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        let Ok((header, body)) = request::split(&buffer.bytes()[..length]) else {
            continue;
        };
        let Ok(RequestBody::Init(init)) = request::parse(&header, body) else {
            continue;
        };
        let (mut reply, agreed) = match negotiate(&init, wishes) {
            InitReply::AskAgain(reply) => (reply, None),
            InitReply::Agreed(reply, agreed) => (reply, Some(agreed)),
            InitReply::TooOld => {
                reply::send_error(device.descriptor(), header.unique, Errno::PROTO);
                return Err(FuseSessionError::KernelTooOld { minor: init.minor });
            }
        };
        rustix::io::write(device.descriptor(), reply.finish(header.unique)).map_err(failed)?;
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
    }
}
