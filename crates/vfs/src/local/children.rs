//! Which objects names led to lately, so that finding one again costs a look at its attributes (which the answer needs) and
//! neither an open nor a question for its handle.
//!
//! A name is believed to lead to the same object if that has the same device, inode number and birth time. A file system may
//! give the inode of a removed file to a new one within the same step of its clock (ext4 of Linux 6.1 does; the handle then
//! differs while all three are the same): so only an object that was some time old when it was seen is remembered.

use std::hash::BuildHasher;

use super::hashing::HandleHashing;
use super::recent::Recent;
use super::stat::Status;
use crate::attributes::Time;
use crate::handle::NodeHandle;

/// How many names are remembered.
const NAMES_MAX: usize = 32 << 10;

/// How old an object has to be: more than any step of a file system's clock whose birth times have parts of a second, in
/// nanoseconds.
const AGE_MIN: i128 = 20_000_000;

struct Child {
    directory: NodeHandle,
    name: Box<[u8]>,
    remembered: Remembered,
}

/// An object that a name led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    object: NodeHandle,
    birth: Birth,
}

impl Remembered {
    /// The object's handle, if that is what has this status now.
    pub(super) fn handle(&self, now: &Status) -> Option<NodeHandle> {
        (Birth::of(now) == Some(self.birth)).then_some(self.object)
    }
}

/// What tells an object from a later one at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Birth {
    fsid: u64,
    fileid: u64,
    time: Time,
}

impl Birth {
    fn of(status: &Status) -> Option<Self> {
        Some(Self {
            fsid: status.attributes.fsid,
            fileid: status.attributes.fileid,
            time: status.birth?,
        })
    }
}

pub(super) struct Children {
    known: Recent<Child>,
    hasher: HandleHashing,
}

impl Children {
    pub(super) fn new() -> Self {
        Self {
            known: Recent::new(NAMES_MAX),
            hasher: HandleHashing::new(),
        }
    }

    fn hash(&self, directory: &NodeHandle, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// Where a name led when it was last seen.
    pub(super) fn find(&self, directory: &NodeHandle, name: &[u8]) -> Option<Remembered> {
        let is = |child: &Child| child.directory == *directory && *child.name == *name;
        self.known
            .read(self.hash(directory, name), is, |child| child.remembered)
    }

    /// A name leads elsewhere now.
    pub(super) fn forget(&self, directory: &NodeHandle, name: &[u8]) {
        let is = |child: &Child| child.directory == *directory && *child.name == *name;
        self.known.forget(self.hash(directory, name), is);
    }

    /// Remembers where a name led, if that is safe; `clock` is the time now.
    pub(super) fn note(
        &self,
        directory: &NodeHandle,
        name: &[u8],
        (object, status): (&NodeHandle, &Status),
        clock: Time,
    ) {
        let Some(birth) = Birth::of(status).filter(|birth| age(birth.time, clock) >= AGE_MIN) else {
            return;
        };
        let is = |child: &Child| child.directory == *directory && *child.name == *name;
        let child = Child {
            directory: *directory,
            name: name.into(),
            remembered: Remembered {
                object: *object,
                birth,
            },
        };
        self.known.put(self.hash(directory, name), is, child);
    }

    pub(super) fn forget_all(&self) {
        self.known.forget_all();
    }
}

/// Nanoseconds from one time to another.
fn age(from: Time, to: Time) -> i128 {
    let nanoseconds = |time: Time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(to) - nanoseconds(from)
}

/// Whether a time is long enough ago that the clock of a file system must have moved on since.
pub(super) fn is_settled(time: Time, clock: Time) -> bool {
    age(time, clock) >= AGE_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Attributes, Device, FileKind};
    use crate::handle::HandleScheme;

    fn handle(number: u8) -> NodeHandle {
        NodeHandle::new(HandleScheme::Kernel, 1, &[number; 8]).expect("it is short")
    }

    fn at(milliseconds: i64) -> Time {
        Time {
            seconds: 1_000 + milliseconds.div_euclid(1000),
            nanoseconds: u32::try_from(milliseconds.rem_euclid(1000)).expect("below 1000") * 1_000_000,
        }
    }

    fn status(fileid: u64, birth: Option<Time>) -> Status {
        Status {
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
            },
            birth,
        }
    }

    #[test]
    fn only_what_was_20_ms_old_when_it_was_seen_is_believed_later() {
        for (birth, seen, believed) in [
            (0, 20, true),
            (0, 19, false),
            (990, 1010, true),
            (990, 1009, false),
            (5, 0, false),
        ] {
            let children = Children::new();
            let born = status(5, Some(at(birth)));
            children.note(&handle(1), b"name", (&handle(2), &born), at(seen));
            let found = children.find(&handle(1), b"name");
            let found = found.and_then(|found| found.handle(&born));
            assert_eq!(
                found,
                believed.then(|| handle(2)),
                "born at {birth}, seen at {seen}"
            );
        }
    }

    #[test]
    fn another_inode_birth_or_place_is_another_object() {
        let children = Children::new();
        let known = status(5, Some(at(0)));
        children.note(&handle(1), b"name", (&handle(2), &known), at(1000));
        assert_eq!(children.find(&handle(1), b"other"), None);
        assert_eq!(children.find(&handle(3), b"name"), None);
        let found = children.find(&handle(1), b"name").expect("it was noted");
        let mut elsewhere = known.clone();
        elsewhere.attributes.fsid = 8;
        for other in [
            status(6, Some(at(0))),
            status(5, Some(at(1))),
            status(5, None),
            elsewhere,
        ] {
            assert_eq!(found.handle(&other), None, "{other:?}");
        }
        children.forget(&handle(1), b"name");
        assert_eq!(children.find(&handle(1), b"name"), None);
    }

    #[test]
    fn without_birth_times_nothing_is_remembered() {
        let children = Children::new();
        children.note(&handle(1), b"name", (&handle(2), &status(5, None)), at(1000));
        assert_eq!(children.find(&handle(1), b"name"), None);
    }
}
