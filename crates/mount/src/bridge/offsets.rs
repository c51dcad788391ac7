//! A listing's cookies as the kernel can hold them: it takes d_off for signed, servers give any 64 bits.
//!
//! A cookie below 2^62 is its own offset, so that telldir(3) and seekdir(3) work over any time. Above, an open directory
//! numbers the cookies it has told, from 2^62 on; those are good as long as it is open, which is all that POSIX promises.

use std::collections::HashMap;

use parking_lot::Mutex;
use rustix::io::Errno;

/// The first offset that is a number and not a cookie.
const NUMBERED: u64 = 1 << 62;

/// The large cookies that one open directory has told.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    cookies: Vec<u64>,
    numbers: HashMap<u64, u64>,
}

impl Offsets {
    /// The offset by which the kernel may come back to `cookie`.
    pub(super) fn offset(&self, cookie: u64) -> u64 {
        if cookie < NUMBERED {
            return cookie;
        }
        let mut told = self.told.lock();
        let Told { cookies, numbers } = &mut *told;
        *numbers.entry(cookie).or_insert_with(|| {
            cookies.push(cookie);
            NUMBERED + cookies.len() as u64 - 1
        })
    }

    /// The cookie behind an offset.
    ///
    /// # Errors
    /// EINVAL: this directory never told it.
    pub(super) fn cookie(&self, offset: u64) -> Result<u64, Errno> {
        let Some(number) = offset.checked_sub(NUMBERED) else {
            return Ok(offset);
        };
        let told = self.told.lock();
        usize::try_from(number)
            .ok()
            .and_then(|number| told.cookies.get(number))
            .copied()
            .ok_or(Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_of_any_size_come_back_from_offsets_that_are_positive() {
        let offsets = Offsets::default();
        for cookie in [0, 1, NUMBERED - 1, NUMBERED, 1 << 63, u64::MAX, 1 << 63] {
            let offset = offsets.offset(cookie);
            assert!(i64::try_from(offset).is_ok());
            assert_eq!(offsets.cookie(offset), Ok(cookie));
        }
        assert_eq!(offsets.told.lock().cookies.len(), 3, "a cookie is numbered once");
        assert_eq!(offsets.cookie(NUMBERED + 3), Err(Errno::INVAL));
    }
}
