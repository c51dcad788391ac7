//! Conversions between the client's types and FUSE's: attributes, times, names.

use curt_client as client;
use curt_fuse as fuse;
use curt_types::{Attributes, ByteRange, Device, FileKind, LockType, SetAttributes, SetTime, Timestamp};
use rustix::io::Errno;

/// The block size for stat(2): the preferred size of READ and WRITE.
const BLOCK_SIZE: u32 = 1 << 20;

/// The S_IFMT bits of a kind.
pub(super) const fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010_000,
        FileKind::CharacterDevice => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    }
}

pub(super) fn attributes(from: &Attributes) -> fuse::FuseAttr {
    fuse::FuseAttr {
        inode: from.fileid,
        size: from.size,
        blocks: from.used.div_ceil(512),
        atime: time(from.atime),
        mtime: time(from.mtime),
        ctime: time(from.ctime),
        mode: type_bits(from.kind) | (from.mode & 0o7777),
        links: from.nlink,
        uid: from.uid,
        gid: from.gid,
        device: fuse::device_number(from.rdev.major, from.rdev.minor),
        block_size: BLOCK_SIZE,
    }
}

fn time(from: Timestamp) -> fuse::FuseTime {
    fuse::FuseTime { seconds: from.seconds(), nanoseconds: from.nanoseconds() }
}

pub(super) fn stat(from: &client::InodeStat) -> fuse::AttrOut {
    fuse::AttrOut { attributes: attributes(&from.attributes), valid: from.valid }
}

/// A found object. Inode ids are never reused within a mount, so all its objects have one
/// `generation`, which distinguishes their handles from those of another mount. The kernel requires
/// 0 for the root.
pub(super) fn found(from: &client::FoundInode, generation: u32) -> fuse::EntryOut {
    let is_root = from.id == client::InodeId::ROOT;
    fuse::EntryOut {
        node: fuse::NodeId(from.id.0),
        generation: if is_root { 0 } else { u64::from(generation) },
        entry_valid: from.entry_valid,
        attributes_valid: from.attributes_valid,
        attributes: attributes(&from.attributes),
    }
}

pub(super) fn entry(from: &client::LookupResult, generation: u32) -> fuse::EntryOut {
    match from {
        client::LookupResult::Positive(object) => found(object, generation),
        client::LookupResult::Negative { entry_valid } => fuse::EntryOut::missing(*entry_valid),
    }
}

/// The attributes to be set; the plan contains those that the protocol can express.
pub(super) fn set_attributes(from: &fuse::SetattrIn) -> SetAttributes {
    SetAttributes {
        mode: from.mode.map(|mode| mode & 0o7777),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        atime: set_time(from.atime),
        mtime: set_time(from.mtime),
    }
}

fn set_time(from: Option<fuse::SetattrTime>) -> SetTime {
    match from {
        None => SetTime::Keep,
        Some(fuse::SetattrTime::Now) => SetTime::ServerTime,
        Some(fuse::SetattrTime::To(time)) => SetTime::Time(Timestamp::new(time.seconds, time.nanoseconds)),
    }
}

/// The type of object for mknod(2), with device numbers; regular files are not included.
pub(super) fn node(new: &fuse::MknodIn) -> Option<(FileKind, Device)> {
    let kind = match new.mode & 0o170_000 {
        0o010_000 => FileKind::Fifo,
        0o020_000 => FileKind::CharacterDevice,
        0o060_000 => FileKind::BlockDevice,
        0o140_000 => FileKind::Socket,
        _ => return None,
    };
    let (major, minor) = match kind {
        FileKind::CharacterDevice | FileKind::BlockDevice => fuse::device_parts(new.device),
        _ => (0, 0),
    };
    Some((kind, Device { major, minor }))
}

/// The flags of open(2) that a client uses.
pub(super) fn open_flags(flags: u32) -> client::OpenFlags {
    const ACCESS_MODE: u32 = 0o3;
    const WRITE_ONLY: u32 = 0o1;
    const READ_WRITE: u32 = 0o2;
    const EXCLUSIVE: u32 = 0o200;
    const TRUNCATE: u32 = 0o1000;
    const APPEND: u32 = 0o2000;
    const DSYNC: u32 = 0o10_000;
    const DIRECT: u32 = 0o40_000;
    /// The kernel's internal flag for an open by execve(2).
    const EXECUTE: u32 = 0x20;
    let has = |flag| flags & flag == flag;
    let mode = flags & ACCESS_MODE;
    client::OpenFlags {
        read: mode != WRITE_ONLY,
        write: mode == WRITE_ONLY || mode == READ_WRITE,
        truncate: has(TRUNCATE),
        append: has(APPEND),
        exclusive: has(EXCLUSIVE),
        direct: has(DIRECT),
        // O_SYNC contains O_DSYNC.
        sync: has(DSYNC),
        execute: has(EXECUTE),
    }
}

