//! The generator of cases, and the fields that several rules share.

use core::time::Duration;

use curt_policy::{
    AccessMode, AccessView, CacheOptions, CachingAttributes, Freshness, LookupCache, MountUsers, RacyGuard,
    ReaddirplusMode, TimeoutRange, access::AccessEntryView,
};
use curt_types::{Access, ChangeStamp, FileKind, PreOpState, Timestamp};

/// Picks from lists; each run of a test's closure gets another combination.
pub(crate) struct Cases {
    /// For each pick of this run: its index, and the number of alternatives.
    picks: Vec<(usize, usize)>,
    at: usize,
}

/// Runs `check` once for every combination of picks; returns their number.
pub(crate) fn for_each_case(mut check: impl FnMut(&mut Cases)) -> usize {
    let mut cases = Cases { picks: Vec::new(), at: 0 };
    let mut count = 0;
    loop {
        cases.at = 0;
        check(&mut cases);
        count += 1;
        while let Some((pick, of)) = cases.picks.pop() {
            if pick + 1 < of {
                cases.picks.push((pick + 1, of));
                break;
            }
        }
        if cases.picks.is_empty() {
            return count;
        }
    }
}

impl Cases {
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        if self.at == self.picks.len() {
            self.picks.push((0, from.len()));
        }
        let (pick, _) = self.picks[self.at];
        self.at += 1;
        from[pick]
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.pick(&[false, true])
    }

    pub(crate) fn freshness(&mut self) -> Freshness {
        self.pick(&[Freshness::Confirmed, Freshness::Fresh, Freshness::Expired, Freshness::Unknown])
    }

    /// All options that affect opens and access.
    pub(crate) fn open_options(&mut self) -> CacheOptions {
        CacheOptions {
            attribute_cache: self.bool(),
            close_to_open: self.bool(),
            sloppy_open: self.pick(&[Duration::ZERO, SLOPPY]),
            access: self.pick(&[AccessMode::Server, AccessMode::ModeBits]),
            ..CacheOptions::default()
        }
    }

    /// All options that affect names.
    pub(crate) fn name_options(&mut self) -> CacheOptions {
        CacheOptions {
            attribute_cache: self.bool(),
            names: self.pick(&[LookupCache::All, LookupCache::Positive, LookupCache::None]),
            name_lifetime: self.pick(&[Duration::ZERO, MINUTE]),
            missing_name_lifetime: self.pick(&[Duration::ZERO, MINUTE]),
            racy_guard: self.pick(&[RacyGuard::Auto, RacyGuard::On, RacyGuard::Off]),
            ..CacheOptions::default()
        }
    }

    /// Every option.
    pub(crate) fn options(&mut self) -> CacheOptions {
        let names = self.name_options();
        CacheOptions {
            close_to_open: self.bool(),
            sloppy_open: self.pick(&[Duration::ZERO, SLOPPY]),
            access: self.pick(&[AccessMode::Server, AccessMode::ModeBits]),
            plus: self.pick(&[ReaddirplusMode::Auto, ReaddirplusMode::Never, ReaddirplusMode::Always]),
            users: self.pick(&[MountUsers::One(1000), MountUsers::Many]),
            directories: TimeoutRange { min: MINUTE / 2, max: MINUTE },
            ..names
        }
    }

    pub(crate) fn access_view(&mut self) -> AccessView {
        let sets = [None, Some(Access::NONE), Some(Access::READ), Some(Access::ALL)];
        let local = self.pick(&sets);
        let entry = self.pick(&sets).map(|asked| AccessEntryView {
            asked,
            granted: self.pick(&[Access::NONE, Access::READ, Access::ALL]).common(asked),
            denial_is_young: self.bool(),
        });
        AccessView { local, entry, foreign_data: self.bool() }
    }
}

pub(crate) const SLOPPY: Duration = Duration::from_secs(3);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A stamp with these milliseconds after a fixed second in the past.
pub(crate) fn stamp(mtime: u32, ctime: u32) -> ChangeStamp {
    let time = |milliseconds: u32| Timestamp::new(1_000_001, milliseconds * 1_000_000);
    ChangeStamp::Times { mtime: time(mtime), ctime: time(ctime) }
}

/// A file last changed these milliseconds after a fixed second in the past.
pub(crate) fn file(changed: u32) -> CachingAttributes {
    CachingAttributes {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        size: 10,
        stamp: stamp(changed, changed),
    }
}

pub(crate) fn directory(changed: u32) -> CachingAttributes {
    CachingAttributes { kind: FileKind::Directory, mode: 0o755, ..file(changed) }
}

pub(crate) fn before(attributes: &CachingAttributes) -> Option<PreOpState> {
    Some(attributes.as_before())
}

#[test]
fn the_generator_walks_every_combination_once() {
    let mut seen = Vec::new();
    let count = for_each_case(|case| {
        let first = case.pick(&[1, 2]);
        // A later pick may depend on an earlier one.
        let second = if first == 1 { case.pick(&[10, 20, 30]) } else { 0 };
        seen.push((first, second));
    });
    assert_eq!(seen, [(1, 10), (1, 20), (1, 30), (2, 0)]);
    assert_eq!(count, 4);
}
