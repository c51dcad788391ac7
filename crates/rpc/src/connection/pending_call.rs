//! A call that waits for its reply, on either end of a connection.

use std::{collections::HashMap, sync::Arc};

use curt_xdr::DecodeError;

use super::{CallError, CallReply, ReplySink, Wake, waiter::CallWaiter};
use crate::{
    message::{self, AcceptStatus, REPLY_HEADER_SIZE, RejectedReply, SignedReply},
    security::{
        auth::{AUTH_BODY_MAX, AuthStatus},
        flavor::AuthFlavor,
    },
};

/// A call that waits.
pub(crate) struct PendingCall {
    pub(crate) waiter: Arc<CallWaiter>,
    /// How many bytes the results may have.
    pub(crate) results_max: usize,
    /// What verifies the reply, if anything does.
    pub(crate) flavor: Option<Arc<dyn AuthFlavor>>,
    /// Bytes of its reply.
    pub(crate) received: usize,
    /// Processes its results in the receive buffer.
    pub(crate) sink: Option<Arc<dyn ReplySink>>,
    /// Whether the sink is running: whatever happens, the caller has to wait until it is done.
    pub(crate) sink_running: bool,
    pub(crate) outcome: Option<Result<CallReply, CallError>>,
}

impl PendingCall {
    pub(crate) fn new(
        waiter: Arc<CallWaiter>,
        results_max: usize,
        flavor: Option<&Arc<dyn AuthFlavor>>,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Self {
        Self {
            waiter,
            results_max: flavor.map_or(results_max, |flavor| flavor.wrapped_max(results_max)),
            flavor: flavor.cloned(),
            received: 0,
            sink: sink.cloned(),
            sink_running: false,
            outcome: None,
        }
    }

    /// How long its reply may be.
    pub(crate) const fn reply_max(&self) -> usize {
        // A verifier may stand in the header.
        self.results_max.saturating_add(REPLY_HEADER_SIZE + AUTH_BODY_MAX)
    }

    pub(crate) fn finish(&mut self, outcome: Result<CallReply, CallError>) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.waiter.wake();
        }
    }

    /// Reads the header of its reply, and verifies it: the size of the results that follow it to
    /// the end of the record.
    pub(crate) fn decode_reply(&self, record: &[u8]) -> Result<usize, CallError> {
        let reply = SignedReply::decode(record)?;
        if let (Some(flavor), Some(verifier)) = (&self.flavor, reply.verifier) {
            let verified = flavor.verify(reply.signed, verifier);
            verified.map_err(|_| CallError::Denied(AuthStatus::InvalidResponse))?;
        }
        match reply.header.outcome {
            Ok(AcceptStatus::Success) => {
                check_length(reply.results.len(), self.results_max)?;
                Ok(reply.results.len())
            }
            Ok(AcceptStatus::ProgramUnavailable) => Err(CallError::ProgramUnavailable),
            Ok(AcceptStatus::ProgramMismatch(versions)) => Err(CallError::ProgramMismatch(versions)),
            Ok(AcceptStatus::ProcedureUnavailable) => Err(CallError::ProcedureUnavailable),
            Ok(AcceptStatus::GarbageArguments) => Err(CallError::GarbageArguments),
            Ok(AcceptStatus::SystemError) => Err(CallError::SystemError),
            Err(RejectedReply::RpcMismatch(versions)) => Err(CallError::RpcMismatch(versions)),
            Err(RejectedReply::Authentication(status)) => Err(CallError::Denied(status)),
        }
    }
}

/// Calls of one direction that wait, and nothing else: those of a server to one connection. (A
/// client's are part of its connection's state.)
#[derive(Default)]
pub(crate) struct PendingCalls {
    pending: HashMap<u32, PendingCall>,
    /// How many there have been; the number of the last.
    count: u32,
    closed: bool,
}

impl PendingCalls {
    /// Calls that wait for replies at once.
    pub(crate) const MAX: usize = 64;

    /// Adds a call, and gives it a number.
    pub(crate) fn insert(&mut self, call: PendingCall) -> Result<u32, CallError> {
        if self.closed {
            return Err(CallError::Closed);
        }
        if self.pending.len() >= Self::MAX {
            return Err(CallError::TooManyCalls);
        }
        // Not 0 again: that there has been one stays known.
        self.count = self.count.checked_add(1).unwrap_or(1);
        self.pending.insert(self.count, call);
        Ok(self.count)
    }

    /// Passes a reply to its caller; whether somebody waited for it.
    pub(crate) fn deliver(&mut self, reply: &[u8]) -> bool {
        let waiting = message::beginning(reply).and_then(|(xid, _)| self.pending.get_mut(&xid));
        let Some(call) = waiting.filter(|call| call.outcome.is_none()) else {
            return false;
        };
        let results = call.decode_reply(reply);
        call.finish(results.map(|size| CallReply::from_results(reply[reply.len() - size..].to_vec())));
        true
    }

    /// Whether there has ever been a call.
    pub(crate) const fn were_made(&self) -> bool {
        self.count > 0
    }

    pub(crate) fn take_outcome(&mut self, xid: u32) -> Option<Result<CallReply, CallError>> {
        self.pending.get_mut(&xid)?.outcome.take()
    }

    pub(crate) fn remove(&mut self, xid: u32) {
        self.pending.remove(&xid);
    }

    /// Ends all calls, now and later: the connection is gone.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for call in self.pending.values_mut() {
            call.finish(Err(CallError::Closed));
        }
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Takes the protection of results off; the caller's part of receiving a reply, so that whoever
/// reads the connection decrypts nothing for others.
pub(crate) fn unwrap_reply(
    reply: CallReply,
    flavor: &dyn AuthFlavor,
    results_max: usize,
) -> Result<CallReply, CallError> {
    if !flavor.wraps() {
        return Ok(reply);
    }
    let results = flavor.unwrap(reply.results())?;
    check_length(results.len(), results_max)?;
    Ok(CallReply::from_results(results.into_owned()))
}

fn check_length(length: usize, limit: usize) -> Result<(), DecodeError> {
    if length <= limit {
        return Ok(());
    }
    let saturate = |size| u32::try_from(size).unwrap_or(u32::MAX);
    Err(DecodeError::TooLong {
        length: saturate(length),
        limit: saturate(limit),
    })
}
