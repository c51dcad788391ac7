//! How the next names of a directory are requested: READDIRPLUS or READDIR, the size of the reply,
//! and whether a reader continues at its cookie.
//!
//! Owns performance heuristics, and [`ListingMode::Restart`]. With the default mode nothing here
//! changes a result. Must not know cookies, replies or memory.

use crate::{
    attributes::Freshness,
    options::{CacheOptions, ListingMode, ReaddirplusMode},
};

/// The maximum number of names listed with attributes while no attributes are used.
pub const NAMES_WITHOUT_STAT_MAX: u32 = 1000;

/// The minimum reply size in bytes: that of the first reply of a large directory, so that its first
/// names arrive early.
pub const SIZE_MIN: u32 = 8 * 1024;

/// The size in bytes of the first reply of any other directory: most fit.
pub const SIZE_FIRST_MAX: u32 = 32 * 1024;

/// The maximum reply size in bytes.
pub const SIZE_MAX: u32 = 1 << 20;

/// A directory whose own size exceeds this number of bytes takes several requests in any case: file
/// systems use 20 to 24 bytes for a name of 12 (ext4, XFS, btrfs, tmpfs), a READDIRPLUS reply 170.
const LARGE: u64 = 32 * 1024;

/// The maximum size in bytes of a READDIRPLUS reply: its 1,500 names are used before the minimum
/// attribute timeout (3 s) ends.
pub const PLUS_SIZE_MAX: u32 = 256 * 1024;

/// With [`ListingMode::Restart`]: the number of names returned before the client checks again
/// whether the directory changed (those of 4 KiB), and the maximum reply size in bytes, as in older
/// clients.
pub const RESTART_NAMES: usize = 102;
/// See [`RESTART_NAMES`].
pub const RESTART_SIZE_MAX: u32 = 32 * 1024;

/// The procedure of the next request of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingDecision {
    /// READDIRPLUS.
    Plus,
    /// READDIR.
    Plain,
}

impl ListingDecision {
    /// The reply size for this procedure in bytes, of `size`.
    #[must_use]
    pub fn bound(self, size: u32) -> u32 {
        match self {
            Self::Plus => size.min(PLUS_SIZE_MAX),
            Self::Plain => size,
        }
    }
}

/// Decides the next request. `names_since_stat`: names that listings of this directory returned
/// since one of its children was last looked up or its attributes were requested.
pub const fn decide_listing(
    at_start: bool,
    names_since_stat: u32,
    options: &CacheOptions,
) -> ListingDecision {
    match options.plus {
        ReaddirplusMode::Never => ListingDecision::Plain,
        ReaddirplusMode::Always => ListingDecision::Plus,
        ReaddirplusMode::Auto if at_start || names_since_stat < NAMES_WITHOUT_STAT_MAX => {
            ListingDecision::Plus
        }
        ReaddirplusMode::Auto => ListingDecision::Plain,
    }
}

/// The maximum bytes to request if the server and the memory for listings allow `most`.
#[must_use]
pub fn size_max(most: u32, options: &CacheOptions) -> u32 {
    match options.listing {
        ListingMode::Continue => most,
        ListingMode::Restart => most.min(RESTART_SIZE_MAX),
    }
}

/// The number of names to return before the next decision how to continue.
#[must_use]
pub const fn names_between_decisions(options: &CacheOptions) -> usize {
    match options.listing {
        ListingMode::Continue => usize::MAX,
        ListingMode::Restart => RESTART_NAMES,
    }
}

/// The bytes of the first request in a directory whose size attribute is `size`, if known. `most`
/// is the server's maximum.
#[must_use]
pub fn first_size(size: Option<u64>, most: u32) -> u32 {
    let is_large = size.is_some_and(|size| size > LARGE);
    let first = if is_large { SIZE_MIN } else { SIZE_FIRST_MAX };
    first.min(bound(most))
}

/// The bytes to request after a reply of `size` that was not the last, for a sequential reader.
#[must_use]
pub fn next_size(size: u32, most: u32) -> u32 {
    size.saturating_mul(2).clamp(SIZE_MIN, bound(most))
}

/// [`SIZE_MAX`], limited by the server's maximum; at least [`SIZE_MIN`].
fn bound(most: u32) -> u32 {
    most.clamp(SIZE_MIN, SIZE_MAX)
}

/// How a reader in the middle of a directory continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingContinuation {
    /// After the last returned name.
    FromCookie,
    /// Send GETATTR for the directory, then decide again.
    Revalidate,
    /// All names are requested again from the beginning up to its position.
    FromStart,
}

/// Decides how a reader continues. `directory` is the freshness of the directory's attributes,
/// `is_same` whether the directory is known to be unchanged since the cached names were first
/// requested.
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