/// The largest offset of a file; in locks: up to the end, however far it moves.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A lock that a program requests; for an unlock the type has no meaning. The kernel does not tell
/// locks of open file descriptions (F_OFD_SETLK) from those of processes; their owners differ.
pub(super) fn lock_arguments(lock: &fuse::LkIn, wait: bool) -> Result<client::LockArguments, Errno> {
    let fuse::LockRange { start, end, kind, pid } = lock.range;
    let last = if end >= OFFSET_MAX { u64::MAX } else { end };
    let owner =
        if lock.flock { client::LockOwner::Flock(lock.owner) } else { client::LockOwner::Posix(lock.owner) };
    let lock_type = if kind == fuse::LockKind::Read { LockType::Read } else { LockType::Write };
    let range = ByteRange::new(start, last).ok_or(Errno::INVAL)?;
    Ok(client::LockArguments { owner, pid, range, lock_type, wait })
}

/// The reply to GETLK: the conflicting lock, or that there is none.
pub(super) fn lock_range(found: Option<&client::ConflictingLock>, asked: fuse::LockRange) -> fuse::LockRange {
    let Some(found) = found else {
        return fuse::LockRange { kind: fuse::LockKind::Unlock, ..asked };
    };
    let kind = match found.lock_type {
        LockType::Read => fuse::LockKind::Read,
        LockType::Write => fuse::LockKind::Write,
    };
    let offset = |offset: u64| offset.min(OFFSET_MAX);
    let (start, end) = (offset(found.range.first()), offset(found.range.last()));
    fuse::LockRange { start, end, kind, pid: found.pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_open_2_are_understood() {
        let read = open_flags(0o100_000);
        assert!(read.read && !read.write && !read.execute);
        assert!(open_flags(0x20).execute);
        let write = open_flags(0o1 | 0o1000 | 0o2000);
        assert!(!write.read && write.write && write.truncate && write.append && !write.sync);
        let both = open_flags(0o2 | 0o4_010_000 | 0o40_000 | 0o200);
        assert!(both.read && both.write && both.sync && both.direct && both.exclusive);
    }

    #[test]
    fn only_what_mknod_makes_is_a_node() {
        let node_of = |mode| node(&fuse::MknodIn { mode, device: fuse::device_number(8, 1) });
        assert_eq!(node_of(0o010_644), Some((FileKind::Fifo, Device::default())));
        assert_eq!(node_of(0o060_644), Some((FileKind::BlockDevice, Device { major: 8, minor: 1 })));
        assert_eq!(node_of(0o100_644), None);
    }

    #[test]
    fn a_lock_to_the_end_of_the_file_reaches_the_last_offset_of_the_protocol() {
        let range = |start, end| fuse::LockRange { start, end, kind: fuse::LockKind::Read, pid: 9 };
        let asked = |start, end| {
            let lock = fuse::LkIn { fh: fuse::FuseFh(1), owner: 5, range: range(start, end), flock: false };
            lock_arguments(&lock, true).map(|lock| (lock.range.first(), lock.range.last()))
        };
        assert_eq!(asked(3, 7), Ok((3, 7)));
        assert_eq!(asked(3, OFFSET_MAX), Ok((3, u64::MAX)));
        assert_eq!(asked(OFFSET_MAX, OFFSET_MAX), Ok((OFFSET_MAX, u64::MAX)));
        assert_eq!(asked(7, 3), Err(Errno::INVAL));
        let found = client::ConflictingLock { range: ByteRange::WHOLE, lock_type: LockType::Read, pid: 9 };
        assert_eq!(lock_range(Some(&found), range(3, 7)), range(0, OFFSET_MAX));
        let none = fuse::LockRange { kind: fuse::LockKind::Unlock, ..range(3, 7) };
        assert_eq!(lock_range(None, range(3, 7)), none);
    }
}
