//! A session: from INIT to the end of the mount.
//!
//! Threads read the device and handle requests ([`worker`]).

mod worker;

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
    negotiate::{IO_BYTES_MAX, InitReply, NegotiatedFeatures, RequestedFeatures, negotiate},
    notify::Notifier,
    reply,
    request::{self, RequestBody},
    requests_in_progress::{InFlightRequests, RequestBarrier, WorkerStages},
    sys::PageBuffer,
};

use worker::FuseWorkerPool;

/// Size of the largest WRITE request.
const REQUEST_BYTES_MAX: usize = IO_BYTES_MAX as usize + 8192;

/// Options of a session.
#[derive(Clone, Debug)]
pub struct FuseSessionOptions {
    /// Requested features.
    pub features: RequestedFeatures,
    /// Number of threads that read the device when idle; at least 1.
    pub readers: usize,
    /// Maximum number of threads, and so of requests in progress.
    pub threads_max: usize,
    /// Idle time after which a surplus thread ends.
    pub idle: Duration,
    /// Only this user and root may use the mount, others get EACCES; `None`: all users that the
    /// kernel admits.
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
    /// Reading failed with an unexpected error.
    Failed(Errno),
}

/// Handles a mount's requests until it ends.
pub struct FuseSession<F: Filesystem> {
    shared: Arc<FuseSessionShared<F>>,
}

impl<F: Filesystem> fmt::Debug for FuseSession<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseSession").field("negotiated", &self.shared.negotiated).finish_non_exhaustive()
    }
}

struct FuseSessionShared<F: Filesystem> {
    device: FuseDevice,
    filesystem: Arc<F>,
    requests: Arc<InFlightRequests>,
    stages: Arc<WorkerStages>,
    pool: FuseWorkerPool,
    negotiated: NegotiatedFeatures,
    only_user: Option<u32>,
    ended: Mutex<Option<FuseSessionEnd>>,
    end_seen: Condvar,
}

impl<F: Filesystem> FuseSession<F> {
    /// Negotiates versions and features with the kernel, and starts to handle requests.
    ///
    /// # Errors
    /// The device fails, the kernel is too old, or no thread can be started.
    pub fn start(
        device: FuseDevice,
        filesystem: Arc<F>,
        options: &FuseSessionOptions,
    ) -> Result<Self, FuseSessionError> {
        let negotiated = answer_init(&device, options.features)?;
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

    /// The result of the negotiation with the kernel.
    #[must_use]
    pub fn negotiated(&self) -> NegotiatedFeatures {
        self.shared.negotiated
    }

    /// A handle for notifications to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.shared.device.notifier()
    }

    /// Whether the file system has received all requests. A request counts as received when it is
    /// complete, or when the method calls [`crate::FuseContext::mark_received`].
    #[must_use]
    pub fn request_barrier(&self) -> RequestBarrier {
        RequestBarrier::new(self.shared.device.shared(), Arc::clone(&self.shared.stages))
    }

    /// Waits for the end of the mount. Requests may still be in progress then; no process waits for
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

    /// Number of threads that read, handle requests or are idle.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// Ends the wait of all requests in progress.
    pub fn interrupt_all(&self) {
        self.shared.requests.interrupt_all();
    }

    /// For tests. After the end: waits until all threads have completed their requests, at most
    /// until `deadline`; returns whether all have.
    #[must_use]
    pub fn wait_for_threads(&self, deadline: Instant) -> bool {
        self.shared.pool.wait_all_ended(deadline)
    }
}

/// Reads INIT and replies to it.
fn answer_init(
    device: &FuseDevice,
    wishes: RequestedFeatures,
) -> Result<NegotiatedFeatures, FuseSessionError> {
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
