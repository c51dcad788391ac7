//! Read-ahead: how much more than the requested range is read, and how far ahead.
//!
//! Owns two heuristics of one open file: whether it is read sequentially, and the size of its
//! read-ahead window. They affect the latency of a result, never its contents. Must not know what
//! is cached or sent.

use std::{ops::Range, time::Duration};

/// The window at the beginning of a sequential read, in bytes.
const WINDOW_MIN: u64 = 128 * 1024;

/// The minimum of the window limit, however near the server is, in bytes.
const WINDOW_NEAR: u64 = 1 << 20;

/// The throughput of a fast connection in bytes per millisecond (10 Gbit/s): the bytes that must be
/// in flight for each millisecond of round-trip time. More would only evict data from the
/// processors' caches.
const BYTES_PER_MILLISECOND: u64 = 1_250_000;

/// A single read fetches whole units of this size, in bytes.
pub(super) const UNIT: u64 = 4096;

/// The pattern of one open file's reads.
#[derive(Debug, Default)]
pub(super) struct ReadaheadState {
    /// The offset at which a sequential read continues.
    next: u64,
    /// The window: bytes ahead of the reader that may be fetched; 0 during random access.
    window: u64,
}

/// The advice for one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadaheadAdvice {
    /// Minimum bytes of the READ for missing data, from the first missing byte on.
    pub(super) fetch: u64,
    /// Bytes after the read that should be in flight as well.
    pub(super) ahead: u64,
}

impl ReadaheadState {
    /// Records a read and returns what to fetch for it: at most `window_max` bytes ahead of it. A
    /// short read itself fetches up to `fetch_max` bytes, so that a small file takes one READ
    /// although its reader begins with a small range. Reads that are out of order by less than a
    /// window count as sequential, since a kernel sends several at once.
    pub(super) fn advise(&mut self, read: Range<u64>, window_max: u64, fetch_max: u64) -> ReadaheadAdvice {
        let slack = self.window.max(UNIT);
        let in_sequence =
            read.start <= self.next.saturating_add(slack) && self.next <= read.end.saturating_add(slack);
        let first = self.next == 0 && self.window == 0;
        let count = read.end - read.start;
        if !in_sequence || (first && read.start != 0) {
            *self = Self { next: read.end, window: 0 };
            return ReadaheadAdvice { fetch: count, ahead: 0 };
        }
        let ahead = self.window.min(window_max);
        self.window = (self.window * 2).max(count * 2).clamp(WINDOW_MIN, window_max.max(WINDOW_MIN));
        self.next = self.next.max(read.end);
        ReadaheadAdvice { fetch: count.max(WINDOW_MIN.min(fetch_max)), ahead }
    }
}

/// The number of bytes ahead of a sequential reader to keep in flight if a round trip takes
/// `latency`, at most `window_max`. The reader requests `by_reader` of these itself.
pub(super) fn window(latency: Duration, window_max: u64, by_reader: u64) -> u64 {
    let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let on_the_way = microseconds.saturating_mul(BYTES_PER_MILLISECOND) / 1000;
    on_the_way.max(WINDOW_NEAR).min(window_max).saturating_sub(by_reader)
}

/// The ranges to fetch so that `zone` is in flight: whole pieces of `piece` bytes that begin in the
/// zone. The last one may stop at the end of file `end`.
pub(super) fn pieces(zone: &Range<u64>, piece: u64, end: u64) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut start = zone.start;
    let until = zone.end.min(end);
    while start < until {
        let next = (start / piece + 1) * piece;
        pieces.push(start..next.min(end));
        start = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;

    #[test]
    fn a_first_read_at_the_beginning_fetches_a_window_and_nothing_ahead() {
        let mut ahead = ReadaheadState::default();
        assert_eq!(ahead.advise(0..4096, MAX, MAX), ReadaheadAdvice { fetch: WINDOW_MIN, ahead: 0 });
    }

    #[test]
    fn a_small_file_takes_one_read_although_its_reader_reads_ahead_itself() {
        // A kernel begins with 16 KiB and requests the following bytes itself, so nothing is read
        // ahead for it.
        let advice = ReadaheadState::default().advise(0..16_384, 0, MAX);
        assert_eq!((advice.fetch, advice.ahead), (WINDOW_MIN, 0));
    }

    #[test]
    fn the_window_of_a_sequence_grows_to_its_limit() {
        let mut ahead = ReadaheadState::default();
        let mut windows = Vec::new();
        for number in 0..9 {
            let start = number * WINDOW_MIN;
            windows.push(ahead.advise(start..start + WINDOW_MIN, MAX, MAX).ahead / WINDOW_MIN);
        }
        assert_eq!(windows, [0, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn random_access_fetches_only_the_requested_range() {
        let mut ahead = ReadaheadState::default();
        let _ = ahead.advise(0..4096, MAX, MAX);
        for start in [1 << 30, 5 << 20, 3 << 30] {
            assert_eq!(ahead.advise(start..start + 100, MAX, MAX), ReadaheadAdvice { fetch: 100, ahead: 0 });
        }
        // A sequential read may begin anywhere.
        let start = (3 << 30) + 100;
        assert_eq!(
            ahead.advise(start..start + 100, MAX, MAX),
            ReadaheadAdvice { fetch: WINDOW_MIN, ahead: 0 }
        );
        assert!(ahead.advise(start + 100..start + 200, MAX, MAX).ahead > 0);
    }

    #[test]
    fn reads_of_a_sequence_may_overtake_each_other() {
        let mut ahead = ReadaheadState::default();
        for start in [0, 2, 1, 3, 5, 4] {
            let start = start << 20;
            let _ = ahead.advise(start..start + (1 << 20), MAX, MAX);
        }
        assert_eq!(ahead.advise(6 << 20..7 << 20, MAX, MAX).ahead, MAX);
    }

    #[test]
    fn without_read_ahead_nothing_more_is_fetched() {
        let mut ahead = ReadaheadState::default();
        for number in 0..5 {
            let start = number * 4096;
            assert_eq!(ahead.advise(start..start + 4096, 0, 0), ReadaheadAdvice { fetch: 4096, ahead: 0 });
        }
    }

    #[test]
    fn the_window_follows_the_distance_of_the_server() {
        let window = |microseconds, by_reader| window(Duration::from_micros(microseconds), MAX, by_reader);
        assert_eq!(window(0, 0), WINDOW_NEAR);
        assert_eq!(window(200, 0), WINDOW_NEAR);
        assert_eq!(window(2000, 0), 2_500_000);
        assert_eq!(window(2000, 1_000_000), 1_500_000);
        assert_eq!(window(u64::MAX, 0), MAX);
        // The read-ahead of the kernel is enough while the server is near.
        assert_eq!(window(200, WINDOW_NEAR), 0);
        assert_eq!(super::window(Duration::from_secs(1), 0, 0), 0);
    }

    #[test]
    fn pieces_are_aligned_and_end_with_the_file() {
        assert_eq!(pieces(&(5..25), 10, 100), [5..10, 10..20, 20..30]);
        assert_eq!(pieces(&(10..21), 10, 100), [10..20, 20..30]);
        assert_eq!(pieces(&(15..40), 10, 22), [15..20, 20..22]);
        assert_eq!(pieces(&(30..40), 10, 22), []);
    }
}
