//! Curt's own options, and BSD's names where nfs(5) of Linux has none.

use std::time::Duration;

use curt_observe::events::RingLevel;
use curt_policy::locks::LockOrder;
use curt_policy::{AccessMode, FillMode, ListingMode, RacyGuard};

use super::super::value_syntax::{number, one_of, port, seconds, short_time, size};
use super::row::{OptionRow, flag, set, valued_own};

/// Consecutive hand-offs of a lock: beyond it other machines would wait too long.
pub(crate) const HANDOFFS_MAX: u32 = 16;

pub(in crate::options) const RACY_GUARDS: &[(&str, RacyGuard)] =
    &[("auto", RacyGuard::Auto), ("on", RacyGuard::On), ("off", RacyGuard::Off)];
pub(in crate::options) const FILL_MODES: &[(&str, FillMode)] =
    &[("auto", FillMode::Auto), ("off", FillMode::Off)];
const LISTING_MODES: &[(&str, ListingMode)] =
    &[("auto", ListingMode::Continue), ("restart", ListingMode::Restart)];

const LOCK_ORDERS: &[(&str, LockOrder)] =
    &[("local-first", LockOrder::LocalFirst), ("server-first", LockOrder::ServerFirst)];

/// The rows.
pub(super) const ROWS: &[OptionRow] = &[
    flag("accesscheck", |s, _| set(&mut s.cache.access, AccessMode::Server)),
    flag("noaccesscheck", |s, _| set(&mut s.cache.access, AccessMode::ModeBits)),
    valued_own("sloppycto", "N", |s, v| set(&mut s.cache.sloppy_open, seconds(v)?)),
    valued_own("nametimeo", "N", |s, v| set(&mut s.cache.name_lifetime, seconds(v)?)),
    valued_own("negnametimeo", "N", |s, v| set(&mut s.cache.missing_name_lifetime, seconds(v)?)),
    flag("nonegnamecache", |s, _| set(&mut s.cache.missing_name_lifetime, Duration::ZERO)),
    valued_own("kernelnames", "N", |s, v| set(&mut s.cache.kernel_names, short_time(v)?)),
    valued_own("neg_racy_guard", "auto|on|off", |s, v| set(&mut s.cache.racy_guard, one_of(v, RACY_GUARDS)?)),
    valued_own("names_max", "N", |s, v| {
        set(&mut s.memory.names, Some(number(v, 1000..=u64::from(u32::MAX), " (names)")?))
    }),
    valued_own("dirty_max", "SIZE", |s, v| set(&mut s.memory.dirty_bytes, Some(size(v, 1 << 20)?))),
    valued_own("dirfill", "auto|off", |s, v| set(&mut s.cache.fill, one_of(v, FILL_MODES)?)),
    flag("delegations", |s, _| set(&mut s.cache.delegations, true)),
    flag("nodelegations", |s, _| set(&mut s.cache.delegations, false)),
    valued_own("readdir", "auto|restart", |s, v| set(&mut s.cache.listing, one_of(v, LISTING_MODES)?)),
    valued_own("listing_max", "SIZE", |s, v| set(&mut s.memory.listing_bytes, Some(size(v, 1 << 20)?))),
    valued_own("mountstats", "N", |s, v| set(&mut s.figures.mountstats, seconds(v)?)),
    valued_own("metrics", "PLACE", |s, v| set(&mut s.figures.metrics, Some(v.parse()?))),
    valued_own("ring", "off|rare|request|operation", |s, v| {
        set(&mut s.figures.ring, one_of(v, &RingLevel::ALL.map(|level| (level.name(), level)))?)
    }),
    valued_own("locks", "local-first|server-first", |s, v| set(&mut s.locks.order, one_of(v, LOCK_ORDERS)?)),
    valued_own("lockhandoff", "N", |s, v| set(&mut s.locks.handoffs, Some(number(v, 0..=HANDOFFS_MAX, "")?))),
    valued_own("lockport", "N", |s, v| set(&mut s.locks.lock_port, port(v)?)),
    valued_own("lockcallbackport", "N", |s, v| set(&mut s.locks.callback_ports.lock_manager, port(v)?)),
    valued_own("statdport", "N", |s, v| set(&mut s.locks.callback_ports.status_monitor, port(v)?)),
];
