//! Curt's own options, and BSD's names where nfs(5) of Linux has none.

use std::time::Duration;

use curt_observe::events::RingLevel;
use curt_policy::locks::LockOrder;
use curt_policy::{AccessMode, FillMode, ListingMode, RacyGuard};

use super::super::values::{number, one_of, port, seconds, short_time, size};
use super::{OptionRow, flag, valued_own};

/// Hand-offs of a lock in a row: beyond it other machines would wait too long.
const HANDOFFS_MAX: u32 = 16;

/// The rows.
pub(super) const ROWS: &[OptionRow] = &[
    flag("accesscheck", |s, _| {
        s.cache.access = AccessMode::Server;
        Ok(())
    }),
    flag("noaccesscheck", |s, _| {
        s.cache.access = AccessMode::ModeBits;
        Ok(())
    }),
    valued_own("sloppycto", "N", |s, v| {
        s.cache.sloppy_open = seconds(v)?;
        Ok(())
    }),
    valued_own("nametimeo", "N", |s, v| {
        s.cache.name_lifetime = seconds(v)?;
        Ok(())
    }),
    valued_own("negnametimeo", "N", |s, v| {
        s.cache.missing_name_lifetime = seconds(v)?;
        Ok(())
    }),
    flag("nonegnamecache", |s, _| {
        s.cache.missing_name_lifetime = Duration::ZERO;
        Ok(())
    }),
    valued_own("kernelnames", "N", |s, v| {
        s.cache.kernel_names = short_time(v)?;
        Ok(())
    }),
    valued_own("neg_racy_guard", "auto|on|off", |s, v| {
        const WORDS: &[(&str, RacyGuard)] =
            &[("auto", RacyGuard::Auto), ("on", RacyGuard::On), ("off", RacyGuard::Off)];
        s.cache.racy_guard = one_of(v, WORDS)?;
        Ok(())
    }),
    valued_own("names_max", "N", |s, v| {
        s.memory.names = Some(number(v, 1000..=u64::from(u32::MAX), " (names)")?);
        Ok(())
    }),
    valued_own("dirty_max", "SIZE", |s, v| {
        s.memory.dirty_bytes = Some(size(v, 1 << 20)?);
        Ok(())
    }),
    valued_own("dirfill", "auto|off", |s, v| {
        const WORDS: &[(&str, FillMode)] = &[("auto", FillMode::Auto), ("off", FillMode::Off)];
        s.cache.fill = one_of(v, WORDS)?;
        Ok(())
    }),
    valued_own("readdir", "auto|restart", |s, v| {
        const WORDS: &[(&str, ListingMode)] =
            &[("auto", ListingMode::Continue), ("restart", ListingMode::Restart)];
        s.cache.listing = one_of(v, WORDS)?;
        Ok(())
    }),
    valued_own("listing_max", "SIZE", |s, v| {
        s.memory.listing_bytes = Some(size(v, 1 << 20)?);
        Ok(())
    }),
    valued_own("mountstats", "N", |s, v| {
        s.figures.mountstats = seconds(v)?;
        Ok(())
    }),
    valued_own("metrics", "PLACE", |s, v| {
        s.figures.metrics = Some(v.parse()?);
        Ok(())
    }),
    valued_own("ring", "off|rare|request|operation", |s, v| {
        s.figures.ring = one_of(v, &RingLevel::ALL.map(|level| (level.name(), level)))?;
        Ok(())
    }),
    valued_own("locks", "local-first|server-first", |s, v| {
        const WORDS: &[(&str, LockOrder)] =
            &[("local-first", LockOrder::LocalFirst), ("server-first", LockOrder::ServerFirst)];
        s.locks.order = one_of(v, WORDS)?;
        Ok(())
    }),
    valued_own("lockhandoff", "N", |s, v| {
        s.locks.handoffs = number(v, 0..=HANDOFFS_MAX, "")?;
        Ok(())
    }),
    valued_own("lockport", "N", |s, v| {
        s.locks.lock_port = port(v)?;
        Ok(())
    }),
];
