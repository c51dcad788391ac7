//! A listing's cookies as offsets for the kernel: it treats d_off as signed, while servers use all
//! 64 bits.
//!
//! A cookie below 2^63 - 2^32 is its own offset, so that telldir(3) and seekdir(3) work for any
//! length of time. Larger ones are numbered by the open directory that returned them. Bounds: the
//! last [`NUMBERS_MAX`] are remembered, 8 bytes each; a listing in order needs only the last,
//! seekdir(3) finds the others.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rustix::io::Errno;

/// The first offset that is a number and not a cookie. Not lower: half of what ext4 gives is above
/// 2^62.
const NUMBERED: u64 = (1 << 63) - (1 << 32);

/// Numbered cookies that one open directory remembers.
const NUMBERS_MAX: usize = 1 << 20;

/// The large cookies that one open directory has returned.
#[derive(Debug, Default)]
pub(super) struct CookieOffsets {
    numbered: Mutex<NumberedCookies>,
}

#[derive(Debug, Default)]
struct NumberedCookies {
    /// The number of the first that is remembered.
    first: u64,
    cookies: VecDeque<u64>,
    /// The number of the cookie that was returned or asked for last: a listing that is read again
    /// gets the same numbers.
    last: Option<u64>,
}

impl CookieOffsets {
    /// The offset by which the kernel may come back to `cookie`; `None` once 2^32 had to be
    /// numbered.
    pub(super) fn offset(&self, cookie: u64) -> Option<u64> {
        if cookie < NUMBERED {
            return Some(cookie);
        }
        let told = &mut *self.numbered.lock();
        let next = told.last.map_or(told.first, |last| last + 1);
        let number = if told.cookie(next) == Some(cookie) { next } else { told.add(cookie) };
        told.last = Some(number);
        (number < 1 << 32).then(|| NUMBERED + number)
    }

    /// The cookie behind an offset.
    ///
    /// # Errors
    /// EINVAL: this directory never returned it, or has returned too many since.
    pub(super) fn cookie(&self, offset: u64) -> Result<u64, Errno> {
        let told = &mut *self.numbered.lock();
        let Some(number) = offset.checked_sub(NUMBERED) else {
            // The beginning, or a cookie: what is numbered next follows nothing that was numbered
            // before.
            if offset == 0 {
                *told = NumberedCookies::default();
            }
            return Ok(offset);
        };
        let cookie = told.cookie(number).ok_or(Errno::INVAL)?;
        told.last = Some(number);
        Ok(cookie)
    }
}

impl NumberedCookies {
    fn cookie(&self, number: u64) -> Option<u64> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.cookies.get(index).copied()
    }

    fn add(&mut self, cookie: u64) -> u64 {
        if self.cookies.len() == NUMBERS_MAX {
            self.cookies.pop_front();
            self.first += 1;
        }
        self.cookies.push_back(cookie);
        self.first + self.cookies.len() as u64 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: list-5.
    #[test]
    fn cookies_of_any_size_come_back_from_offsets_that_are_positive() {
        let offsets = CookieOffsets::default();
        for cookie in [0, 1, NUMBERED - 1, NUMBERED, 1 << 63, u64::MAX, 1 << 63] {
            let offset = offsets.offset(cookie).expect("few are numbered");
            assert!(i64::try_from(offset).is_ok());
            assert_eq!(offsets.cookie(offset), Ok(cookie));
        }
        assert_eq!(offsets.cookie(NUMBERED + 4), Err(Errno::INVAL));
    }

    #[test]
    fn a_listing_that_is_read_again_takes_no_more_room() {
        let offsets = CookieOffsets::default();
        let mut told = Vec::new();
        for cookie in 1 << 63..(1 << 63) + 100_u64 {
            told.push(offsets.offset(cookie).expect("few are numbered"));
        }
        // The kernel comes back in the middle, as after a buffer that was full.
        assert_eq!(offsets.cookie(told[49]), Ok((1 << 63) + 49));
        assert_eq!(offsets.offset((1 << 63) + 50), Some(told[50]));
        assert_eq!(offsets.numbered.lock().cookies.len(), 100);
        assert_eq!(offsets.cookie(0), Ok(0));
        assert_eq!(offsets.numbered.lock().cookies.len(), 0, "a new pass numbers anew");
    }

    #[test]
    fn the_oldest_number_is_forgotten_when_there_are_too_many() {
        let offsets = CookieOffsets::default();
        let first = offsets.offset(u64::MAX).expect("few are numbered");
        for cookie in (1 << 63)..(1 << 63) + NUMBERS_MAX as u64 - 1 {
            let _ = offsets.offset(cookie);
        }
        assert_eq!(offsets.cookie(first), Ok(u64::MAX), "as many as fit");
        let _ = offsets.offset(u64::MAX - 1);
        let last = offsets.offset(u64::MAX - 2).expect("few are numbered");
        assert_eq!(offsets.cookie(first), Err(Errno::INVAL), "one more");
        assert_eq!(offsets.cookie(last), Ok(u64::MAX - 2));
        assert_eq!(offsets.numbered.lock().cookies.len(), NUMBERS_MAX);
    }
}
