//! A call that waits for its reply, on either end of a connection.

use std::{collections::HashMap, sync::Arc};

use curt_sync::Wake;
use curt_xdr::DecodeError;

use super::{reply::CallReply, reply_sink::ReplySink, request::CallError, waiter::CallWaiter};
use crate::{
    message::{
        header,
        reply::{AcceptStatus, REPLY_HEADER_SIZE, RejectedReply, SignedReply},
    },
    security::{
        auth::{AUTH_BODY_MAX, AuthStatus},
        flavor::AuthFlavor,
    },
};

pub(crate) struct PendingCall {
    pub(crate) waiter: Arc<CallWaiter>,
    /// Maximum size of the results in bytes.
    pub(crate) results_max: usize,
    /// Verifies the reply, if the call has a security context.
    pub(crate) flavor: Option<Arc<dyn AuthFlavor>>,
    /// Bytes of its reply.
    pub(crate) received: usize,
    /// Processes its results in the receive buffer.
    pub(crate) sink: Option<Arc<dyn ReplySink>>,
    /// Whether the sink is running: the caller must wait until it has returned.
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

    /// Maximum length of its reply.
    pub(crate) const fn reply_max(&self) -> usize {
        // The header may contain a verifier.
        self.results_max.saturating_add(REPLY_HEADER_SIZE + AUTH_BODY_MAX)
    }

    pub(crate) fn finish(&mut self, outcome: Result<CallReply, CallError>) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.waiter.wake();
        }
    }

    /// Decodes the header of its reply, and verifies it; returns the size of the results, which
    /// extend to the end of the record.
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

/// Waiting calls of a server to one connection. (Those of a client are part of its connection's
/// state.)
#[derive(Default)]
pub(crate) struct PendingCalls {
    pending: HashMap<u32, PendingCall>,
    /// Number of calls so far; the xid of the last one.
    count: u32,
    closed: bool,
}

impl PendingCalls {
    /// Maximum number of waiting calls.
    pub(crate) const MAX: usize = 64;

    /// Adds a call, and assigns its xid.
    pub(crate) fn insert(&mut self, call: PendingCall) -> Result<u32, CallError> {
        if self.closed {
            return Err(CallError::Closed);
        }
        if self.pending.len() >= Self::MAX {
            return Err(CallError::TooManyCalls);
        }
        // Never 0 again: 0 means that there was no call.
        self.count = self.count.checked_add(1).unwrap_or(1);
        self.pending.insert(self.count, call);
        Ok(self.count)
    }

    /// Delivers a reply to its caller; returns whether one waited for it.
    pub(crate) fn deliver(&mut self, reply: &[u8]) -> bool {
        let waiting = header::beginning(reply).and_then(|(xid, _)| self.pending.get_mut(&xid));
        let Some(call) = waiting.filter(|call| call.outcome.is_none()) else {
            return false;
        };
        let results = call.decode_reply(reply);
        call.finish(results.map(|size| CallReply::from_results(reply[reply.len() - size..].to_vec())));
        true
    }

    /// Whether there has been any call.
    pub(crate) const fn were_made(&self) -> bool {
        self.count > 0
    }

    /// Whether no call waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn take_outcome(&mut self, xid: u32) -> Option<Result<CallReply, CallError>> {
        self.pending.get_mut(&xid)?.outcome.take()
    }

    pub(crate) fn remove(&mut self, xid: u32) {
        self.pending.remove(&xid);
    }

    /// Ends all calls, now and later: the connection is lost.
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

/// Removes the protection of results. The caller does this, so that the reading thread does not
/// decrypt for others.
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
    Err(DecodeError::TooLong { length: saturate(length), limit: saturate(limit) })
}
