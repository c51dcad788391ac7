//! Whether a connection with waiting calls has lost its peer, or the server is slow.
//!
//! A slow server or a stopped process sends no reply, but its kernel acknowledges data, and answers
//! probes of a closed window or an idle connection (RFC 9293 sections 3.8.4 and 3.8.6.1). A network
//! that drops all segments does not, nor does a middlebox that has lost the connection's state. TCP
//! alone would wait: its retransmission timeout doubles, so that after an outage of two minutes the
//! next retransmission may be a minute away (RFC 6298 section 5.5).
//!
//! Pure: time and the kernel's information are arguments.

use std::time::{Duration, Instant};

/// Interval of the checks of the kernel's information while no byte arrives.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A connection without an acknowledgement for at least this time, and four round trips, counts as
/// silent. It is longer than the time of the third retransmission to a near peer (1.4 s), so that
/// losses repaired by these retransmissions have no effect.
const UNACKNOWLEDGED_MIN: Duration = Duration::from_millis(1500);

/// This many successive retransmissions or probes are lost only if the connection is lost, or the
/// network drops most segments.
const LOST_MIN: u8 = 2;

/// Maximum number of times that the wait doubles for connections that were replaced without
/// success.
const DOUBLINGS_MAX: u32 = 6;

/// Acknowledgements of the peer's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledgements {
    /// Segments sent and not acknowledged.
    pub(super) unacknowledged: u32,
    /// Number of retransmissions of the first of these.
    pub(super) retransmissions: u8,
    /// Unanswered probes of a closed window or an idle connection.
    pub(super) probes: u8,
    /// Time since the last acknowledgement.
    pub(super) last: Duration,
    /// Smoothed round-trip time.
    pub(super) round_trip: Duration,
}

impl Acknowledgements {
    fn are_missing(&self) -> bool {
        let is_lost = self.unacknowledged > 0 && self.retransmissions >= LOST_MIN || self.probes >= LOST_MIN;
        is_lost && self.last >= UNACKNOWLEDGED_MIN + self.round_trip * 4
    }
}

/// State of a connection on which no byte has arrived for some time, although calls wait. It ends
/// with the next byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    since: Instant,
    /// The peer's kernel was silent as well. Later acknowledgements do not reset this: the server's
    /// next retransmission of a reply may still be a minute away.
    is_of_kernel: bool,
}

impl Silence {
    /// A silence noticed at `now`.
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, is_of_kernel: false }
    }

    /// Evaluates the kernel's information at `now`.
    pub(super) fn look(&mut self, now: Instant, acknowledgements: Option<&Acknowledgements>) {
        let is_due = now.saturating_duration_since(self.since) >= LOOK_INTERVAL / 2;
        let are_missing = acknowledgements.is_some_and(Acknowledgements::are_missing);
        self.is_of_kernel |= is_due && are_missing;
    }

    /// Whether the peer's kernel was silent as well.
    pub(super) const fn is_of_kernel(&self) -> bool {
        self.is_of_kernel
    }

    /// Whether to probe the server over a new connection, after `fruitless` new connections without
    /// a reply.
    pub(super) fn is_to_be_probed(&self, now: Instant, fruitless: u32) -> bool {
        let wait = LOOK_INTERVAL * ((1 << fruitless.min(DOUBLINGS_MAX)) - 1);
        self.is_of_kernel && now.saturating_duration_since(self.since) >= wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Acknowledgements = Acknowledgements {
        unacknowledged: 1,
        retransmissions: 3,
        probes: 0,
        last: Duration::from_secs(2),
        round_trip: Duration::from_millis(1),
    };

    fn is_silent(acknowledgements: Acknowledgements) -> bool {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.look(start + LOOK_INTERVAL, Some(&acknowledgements));
        silence.is_to_be_probed(start + LOOK_INTERVAL, 0)
    }

    // SEMANTICS: rpc-7.
    #[test]
    fn only_what_is_sent_again_without_an_acknowledgement_is_silent() {
        assert!(is_silent(SILENT));
        for (unacknowledged, retransmissions, probes, last) in (0..3)
            .flat_map(|unacked| (0..4).map(move |again| (unacked, again)))
            .flat_map(|(unacked, again)| (0..4).map(move |probes| (unacked, again, probes)))
            .flat_map(|(unacked, again, probes)| [0, 1499, 1600].map(|last| (unacked, again, probes, last)))
        {
            let expected = last > 1500 && (unacknowledged > 0 && retransmissions > 1 || probes > 1);
            let acknowledgements = Acknowledgements {
                unacknowledged,
                retransmissions,
                probes,
                last: Duration::from_millis(last),
                ..SILENT
            };
            assert_eq!(is_silent(acknowledgements), expected, "{acknowledgements:?}");
        }
    }

    #[test]
    fn a_distant_peer_is_given_more_time() {
        let far = Acknowledgements { round_trip: Duration::from_millis(700), ..SILENT };
        assert!(!is_silent(far));
        assert!(is_silent(Acknowledgements { last: Duration::from_secs(5), ..far }));
    }

    #[test]
    fn the_first_look_never_finds_silence_and_what_was_found_stays() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.look(start, Some(&SILENT));
        assert!(!silence.is_to_be_probed(start, 0));
        silence.look(start + LOOK_INTERVAL, Some(&SILENT));
        let acknowledged =
            Acknowledgements { unacknowledged: 0, retransmissions: 0, last: Duration::ZERO, ..SILENT };
        silence.look(start + LOOK_INTERVAL * 2, Some(&acknowledged));
        silence.look(start + LOOK_INTERVAL * 3, None);
        assert!(silence.is_to_be_probed(start + LOOK_INTERVAL * 3, 0));
    }

    #[test]
    fn connections_without_success_are_replaced_ever_more_rarely() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.look(start + LOOK_INTERVAL, Some(&SILENT));
        let first = |fruitless| {
            (1..1000).find(|tenth| silence.is_to_be_probed(start + LOOK_INTERVAL / 10 * *tenth, fruitless))
        };
        assert_eq!([0, 1, 2, 3].map(first), [1, 10, 30, 70].map(Some));
        assert_eq!(first(1000), first(DOUBLINGS_MAX));
    }
}
