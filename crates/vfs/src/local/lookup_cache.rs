//! A cache of the objects of names, so that a repeated LOOKUP costs one system call for the
//! attributes (which the reply needs anyway), without an open or a request for the handle.
//!
//! A name refers to the same object if device, inode number and birth time are the same. A file
//! system may reuse the inode of a removed file within the same step of its clock (ext4 of Linux
//! 6.1 does; the handle then differs although all three are the same). So only objects that had a
//! minimum age when they were seen are cached.
//!
//! Names from LOOKUP and names from listings are in two tables, so that listing a large directory
//! does not evict names that are looked up repeatedly.

use curt_sync::ClockCache;
use curt_types::Timestamp;

use super::hashing::HandleHashBuilder;
use super::stat::StatxResult;
use crate::handle::NodeHandle;
use crate::result::VfsNode;

/// Maximum number of names in each of the two tables.
const NAMES_MAX: usize = 32 << 10;

/// Minimum age of an object in nanoseconds: more than the step of any file system's clock whose
/// birth times have fractions of a second.
const AGE_MIN: i128 = 20_000_000;

struct CachedLookup {
    directory: NodeHandle,
    name: Box<[u8]>,
    object: CachedObject,
}

/// The object of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedObject {
    object: NodeHandle,
    birth: BirthStamp,
}

/// The source of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameSource {
    /// A LOOKUP.
    Lookup,
    /// A listing.
    Listing,
}

impl CachedObject {
    /// The object's handle when it was seen.
    pub(super) const fn object(&self) -> &NodeHandle {
        &self.object
    }

    /// The object as it is now, if `now` is its status.
    pub(super) fn now(&self, now: &StatxResult) -> Option<VfsNode> {
        let handle = self.handle(now)?;
        Some(VfsNode { handle, attributes: now.attributes })
    }

    /// The object's handle, if `now` is the status of the same object.
    pub(super) fn handle(&self, now: &StatxResult) -> Option<NodeHandle> {
        (BirthStamp::of(now) == Some(self.birth)).then_some(self.object)
    }
}

/// Distinguishes an object from a later one with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BirthStamp {
    fsid: u64,
    fileid: u64,
    time: Timestamp,
}

impl BirthStamp {
    fn of(status: &StatxResult) -> Option<Self> {
        Some(Self { fsid: status.attributes.fsid, fileid: status.attributes.fileid, time: status.birth? })
    }
}

pub(super) struct NameLookupCache {
    looked_up: ClockCache<CachedLookup, HandleHashBuilder>,
    listed: ClockCache<CachedLookup, HandleHashBuilder>,
}

impl NameLookupCache {
    pub(super) fn new() -> Self {
        Self { looked_up: ClockCache::new(NAMES_MAX), listed: ClockCache::new(NAMES_MAX) }
    }

    /// The cached object of a name; the table of `by` is searched first.
    pub(super) fn find(&self, by: NameSource, directory: &NodeHandle, name: &[u8]) -> Option<CachedObject> {
        let find = |cached: &ClockCache<CachedLookup, HandleHashBuilder>| {
            let is = |child: &CachedLookup| child.is(directory, name);
            cached.read((directory, name), is, |child| child.object)
        };
        let (first, second) = match by {
            NameSource::Lookup => (&self.looked_up, &self.listed),
            NameSource::Listing => (&self.listed, &self.looked_up),
        };
        find(first).or_else(|| find(second))
    }

    /// Removes a name whose object has changed.
    pub(super) fn forget(&self, directory: &NodeHandle, name: &[u8]) {
        for cached in [&self.looked_up, &self.listed] {
            cached.remove((directory, name), |child| child.is(directory, name));
        }
    }

    /// Caches the object of a name, if this is safe; `clock` is the current time or slightly
    /// earlier.
    pub(super) fn insert(
        &self,
        by: NameSource,
        directory: &NodeHandle,
        name: &[u8],
        object: &NodeHandle,
        status: &StatxResult,
        clock: Timestamp,
    ) {
        let Some(birth) = BirthStamp::of(status).filter(|birth| age(birth.time, clock) >= AGE_MIN) else {
            return;
        };
        let child = CachedLookup {
            directory: *directory,
            name: name.into(),
            object: CachedObject { object: *object, birth },
        };
        let cached = match by {
            NameSource::Lookup => &self.looked_up,
            NameSource::Listing => &self.listed,
        };
        cached.put((directory, name), |child| child.is(directory, name), child);
    }

