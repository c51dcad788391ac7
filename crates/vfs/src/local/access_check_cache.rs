//! The kernel's decisions about callers' rights to objects, cached while an object's permissions
//! (mode, owner, group, ctime) stay the same. A verdict about an object whose ctime is not yet past
//! is not cached, because the object could change once more within the same step of the clock.

use curt_sync::ClockCache;
use curt_types::{Access, Attributes, Timestamp};

use super::file_cache::{OwnedFsCred, PermissionStamp};
use super::hashing::HandleHashBuilder;
use super::lookup_cache::is_settled;
use crate::caller::FsCred;
use crate::handle::NodeHandle;

/// How many verdicts are kept.
const ENTRIES_MAX: usize = 16 << 10;

struct CachedAccessCheck {
    object: NodeHandle,
    cred: OwnedFsCred,
    stamp: PermissionStamp,
    asked: Access,
    granted: Access,
}

pub(super) struct AccessCheckCache {
    entries: ClockCache<CachedAccessCheck, HandleHashBuilder>,
}

impl AccessCheckCache {
    pub(super) fn new() -> Self {
        Self {
            entries: ClockCache::new(ENTRIES_MAX),
        }
    }

    /// What of `asked` is granted, if that is known of the object as it is now.
    pub(super) fn find(
        &self,
        caller: &FsCred<'_>,
        object: &NodeHandle,
        now: &Attributes,
        asked: Access,
    ) -> Option<Access> {
        let is = |verdict: &CachedAccessCheck| verdict.object == *object && verdict.cred.is(caller);
        let read = |verdict: &CachedAccessCheck| {
            let holds = verdict.stamp == PermissionStamp::of(now) && verdict.asked.contains(asked);
            holds.then(|| verdict.granted.common(asked))
        };
        self.entries
            .read((object, caller.uid, caller.gid), is, read)
            .flatten()
    }

    /// Keeps a verdict about an object that was so before the kernel was asked; `clock` is the time
    /// now.
    pub(super) fn insert(
        &self,
        caller: &FsCred<'_>,
        object: &NodeHandle,
        before: &Attributes,
        asked: Access,
        granted: Access,
        clock: Timestamp,
    ) {
        if !is_settled(before.ctime, clock) {
            return;
        }
        let is = |verdict: &CachedAccessCheck| verdict.object == *object && verdict.cred.is(caller);
        let verdict = CachedAccessCheck {
            object: *object,
            cred: OwnedFsCred::of(caller),
            stamp: PermissionStamp::of(before),
            asked,
            granted,
        };
        self.entries.put((object, caller.uid, caller.gid), is, verdict);
    }

    pub(super) fn forget_all(&self) {
        self.entries.clear();
    }
}
