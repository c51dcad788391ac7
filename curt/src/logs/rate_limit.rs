//! A rate limit for the log: clients can cause log lines, and must not fill a disk.
//!
//! Invariants: each call site has its own limit, so that one caused by a peer does not suppress
//! others; suppressed lines are counted and reported.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of lines of one call site that may be logged at once: a server may log one for each of
/// many exports.
const BURST: u32 = 1000;
/// Interval after which another line is allowed.
const INTERVAL: Duration = Duration::from_millis(500);

/// Suppresses lines of a call site above its limit. Lines enabled by `RUST_LOG` (debug and finer)
/// are not limited.
pub(super) struct LogRateLimiter {
    places: Mutex<HashMap<Identifier, CallSiteLimit>>,
    /// Logs that lines are suppressed.
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl Default for LogRateLimiter {
    fn default() -> Self {
        Self::new(|what| tracing::warn!("{what}"))
    }
}

impl LogRateLimiter {
    fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { places: Mutex::default(), tell: Box::new(tell) }
    }
}

/// The remaining limit of one call site.
#[derive(Debug)]
struct CallSiteLimit {
    lines: u32,
    since: Instant,
    left_out: u64,
}

/// The decision about a line.
#[derive(Debug, PartialEq, Eq)]
enum RateDecision {
    Logged,
    /// Logged, after this many suppressed lines.
    LoggedAfter(u64),
    /// The first suppressed line.
    FirstSuppressed,
    Suppressed,
}

impl CallSiteLimit {
    fn new(now: Instant) -> Self {
        Self { lines: BURST, since: now, left_out: 0 }
    }

    fn ask(&mut self, now: Instant) -> RateDecision {
        let intervals = now.saturating_duration_since(self.since).as_nanos() / INTERVAL.as_nanos();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        if intervals > 0 {
            self.lines = self.lines.saturating_add(intervals).min(BURST);
            self.since = now;
        }
        if self.lines == 0 {
            self.left_out += 1;
            return if self.left_out == 1 { RateDecision::FirstSuppressed } else { RateDecision::Suppressed };
        }
        self.lines -= 1;
        // Reported once there is room for several lines, not with each single one.
        if self.left_out > 0 && self.lines >= BURST / 10 {
            return RateDecision::LoggedAfter(std::mem::take(&mut self.left_out));
        }
        RateDecision::Logged
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let decision = {
            // The state is valid even if a thread panicked.
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let allowance = places.entry(metadata.callsite());
            allowance.or_insert_with(|| CallSiteLimit::new(now)).ask(now)
        };
        // The lock is released: the lines logged here have their own limit.
        match decision {
            RateDecision::Logged => true,
            RateDecision::LoggedAfter(count) => {
                (self.tell)(&format!("{count} messages like the next one were suppressed"));
                true
            }
            RateDecision::FirstSuppressed => {
                let from = metadata.target();
                (self.tell)(&format!(
                    "too many messages of one kind (from {from}): limited to one per {INTERVAL:?}"
                ));
                false
            }
            RateDecision::Suppressed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::io::Write;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn too_many_lines_are_suppressed_and_their_number_is_logged() {
        let start = Instant::now();
        let mut allowance = CallSiteLimit::new(start);
        assert!((0..BURST).all(|_| allowance.ask(start) == RateDecision::Logged));
        assert_eq!(allowance.ask(start), RateDecision::FirstSuppressed);
        assert_eq!(allowance.ask(start), RateDecision::Suppressed);
        // One line per interval, without a report about those in between.
        let later = start + INTERVAL;
        assert_eq!(allowance.ask(later), RateDecision::Logged);
        assert_eq!(allowance.ask(later), RateDecision::Suppressed);
        let late = later + INTERVAL * BURST;
        assert_eq!(allowance.ask(late), RateDecision::LoggedAfter(3));
        assert_eq!(allowance.ask(late), RateDecision::Logged);
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn too_many_lines_of_one_callsite_suppress_no_lines_of_another() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let noticed = Arc::clone(&notices);
        let sparing = LogRateLimiter::new(move |what| noticed.lock().unwrap().push(what.to_owned()));
        tracing::subscriber::with_default(subscriber.with(sparing), || {
            (0..10 * BURST).for_each(|number| tracing::warn!("refused {number}"));
            tracing::error!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let refused = text.lines().filter(|line| line.contains("refused")).count();
        // A slow machine takes several intervals for it.
        assert!((1000..2000).contains(&refused), "{refused}");
        let notices = notices.lock().unwrap();
        assert!(
            matches!(notices.as_slice(), [only] if only.starts_with("too many messages of one kind (from curt::logs")),
            "{notices:?}"
        );
        assert!(text.ends_with("another\n"), "{text}");
    }
}
