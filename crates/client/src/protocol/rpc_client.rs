//! One request to the server of a mount, in any protocol version.
//!
//! Owns what all requests have in common: the time of sending, the statistics, and the retries
//! after JUKEBOX. The transport counts retransmissions; here each request counts as sent once. Must
//! not know the contents of requests and replies beyond the leading status.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use curt_observe::{Cause, Operation, Watchers, scope};
use curt_observe::{events::procedure_name, probe};
use curt_rpc::{
    auth::RpcCredential,
    client::{
        CallArguments, CallError, CallReply, CallStatistics, Interrupt, ReplySink, RpcRequest, Transport,
    },
};
use curt_xdr::DecodeError;

use super::{CompletedRequest, IsLost, OperationCounters};
use crate::threads::Clock;

/// The credential of a request, and the interrupt that cancels it.
#[derive(Clone, Copy, Debug)]
pub struct RpcCaller<'a> {
    /// The caller's credential.
    pub credential: &'a RpcCredential,
    /// Cancels the wait.
    pub interrupt: &'a Interrupt,
}

/// The connection to the server.
pub struct RpcClient {
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    statistics: OperationCounters,
    latency: MinRoundTrip,
    watchers: Arc<Watchers>,
}

/// One call of any RPC program.
#[derive(Clone, Copy)]
pub(super) struct CallSpec<'a> {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
    pub(super) arguments: &'a dyn CallArguments,
    /// Longest results, in bytes.
    pub(super) results_max: usize,
    /// The status that asks for a retry later (JUKEBOX).
    pub(super) jukebox: Option<u32>,
    /// The offset of the status in the results.
    pub(super) status_at: usize,
    /// Carries the call instead of the connection to the NFS server.
    pub(super) transport: Option<&'a dyn Transport>,
    /// The operation that the call is counted as; `None`: its procedure.
    pub(super) operation: Option<Operation>,
    /// May process the results in the receive buffer.
    pub(super) sink: Option<&'a Arc<dyn ReplySink>>,
}

/// The results of a call.
#[derive(Debug)]
pub(super) struct CallResult {
    pub(super) reply: CallReply,
    pub(super) sent_at: Instant,
    /// If the call was retransmitted to a restarted server: the time by which an earlier copy was
    /// executed, if it was.
    pub(super) lost_at: Option<Instant>,
    /// If the call was retransmitted at all: that time.
    pub(super) connection_lost_at: Option<Instant>,
    /// The server may have executed the call more than once.
    pub(super) was_sent_again: bool,
}

impl CallResult {
    fn new(reply: CallReply, sent_at: Instant, statistics: &CallStatistics) -> Self {
        let connection_lost_at = statistics.lost.map(|lost| sent_at + lost);
        let lost_at = connection_lost_at.filter(|_| statistics.restarted);
        Self { reply, sent_at, lost_at, connection_lost_at, was_sent_again: statistics.transmissions > 1 }
    }
}

/// The first delay after JUKEBOX (the server may have to load a tape).
pub(super) const JUKEBOX_DELAY_MIN: Duration = Duration::from_millis(100);

/// The longest delay; each is twice the one before.
pub(super) const JUKEBOX_DELAY_MAX: Duration = Duration::from_secs(5);

/// A request and its reply measure the latency of the connection if neither is longer than this, in
/// bytes.
const SMALL: usize = 1024;

/// The shortest recent round trip. It falls at once and rises slowly, because a short round trip
/// proves a low latency and a long one proves nothing.
#[derive(Debug, Default)]
struct MinRoundTrip(AtomicU64);

impl MinRoundTrip {
    /// A longer round trip raises the value by this part of the difference.
    const RISE: u64 = 64;

    fn learn(&self, round_trip: Duration) {
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).max(1);
        // Relaxed accesses: of two concurrent updates one may be lost.
        let known = self.0.load(Relaxed);
        let next = if known == 0 || round_trip < known {
            round_trip
        } else {
            known + (round_trip - known) / Self::RISE
        };
        self.0.store(next, Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

impl RpcClient {
    /// A client that sends its requests over `transport`.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, clock: Arc<dyn Clock>) -> Self {
        Self {
            transport,
            clock,
            statistics: OperationCounters::default(),
            latency: MinRoundTrip::default(),
            watchers: Arc::default(),
        }
    }

    /// The latency of the connection without work at the server: the shortest round trip of the
    /// recent small requests and replies. Zero before the first.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.latency.get()
    }

    /// The statistics of requests.
    #[must_use]
    pub fn statistics(&self) -> &OperationCounters {
        &self.statistics
    }

    /// The observers of all requests.
    #[must_use]
    pub fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    /// The transport that carries the requests.
    #[must_use]
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The time of the clock by which requests are timed.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The time of the wall clock.
    #[must_use]
    pub fn wall_clock(&self) -> SystemTime {
        self.clock.wall_clock()
    }

    /// Sends a request, and retries while the server returns JUKEBOX.
    pub(super) fn call(
        &self,
        caller: RpcCaller<'_>,
        outgoing: CallSpec<'_>,
    ) -> Result<CallResult, CallError> {
        self.call_until_lost(caller, outgoing, &|| false)
    }

