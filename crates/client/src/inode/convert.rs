//! Conversions between the plan's types and policy's.
//!
//! Owns the compact form in which an inode keeps attributes: policy's facts, and the rest here.

use curt_policy::{ChangeStamp, Facts, ObjectKind, PreOpState, ServerTime};

use crate::protocol::{self, Attributes, Device, FileType, Timestamp};

/// The attributes that no decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatOnlyAttributes {
    kind: FileType,
    links: u32,
    device: Device,
    used: u64,
    pub(crate) fsid: u64,
    fileid: u64,
    atime: ServerTime,
}

impl StatOnlyAttributes {
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
        let ChangeStamp::Times { mtime, ctime } = facts.stamp else {
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

pub(crate) fn to_pre_op_state(before: &protocol::PreOpAttr) -> PreOpState {
    PreOpState {
        size: before.size,
        stamp: stamp(before.mtime, before.ctime),
    }
}

pub(crate) fn to_pre_op_attributes(size: u64, mtime: ServerTime, ctime: ServerTime) -> protocol::PreOpAttr {
    protocol::PreOpAttr {
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

fn stamp(mtime: Timestamp, ctime: Timestamp) -> ChangeStamp {
    ChangeStamp::Times {
        mtime: server_time(mtime),
        ctime: server_time(ctime),
    }
}

pub(crate) fn object_kind(kind: FileType) -> ObjectKind {
    match kind {
        FileType::Regular => ObjectKind::Regular,
        FileType::Directory => ObjectKind::Directory,
        FileType::Symlink => ObjectKind::Symlink,
        FileType::Block | FileType::Character | FileType::Socket | FileType::Fifo => ObjectKind::Special,
    }
}