    pub(super) fn forget_all(&self) {
        self.looked_up.clear();
        self.listed.clear();
    }
}

impl CachedLookup {
    fn is(&self, directory: &NodeHandle, name: &[u8]) -> bool {
        self.directory == *directory && *self.name == *name
    }
}

/// Nanoseconds between two times.
fn age(from: Timestamp, to: Timestamp) -> i128 {
    i128::from(to.as_nanoseconds()) - i128::from(from.as_nanoseconds())
}

/// Whether a time is old enough that the clock of each file system has advanced since.
pub(super) fn is_settled(time: Timestamp, clock: Timestamp) -> bool {
    age(time, clock) >= AGE_MIN
}

#[cfg(test)]
mod tests {
    use curt_types::{Attributes, Device, FileKind};

    use super::*;
    use crate::handle::HandleScheme;

    fn handle(number: u8) -> NodeHandle {
        NodeHandle::new(HandleScheme::Kernel, 1, &[number; 8]).expect("it is short")
    }

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::new(
            1_000 + milliseconds.div_euclid(1000),
            u32::try_from(milliseconds.rem_euclid(1000)).expect("below 1000") * 1_000_000,
        )
    }

    fn status(fileid: u64, birth: Option<Timestamp>) -> StatxResult {
        StatxResult {
            attributes: Attributes {
                kind: FileKind::Regular,
                mode: 0o644,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: 0,
                used: 0,
                rdev: Device::default(),
                fsid: 7,
                fileid,
                atime: at(0),
                mtime: at(0),
                ctime: at(0),
                change: None,
            },
            birth,
        }
    }

    #[test]
    fn only_entries_that_were_20_ms_old_when_seen_are_valid_later() {
        for (birth, seen, believed) in
            [(0, 20, true), (0, 19, false), (990, 1010, true), (990, 1009, false), (5, 0, false)]
        {
            let children = NameLookupCache::new();
            let born = status(5, Some(at(birth)));
            children.insert(NameSource::Lookup, &handle(1), b"name", &handle(2), &born, at(seen));
            let found = children.find(NameSource::Lookup, &handle(1), b"name");
            let found = found.and_then(|found| found.handle(&born));
            assert_eq!(found, believed.then(|| handle(2)), "born at {birth}, seen at {seen}");
        }
    }

    #[test]
    fn another_inode_birth_or_place_is_another_object() {
        let children = NameLookupCache::new();
        let cached = status(5, Some(at(0)));
        children.insert(NameSource::Lookup, &handle(1), b"name", &handle(2), &cached, at(1000));
        assert_eq!(children.find(NameSource::Lookup, &handle(1), b"other"), None);
        assert_eq!(children.find(NameSource::Lookup, &handle(3), b"name"), None);
        let found = children.find(NameSource::Lookup, &handle(1), b"name").expect("it was noted");
        let mut elsewhere = cached.clone();
        elsewhere.attributes.fsid = 8;
        for other in [status(6, Some(at(0))), status(5, Some(at(1))), status(5, None), elsewhere] {
            assert_eq!(found.handle(&other), None, "{other:?}");
        }
        children.forget(&handle(1), b"name");
        assert_eq!(children.find(NameSource::Lookup, &handle(1), b"name"), None);
    }

    #[test]
    fn a_large_listing_evicts_no_used_entries_and_is_bounded() {
        let children = NameLookupCache::new();
        let cached = status(5, Some(at(0)));
        let object = handle(2);
        children.insert(NameSource::Lookup, &handle(1), b"name", &object, &cached, at(1000));
        let names = || (0..4 * NAMES_MAX).map(|number| number.to_string().into_bytes());
        for name in names() {
            children.insert(NameSource::Listing, &handle(1), &name, &object, &cached, at(1000));
        }
        assert!(children.find(NameSource::Lookup, &handle(1), b"name").is_some());
        let cached = names().filter(|name| children.find(NameSource::Lookup, &handle(1), name).is_some());
        assert!((1..=NAMES_MAX).contains(&cached.count()));
        children.forget_all();
        assert!(names().all(|name| children.find(NameSource::Lookup, &handle(1), &name).is_none()));
    }

    #[test]
    fn without_birth_times_nothing_is_remembered() {
        let children = NameLookupCache::new();
        children.insert(NameSource::Lookup, &handle(1), b"name", &handle(2), &status(5, None), at(1000));
        assert_eq!(children.find(NameSource::Lookup, &handle(1), b"name"), None);
    }
}
