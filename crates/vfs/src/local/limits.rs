//! Limits and free space of a file system, and a caller's access rights.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use curt_observe::stages::{self, RequestStage};
use curt_types::{Access, Attributes, FileKind};
use rustix::fs::fstatfs;
use rustix::io::Errno;

use super::sys::check_access;
use crate::MayBlock;
use crate::result::{FileSystemSpace, Limits};

/// Properties of a file system that no system call returns.
struct FileSystemProperties {
    magic: u64,
    names_max: u32,
    file_size_max: u64,
    time_step: Duration,
}

impl FileSystemProperties {
    const fn new(magic: u64, names_max: u32, file_size_max: u64, time_step: Duration) -> Self {
        Self { magic, names_max, file_size_max, time_step }
    }
}

const MANY: u32 = i32::MAX as u32;
const NANOSECOND: Duration = Duration::from_nanos(1);
const WITHOUT_END: u64 = i64::MAX as u64;

/// magic(7) numbers. ext4 allows 65,000 links and 2^32 - 1 blocks of 4 KiB per file.
const FILE_SYSTEMS: [FileSystemProperties; 8] = [
    FileSystemProperties::new(EXT, 65_000, ((1 << 32) - 1) * 4096, NANOSECOND),
    FileSystemProperties::new(XFS, MANY, WITHOUT_END, NANOSECOND),
    FileSystemProperties::new(BTRFS, 65_535, WITHOUT_END, NANOSECOND),
    FileSystemProperties::new(TMPFS, MANY, WITHOUT_END, NANOSECOND),
    FileSystemProperties::new(RAMFS, MANY, WITHOUT_END, NANOSECOND),
    FileSystemProperties::new(0xf2f5_2010, MANY, 4_329_690_886_144, NANOSECOND),
    FileSystemProperties::new(0x2fc1_2fc1, MANY, WITHOUT_END, NANOSECOND),
    FileSystemProperties::new(0x4d44, 1, u32::MAX as u64, Duration::from_secs(2)),
];

/// Safe values for other file systems.
const UNKNOWN: FileSystemProperties = FileSystemProperties::new(0, 127, WITHOUT_END, Duration::from_secs(1));

pub(super) const EXT: u64 = 0xef53;
pub(super) const XFS: u64 = 0x5846_5342;
pub(super) const BTRFS: u64 = 0x9123_683e;
pub(super) const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// The type of the file system, as in magic(7).
pub(super) fn magic(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // On some architectures f_type is signed and has 32 bits.
    Ok(u64::from_ne_bytes(fstatfs(fd)?.f_type.to_ne_bytes()) & 0xffff_ffff)
}

const OVERLAYFS: u64 = 0x794c_7630;

/// Which operations may block. Unknown file systems may be anything, such as FUSE or a network file
/// system.
pub(super) fn waits(fd: BorrowedFd<'_>) -> Result<MayBlock, Errno> {
    let magic = magic(fd)?;
    Ok(match magic {
        // Nothing survives a reboot.
        TMPFS | RAMFS => MayBlock::Never,
        OVERLAYFS => MayBlock::Data,
        _ if FILE_SYSTEMS.iter().any(|properties| properties.magic == magic) => MayBlock::Data,
        _ => MayBlock::Always,
    })
}

/// The file system's id; `None` if it has no persistent one.
pub(super) fn file_system_id(fd: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::fstatvfs(fd).ok()?;
    (status.f_fsid != 0).then_some(status.f_fsid)
}

pub(super) fn space(fd: BorrowedFd<'_>) -> Result<FileSystemSpace, Errno> {
    let status = rustix::fs::fstatvfs(fd)?;
    let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
    Ok(FileSystemSpace {
        bytes_total: bytes(status.f_blocks),
        bytes_free: bytes(status.f_bfree),
        bytes_available: bytes(status.f_bavail),
        files_total: status.f_files,
        files_free: status.f_ffree,
        files_available: status.f_favail,
    })
}

pub(super) fn limits(fd: BorrowedFd<'_>) -> Result<Limits, Errno> {
    let magic = magic(fd)?;
    let status = rustix::fs::fstatvfs(fd)?;
    let properties = FILE_SYSTEMS.iter().find(|properties| properties.magic == magic).unwrap_or(&UNKNOWN);
    Ok(Limits {
        file_size_max: properties.file_size_max,
        time_delta: properties.time_step,
        link_max: properties.names_max,
        name_max: u32::try_from(status.f_namemax).unwrap_or(255),
        links: properties.names_max > 1,
        symlinks: magic != 0x4d44,
        case_insensitive: magic == 0x4d44,
        case_preserving: true,
    })
}

/// The part of `asked` that the caller, whose credentials this thread has, may do.
pub(super) fn granted(fd: BorrowedFd<'_>, attributes: &Attributes, asked: Access) -> Access {
    let directory = attributes.kind == FileKind::Directory;
    // A file without any x bit cannot be executed, not even by root or with an access control list,
    // whose mask the group bits are.
    let executable = !directory && attributes.kind != FileKind::Symlink && attributes.mode & 0o111 != 0;
    let change = if directory { libc::W_OK | libc::X_OK } else { libc::W_OK };
    let rows = [
        (Access::READ, libc::R_OK, true),
        (Access::LOOKUP, libc::X_OK, directory),
        (Access::EXECUTE, libc::X_OK, executable),
        (Access::MODIFY, change, true),
        (Access::EXTEND, change, true),
        (Access::DELETE, change, directory),
    ];
    let wanted = rows.iter().filter(|(right, _, sensible)| *sensible && asked.contains(*right));
    let (all, rights) = wanted.clone().fold((Access::default(), 0), |(all, rights), (right, needed, _)| {
        (all.with(*right), rights | needed)
    });
    // Usually everything is allowed, and one system call shows this.
    let _stage = stages::enter(RequestStage::Permission, "access");
    if rights == 0 || check_access(fd, rights).is_ok() {
        return all;
    }
    let mut allowed = libc::F_OK;
    for right in [libc::R_OK, libc::W_OK, libc::X_OK] {
        if rights & right != 0 && rights != right && check_access(fd, right).is_ok() {
            allowed |= right;
        }
    }
    wanted
        .filter(|(_, needed, _)| needed & !allowed == 0)
        .fold(Access::default(), |granted, (right, _, _)| granted.with(*right))
}
