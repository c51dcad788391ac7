//! Calls that wait without a thread, and are executed again when their wait has ended.
//!
//! A deferred call has a copy of its message. It counts as a call in progress of its connection,
//! and its bytes as received ones.

use std::{
    any::Any,
    sync::{Arc, Weak, atomic::Ordering},
};

use super::{
    backchannel::ConnectionBackchannel,
    connection::{CountedCall, DeferredMessage, ResumedCall, ServerConnection, ServerJob},
    inner::{RpcServerInner, WorkerBuffers},
    limits::ResourceLimit,
    received_bytes::ReceivedBytes,
};
use crate::connection::{
    answer::Answered,
    context::{CallContext, DeferredCall, HandOverReading},
};

/// A call that waits.
pub(super) struct DeferredServerCall {
    server: Weak<RpcServerInner>,
    call: CountedCall,
}

impl DeferredServerCall {
    /// None if the connection has too many calls in progress, too many bytes wait, or the server
    /// stops.
    pub(super) fn of(
        server: &Arc<RpcServerInner>,
        connection: &Arc<ServerConnection>,
        message: &[u8],
    ) -> Option<Box<dyn DeferredCall>> {
        if !may_defer(server, connection) {
            return None;
        }
        let (total_usage, client) = (&connection.total_usage, &connection.client_ref.client);
        let counted = ReceivedBytes::within_half(total_usage, client, message.len(), &server.limits);
        let note = |limit: &ResourceLimit| {
            let peer = connection.peer;
            let what =
                || format!("a call from {peer} cannot wait: too many bytes do (limit {})", limit.name());
            total_usage.limit_log.note(*limit, what);
        };
        let counted = counted.inspect_err(note).ok()?;
        let message = DeferredMessage { bytes: message.into(), _counted: counted };
        let call = CountedCall::new(connection, Arc::new(message));
        Some(Box::new(Self { server: Arc::downgrade(server), call }))
    }
}

/// Whether one call more may wait: the server does not stop, and the connection has few enough in
/// progress. Two threads may exceed the limit by one.
fn may_defer(server: &RpcServerInner, connection: &ServerConnection) -> bool {
    let in_flight = connection.in_flight.load(Ordering::Relaxed);
    in_flight + 1 < server.limits.in_flight && !server.stopping.load(Ordering::Relaxed)
}

impl DeferredCall for DeferredServerCall {
    fn resume(self: Box<Self>, state: Box<dyn Any + Send>) {
        let Self { server, call } = *self;
        if let Some(server) = server.upgrade() {
            let connection = Arc::clone(&call.connection);
            server.dispatch_job(ServerJob::Resume(ResumedCall { call, state }), &connection);
        }
    }
}

impl RpcServerInner {
    /// Executes a deferred call again, and sends its reply.
    pub(super) fn execute_resumed(self: &Arc<Self>, resumed: ResumedCall, own: &mut WorkerBuffers) {
        let ResumedCall { call, state } = resumed;
        let connection = &Arc::clone(&call.connection);
        own.reply.clear();
        let mut reader = ResumedReader { server: self, call: &call };
        let backchannel = || ConnectionBackchannel::of(self, connection);
        let mut context = CallContext::of_connection(
            connection.peer,
            connection.local,
            &connection.service_data,
            &backchannel,
            &mut reader,
        )
        .resuming(state);
        let log = |what: &str| connection.log_misbehaviour(what);
        let answered = self.handler.answer(&call.message.bytes, &mut context, &mut own.reply, &log);
        let piece = match answered {
            Ok(Answered::Reply(piece)) => piece,
            // It waits again, or gets no reply. What was no call the first time is none either.
            Ok(Answered::Nothing) | Err(_) => {
                drop(call);
                if connection.in_flight.load(Ordering::Acquire) == 0 {
                    self.close_after_last_call(connection);
                }
                return;
            }
        };
        // It is in progress until its reply is sent.
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        drop(call);
        self.answer_late(connection, &own.reply, piece.as_ref());
    }
}

/// A thread that executes a deferred call does not read the connection.
struct ResumedReader<'a> {
    server: &'a Arc<RpcServerInner>,
    call: &'a CountedCall,
}

impl HandOverReading for ResumedReader<'_> {
    fn hand_over(&mut self) {}

    fn defer(&self) -> Option<Box<dyn DeferredCall>> {
        if !may_defer(self.server, &self.call.connection) {
            return None;
        }
        let call = CountedCall::new(&self.call.connection, Arc::clone(&self.call.message));
        Some(Box::new(DeferredServerCall { server: Arc::downgrade(self.server), call }))
    }
}
