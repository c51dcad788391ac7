//! What a client remembers, and what that spares. Pure.

use curt_trace::ClientCounter;

use super::mounts::{KIBIBYTE, MountDelta};
use super::table::{TableCell, TopTable, share};

/// A cache, the counters of what it answered, those of what had to be asked, and the unit of both.
type CacheRow = (
    &'static str,
    &'static [ClientCounter],
    &'static [ClientCounter],
    f64,
);

/// What a client remembers.
const CACHES: [CacheRow; 8] = {
    use ClientCounter as C;
    [
        (
            "attributes",
            &[C::AttrHit, C::AttrShared],
            &[C::AttrExpired, C::AttrInvalidated],
            1.0,
        ),
        (
            "names",
            &[C::PosHit, C::DotHit, C::DotdotHit],
            &[C::PosMiss, C::PosStale],
            1.0,
        ),
        (
            "missing names",
            &[C::NegHit],
            &[C::NegMiss, C::NegRacyRequery],
            1.0,
        ),
        (
            "names together",
            &[C::DirFillUsed, C::DirFillMissing],
            &[C::DirFill],
            1.0,
        ),
        (
            "permissions",
            &[C::AccessHitPositive, C::AccessHitNegative, C::AccessLocalAllow],
            &[C::AccessWire],
            1.0,
        ),
        (
            "open checks",
            &[C::OpenCtoSloppy, C::OpenNocto],
            &[C::OpenCtoGetattr],
            1.0,
        ),
        (
            "listings",
            &[C::ListingCached],
            &[C::ListingPlus, C::ListingPlain],
            1.0,
        ),
        ("data (KiB)", &[C::ReadHitBytes], &[C::ReadBytes], KIBIBYTE),
    ]
};

/// How much of what was wanted each cache answered, and what that spared.
pub(super) fn caches(meant: &[&MountDelta<'_>]) -> TopTable {
    let row = |(name, hits, misses, unit): &CacheRow| {
        let rate = |counters: &[ClientCounter]| -> f64 {
            let amount = |one: &MountDelta<'_>| {
                counters
                    .iter()
                    .map(|counter| one.done.counters.events.value(*counter))
                    .sum::<u64>()
            };
            meant.iter().map(|one| one.rate(amount(one) as f64 / unit)).sum()
        };
        let total = |counters: &[ClientCounter]| -> f64 {
            let value = |one: &&MountDelta<'_>, counter: &ClientCounter| {
                one.now.report.counters.events.value(*counter) as f64
            };
            counters
                .iter()
                .map(|counter| meant.iter().map(|one| value(one, counter)).sum::<f64>())
                .sum()
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
    TopTable {
        name: "caches",
        columns: vec![
            "cache",
            "hits_per_s",
            "misses_per_s",
            "hit_percent",
            "hit_percent_in_all",
            "spared",
        ],
        rows: CACHES.iter().map(row).collect(),
        by: 1,
    }
}
