//! Curt's own options, and the names of BSD for what nfs(5) of Linux has no name for.

use super::super::row::Row;
use super::super::settings::RacyGuard;
use super::super::values::{number, one_of, seconds, size};
use super::{flag, refused, valued};

const LATER_LOCKS: &str =
    "byte-range locks on the wire are not supported by this version; use nolock or local_lock";

/// The rows.
pub(super) const ROWS: &[Row] = &[
    flag("accesscheck", |s, _| {
        s.cache.noaccesscheck = false;
        Ok(())
    }),
    flag("noaccesscheck", |s, _| {
        s.cache.noaccesscheck = true;
        Ok(())
    }),
    valued("sloppycto", |s, v| {
        s.cache.sloppycto = seconds(v)?;
        Ok(())
    }),
    valued("nametimeo", |s, v| {
        s.cache.nametimeo = seconds(v)?;
        Ok(())
    }),
    valued("negnametimeo", |s, v| {
        s.cache.negnametimeo = seconds(v)?;
        Ok(())
    }),
    flag("nonegnamecache", |s, _| {
        s.cache.negnametimeo = 0;
        Ok(())
    }),
    valued("neg_racy_guard", |s, v| {
        const WORDS: &[(&str, RacyGuard)] = &[
            ("auto", RacyGuard::Auto),
            ("on", RacyGuard::On),
            ("off", RacyGuard::Off),
        ];
        s.cache.racy_guard = one_of(v, WORDS)?;
        Ok(())
    }),
    valued("names_max", |s, v| {
        s.memory.names = Some(number(v, 1000..=u64::from(u32::MAX), " (names)")?);
        Ok(())
    }),
    valued("dirty_max", |s, v| {
        s.memory.dirty_bytes = Some(size(v, 1 << 20)?);
        Ok(())
    }),
    refused(
        "dirfill",
        "directories that answer for their names come in a later version; leave it out",
    ),
    refused(
        "readdir",
        "listings have one way to go on in this version; leave it out",
    ),
    refused("locks", LATER_LOCKS),
    refused("lockhandoff", LATER_LOCKS),
];
