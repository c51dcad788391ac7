//! Conversions between the plan's types and policy's.
//!
//! Owns the compact form in which an inode keeps attributes: policy's facts, and the rest here.

use curt_policy::{Before, Facts, ObjectKind, ServerTime, Stamp};

use crate::plan::{self, Attributes, Device, Kind, Timestamp};

/// The attributes that no decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    kind: Kind,
    links: u32,
    device: Device,
    used: u64,
    pub(crate) fsid: u64,
    fileid: u64,
    atime: ServerTime,
}

impl Rest {
    pub(crate) fn of(attributes: &Attributes) -> Self {
        let Attributes {
            kind,
            links,
            used,
            device,
            fsid,
            fileid,
            atime,
            ..
        } = *attributes;
        Self {
            kind,
            links,
            device,
            used,
            fsid,
            fileid,
            atime: server_time(atime),
        }
    }

    /// The attributes of which this and `facts` are parts.
    pub(crate) fn with(&self, facts: &Facts) -> Attributes {
        let Stamp::Times { mtime, ctime } = facts.stamp else {
            unreachable!("attributes of this client come from replies with times")
        };
        Attributes {
            kind: self.kind,
            mode: facts.mode,
            links: self.links,
            uid: facts.uid,
            gid: facts.gid,
            size: facts.size,
            used: self.used,
            device: self.device,
            fsid: self.fsid,
            fileid: self.fileid,
            atime: timestamp(self.atime),
            mtime: timestamp(mtime),
            ctime: timestamp(ctime),
        }
    }
}

pub(crate) fn facts(attributes: &Attributes) -> Facts {
    Facts {
        kind: object_kind(attributes.kind),
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        stamp: stamp(attributes.mtime, attributes.ctime),
    }
}

pub(crate) fn before(before: &plan::Before) -> Before {
    Before {
        size: before.size,
        stamp: stamp(before.mtime, before.ctime),
    }
}

pub(crate) fn plan_before(size: u64, mtime: ServerTime, ctime: ServerTime) -> plan::Before {
    plan::Before {
        size,
        mtime: timestamp(mtime),
        ctime: timestamp(ctime),
    }
}

pub(crate) fn server_time(time: Timestamp) -> ServerTime {
    ServerTime::new(time.seconds, time.nanoseconds)
}

fn timestamp(time: ServerTime) -> Timestamp {
    Timestamp {
        seconds: time.seconds(),
        nanoseconds: time.nanoseconds(),
    }
}

fn stamp(mtime: Timestamp, ctime: Timestamp) -> Stamp {
    Stamp::Times {
        mtime: server_time(mtime),
        ctime: server_time(ctime),
    }
}

pub(crate) fn object_kind(kind: Kind) -> ObjectKind {
    match kind {
        Kind::Regular => ObjectKind::Regular,
        Kind::Directory => ObjectKind::Directory,
        Kind::Symlink => ObjectKind::Symlink,
        Kind::Block | Kind::Character | Kind::Socket | Kind::Fifo => ObjectKind::Special,
    }
}
