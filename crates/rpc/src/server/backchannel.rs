//! Calls of the server over a client's connection.
//!
//! The waiting calls are in a table of the connection. The thread that reads the connection
//! delivers replies, also the thread that waits for idle connections: a reply needs no serving
//! thread, of which the client may have used up its quota. Invariants: a call ends with its reply,
//! its timeout or its connection, and holds no lock while it waits.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{connection::ServerConnection, inner::RpcServerInner, sending::SendOutcome};
use crate::{
    connection::{
        pending_call::{PendingCall, unwrap_reply},
        reply::CallReply,
        request::{CallError, RpcRequest},
        service::Backchannel,
        waiter::CallWaiter,
    },
    message::header::is_reply,
    security::credential::CallFlavor,
};

impl ServerConnection {
    /// Delivers a message to its caller, if it is a reply; returns whether a call waited for it.
    pub(super) fn deliver_reply(&self, message: &[u8]) -> bool {
        is_reply(message) && self.calls.lock().deliver(message)
    }

    /// Whether a reply that matches no call may be late, and is dropped. On a connection without
    /// calls of the server it is an error.
    pub(super) fn is_late_reply(&self, message: &[u8]) -> bool {
        let is_late = is_reply(message) && self.calls.lock().were_made();
        if is_late {
            self.log_misbehaviour("a reply to no call that waits");
        }
        is_late
    }
}

/// The backchannel over one connection.
pub(super) struct ConnectionBackchannel {
    server: Weak<RpcServerInner>,
    connection: Weak<ServerConnection>,
}

impl ConnectionBackchannel {
    pub(super) fn of(
        server: &Arc<RpcServerInner>,
        connection: &Arc<ServerConnection>,
    ) -> Arc<dyn Backchannel> {
        Arc::new(Self { server: Arc::downgrade(server), connection: Arc::downgrade(connection) })
    }
}

impl Backchannel for ConnectionBackchannel {
    fn call(&self, request: &RpcRequest<'_>, timeout: Duration) -> Result<CallReply, CallError> {
        let server = self.server.upgrade().ok_or(CallError::Closed)?;
        let connection = self.connection.upgrade().ok_or(CallError::Closed)?;
        let waiter = CallWaiter::current();
        let flavor = CallFlavor::of(request.credential);
        let call = PendingCall::new(Arc::clone(&waiter), request.results_max, flavor.context(), None);
        let xid = connection.calls.lock().insert(call)?;
        let pending = RegisteredCall { connection: &connection, xid };
        let mut record = Vec::new();
        request.encode(&mut record, xid, flavor.get()).copy_into(&mut record);
        let deadline = server.clock.now() + timeout;
        match connection.send_within(timeout, [&record, &[]], &server.limits) {
            Some(SendOutcome::All) => {}
            Some(SendOutcome::Queued) => server.idle_set.arm_for_room(&connection),
            Some(SendOutcome::Closed) => return Err(CallError::Closed),
            None => return Err(CallError::TimedOut { softerr: false }),
        }
        loop {
            if let Some(outcome) = pending.take_outcome() {
                return unwrap_reply(outcome?, flavor.get(), request.results_max);
            }
            let left = server.clock.until(deadline);
            if left.is_zero() {
                return Err(CallError::TimedOut { softerr: false });
            }
            waiter.park(left);
        }
    }

    fn is_open(&self) -> bool {
        let connection = self.connection.upgrade();
        connection.is_some_and(|connection| !connection.calls.lock().is_closed())
    }

    fn connection(&self) -> usize {
        // The reference keeps the memory from being used for another connection.
        self.connection.as_ptr().addr()
    }
}

/// Registers a call with its connection until dropped.
struct RegisteredCall<'a> {
    connection: &'a ServerConnection,
    xid: u32,
}

impl RegisteredCall<'_> {
    fn take_outcome(&self) -> Option<Result<CallReply, CallError>> {
        self.connection.calls.lock().take_outcome(self.xid)
    }
}

impl Drop for RegisteredCall<'_> {
    fn drop(&mut self) {
        self.connection.calls.lock().remove(self.xid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::{
        net::{TcpListener, TcpStream},
        sync::mpsc,
        thread,
    };

    use curt_xdr::Encoded;

    use super::*;
    use crate::{
        connection::{context::CallContext, service::RpcService},
        message::{call::CallMessage, failure::CallFailure},
        security::credential::RpcCredential,
        server::{Limits, RpcServer},
    };

    struct Silent;

    impl RpcService for Silent {
        fn call(
            &self,
            _: &CallMessage<'_>,
            _: &mut CallContext<'_>,
            _: &mut Vec<u8>,
        ) -> Result<(), CallFailure> {
            Err(CallFailure::NoReply)
        }
    }

    #[test]
    fn a_call_waits_no_longer_than_its_timeout_for_a_thread_that_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = RpcServer::new(vec![listener], Arc::new(Silent), Limits::default()).unwrap().shared;
        server.idle_set.wait(&mut Vec::new(), &server.limits, None);
        let connection = server.idle_set.all().remove(0);
        let backchannel = ConnectionBackchannel::of(&server, &connection);
        let request = RpcRequest {
            program: 1,
            version: 1,
            procedure: 1,
            credential: &RpcCredential::None,
            arguments: &Encoded(&[]),
            results_max: 0,
        };
        let (sender, ended) = mpsc::channel();
        thread::scope(|scope| {
            let sending = connection.output.lock();
            scope.spawn(|| sender.send(backchannel.call(&request, Duration::from_millis(20)).map(drop)));
            let outcome = ended.recv_timeout(Duration::from_secs(60));
            drop(sending);
            assert_eq!(outcome, Ok(Err(CallError::TimedOut { softerr: false })));
        });
    }
}
