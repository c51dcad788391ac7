//! The server's side: connections, the threads that serve them, and the limits on both.
//!
//! A thread owns an active connection and answers its calls itself. Before an operation that may
//! wait, it leaves the reading to whoever is ready first. A connection that has nothing to say is
//! parked and holds no thread. What a client does slowly or wrongly costs that client.

mod accepting;
mod adaptive_polling;
mod answering;
mod clients;
mod connection;
mod context;
mod idle_set;
mod limit_log;
mod limits;
mod overdue;
mod receiving;
mod sendfile;
mod sending;
mod serve;
mod worker_pool;

use std::{
    io,
    net::TcpListener,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use curt_trace::stages::StageTimes;

pub use context::CallContext;
pub use limits::{Limits, ResourceLimit, UNSENT_PROGRESS_MIN};
use rustix::event::EventfdFlags;
pub use sendfile::SendfileRange;

use crate::{
    auth::AuthStatus,
    buffer::BufferPool,
    message::{CallMessage, VersionRange},
};
use idle_set::IdleSet;
use serve::{LOOK_INTERVAL, RpcServerInner};
use worker_pool::WorkerPool;

/// How many bytes of receive buffers are kept for the next connections.
const POOL_MAX: usize = 32 << 20;

/// Something that answers calls. Called on many threads at once.
pub trait RpcService: Send + Sync {
    /// Answers one call: appends the procedure's results to `reply` and touches nothing that is in
    /// it already.
    ///
    /// # Errors
    /// [`CallFailure`]: whatever was appended is dropped, and the client told.
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure>;

    /// Where it wants to know where the time of its calls goes, if it does. Asked once, when a
    /// server is made.
    fn stages(&self) -> Option<Arc<StageTimes>> {
        None
    }
}

/// Why a call has no results; becomes the reply's status (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFailure {
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served in other versions.
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArguments,
    /// Something else, such as memory that ran out.
    SystemError,
    /// The credential is not believed.
    Denied(AuthStatus),
    /// There is to be no reply at all: the call is a duplicate of one that is still being executed,
    /// whose reply will come.
    NoReply,
}

/// A server, ready to run.
pub struct RpcServer {
    shared: Arc<RpcServerInner>,
    stop: Arc<OwnedFd>,
}

/// Stops a [`RpcServer`] from another thread, or looks at it.
#[derive(Clone)]
pub struct RpcServerHandle {
    shared: Arc<RpcServerInner>,
    stop: Arc<OwnedFd>,
}

impl RpcServer {
    /// Prepares to serve whoever connects to `listeners`.
    ///
    /// # Errors
    /// Those of the system calls that make an epoll set of them.
    pub fn new(
        listeners: Vec<TcpListener>,
        service: Arc<dyn RpcService>,
        limits: Limits,
    ) -> io::Result<Self> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let parking = IdleSet::new(listeners, &stop, Arc::new(BufferPool::new(POOL_MAX)))?;
        let crew = Arc::new(WorkerPool::new(
            limits.threads.max(1),
            limits.threads_per_client.max(1),
        ));
        let shared = RpcServerInner {
            stages: service.stages().unwrap_or_default(),
            service,
            limits,
            idle_set: parking,
            worker_pool: crew,
            waiting_for_rest: AtomicUsize::new(0),
            polling: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            stop: Arc::new(stop),
        })
    }

    /// What stops it.
    #[must_use]
    pub fn handle(&self) -> RpcServerHandle {
        RpcServerHandle {
            shared: Arc::clone(&self.shared),
            stop: Arc::clone(&self.stop),
        }
    }

    /// Serves until [`RpcServerHandle::shutdown`]; then answers what was begun, sends the replies,
    /// and returns.
    pub fn run(self) {
        let mut ready = Vec::new();
        let interval = self.shared.limits.look_interval();
        let mut look_at = Instant::now() + interval;
        while self
            .shared
            .idle_set
            .wait(&mut ready, &self.shared.limits, Some(interval))
        {
            self.dispatch(&mut ready);
            let now = Instant::now();
            if now >= look_at {
                self.shared.idle_set.close_overdue(&self.shared.limits, now);
                look_at = now + interval;
            }
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.idle_set.begin_stopping(&self.stop, &mut ready);
        self.dispatch(&mut ready);
        let abandon_at = Instant::now() + self.shared.limits.shutdown_timeout;
        // What the service has begun is waited for however long it takes; what clients do not take
        // is not.
        while self.shared.idle_set.connections() > 0 {
            self.shared
                .idle_set
                .wait(&mut ready, &self.shared.limits, Some(LOOK_INTERVAL));
            self.dispatch(&mut ready);
            if Instant::now() >= abandon_at {
                self.shared.idle_set.abandon();
            }
        }
        self.shared.worker_pool.stop();
        while self.shared.worker_pool.threads() > 0 {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn dispatch(
        &self,
        ready: &mut Vec<(
            Arc<connection::ServerConnection>,
            crate::receive_buffer::ReceiveBuffer,
        )>,
    ) {
        for (connection, inbox) in ready.drain(..) {
            self.shared.dispatch_ready(connection, inbox);
        }
    }
}

impl RpcServerHandle {
    /// Has the server finish what was begun, and end. Returns at once.
    pub fn shutdown(&self) {
        // Fails only when the counter is full, and then it was said often enough.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// How many connections there are, parked ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.idle_set.connections()
    }

    /// How often each limit was met.
    pub fn limits_met(&self) -> impl Iterator<Item = (ResourceLimit, u64)> {
        let times = self.shared.idle_set.total_usage.limit_log.times();
        ResourceLimit::ALL.into_iter().zip(times)
    }

    /// How many threads serve, or wait a while for work.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.worker_pool.threads()
    }
}
