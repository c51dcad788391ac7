//! What a serving thread does with a connection: read calls, have them answered, send the replies
//! of one wake-up together.
//!
//! Invariants: a warm call costs one receive, one send and what the service does, and no memory; a
//! client gets its own replies late, never somebody else's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use curt_trace::stages::{self, StageTimes};

use super::{
    Limits, RpcService,
    adaptive_polling::AdaptivePolling,
    answering::AfterCall,
    connection::ServerConnection,
    idle_set::IdleSet,
    limits::ResourceLimit,
    receiving::{ReceiveOutcome, RestOfRecordTimeout, receive_more},
    sending::SendOutcome,
    worker_pool::{JobHandler, WorkerPool},
};
use crate::receive_buffer::ReceiveBuffer;

/// As soon as this much is gathered it is sent.
pub(super) const BATCH_MAX: usize = 64 << 10;

/// Buffers above this size are given back when a connection is left.
const BUFFER_CAPACITY_MAX: usize = 256 << 10;

/// Once the server stops: how long its main thread sleeps between two checks of what is still in
/// progress.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What all serving threads share.
pub(super) struct RpcServerInner {
    pub(super) service: Arc<dyn RpcService>,
    pub(super) stages: Arc<StageTimes>,
    pub(super) limits: Limits,
    pub(super) idle_set: IdleSet,
    pub(super) worker_pool: Arc<WorkerPool<ReadJob>>,
    /// Threads that wait for the rest of a record. Relaxed: one more or less does no harm.
    pub(super) waiting_for_rest: AtomicUsize,
    /// A thread polls for calls without sleeping. Relaxed: two of them for a moment do no harm.
    pub(super) polling: AtomicBool,
    /// Set once. SeqCst with [`ServerConnection::lingering`].
    pub(super) stopping: AtomicBool,
}

/// A connection to read.
pub(super) struct ReadJob {
    pub(super) connection: Arc<ServerConnection>,
    pub(super) inbox: ReceiveBuffer,
}

/// A serving thread's buffers.
#[derive(Default)]
pub(super) struct WorkerBuffers {
    /// Replies that are ready to be sent together.
    pub(super) batch: Vec<u8>,
    /// The reply that is being made.
    pub(super) reply: Vec<u8>,
}

impl WorkerBuffers {
    /// Whether replies wait that can wait a little longer for company: the last calls came with
    /// more behind them.
    fn is_worth_waiting(&self, inbox: &ReceiveBuffer) -> bool {
        inbox.was_filled() && !self.batch.is_empty() && self.batch.len() <= BATCH_MAX
    }
}

impl JobHandler<WorkerBuffers> for RpcServerInner {
    type Job = ReadJob;

    fn run(self: &Arc<Self>, job: ReadJob, own: &mut WorkerBuffers) {
        let ReadJob { connection, inbox } = job;
        let guard = CloseOnPanic {
            shared: self,
            connection: &connection,
        };
        self.serve(&connection, inbox, own);
        std::mem::forget(guard);
        own.batch.clear();
        own.batch.shrink_to(BUFFER_CAPACITY_MAX);
        own.reply.clear();
        own.reply.shrink_to(BUFFER_CAPACITY_MAX);
    }

    fn refuse(self: &Arc<Self>, job: ReadJob) {
        job.connection.close("no thread can be started to serve it");
        self.idle_set.remove(&job.connection);
    }
}

/// A connection that a thread reads. Dropped by a fault of ours: nobody knows where in the stream
/// of calls and replies it was, so it ends, and the client calls again over another one.
struct CloseOnPanic<'a> {
    shared: &'a RpcServerInner,
    connection: &'a ServerConnection,
}

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        let peer = self.connection.peer;
        tracing::error!("panic while serving {peer}: closing the connection");
        self.connection.close("a fault");
        self.shared.idle_set.remove(self.connection);
    }
}

impl RpcServerInner {
    /// Has a connection read by a thread.
    pub(super) fn dispatch(self: &Arc<Self>, job: ReadJob) {
        let connection = Arc::clone(&job.connection);
        if !self
            .worker_pool
            .dispatch(self, job, &connection.client_ref.client.quota)
        {
            self.idle_set.total_usage.limit_log.note(ResourceLimit::ThreadsPerClient, || {
                let ip = connection.peer.ip();
                format!(
                    "{ip} has its share of the threads: what more it asks for waits until one of them is free"
                )
            });
        }
    }

    /// Serves until the connection is parked, closed, or read by another thread.
    fn serve(
        self: &Arc<Self>,
        connection: &Arc<ServerConnection>,
        mut inbox: ReceiveBuffer,
        own: &mut WorkerBuffers,
    ) {
        // Half a record that was parked already holds no thread again.
        let mut patience = RestOfRecordTimeout::new(inbox.is_empty());
        let mut pace = AdaptivePolling::default();
        loop {
            if connection.has_backlog() {
                self.flush(connection, own);
                if !self.wait_for_room(connection) {
                    return self.make_idle(connection, inbox);
                }
            }
            match inbox.complete_record(|_| self.limits.record) {
                Ok(Some(whole)) => {
                    match self.execute(connection, &inbox, whole, own) {
                        AfterCall::ReadOn => inbox.skip(whole),
                        AfterCall::Reclaimed(rest) => inbox = rest,
                        AfterCall::HandedOver => return,
                        AfterCall::Close => break,
                    }
                    patience = RestOfRecordTimeout::new(true);
                    pace.called();
                }
                // Replies go together while more calls are there already.
                Ok(None) if own.is_worth_waiting(&inbox) && receive_more(connection, &mut inbox) => {}
                Ok(None) => {
                    if self.flush(connection, own) == SendOutcome::Queued {
                        continue;
                    }
                    match self.receive(connection, &mut inbox, &mut patience, &mut pace) {
                        ReceiveOutcome::Bytes => {}
                        ReceiveOutcome::Nothing => return self.make_idle(connection, inbox),
                        ReceiveOutcome::End => break,
                    }
                }
                Err(error) => {
                    connection.log_misbehaviour(&format!("{error}; closing the connection"));
                    break;
                }
            }
        }
        self.flush(connection, own);
        self.idle_set.remove(connection);
        self.close_at_shutdown(connection);
    }

    pub(super) fn make_idle(&self, connection: &ServerConnection, inbox: ReceiveBuffer) {
        if self.stopping.load(Ordering::SeqCst) && !connection.has_backlog() {
            self.idle_set.remove(connection);
            self.close_at_shutdown(connection);
        } else {
            self.idle_set.insert(connection, inbox, &self.limits);
        }
    }

    /// When the server stops, closes a connection in an orderly way, so that its client receives
    /// the last replies.
    pub(super) fn close_at_shutdown(&self, connection: &ServerConnection) {
        let stops = self.stopping.load(Ordering::SeqCst);
        if stops && connection.in_flight.load(Ordering::Acquire) == 0 && !connection.has_backlog() {
            connection.close_gracefully();
        }
    }

    fn flush(&self, connection: &ServerConnection, own: &mut WorkerBuffers) -> SendOutcome {
        if own.batch.is_empty() {
            return SendOutcome::All;
        }
        let sent = stages::finish(&self.stages, || connection.send([&own.batch, &[]], &self.limits));
        own.batch.clear();
        sent
    }
}
