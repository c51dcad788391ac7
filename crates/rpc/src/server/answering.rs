//! Execution of one call, and its reply.
//!
//! If a service is about to wait, another thread may read the connection. The thread takes the
//! connection back before it sends its reply, unless another thread has it
//! (`docs/decisions/handing-over-a-connection.md`).

use std::sync::{Arc, atomic::Ordering};

use curt_observe::stages;

use super::{
    backchannel::ConnectionBackchannel,
    connection::{ReadJob, ReaderState, ServerConnection, ServerJob},
    deferred::DeferredServerCall,
    inner::{BATCH_MAX, RpcServerInner, WorkerBuffers},
    limits::ResourceLimit,
    received_bytes::ReceivedBytes,
    sending::SendOutcome,
    worker_pool::PoolPressure,
};
use crate::connection::context::{AttachedRange, CallContext};
use crate::{
    connection::{
        answer::Answered,
        context::{DeferredCall, HandOverReading},
    },
    record::receive_buffer::{CompleteRecord, ReceiveBuffer},
};

/// Replies up to this size are copied into a batch, longer ones are sent without a copy.
const GATHERED_MAX: usize = 8 << 10;

/// The next step after a call.
pub(super) enum AfterCall {
    /// This thread continues to read.
    ReadOn,
    /// This thread continues to read, with the bytes after the record in another buffer.
    Reclaimed(ReceiveBuffer),
    /// Another thread reads the connection.
    HandedOver,
    /// The connection is to be closed.
    Close,
}

impl RpcServerInner {
    /// Executes the call in the record at the front of `receive_buffer`.
    pub(super) fn execute(
        self: &Arc<Self>,
        connection: &Arc<ServerConnection>,
        receive_buffer: &ReceiveBuffer,
        record: CompleteRecord,
        own: &mut WorkerBuffers,
    ) -> AfterCall {
        own.reply.clear();
        let message = receive_buffer.body(record);
        if connection.deliver_reply(message) || connection.is_late_reply(message) {
            stages::forget();
            return AfterCall::ReadOn;
        }
        let mut reader = ConnectionReader {
            shared: self,
            connection,
            receive_buffer,
            record,
            batch: &mut own.batch,
            handed_over: false,
        };
        let backchannel = || ConnectionBackchannel::of(self, connection);
        let mut context = CallContext::of_connection(
            connection.peer,
            connection.local,
            &connection.service_data,
            &backchannel,
            &mut reader,
        );
        let log = |what: &str| connection.log_misbehaviour(what);
        let answered = self.handler.answer(message, &mut context, &mut own.reply, &log);
        let handed_over = reader.handed_over;
        let piece = match answered {
            Ok(Answered::Reply(piece)) => piece,
            Ok(Answered::Nothing) => None,
            Err(defect) => {
                log(&format!("no RPC call: {defect}; closing the connection"));
                return AfterCall::Close;
            }
        };
        // Before the reply is sent: the client may send its next call at once, which would wake
        // another thread.
        let reclaimed = handed_over.then(|| self.idle_set.reclaim(connection));
        if let Some(None) = reclaimed {
            self.answer_late(connection, &own.reply, piece.as_ref());
            return AfterCall::HandedOver;
        }
        if let Some(piece) = &piece {
            stages::finish(&self.stages, || self.send_with_file(connection, &own.batch, &own.reply, piece));
            own.batch.clear();
        } else if own.reply.len() <= GATHERED_MAX && own.batch.len() <= BATCH_MAX {
            own.batch.extend_from_slice(&own.reply);
            stages::suspend();
        } else {
            stages::finish(&self.stages, || connection.send([&own.batch, &own.reply], &self.limits));
            own.batch.clear();
        }
        match reclaimed.flatten() {
            Some(rest) => {
                connection.in_flight.fetch_sub(1, Ordering::Release);
                AfterCall::Reclaimed(rest)
            }
            None => AfterCall::ReadOn,
        }
    }

