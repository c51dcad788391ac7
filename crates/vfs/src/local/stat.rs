//! From the system's words for attributes to ours.

use rustix::fs::{FileType, Stat, Statx, StatxTimestamp};

use crate::attributes::{Attributes, Device, FileKind, Time};

/// The attributes that stat(2) told.
pub(super) fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        used: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        rdev: Device {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        },
        fsid: stat.st_dev,
        fileid: stat.st_ino,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// The attributes that statx(2) told, all of the basic ones having been asked for.
pub(super) fn attributes_of_statx(status: &Statx) -> Attributes {
    let time = |time: &StatxTimestamp| Time {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec,
    };
    let mode = u32::from(status.stx_mode);
    Attributes {
        kind: kind(FileType::from_raw_mode(mode)),
        mode: mode & 0o7777,
        nlink: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        size: status.stx_size,
        used: status.stx_blocks * 512,
        rdev: Device {
            major: status.stx_rdev_major,
            minor: status.stx_rdev_minor,
        },
        fsid: rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor),
        fileid: status.stx_ino,
        atime: time(&status.stx_atime),
        mtime: time(&status.stx_mtime),
        ctime: time(&status.stx_ctime),
    }
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

fn time(seconds: i64, nanoseconds: u64) -> Time {
    Time {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}
