//! Detecting a server that returns the same names again and again.
//!
//! A sequence notices a cookie that comes twice as long as it has all its names; but a listing that
//! is larger than the memory for listings loses names. So each reader remembers one cookie, and
//! replaces it whenever twice as many names have been returned (Brent's cycle detection): however
//! long the cycle is, it is noticed before it has been repeated four times.

/// What one reader remembers of the cookies that it was told.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CookieLoopDetector {
    mark: Option<u64>,
    returned: u64,
    /// After so many names another cookie is remembered.
    next: u64,
}

impl CookieLoopDetector {
    /// Whether the name with this cookie was told before, as far as is remembered.
    pub(super) fn is_repeated(&self, cookie: u64) -> bool {
        self.mark == Some(cookie)
    }

    /// The name with this cookie was told.
    pub(super) fn note_returned(&mut self, cookie: u64) {
        self.returned += 1;
        if self.returned >= self.next {
            self.mark = Some(cookie);
            self.next = self.returned.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many names are told until a circle is noticed into which a way of `before` names leads.
    fn noticed(before: u64, length: u64) -> u64 {
        let mut circle = CookieLoopDetector::default();
        (0..)
            .find(|index| {
                let cookie = if *index < before {
                    index + 1
                } else {
                    before + 1 + (index - before) % length
                };
                let is_closed = circle.is_repeated(cookie);
                circle.note_returned(cookie);
                is_closed
            })
            .expect("a number")
    }

    #[test]
    fn every_circle_is_noticed_before_it_was_gone_round_four_times() {
        for before in [0, 1, 2, 3, 10, 63, 64, 65, 1000] {
            for length in [1, 2, 3, 7, 64, 999, 1024] {
                let told = noticed(before, length);
                assert!(
                    told > before && told <= 2 * before + 4 * length,
                    "{before} {length}: {told}"
                );
            }
        }
    }

    #[test]
    fn names_that_all_differ_are_no_circle() {
        let mut circle = CookieLoopDetector::default();
        for cookie in (1..100_000).rev() {
            assert!(!circle.is_repeated(cookie));
            circle.note_returned(cookie);
        }
    }
}
