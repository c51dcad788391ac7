//! Results of the kernel's access checks, cached while an object's permissions (mode, owner, group,
//! ctime) remain the same. A result is not cached if the object's ctime is too recent, because
//! another change within the same step of the clock would not be visible.

use curt_sync::ClockCache;
use curt_types::{Access, Attributes, Timestamp};

use super::file_cache::{OwnedFsCred, PermissionStamp};
use super::hashing::HandleHashBuilder;
use super::lookup_cache::is_settled;
use crate::caller::FsCred;
use crate::handle::NodeHandle;

/// Maximum number of cached results.
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
        Self { entries: ClockCache::new(ENTRIES_MAX) }
    }

    /// The granted part of `asked`, if cached for the object's current permissions.
    pub(super) fn find(
        &self,
        caller: &FsCred<'_>,
        object: &NodeHandle,
        now: &Attributes,
        asked: Access,
    ) -> Option<Access> {
        let is = |check: &CachedAccessCheck| check.object == *object && check.cred.is(caller);
        let read = |check: &CachedAccessCheck| {
            let holds = check.stamp == PermissionStamp::of(now) && check.asked.contains(asked);
            holds.then(|| check.granted.common(asked))
        };
        self.entries.read((object, caller.uid, caller.gid), is, read).flatten()
    }

    /// Caches the result of a check of an object that had these attributes before the check;
    /// `clock` is the current time.
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
        let is = |check: &CachedAccessCheck| check.object == *object && check.cred.is(caller);
        let check = CachedAccessCheck {
            object: *object,
            cred: OwnedFsCred::of(caller),
            stamp: PermissionStamp::of(before),
            asked,
            granted,
        };
        self.entries.put((object, caller.uid, caller.gid), is, check);
    }

    pub(super) fn forget_all(&self) {
        self.entries.clear();
    }
}
