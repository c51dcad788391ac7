//! Whether a connection on which calls wait has lost its peer, or is merely waited for.
//!
//! A server that is slow, or a process that is stopped, sends no reply either; but the kernel below
//! it acknowledges what it is sent, and answers probes of a closed window and of an idle connection
//! (RFC 9293 §3.8.4, §3.8.6.1). A network that drops everything does not, nor does a middlebox that
//! has forgotten the connection. TCP alone would wait: its retransmissions come at intervals that
//! double, so that after an outage of two minutes the next may be a minute away (RFC 6298 §5.5).
//!
//! Pure: time and what the kernel says are arguments.

use std::time::{Duration, Instant};

/// How long nothing may come before the kernel is asked, again and again.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Without an acknowledgement for at least this time, and four round trips, a connection counts as
/// silent. Above the third retransmission of a near peer (1.4 s), so that what one of them mends is
/// left to it.
const UNACKNOWLEDGED_MIN: Duration = Duration::from_millis(1500);

/// So many retransmissions or probes in a row are lost only with the connection, or by a network
/// that drops most.
const LOST_MIN: u8 = 2;

/// The most times that the wait doubles for connections that were replaced without success.
const DOUBLINGS_MAX: u32 = 6;

/// How the peer's kernel acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledgements {
    /// Segments that were sent and not acknowledged.
    pub(super) unacknowledged: u32,
    /// How often the first of these was sent again.
    pub(super) retransmissions: u8,
    /// Probes of a closed window or an idle connection that were not answered.
    pub(super) probes: u8,
    /// When the last acknowledgement came.
    pub(super) last: Duration,
    /// The usual time of a segment and its acknowledgement.
    pub(super) round_trip: Duration,
}

impl Acknowledgements {
    fn are_missing(&self) -> bool {
        let is_lost = self.unacknowledged > 0 && self.retransmissions >= LOST_MIN || self.probes >= LOST_MIN;
        is_lost && self.last >= UNACKNOWLEDGED_MIN + self.round_trip * 4
    }
}

/// Nothing has come on a connection for some time, although calls wait. It ends with the next byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    since: Instant,
    /// The peer's kernel was silent as well. That it acknowledges again later does not take this
    /// back: the server's next retransmission of a reply may still be a minute away.
    is_of_kernel: bool,
}

impl Silence {
    /// Noticed at `now`.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            is_of_kernel: false,
        }
    }

    /// Takes in what the kernel says at `now`.
    pub(super) fn look(&mut self, now: Instant, acknowledgements: Option<&Acknowledgements>) {
        let is_due = now.saturating_duration_since(self.since) >= LOOK_INTERVAL / 2;
        let are_missing = acknowledgements.is_some_and(Acknowledgements::are_missing);
        self.is_of_kernel |= is_due && are_missing;
    }

    /// Whether the peer's kernel was silent as well.
    pub(super) const fn is_of_kernel(&self) -> bool {
        self.is_of_kernel
    }

    /// Whether the server is to be tried over a new connection, after `fruitless` others that
    /// brought no reply.
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
        let far = Acknowledgements {
            round_trip: Duration::from_millis(700),
            ..SILENT
        };
        assert!(!is_silent(far));
        assert!(is_silent(Acknowledgements {
            last: Duration::from_secs(5),
            ..far
        }));
    }

    #[test]
    fn the_first_look_never_finds_silence_and_what_was_found_stays() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.look(start, Some(&SILENT));
        assert!(!silence.is_to_be_probed(start, 0));
        silence.look(start + LOOK_INTERVAL, Some(&SILENT));
        let acknowledged = Acknowledgements {
            unacknowledged: 0,
            retransmissions: 0,
            last: Duration::ZERO,
            ..SILENT
        };
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
