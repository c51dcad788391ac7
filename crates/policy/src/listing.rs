//! How the next names of a directory are asked for: with attributes (READDIRPLUS) or without, how
//! many at once, ahead of the reader or not, and whether a reader goes on where it is.
//!
//! Owns guesses about speed, and [`ListingMode::Restart`]; with the default mode nothing here
//! changes an answer. Must not know cookies, replies or memory.

use crate::{
    attributes::Freshness,
    options::{CacheOptions, ListingMode, PlusMode},
};

/// So many names may be listed with attributes without anybody asking for one's.
pub const NAMES_WITHOUT_STAT_MAX: u32 = 1000;

/// After so many names of a listing had to be looked up one by one, those that follow are asked for
/// with attributes.
pub const MISSES_MAX: u32 = 16;

/// Bytes of the smallest reply that is asked for: the first of a large directory, so that its first
/// names are there soon.
pub const SIZE_MIN: u32 = 8 * 1024;

/// Bytes of the first reply of any other directory: most fit.
pub const SIZE_FIRST_MAX: u32 = 32 * 1024;

/// Bytes of the largest reply.
pub const SIZE_MAX: u32 = 1 << 20;

/// A directory whose own size is more bytes than this takes several requests anyway: file systems
/// count 20 to 24 bytes for a name of 12 (ext4, XFS, btrfs, tmpfs), a reply with attributes about
/// 170.
const LARGE: u64 = 32 * 1024;

/// Bytes of the largest reply with attributes: its 1,500 names are looked at before the shortest
/// lifetime of attributes (3 s) ends.
pub const PLUS_SIZE_MAX: u32 = 256 * 1024;

/// Names that [`ListingMode::Restart`] tells before it looks again whether the directory changed:
/// those of 4 KiB, as clients kept them that did so.
pub const RESTART_NAMES: usize = 102;

/// Bytes of the largest reply that [`ListingMode::Restart`] asks for: what clients asked for that
/// did so.
pub const RESTART_SIZE_MAX: u32 = 32 * 1024;

/// Names among which [`MISSES_MAX`] that are looked up one by one count as looked up in a row.
pub const MISSES_WINDOW: u32 = 64;

/// How the next request of a listing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingDecision {
    /// READDIRPLUS.
    Plus,
    /// READDIR.
    Plain,
}

/// What is known when more names are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListingView {
    /// This is the first request of the listing.
    pub at_start: bool,
    /// Names that this directory's listings gave since one of its children was last looked up or
    /// asked about.
    pub names_since_stat: u32,
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

/// Bytes that are asked for at most, the server and the memory for listings allowing `most`.
#[must_use]
pub fn size_max(most: u32, options: &CacheOptions) -> u32 {
    match options.listing {
        ListingMode::Continue => most,
        ListingMode::Restart => most.min(RESTART_SIZE_MAX),
    }
}

/// How many names are told before it is decided again how to go on.
#[must_use]
pub const fn names_between_decisions(options: &CacheOptions) -> usize {
    match options.listing {
        ListingMode::Continue => usize::MAX,
        ListingMode::Restart => RESTART_NAMES,
    }
}

/// Decides the next request.
pub const fn decide_listing(view: ListingView, options: &CacheOptions) -> ListingDecision {
    match options.plus {
        PlusMode::Never => ListingDecision::Plain,
        PlusMode::Always => ListingDecision::Plus,
        PlusMode::Auto if view.at_start || view.names_since_stat < NAMES_WITHOUT_STAT_MAX => {
            ListingDecision::Plus
        }
        PlusMode::Auto => ListingDecision::Plain,
    }
}

/// Names of a listing that were looked up one by one, in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingMisses {
    /// Where in the listing the last one is.
    at: u32,
    /// How many there were in a row.
    count: u32,
    /// How many there were in all.
    all: u32,
}

impl ListingMisses {
    /// A name was looked up; whether there are enough for finding out where in the listing they
    /// are.
    pub const fn note_miss(&mut self) -> bool {
        self.all = self.all.saturating_add(1);
        self.all > MISSES_MAX / 2
    }

    /// The name at `place` of the listing was looked up; how many were in a row by now.
    pub const fn note_miss_at(&mut self, place: u32) -> u32 {
        let is_next = place >= self.at && place - self.at <= MISSES_WINDOW;
        self.count = if is_next { self.count.saturating_add(1) } else { 1 };
        self.at = place;
        self.count
    }

