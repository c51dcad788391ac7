//! The loop of a serving thread on a connection: reads calls, executes them, and sends the replies
//! to calls received together at once.
//!
//! Invariants: a call costs one receive, one send and the work of the service, and allocates no
//! memory in steady state; a client never gets a reply to another client's call.

use std::sync::{Arc, atomic::Ordering};

use curt_observe::stages;

use super::{
    adaptive_polling::AdaptivePolling,
    answering::AfterCall,
    connection::{ReadJob, ServerConnection, ServerJob},
    inner::{RpcServerInner, WorkerBuffers},
    limits::ResourceLimit,
    received_bytes::ReceivedBytes,
    receiving::{ReceiveOutcome, RestOfRecordTimeout, receive_more},
    sending::SendOutcome,
    worker_pool::{JobHandler, PoolPressure},
};
use crate::record::receive_buffer::ReceiveBuffer;

/// Buffers above this size are freed when a thread leaves a connection.
const BUFFER_CAPACITY_MAX: usize = 256 << 10;

impl JobHandler<WorkerBuffers> for RpcServerInner {
    type Job = ServerJob;

    fn run(self: &Arc<Self>, job: ServerJob, own: &mut WorkerBuffers) {
        let connection = Arc::clone(job.connection());
        let guard = CloseOnPanic { shared: self, connection: &connection };
        match job {
            ServerJob::Read(ReadJob { receive_buffer, counted, .. }) => {
                drop(counted);
                self.serve(&connection, receive_buffer, own);
            }
            ServerJob::Resume(resumed) => self.execute_resumed(resumed, own),
        }
        std::mem::forget(guard);
        own.batch.clear();
        own.batch.shrink_to(BUFFER_CAPACITY_MAX);
        own.reply.clear();
        own.reply.shrink_to(BUFFER_CAPACITY_MAX);
    }

    fn refuse(self: &Arc<Self>, job: ServerJob) {
        job.connection().close("no thread can be started to serve it");
        self.idle_set.remove(job.connection());
    }
}

impl ServerJob {
    fn connection(&self) -> &Arc<ServerConnection> {
        match self {
            Self::Read(job) => &job.connection,
            Self::Resume(resumed) => resumed.connection(),
        }
    }
}

/// A connection that a thread reads. If it is dropped by a panic, the position in the stream is
/// unknown, so the connection is closed, and the client sends its calls again over another one.
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
    /// Has a thread read a ready connection.
    pub(super) fn dispatch(
        self: &Arc<Self>,
        connection: &Arc<ServerConnection>,
        receive_buffer: ReceiveBuffer,
    ) {
        let count = self.waiting_bytes(connection, &receive_buffer);
        let counted =
            ReceivedBytes::of_ready(&self.idle_set.total_usage, &connection.client_ref.client, count);
        let job = ReadJob { connection: Arc::clone(connection), receive_buffer, counted };
        self.dispatch_job(ServerJob::Read(job), connection);
    }

    /// The received bytes that count while a connection waits for a thread. Without calls that wait
    /// already, a thread takes it soon.
    pub(super) fn waiting_bytes(
        &self,
        connection: &ServerConnection,
        receive_buffer: &ReceiveBuffer,
    ) -> usize {
        let pressure = self.worker_pool.pressure(&connection.client_ref.client.quota);
        if pressure == PoolPressure::Short { receive_buffer.held() } else { 0 }
    }

    /// Has a thread do a job of a connection.
    pub(super) fn dispatch_job(self: &Arc<Self>, job: ServerJob, connection: &ServerConnection) {
        if !self.worker_pool.dispatch(self, job, &connection.client_ref.client.quota) {
            self.idle_set.total_usage.limit_log.note(ResourceLimit::ThreadsPerClient, || {
                let ip = connection.peer.ip();
                format!(
                    "{ip} has its share of the threads: what more it asks for waits until one of them is free"
                )
            });
        }
    }

    /// Serves until the connection is idle, closed, or read by another thread.
    fn serve(
        self: &Arc<Self>,
        connection: &Arc<ServerConnection>,
        mut receive_buffer: ReceiveBuffer,
        own: &mut WorkerBuffers,
    ) {
        // An incomplete record that has been idle before uses no thread again.
        let mut timeout = RestOfRecordTimeout::new(receive_buffer.is_empty());
        let mut pace = AdaptivePolling::default();
        loop {
            if connection.has_backlog() {
                self.flush(connection, own);
                if !self.wait_for_room(connection) {
                    return self.make_idle(connection, receive_buffer);
                }
            }
            match receive_buffer.complete_record(|_| self.limits.record) {
                Ok(Some(record)) => {
                    match self.execute(connection, &receive_buffer, record, own) {
                        AfterCall::ReadOn => receive_buffer.skip(record),
                        AfterCall::Reclaimed(rest) => receive_buffer = rest,
                        AfterCall::HandedOver => return,
                        AfterCall::Close => break,
                    }
                    timeout = RestOfRecordTimeout::new(true);
                    pace.called();
                }
                // Replies wait for each other while further calls have already arrived.
                Ok(None)
                    if own.is_worth_waiting(&receive_buffer)
                        && receive_more(connection, &mut receive_buffer) => {}
                Ok(None) => {
                    if self.flush(connection, own) == SendOutcome::Queued {
                        continue;
                    }
                    match self.receive(connection, &mut receive_buffer, &mut timeout, &mut pace) {
                        ReceiveOutcome::Bytes => {}
                        ReceiveOutcome::Nothing => return self.make_idle(connection, receive_buffer),
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

    pub(super) fn make_idle(&self, connection: &ServerConnection, receive_buffer: ReceiveBuffer) {
        if self.stopping.load(Ordering::SeqCst) && !connection.has_backlog() {
            self.idle_set.remove(connection);
            self.close_at_shutdown(connection);
        } else {
            self.idle_set.insert(connection, receive_buffer, &self.limits);
        }
    }

    /// When the server stops, closes a connection in order, so that its client receives the last
    /// replies.
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
