//! List with attributes (READDIRPLUS) or without?
//!
//! Owns a guess about speed; nothing here changes an answer. Must not know cookies or pages.

use crate::options::{CacheOptions, PlusMode};

/// So many names may be listed with attributes without anybody asking for one's.
pub const NAMES_WITHOUT_STAT_MAX: u32 = 1000;

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
    /// Names that this directory's listings gave since one of its children was last looked up or asked about.
    pub names_since_stat: u32,
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