    /// The names up to `place` came with attributes: if those that follow are looked up too, that
    /// is noticed soon.
    pub const fn note_listed_up_to(&mut self, place: u32) {
        self.at = place;
        self.count = MISSES_MAX * 3 / 4;
    }
}

/// Whether names that were listed without attributes are to be asked for again with them, `misses`
/// of them having been looked up one by one in a row.
#[must_use]
pub const fn wants_attributes(misses: u32, options: &CacheOptions) -> bool {
    match options.plus {
        PlusMode::Never => false,
        PlusMode::Always | PlusMode::Auto => misses >= MISSES_MAX,
    }
}

/// Bytes to ask for first in a directory whose size attribute is `size`, if it is known; `most` is
/// the server's bound.
#[must_use]
pub fn first_size(size: Option<u64>, most: u32) -> u32 {
    let is_large = size.is_some_and(|size| size > LARGE);
    let first = if is_large { SIZE_MIN } else { SIZE_FIRST_MAX };
    first.min(bound(most))
}

/// Bytes to ask for after a reply of `size` was not the last, the reader going on in sequence.
#[must_use]
pub fn next_size(size: u32, most: u32) -> u32 {
    size.saturating_mul(2).clamp(SIZE_MIN, bound(most))
}

/// What a server's own bound leaves of [`SIZE_MAX`]; never less than [`SIZE_MIN`].
fn bound(most: u32) -> u32 {
    most.clamp(SIZE_MIN, SIZE_MAX)
}

/// Whether the names behind those at hand are asked for before the reader wants them: once it has
/// had half of them, and not while this client changes the directory (what a reply says that
/// crosses a change of ours can hardly be kept).
#[must_use]
pub const fn reads_ahead(had: usize, of: usize, is_undisturbed: bool, options: &CacheOptions) -> bool {
    match options.listing {
        ListingMode::Continue => is_undisturbed && had * 2 >= of,
        ListingMode::Restart => false,
    }
}

/// What a reader in the middle of a directory does when it wants more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ListingContinuation {
    /// It goes on after the last name that it was told.
    FromCookie,
    /// The directory's attributes are asked for first, then this is decided again.
    Revalidate,
    /// All names are asked for again from the beginning, up to where it was.
    FromStart,
}

/// Decides how a reader goes on: `directory` are the directory's attributes, `is_same` whether it
/// is known to be as it was when the names at hand were first asked for.
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
    fn names_looked_up_in_a_row_are_told_from_names_looked_up_anywhere() {
        let mut misses = ListingMisses::default();
        let placed = (0..MISSES_MAX).filter(|_| misses.note_miss()).count();
        assert_eq!(placed, 8);
        assert_eq!(misses.note_miss_at(100), 1);
        assert_eq!(misses.note_miss_at(101), 2);
        assert_eq!(misses.note_miss_at(101 + MISSES_WINDOW), 3);
        assert_eq!(misses.note_miss_at(102 + 2 * MISSES_WINDOW), 1, "too far");
        assert_eq!(misses.note_miss_at(5), 1, "backwards");
        misses.note_listed_up_to(1000);
        assert_eq!(misses.note_miss_at(1001), 13);
    }

    #[test]
    fn replies_with_attributes_are_bounded_and_a_restart_looks_again_after_a_page() {
        assert_eq!(ListingDecision::Plus.bound(SIZE_MAX), PLUS_SIZE_MAX);
        assert_eq!(ListingDecision::Plus.bound(PLUS_SIZE_MAX - 1), PLUS_SIZE_MAX - 1);
        assert_eq!(ListingDecision::Plain.bound(SIZE_MAX), SIZE_MAX);
        let options = CacheOptions::default();
        assert_eq!(names_between_decisions(&options), usize::MAX);
        let restart = CacheOptions {
            listing: ListingMode::Restart,
            ..options
        };
        assert_eq!(names_between_decisions(&restart), RESTART_NAMES);
        assert_eq!(size_max(SIZE_MAX, &options), SIZE_MAX);
        assert_eq!(size_max(SIZE_MAX, &restart), RESTART_SIZE_MAX);
    }

    #[test]
    fn the_next_names_are_asked_for_from_the_middle_of_those_at_hand() {
        let options = CacheOptions::default();
        assert!(!reads_ahead(49, 100, true, &options));
        assert!(reads_ahead(50, 100, true, &options));
        assert!(!reads_ahead(100, 100, false, &options));
        let restart = CacheOptions {
            listing: ListingMode::Restart,
            ..options
        };
        assert!(!reads_ahead(100, 100, true, &restart));
    }
}
