//! The server's side: connections, the threads that serve them, and the limits of both.
//!
//! A thread reads an active connection and executes its calls itself. Before an operation that may
//! wait, it hands the reading over to another thread. An idle connection has no thread. A slow or
//! faulty client delays only itself.

mod accepting;
mod adaptive_polling;
mod answering;
mod backchannel;
mod clients;
mod connection;
mod datagrams;
mod deferred;
mod idle_set;
mod inner;
mod limit_log;
mod limits;
mod options;
mod overdue;
mod received_bytes;
mod receiving;
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
    time::Duration,
};

pub use clients::client_network;
pub use datagrams::{DatagramServer, DatagramServerHandle};
pub use limits::{Limits, ResourceLimit, UNSENT_PROGRESS_MIN};
pub use options::RpcServerOptions;
use rustix::event::EventfdFlags;

use crate::record::buffer_pool::BufferPool;
pub use crate::{
    connection::{Backchannel, CallContext, CallHandler, DeferredCall, RpcService, SendfileRange},
    message::CallFailure,
};
use idle_set::IdleSet;
use inner::RpcServerInner;
use worker_pool::WorkerPool;

/// After the server stops: interval of its main thread's checks of calls in progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum size of the cached receive buffers in bytes.
const POOL_MAX: usize = 32 << 20;

/// A server, ready to run.
pub struct RpcServer {
    shared: Arc<RpcServerInner>,
    stop: Arc<OwnedFd>,
}

/// Stops an [`RpcServer`] from another thread, or returns its statistics.
#[derive(Clone)]
pub struct RpcServerHandle {
    shared: Arc<RpcServerInner>,
    stop: Arc<OwnedFd>,
}

impl RpcServer {
    /// Prepares to serve `listeners`. [`Limits`] alone are options as well.
    ///
    /// # Errors
    /// The errors of the system calls that create the epoll set.
    pub fn new(
        listeners: Vec<TcpListener>,
        service: Arc<dyn RpcService>,
        options: impl Into<RpcServerOptions>,
    ) -> io::Result<Self> {
        let RpcServerOptions { limits, clock, acceptor } = options.into();
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let idle_set = IdleSet::new(listeners, &stop, Arc::new(BufferPool::new(POOL_MAX)), clock.clone())?;
        let pool =
            Arc::new(WorkerPool::new(limits.threads.max(1), limits.threads_per_client.max(1), clock.clone()));
        let shared = RpcServerInner {
            stages: service.stages().unwrap_or_default(),
            handler: CallHandler { service, acceptor },
            limits,
            clock,
            idle_set,
            worker_pool: pool,
            waiting_for_rest: AtomicUsize::new(0),
            polling: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), stop: Arc::new(stop) })
    }

    /// The handle that stops the server.
    #[must_use]
    pub fn handle(&self) -> RpcServerHandle {
        RpcServerHandle { shared: Arc::clone(&self.shared), stop: Arc::clone(&self.stop) }
    }

    /// Serves until [`RpcServerHandle::shutdown`]; then completes the calls in progress, sends the
    /// replies, and returns.
    pub fn run(self) {
        let mut ready = Vec::new();
        let interval = self.shared.limits.look_interval();
        let clock = &self.shared.clock;
        let mut look_at = clock.now() + interval;
        while self.shared.idle_set.wait(&mut ready, &self.shared.limits, Some(interval)) {
            self.dispatch(&mut ready);
            let now = clock.now();
            if now >= look_at {
                self.shared.idle_set.close_overdue(&self.shared.limits, now);
                look_at = now + interval;
            }
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.idle_set.begin_stopping(&self.stop, &mut ready);
        self.dispatch(&mut ready);
        let abandon_at = clock.now() + self.shared.limits.shutdown_timeout;
        // Calls in progress are waited for without a limit, unsent replies only for the timeout.
        while self.shared.idle_set.connections() > 0 {
            self.shared.handler.service.resume_deferred();
            self.shared.idle_set.wait(&mut ready, &self.shared.limits, Some(LOOK_INTERVAL));
            self.dispatch(&mut ready);
            if clock.now() >= abandon_at {
                self.shared.idle_set.abandon();
            }
        }
        self.shared.worker_pool.stop();
        // Calls may wait of which the connection is removed, or begin to wait until the last
        // thread has ended.
        loop {
            let had_ended = self.shared.worker_pool.threads() == 0;
            self.shared.handler.service.resume_deferred();
            if had_ended && self.shared.worker_pool.threads() == 0 {
                return;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn dispatch(
        &self,
        ready: &mut Vec<(Arc<connection::ServerConnection>, crate::record::receive_buffer::ReceiveBuffer)>,
    ) {
        for (connection, receive_buffer) in ready.drain(..) {
            self.shared.dispatch_ready(connection, receive_buffer);
        }
    }
}

impl RpcServerHandle {
    /// Makes the server complete its calls and end. Returns at once.
    pub fn shutdown(&self) {
        // Fails only if the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// Number of connections, idle ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.idle_set.connections()
    }

    /// How often each limit was reached.
    pub fn limits_met(&self) -> impl Iterator<Item = (ResourceLimit, u64)> {
        let times = self.shared.idle_set.total_usage.limit_log.times();
        ResourceLimit::ALL.into_iter().zip(times)
    }

    /// Number of threads that serve, or wait for work.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.worker_pool.threads()
    }
}
