//! Conversion of the system's attributes.

use std::os::fd::BorrowedFd;

use curt_observe::stages::{self, RequestStage};
use curt_types::{Attributes, Device, FileKind, Timestamp};
use rustix::fs::{AtFlags, FileType, Stat, Statx, StatxAttributes, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// The attributes from stat(2).
pub(super) fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        used: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        rdev: Device { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) },
        fsid: stat.st_dev,
        fileid: stat.st_ino,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        change: None,
    }
}

/// The attributes from statx(2) with all basic attributes.
pub(super) fn attributes_of_statx(status: &Statx) -> Attributes {
    let time = |time: &StatxTimestamp| Timestamp::new(time.tv_sec, time.tv_nsec);
    let mode = u32::from(status.stx_mode);
    Attributes {
        kind: kind(FileType::from_raw_mode(mode)),
        mode: mode & 0o7777,
        nlink: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        size: status.stx_size,
        used: status.stx_blocks * 512,
        rdev: Device { major: status.stx_rdev_major, minor: status.stx_rdev_minor },
        fsid: rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor),
        fileid: status.stx_ino,
        atime: time(&status.stx_atime),
        mtime: time(&status.stx_mtime),
        ctime: time(&status.stx_ctime),
        change: None,
    }
}

/// The result of statx(2).
#[derive(Clone, Debug)]
pub(super) struct StatxResult {
    pub(super) attributes: Attributes,
    /// The birth time; `None` if the file system has none.
    pub(super) birth: Option<Timestamp>,
}

/// The status of a name in a directory, or, with an empty name, of `fd`. Follows no link and
/// triggers no automount.
pub(super) fn status(fd: BorrowedFd<'_>, name: &[u8]) -> Result<StatxResult, Errno> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    // Not with a name: the kernel would check twice whether it is empty.
    let flags = if name.is_empty() { flags | AtFlags::EMPTY_PATH } else { flags };
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let _stage = stages::enter(RequestStage::FileSystem, "statx");
    Ok(StatxResult::of(&rustix::fs::statx(fd, name, flags, wanted)?))
}

impl StatxResult {
    /// From statx(2) with all basic attributes and the birth time.
    pub(super) fn of(found: &Statx) -> Self {
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Self {
            attributes: attributes_of_statx(found),
            birth: has_birth.then(|| time(found.stx_btime.tv_sec, found.stx_btime.tv_nsec.into())),
        }
    }
}

/// The mount of a descriptor's object; `None` if the kernel does not return it.
pub(super) fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Whether the file is append-only (chattr +a).
pub(super) fn is_append_only(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MODE)?;
    Ok(found.stx_attributes.contains(StatxAttributes::APPEND))
}

/// The current time of the clock that file systems use.
pub(super) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    time(now.tv_sec, u64::try_from(now.tv_nsec).unwrap_or(0))
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

fn time(seconds: i64, nanoseconds: u64) -> Timestamp {
    Timestamp::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_system_calls_return_the_same() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), [7; 5000]).unwrap();
        std::os::unix::fs::symlink("nowhere", directory.path().join("link")).unwrap();
        let parent = std::fs::File::open(directory.path()).unwrap();
        let whole = status(parent.as_fd(), b"").unwrap().attributes;
        assert_eq!(whole, attributes(&rustix::fs::fstat(&parent).unwrap()));
        for name in ["file", "link"] {
            let one = status(parent.as_fd(), name.as_bytes()).unwrap().attributes;
            let other = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            assert_eq!(one, attributes(&other), "{name}");
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        let device = status(null.as_fd(), b"").unwrap().attributes;
        assert_eq!(device.rdev, Device { major: 1, minor: 3 });
        assert_eq!(status(parent.as_fd(), b"missing").err(), Some(Errno::NOENT));
    }
}
