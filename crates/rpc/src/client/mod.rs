//! The client's side: calls that wait for their replies.
//!
//! [`Transport`] is all that the layers above know; [`TcpTransport`] is the real one. A call is
//! synchronous: the thread that makes it waits, and is let go at once when the call's [`Interrupt`]
//! is raised.

mod activity;
mod call_in_progress;
mod callback_queue;
mod callbacks;
mod connect;
mod connection;
mod connection_slot;
mod events;
mod options;
mod outgoing;
mod probing;
mod silence;
mod statistics;
mod sys;
mod tcp;
mod timer;

use std::{sync::Arc, time::Duration};

use curt_trace::TransportReport;

pub use events::{NoTransportEvents, TransportEvents};
pub use options::{AddressFamily, PortSource, RecoveryMode, ServerName, TcpOptions};
pub use statistics::CallStatistics;
pub use tcp::TcpTransport;

pub use crate::connection::{
    CallError, CallReply, Interrupt, ReplySink, RpcRequest, Wake, WakerRegistration,
};

/// Something that carries calls to a server and brings the replies.
pub trait Transport: Send + Sync {
    /// Makes one call and waits for its reply, or until `interrupt` is raised.
    ///
    /// # Errors
    /// [`CallError`]; after any of them the server may or may not have executed the call.
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError>;

    /// The same, and fills in the call's `journey`. A transport without a wire reports one
    /// transmission, and the sizes of arguments and results alone.
    ///
    /// # Errors
    /// As [`Transport::call`]; `journey` is filled in nevertheless.
    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        journey: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.arguments.encode(&mut arguments);
        journey.transmissions = 1;
        journey.bytes_sent = (arguments.len() + request.bulk.len()) as u64;
        let result = self.call(request, interrupt);
        journey.bytes_received = result.as_ref().map_or(0, |reply| reply.results().len() as u64);
        result
    }

    /// As [`Transport::call_with_statistics`], but `taker` may process the results in the receive
    /// buffer; the reply then [`was taken`](Reply::was_taken). A transport without a receive buffer
    /// returns all replies as usual.
    ///
    /// A caller whose results were taken may return up to 20 ms later than that: meanwhile its
    /// thread receives replies for other callers that have takers, and runs these. An interrupt
    /// ends that at once.
    ///
    /// # Errors
    /// As [`Transport::call`].
    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        journey: &mut CallStatistics,
        _: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        self.call_with_statistics(request, interrupt, journey)
    }

    /// The traffic of the connections so far; all zero for a transport without connections.
    fn report(&self) -> TransportReport {
        TransportReport::default()
    }

    /// For how long a call has been waiting without any reply from the server; `None` while none
    /// waits.
    fn silent_for(&self) -> Option<Duration> {
        None
    }
}
