//! Directory offsets for the kernel from a listing's cookies: the kernel treats d_off as signed,
//! while servers use all 64 bits of a cookie.
//!
//! A cookie below 2^63 - 2^32 is its own offset, so that telldir(3) and seekdir(3) work for any
//! length of time. Larger ones are numbered by the open directory that returned them. The last
//! [`NUMBERS_MAX`] are cached, 8 bytes each; a sequential listing needs only the last one,
//! seekdir(3) the others.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rustix::io::Errno;

/// The first offset that is a number and not a cookie. It cannot be lower: half of ext4's cookies
/// are above 2^62.
const NUMBERED: u64 = (1 << 63) - (1 << 32);

/// Maximum number of numbered cookies of one open directory.
const NUMBERS_MAX: usize = 1 << 20;

/// The large cookies that one open directory has returned.
#[derive(Debug, Default)]
pub(super) struct CookieOffsets {
    numbered: Mutex<NumberedCookies>,
}

#[derive(Debug, Default)]
struct NumberedCookies {
    /// The number of the first cached cookie.
    first: u64,
    cookies: VecDeque<u64>,
    /// The number of the cookie that was returned or used last: a repeated listing gets the same
    /// numbers.
    last: Option<u64>,
}

impl CookieOffsets {
    /// The offset for `cookie`; `None` after 2^32 numbered cookies.
    pub(super) fn offset(&self, cookie: u64) -> Option<u64> {
        if cookie < NUMBERED {
            return Some(cookie);
        }
        let numbered = &mut *self.numbered.lock();
        let next = numbered.last.map_or(numbered.first, |last| last + 1);
        let number = if numbered.cookie(next) == Some(cookie) { next } else { numbered.add(cookie) };
        numbered.last = Some(number);
        (number < 1 << 32).then(|| NUMBERED + number)
    }

    /// The cookie for an offset.
    ///
    /// # Errors
    /// EINVAL: this directory never returned the offset, or has returned too many since.
    pub(super) fn cookie(&self, offset: u64) -> Result<u64, Errno> {
        let numbered = &mut *self.numbered.lock();
        let Some(number) = offset.checked_sub(NUMBERED) else {
            // The beginning, or a cookie: the next numbered cookie does not follow another one.
            if offset == 0 {
                *numbered = NumberedCookies::default();
            }
            return Ok(offset);
        };
        let cookie = numbered.cookie(number).ok_or(Errno::INVAL)?;
        numbered.last = Some(number);
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
        let mut numbered = Vec::new();
        for cookie in 1 << 63..(1 << 63) + 100_u64 {
            numbered.push(offsets.offset(cookie).expect("few are numbered"));
        }
        // The kernel continues in the middle, as after a full buffer.
        assert_eq!(offsets.cookie(numbered[49]), Ok((1 << 63) + 49));
        assert_eq!(offsets.offset((1 << 63) + 50), Some(numbered[50]));
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
