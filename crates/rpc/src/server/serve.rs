//! What a serving thread does with a connection: read calls, have them answered, send the replies
//! of one wake-up together.
//!
//! Invariants: a warm call costs one receive, one send and what the service does, and no memory; a
//! client gets its own replies late, never somebody else's.

use std::sync::{Arc, atomic::Ordering};

use curt_trace::stages;

use super::{
    adaptive_polling::AdaptivePolling,
    answering::AfterCall,
    connection::{ReadJob, ServerConnection},
    inner::{RpcServerInner, WorkerBuffers},
    limits::ResourceLimit,
    receiving::{ReceiveOutcome, RestOfRecordTimeout, receive_more},
    sending::SendOutcome,
    worker_pool::JobHandler,
};
use crate::record::receive_buffer::ReceiveBuffer;

/// Buffers above this size are given back when a connection is left.
const BUFFER_CAPACITY_MAX: usize = 256 << 10;

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
