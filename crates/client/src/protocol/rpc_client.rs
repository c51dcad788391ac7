//! One request to the server of a mount, in any protocol version.
//!
//! Owns what all requests have in common: dating by when they were sent, counting, and patience
//! with a server that asks for it. The transport counts what it sends again; here each request
//! counts as sent once. Must not know what a request means beyond the status it begins with.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_observe::{Cause, Operation, Watchers, scope};
use curt_observe::{events::procedure_name, probe};
use curt_rpc::{
    auth::RpcCredential,
    client::{CallError, CallReply, CallStatistics, Interrupt, ReplySink, RpcRequest, Transport},
};
use curt_xdr::{DecodeError, Encode};

use super::{CompletedRequest, Statistics};
use crate::environment::Clock;

/// Who asks, and how the asking is called off.
#[derive(Clone, Copy, Debug)]
pub struct RpcCaller<'a> {
    /// In whose name.
    pub credential: &'a RpcCredential,
    /// Ends the wait.
    pub interrupt: &'a Interrupt,
}

/// The way to the server.
pub struct RpcClient {
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    statistics: Statistics,
    latency: MinRoundTrip,
    watchers: Arc<Watchers>,
}

/// One call, as far as any program has it.
#[derive(Clone, Copy)]
pub(super) struct CallSpec<'a> {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
    pub(super) arguments: &'a (dyn Encode + Sync),
    /// Data that end the arguments.
    pub(super) bulk: &'a [u8],
    /// Bytes of results at most.
    pub(super) results_max: usize,
    /// The status by which the server says "later", which is then asked again.
    pub(super) jukebox: u32,
    /// Who may use the results where they are received.
    pub(super) sink: Option<&'a Arc<dyn ReplySink>>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct CallResult {
    pub(super) reply: CallReply,
    pub(super) sent_at: Instant,
    /// If it was sent again to a server that had been restarted: by when an earlier copy was
    /// executed, if it was.
    pub(super) lost_at: Option<Instant>,
}

/// The first wait when the server says that it is busy (JUKEBOX: it may have to fetch a tape).
const JUKEBOX_DELAY_MIN: Duration = Duration::from_millis(100);

/// Waits double up to this.
const JUKEBOX_DELAY_MAX: Duration = Duration::from_secs(5);

/// Replies up to this size, in bytes, tell of the way and not of what it carries.
const SMALL_REPLY: usize = 1024;

/// The shortest recent round trip. It falls at once and rises slowly: one lucky reply proves a
/// short way, one slow reply nothing.
#[derive(Debug, Default)]
struct MinRoundTrip(AtomicU64);

impl MinRoundTrip {
    /// A longer round trip raises what is believed by this part of the difference.
    const RISE: u64 = 64;

    fn learn(&self, round_trip: Duration) {
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).max(1);
        // It orders nothing; of two at the same time one may be lost.
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
    /// The way that `transport` offers.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, clock: Arc<dyn Clock>) -> Self {
        Self {
            transport,
            clock,
            statistics: Statistics::default(),
            latency: MinRoundTrip::default(),
            watchers: Arc::default(),
        }
    }

    /// How long the way to the server and back takes, apart from any work there: the shortest of
    /// the recent small replies. Zero as long as none came.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.latency.get()
    }

    /// What was sent so far.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Who hears of every request.
    #[must_use]
    pub fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    /// What carries the requests.
    #[must_use]
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The present, by the clock that dates requests.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sends a request until the server has time for it.
    pub(super) fn call(&self, asker: RpcCaller<'_>, outgoing: CallSpec<'_>) -> Result<CallResult, CallError> {
        let mut sent_at = self.clock.now();
        let mut wait = JUKEBOX_DELAY_MIN;
        let mut _again = None;
        loop {
            let mut journey = CallStatistics::default();
            match self.call_once(asker, outgoing, sent_at, &mut journey) {
                Ok(reply) if is_busy(&reply, outgoing.jukebox) => {
                    self.clock.pause(wait, asker.interrupt);
                    if asker.interrupt.is_raised() {
                        return Err(CallError::Interrupted);
                    }
                    wait = (wait * 2).min(JUKEBOX_DELAY_MAX);
                    _again.get_or_insert_with(|| scope::with_cause(Cause::Retry));
                    sent_at = self.clock.now();
                }
                Ok(reply) => {
                    let lost_at = journey.lost.map(|lost| sent_at + lost);
                    return Ok(CallResult { reply, sent_at, lost_at: lost_at.filter(|_| journey.restarted) });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn call_once(
        &self,
        asker: RpcCaller<'_>,
        outgoing: CallSpec<'_>,
        sent_at: Instant,
        journey: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let CallSpec {
            program,
            version,
            procedure,
            arguments,
            bulk,
            results_max,
            jukebox: busy,
            sink: taker,
        } = outgoing;
        let credential = asker.credential;
        let request = RpcRequest { program, version, procedure, credential, arguments, bulk, results_max };
        let (transport, interrupt) = (&self.transport, asker.interrupt);
        let result = match taker {
            Some(taker) => transport.call_with_sink(&request, interrupt, journey, taker),
            None => transport.call_with_statistics(&request, interrupt, journey),
        };
        let now = self.clock.now();
        if let Ok(reply) = &result
            && bulk.is_empty()
            && !reply.was_consumed()
            && reply.results().len() <= SMALL_REPLY
        {
            self.latency.learn(now.saturating_duration_since(sent_at));
        }
        let refused = match &result {
            Ok(reply) => reply.results().first_chunk().is_some_and(|status| *status != [0; 4]),
            Err(_) => true,
        };
        let completed = CompletedRequest {
            transmissions: journey.transmissions.into(),
            timed_out: matches!(result, Err(CallError::TimedOut { .. })),
            bytes_sent: journey.bytes_sent,
            bytes_received: journey.bytes_received,
            queue: journey.queued,
            execution: now.saturating_duration_since(sent_at).saturating_sub(journey.reading_for_others),
            failed: refused,
            delayed: result.as_ref().is_ok_and(|reply| is_busy(reply, busy)),
        };
        if let Some(operation) = Operation::of_call(program, version, procedure) {
            self.statistics.ended(operation, &completed);
            self.watchers.sent(operation);
        }
        trace_status(&request, &result);
        result
    }

    /// Says once per reply that it made no sense, and gives the error for it.
    pub(super) fn malformed(&self, procedure: &str, error: DecodeError) -> CallError {
        tracing::warn!(procedure, %error, "malformed reply");
        CallError::Malformed(error)
    }
}

/// Tells of a refusal, if the reply begins with one.
fn trace_status(request: &RpcRequest<'_>, result: &Result<CallReply, CallError>) {
    let status = result.as_ref().ok().and_then(|reply| reply.results().first_chunk());
    let status = status.map_or(0, |status| u32::from_be_bytes(*status));
    if status != 0 {
        probe!(NfsXdrStatus {
            procedure: procedure_name(request.program, request.version, request.procedure).bytes(),
            status
        });
    }
}

/// Whether the server says "later".
fn is_busy(reply: &CallReply, busy: u32) -> bool {
    reply.results().first_chunk() == Some(&busy.to_be_bytes())
}

impl fmt::Debug for RpcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("operations", &self.statistics.operations()).finish_non_exhaustive()
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