    /// As [`Self::call`], but it is not sent again once a lock that it relies on is lost: then
    /// JUKEBOX is the result.
    pub(super) fn call_until_lost(
        &self,
        caller: RpcCaller<'_>,
        outgoing: CallSpec<'_>,
        is_lost: IsLost<'_>,
    ) -> Result<CallResult, CallError> {
        let mut sent_at = self.clock.now();
        let mut wait = JUKEBOX_DELAY_MIN;
        let mut _again = None;
        loop {
            let mut statistics = CallStatistics::default();
            match self.call_once(caller, outgoing, sent_at, &mut statistics) {
                Ok(reply) if is_busy(&reply, &outgoing) => {
                    self.clock.pause(wait, caller.interrupt);
                    if caller.interrupt.is_raised() {
                        return Err(CallError::Interrupted);
                    }
                    if is_lost() {
                        return Ok(CallResult::new(reply, sent_at, &statistics));
                    }
                    wait = (wait * 2).min(JUKEBOX_DELAY_MAX);
                    _again.get_or_insert_with(|| scope::with_cause(Cause::Retry));
                    sent_at = self.clock.now();
                }
                Ok(reply) => return Ok(CallResult::new(reply, sent_at, &statistics)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request once: the caller decides what a busy server means.
    pub(super) fn call_without_retry(
        &self,
        caller: RpcCaller<'_>,
        outgoing: CallSpec<'_>,
    ) -> Result<CallResult, CallError> {
        let (sent_at, mut statistics) = (self.clock.now(), CallStatistics::default());
        let reply = self.call_once(caller, outgoing, sent_at, &mut statistics)?;
        Ok(CallResult::new(reply, sent_at, &statistics))
    }

    /// Lets `duration` pass, or less if `interrupt` is raised.
    pub(super) fn pause(&self, duration: Duration, interrupt: &Interrupt) {
        self.clock.pause(duration, interrupt);
    }

    fn call_once(
        &self,
        caller: RpcCaller<'_>,
        outgoing: CallSpec<'_>,
        sent_at: Instant,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let CallSpec { program, version, procedure, arguments, results_max, sink, .. } = outgoing;
        let credential = caller.credential;
        let request = RpcRequest { program, version, procedure, credential, arguments, results_max };
        let transport = outgoing.transport.unwrap_or(&*self.transport);
        let interrupt = caller.interrupt;
        let result = match sink {
            Some(sink) => transport.call_with_sink(&request, interrupt, statistics, sink),
            None => transport.call_with_statistics(&request, interrupt, statistics),
        };
        let now = self.clock.now();
        if let Ok(reply) = &result
            && statistics.bytes_sent <= SMALL as u64
            && outgoing.transport.is_none()
            && !reply.was_consumed()
            && reply.results().len() <= SMALL
        {
            self.latency.learn(now.saturating_duration_since(sent_at));
        }
        let refused = match &result {
            Ok(reply) => status(reply, &outgoing).is_some_and(|status| status != 0),
            Err(_) => true,
        };
        let completed = CompletedRequest {
            transmissions: statistics.transmissions.into(),
            timed_out: matches!(result, Err(CallError::TimedOut { .. })),
            bytes_sent: statistics.bytes_sent,
            bytes_received: statistics.bytes_received,
            queue: statistics.queued,
            execution: now.saturating_duration_since(sent_at).saturating_sub(statistics.reading_for_others),
            failed: refused,
            delayed: result.as_ref().is_ok_and(|reply| is_busy(reply, &outgoing)),
        };
        let of_call = || Operation::of_call(program, version, procedure);
        if let Some(operation) = outgoing.operation.or_else(of_call) {
            self.statistics.ended(operation, &completed);
            self.watchers.sent(operation);
        }
        trace_status(&request, result.as_ref().ok().and_then(|reply| status(reply, &outgoing)));
        result
    }

    /// Logs a malformed reply, and returns the error for it.
    pub(super) fn malformed(&self, procedure: &str, error: DecodeError) -> CallError {
        tracing::warn!(procedure, %error, "malformed reply");
        CallError::Malformed(error)
    }
}

/// Traces a refusal, if the reply contains one.
fn trace_status(request: &RpcRequest<'_>, status: Option<u32>) {
    let status = status.unwrap_or(0);
    if status != 0 {
        probe!(NfsXdrStatus {
            procedure: procedure_name(request.program, request.version, request.procedure).bytes(),
            status
        });
    }
}

/// The status in a reply.
fn status(reply: &CallReply, outgoing: &CallSpec<'_>) -> Option<u32> {
    let status = reply.results().get(outgoing.status_at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*status))
}

/// Whether the reply's status is JUKEBOX.
fn is_busy(reply: &CallReply, outgoing: &CallSpec<'_>) -> bool {
    outgoing.jukebox.is_some() && status(reply, outgoing) == outgoing.jukebox
}

impl fmt::Debug for RpcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcClient").field("operations", &self.statistics.operations()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_falls_at_once_and_rises_slowly() {
        let latency = MinRoundTrip::default();
        assert_eq!(latency.get(), Duration::ZERO);
        latency.learn(Duration::from_micros(6400));
        latency.learn(Duration::from_micros(640));
        assert_eq!(latency.get(), Duration::from_micros(640));
        latency.learn(Duration::from_micros(7040));
        assert_eq!(latency.get(), Duration::from_micros(740));
        for _ in 0..1000 {
            latency.learn(Duration::from_micros(7040));
        }
        assert!(latency.get() > Duration::from_micros(7000));
    }
}
