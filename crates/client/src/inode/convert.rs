//! The compact form in which an inode keeps attributes: policy's facts, and the rest here.

use curt_policy::Facts;
use curt_types::{Attributes, Device, Timestamp};

/// The attributes that no decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatOnlyAttributes {
    nlink: u32,
    rdev: Device,
    used: u64,
    pub(crate) fsid: u64,
    fileid: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl StatOnlyAttributes {
    pub(crate) fn of(attributes: &Attributes) -> Self {
        let Attributes {
            nlink,
            used,
            rdev,
            fsid,
            fileid,
            atime,
            mtime,
            ctime,
            ..
        } = *attributes;
        Self {
            nlink,
            rdev,
            used,
            fsid,
            fileid,
            atime,
            mtime,
            ctime,
        }
    }

    /// The attributes of which this and `facts` are parts.
    pub(crate) fn with(&self, facts: &Facts) -> Attributes {
        Attributes {
            kind: facts.kind,
            mode: facts.mode,
            nlink: self.nlink,
            uid: facts.uid,
            gid: facts.gid,
            size: facts.size,
            used: self.used,
            rdev: self.rdev,
            fsid: self.fsid,
            fileid: self.fileid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: facts.stamp.change(),
        }
    }
}