    /// Sends the batch and a reply that contains a range of a file. If threads are scarce, no
    /// thread waits for the client to receive it.
    fn send_with_file(
        &self,
        connection: &ServerConnection,
        gathered: &[u8],
        reply: &[u8],
        piece: &AttachedRange,
    ) -> SendOutcome {
        let (head, after) = reply.split_at(piece.at);
        let patient = self.worker_pool.pressure(&connection.client_ref.client.quota) == PoolPressure::None;
        connection.send_with_file([gathered, head], &piece.range, after, patient, &self.limits)
    }

    /// Sends a reply from a thread that does not read the connection, without waiting for the
    /// client to receive it.
    pub(super) fn answer_late(
        &self,
        connection: &ServerConnection,
        reply: &[u8],
        piece: Option<&AttachedRange>,
    ) {
        let sent = stages::finish(&self.stages, || match piece {
            Some(piece) => self.send_with_file(connection, &[], reply, piece),
            None => connection.send([reply, &[]], &self.limits),
        });
        // Pairs with the load in `receive`: a thread that sees no call in progress also sees the
        // unsent reply of this call.
        let last = connection.in_flight.fetch_sub(1, Ordering::AcqRel) == 1;
        if sent == SendOutcome::Queued {
            // If a thread reads the connection, it checks for unsent bytes before each wait.
            self.idle_set.arm_for_room(connection);
        } else if last {
            self.close_after_last_call(connection);
        }
    }

    /// When the server stops, closes a connection whose last call has ended: it was left idle, or
    /// no thread reads it any more.
    pub(super) fn close_after_last_call(&self, connection: &ServerConnection) {
        if self.stopping.load(Ordering::SeqCst) {
            if let Some(receive_buffer) = self.idle_set.reclaim(connection) {
                self.make_idle(connection, receive_buffer);
            } else if matches!(*connection.reading.lock(), ReaderState::Closed) {
                self.close_at_shutdown(connection);
            }
        }
    }
}

/// The reading of a connection, held by the thread that executes one of its calls.
struct ConnectionReader<'a> {
    shared: &'a Arc<RpcServerInner>,
    connection: &'a Arc<ServerConnection>,
    receive_buffer: &'a ReceiveBuffer,
    record: CompleteRecord,
    batch: &'a mut Vec<u8>,
    handed_over: bool,
}

impl HandOverReading for ConnectionReader<'_> {
    fn hand_over(&mut self) {
        let (shared, connection) = (self.shared, self.connection);
        if !self.batch.is_empty() {
            connection.send([self.batch, &[]], &shared.limits);
            self.batch.clear();
        }
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if connection.in_flight.load(Ordering::Relaxed) + 1 >= shared.limits.in_flight {
            let pressing = &shared.idle_set.total_usage.limit_log;
            pressing.note(ResourceLimit::InFlight, String::new);
            return;
        }
        let mut rest = self.receive_buffer.after(self.record);
        let is_incomplete = matches!(rest.complete_record(|_| shared.limits.record), Ok(None));
        let count = if is_incomplete {
            rest.shrink();
            rest.held()
        } else {
            shared.waiting_bytes(connection, &rest)
        };
        let (total_usage, client) = (&connection.total_usage, &connection.client_ref.client);
        let Ok(counted) = ReceivedBytes::within_half(total_usage, client, count, &shared.limits) else {
            return;
        };
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        self.handed_over = true;
        if is_incomplete {
            shared.idle_set.insert_counted(connection, rest, counted);
        } else {
            let job = ReadJob { connection: Arc::clone(connection), receive_buffer: rest, counted };
            shared.dispatch_job(ServerJob::Read(job), connection);
        }
    }

    fn defer(&self) -> Option<Box<dyn DeferredCall>> {
        DeferredServerCall::of(self.shared, self.connection, self.receive_buffer.body(self.record))
    }
}
