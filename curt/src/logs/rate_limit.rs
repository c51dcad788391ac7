//! A bound for the log: whoever can connect can have lines written, and must not fill a disk by
//! that.
//!
//! Invariants: each place in the program that tells something has its own bound, so that one that
//! is driven by a peer costs no other its lines; that lines are left out is told, and how many.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one place that may come at once: a server may have as many exports to tell of.
const BURST: u32 = 1000;
/// One line more is allowed each time this has passed.
const INTERVAL: Duration = Duration::from_millis(500);

/// Leaves out lines of a place that tells too much. What is asked for by `RUST_LOG` (debug and
/// finer) is not bounded.
pub(super) struct LogRateLimiter {
    places: Mutex<HashMap<Identifier, CallSiteLimit>>,
    /// Tells that lines are left out.
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl Default for LogRateLimiter {
    fn default() -> Self {
        Self::new(|what| tracing::warn!("{what}"))
    }
}

impl LogRateLimiter {
    fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            places: Mutex::default(),
            tell: Box::new(tell),
        }
    }
}

/// What one place may still tell.
#[derive(Debug)]
struct CallSiteLimit {
    lines: u32,
    since: Instant,
    left_out: u64,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum RateDecision {
    Logged,
    /// Told, after so many that were not.
    LoggedAfter(u64),
    /// The first that is left out.
    FirstSuppressed,
    Suppressed,
}

impl CallSiteLimit {
    fn new(now: Instant) -> Self {
        Self {
            lines: BURST,
            since: now,
            left_out: 0,
        }
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
            return if self.left_out == 1 {
                RateDecision::FirstSuppressed
            } else {
                RateDecision::Suppressed
            };
        }
        self.lines -= 1;
        // Told of once there is room for some lines: not with each single one.
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
        let verdict = {
            // What a thread left that panicked is still a number of lines.
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let allowance = places.entry(metadata.callsite());
            allowance.or_insert_with(|| CallSiteLimit::new(now)).ask(now)
        };
        // The lock is free again: what is told here asks for its own allowance.
        match verdict {
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
    fn who_tells_too_much_is_heard_less_and_how_much_is_told() {
        let start = Instant::now();
        let mut allowance = CallSiteLimit::new(start);
        assert!((0..BURST).all(|_| allowance.ask(start) == RateDecision::Logged));
        assert_eq!(allowance.ask(start), RateDecision::FirstSuppressed);
        assert_eq!(allowance.ask(start), RateDecision::Suppressed);
        // One for each interval, without a word about those between.
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
    fn one_place_that_tells_too_much_costs_no_other_its_lines() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let noticed = Arc::clone(&notices);
        let sparing = LogRateLimiter::new(move |what| noticed.lock().unwrap().push(what.to_owned()));
        tracing::subscriber::with_default(subscriber.with(sparing), || {
            (0..10 * BURST).for_each(|number| tracing::warn!("refused {number}"));
            tracing::error!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let refused = text.lines().filter(|line| line.contains("refused")).count();
        // A slow machine takes some intervals for it.
        assert!((1000..2000).contains(&refused), "{refused}");
        let notices = notices.lock().unwrap();
        assert!(
            matches!(notices.as_slice(), [only] if only.starts_with("too many messages of one kind (from curt::logs")),
            "{notices:?}"
        );
        assert!(text.ends_with("another\n"), "{text}");
    }
}
