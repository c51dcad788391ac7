//! What sends calls to a server, such as a connection.

use std::{sync::Arc, time::Duration};

use curt_observe::TransportReport;
use curt_sync::Interrupt;

use super::statistics::CallStatistics;
use crate::connection::{
    reply::CallReply,
    reply_sink::ReplySink,
    request::{CallError, RpcRequest},
};

/// Sends calls to a server and returns the replies.
pub trait Transport: Send + Sync {
    /// Makes one call and waits for its reply, or until `interrupt` is raised.
    ///
    /// # Errors
    /// [`CallError`]; after each of them the server may or may not have executed the call.
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError>;

    /// As [`Transport::call`], and fills in the call's `statistics`. A transport without a network
    /// reports one transmission, and only the sizes of arguments and results.
    ///
    /// # Errors
    /// As [`Transport::call`]; `statistics` is filled in as well.
    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        statistics.transmissions = 1;
        statistics.bytes_sent = arguments.len() as u64;
        let result = self.call(request, interrupt);
        statistics.bytes_received = result.as_ref().map_or(0, |reply| reply.results().len() as u64);
        result
    }

    /// As [`Transport::call_with_statistics`], but `sink` may process the results in the receive
    /// buffer; [`CallReply::was_consumed`] is then true. A transport without a receive buffer
    /// returns all replies as usual.
    ///
    /// A caller whose results were consumed may return up to 20 ms later: its thread meanwhile
    /// receives replies for other callers that have sinks, and runs these. An interrupt ends this
    /// at once.
    ///
    /// # Errors
    /// As [`Transport::call`].
    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
        _: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        self.call_with_statistics(request, interrupt, statistics)
    }

    /// Traffic of the connections so far; all zero for a transport without connections.
    fn report(&self) -> TransportReport {
        TransportReport::default()
    }

    /// How many lost connections were replaced so far.
    fn replacements(&self) -> u64 {
        0
    }

    /// The time for which a call has been waiting without any reply from the server; `None` while
    /// none waits.
    fn silent_for(&self) -> Option<Duration> {
        None
    }
}
