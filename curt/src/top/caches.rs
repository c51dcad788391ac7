//! The client's caches, and the requests that they save. Pure.

use curt_observe::ClientCounter;

use super::mounts::{KIBIBYTE, MountDelta};
use super::table::{TableCell, TopTable, share};

/// A cache.
struct CacheRow {
    name: &'static str,
    hits: &'static [ClientCounter],
    misses: &'static [ClientCounter],
    /// The counters' unit.
    unit: f64,
}

/// The caches of a client.
macro_rules! caches {
    ($($name:literal $unit:expr, [$($hit:ident)*] [$($miss:ident)*];)*) => {
        [$(CacheRow {
            name: $name,
            hits: &[$(ClientCounter::$hit),*],
            misses: &[$(ClientCounter::$miss),*],
            unit: $unit,
        }),*]
    };
}

const CACHES: [CacheRow; 8] = caches! {
    "attributes" 1.0, [AttrHit AttrShared] [AttrExpired AttrInvalidated];
    "names" 1.0, [PosHit DotHit DotdotHit] [PosMiss PosStale];
    "missing names" 1.0, [NegHit] [NegMiss NegRacyRequery];
    "names together" 1.0, [DirFillUsed DirFillMissing] [DirFill];
    "permissions" 1.0, [AccessHitPositive AccessHitNegative AccessLocalAllow] [AccessWire];
    "open checks" 1.0, [OpenCtoSloppy OpenNocto] [OpenCtoGetattr];
    "listings" 1.0, [ListingCached] [ListingPlus ListingPlain];
    "data (KiB)" KIBIBYTE, [ReadHitBytes] [ReadBytes];
};

/// The hit rate of each cache, and the requests saved.
pub(super) fn caches(meant: &[&MountDelta<'_>]) -> TopTable {
    let row = |CacheRow { name, hits, misses, unit }: &CacheRow| {
        let rate = |counters: &[ClientCounter]| -> f64 {
            let amount = |one: &MountDelta<'_>| {
                counters.iter().map(|counter| one.done.counters.events.value(*counter)).sum::<u64>()
            };
            meant.iter().map(|one| one.rate(amount(one) as f64 / unit)).sum()
        };
        let total = |counters: &[ClientCounter]| -> f64 {
            let value = |one: &&MountDelta<'_>, counter: &ClientCounter| {
                one.now.report.counters.events.value(*counter) as f64
            };
            counters.iter().map(|counter| meant.iter().map(|one| value(one, counter)).sum::<f64>()).sum()
        };
        let (hit, missed) = (rate(hits), rate(misses));
        vec![
            TableCell::Text((*name).to_owned()),
            TableCell::Rate(hit),
            TableCell::Rate(missed),
            share(hit, missed),
            share(total(hits), total(misses)),
            TableCell::Rate(total(hits) / unit),
        ]
    };
    TopTable::new(
        "caches",
        1,
        "cache hits_per_s misses_per_s hit_percent hit_percent_in_all saved",
        CACHES.iter().map(row),
    )
}
