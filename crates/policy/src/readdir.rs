//! How the next names of a directory are requested: with attributes (READDIRPLUS) or without, in
//! how many bytes, and whether a reader continues where it is.
//!
//! Owns guesses about speed, and [`ListingMode::Restart`]; with the default mode nothing here
//! changes an answer. Must not know cookies, replies or memory.

use crate::{
    attributes::Freshness,
    options::{CacheOptions, ListingMode, PlusMode},
};

/// So many names may be listed with attributes without anybody asking for one's.
pub const NAMES_WITHOUT_STAT_MAX: u32 = 1000;

/// Bytes of the smallest reply: the first of a large directory, so that its first names are there
/// soon.
pub const SIZE_MIN: u32 = 8 * 1024;

/// Bytes of the first reply of any other directory: most fit.
pub const SIZE_FIRST_MAX: u32 = 32 * 1024;

/// Bytes of the largest reply.
pub const SIZE_MAX: u32 = 1 << 20;

/// A directory whose own size is more bytes than this takes several requests anyway: file systems
/// count 20 to 24 bytes for a name of 12 (ext4, XFS, btrfs, tmpfs), a reply with attributes 170.
const LARGE: u64 = 32 * 1024;

/// Bytes of the largest reply with attributes: its 1,500 names are looked at before the shortest
/// lifetime of attributes (3 s) ends.
pub const PLUS_SIZE_MAX: u32 = 256 * 1024;

/// With [`ListingMode::Restart`]: names that are returned before the client looks again whether the
/// directory changed (those of 4 KiB), and bytes of the largest reply, as clients had it that did
/// so.
pub const RESTART_NAMES: usize = 102;
/// See [`RESTART_NAMES`].
pub const RESTART_SIZE_MAX: u32 = 32 * 1024;

/// How the next request of a listing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingDecision {
    /// READDIRPLUS.
    Plus,
    /// READDIR.
    Plain,
}

impl ListingDecision {
    /// What becomes of a reply's size for such a request.
    #[must_use]
    pub fn bound(self, size: u32) -> u32 {
        match self {
            Self::Plus => size.min(PLUS_SIZE_MAX),
            Self::Plain => size,
        }
    }
}

/// Decides the next request. `names_since_stat`: names that this directory's listings gave since
/// one of its children was last looked up or asked about.
pub const fn decide_listing(
    at_start: bool,
    names_since_stat: u32,
    options: &CacheOptions,
) -> ListingDecision {
    match options.plus {
        PlusMode::Never => ListingDecision::Plain,
        PlusMode::Always => ListingDecision::Plus,
        PlusMode::Auto if at_start || names_since_stat < NAMES_WITHOUT_STAT_MAX => ListingDecision::Plus,
        PlusMode::Auto => ListingDecision::Plain,
    }
}

/// Bytes that are requested at most, the server and the memory for listings allowing `most`.
#[must_use]
pub fn size_max(most: u32, options: &CacheOptions) -> u32 {
    match options.listing {
        ListingMode::Continue => most,
        ListingMode::Restart => most.min(RESTART_SIZE_MAX),
    }
}

/// How many names are returned before it is decided again how to continue.
#[must_use]
pub const fn names_between_decisions(options: &CacheOptions) -> usize {
    match options.listing {
        ListingMode::Continue => usize::MAX,
        ListingMode::Restart => RESTART_NAMES,
    }
}

/// Bytes to request first in a directory whose size attribute is `size`, if it is known; `most` is
/// the server's bound.
#[must_use]
pub fn first_size(size: Option<u64>, most: u32) -> u32 {
    let is_large = size.is_some_and(|size| size > LARGE);
    let first = if is_large { SIZE_MIN } else { SIZE_FIRST_MAX };
    first.min(bound(most))
}

/// Bytes to request after a reply of `size` was not the last, the reader continuing in sequence.
#[must_use]
pub fn next_size(size: u32, most: u32) -> u32 {
    size.saturating_mul(2).clamp(SIZE_MIN, bound(most))
}

/// What a server's own bound leaves of [`SIZE_MAX`]; never less than [`SIZE_MIN`].
fn bound(most: u32) -> u32 {
    most.clamp(SIZE_MIN, SIZE_MAX)
}

/// What a reader in the middle of a directory does when it wants more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingContinuation {
    /// It continues after the last name that was returned.
    FromCookie,
    /// The directory's attributes are requested first, then this is decided again.
    Revalidate,
    /// All names are requested again from the beginning, up to where it was.
    FromStart,
}

/// Decides how a reader continues: `directory` are the directory's attributes, `is_same` whether it
/// is known to be as it was when the names at hand were first requested.
pub const fn decide_continuation(
    directory: Freshness,
    is_same: bool,
    options: &CacheOptions,
) -> ListingContinuation {
    match (options.listing, directory) {
        (ListingMode::Continue, _) => ListingContinuation::FromCookie,
        (ListingMode::Restart, _) if !is_same => ListingContinuation::FromStart,
        (ListingMode::Restart, Freshness::Confirmed | Freshness::Fresh) => ListingContinuation::FromCookie,
        (ListingMode::Restart, Freshness::Expired | Freshness::Unknown) => ListingContinuation::Revalidate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_begin_small_in_large_directories_and_double_up_to_a_mebibyte() {
        assert_eq!(first_size(None, SIZE_MAX), SIZE_FIRST_MAX);
        assert_eq!(first_size(Some(0), SIZE_MAX), SIZE_FIRST_MAX);
        assert_eq!(first_size(Some(LARGE), SIZE_MAX), SIZE_FIRST_MAX);
        assert_eq!(first_size(Some(LARGE + 1), SIZE_MAX), SIZE_MIN);
        assert_eq!(first_size(Some(u64::MAX), SIZE_MAX), SIZE_MIN);
        let mut sizes = vec![SIZE_MIN];
        for _ in 0..9 {
            sizes.push(next_size(sizes[sizes.len() - 1], u32::MAX));
        }
        let kib: Vec<u32> = sizes.iter().map(|size| size / 1024).collect();
        assert_eq!(kib, [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        assert_eq!(next_size(SIZE_MAX, 256 * 1024), 256 * 1024);
        assert_eq!(next_size(SIZE_MAX, 512), SIZE_MIN, "no server means less");
        assert_eq!(first_size(Some(1), 1), SIZE_MIN);
    }

    #[test]
    fn replies_with_attributes_are_bounded_and_a_restart_looks_again_after_a_page() {
        assert_eq!(ListingDecision::Plus.bound(SIZE_MAX), PLUS_SIZE_MAX);
        assert_eq!(ListingDecision::Plus.bound(PLUS_SIZE_MAX - 1), PLUS_SIZE_MAX - 1);
        assert_eq!(ListingDecision::Plain.bound(SIZE_MAX), SIZE_MAX);
        let options = CacheOptions::default();
        assert_eq!(names_between_decisions(&options), usize::MAX);
        let restart = CacheOptions { listing: ListingMode::Restart, ..options };
        assert_eq!(names_between_decisions(&restart), RESTART_NAMES);
        assert_eq!(size_max(SIZE_MAX, &options), SIZE_MAX);
        assert_eq!(size_max(SIZE_MAX, &restart), RESTART_SIZE_MAX);
    }
}
