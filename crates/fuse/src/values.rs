//! The plain values that requests carry and replies give.
//!
//! Owns no behaviour beyond conversions. Knows the kernel's numbering of lock types and nothing
//! else of its layout.

use std::time::Duration;

/// An object, as the kernel names it. 0 names nothing; 1 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory, as we named it when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuseFh(pub u64);

/// A point in time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FuseTime {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseAttr {
    /// Inode number (st_ino); need not be the [`NodeId`].
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Disk space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: FuseTime,
    /// Last change of the data.
    pub mtime: FuseTime,
    /// Last change of data or attributes.
    pub ctime: FuseTime,
    /// Type and permission bits (st_mode).
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Numbers of a device, as [`device_number`] packs them; else 0.
    pub device: u32,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
}

/// Packs the numbers of a device as the kernel's protocol does: 12 bits of major, 20 of minor.
#[must_use]
pub fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// The numbers of a device, major first, out of what [`device_number`] packs.
#[must_use]
pub fn device_parts(packed: u32) -> (u32, u32) {
    (
        (packed >> 8) & 0xfff,
        (packed & 0xff) | ((packed >> 12) & 0xfff00),
    )
}

/// What a name leads to, and for how long the kernel may believe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOut {
    /// The object; 0 says that the name is missing, which is then believed for `entry_valid`.
    pub node: NodeId,
    /// With `node`, unique for the mount's life.
    pub generation: u64,
    /// For how long the name may be used without asking.
    pub entry_valid: Duration,
    /// For how long the attributes may be used without asking.
    pub attributes_valid: Duration,
    /// The object's attributes.
    pub attributes: FuseAttr,
}

impl EntryOut {
    /// The same, promised for no time.
    #[must_use]
    pub const fn without_lifetimes(self) -> Self {
        Self {
            entry_valid: Duration::ZERO,
            attributes_valid: Duration::ZERO,
            ..self
        }
    }

    /// A name that is missing, which may be believed for `entry_valid`.
    #[must_use]
    pub fn missing(entry_valid: Duration) -> Self {
        Self {
            node: NodeId(0),
            generation: 0,
            entry_valid,
            attributes_valid: Duration::ZERO,
            attributes: FuseAttr::default(),
        }
    }
}

/// Attributes, and for how long the kernel may believe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrOut {
    /// The attributes.
    pub attributes: FuseAttr,
    /// For how long.
    pub valid: Duration,
}

/// An opened file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOut {
    /// How later requests will name it.
    pub fh: FuseFh,
    /// Flags of [`crate::open_reply`].
    pub flags: u32,
}

/// Sizes of a file system, for statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatfsOut {
    /// Blocks in all, of `fragment_size` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to the caller.
    pub blocks_available: u64,
    /// Files in all.
    pub files: u64,
    /// Free files.
    pub files_free: u64,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
    /// Bytes of a name at most.
    pub name_max: u32,
    /// Bytes of a block.
    pub fragment_size: u32,
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetattrTime {
    /// The server's present.
    Now,
    /// This time.
    To(FuseTime),
}

/// Attributes to be changed; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetattrIn {
    /// The open file through which it is done (ftruncate(2)).
    pub fh: Option<FuseFh>,
    /// Permission bits; type bits may be present too.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetattrTime>,
    /// Last change of the data.
    pub mtime: Option<SetattrTime>,
    /// Set-id bits are to be cleared.
    pub kill_set_id: bool,
}

/// What a lock is, or is asked to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None.
    Unlock,
}

impl LockKind {
    /// Its number in the kernel's protocol (F_RDLCK, F_WRLCK, F_UNLCK).
    #[must_use]
    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Unlock => 2,
        }
    }

    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Read),
            1 => Some(Self::Write),
            2 => Some(Self::Unlock),
            _ => None,
        }
    }
}

/// A range of a file that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte, which is part of it; `i64::MAX` for "to the end".
    pub end: u64,
    /// What it is.
    pub kind: LockKind,
    /// The process that holds it, 0 if unknown.
    pub pid: u32,
}

/// A request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LkIn {
    /// The open file.
    pub fh: FuseFh,
    /// Who asks: equal for those who share locks.
    pub owner: u64,
    /// What is asked.
    pub range: LockRange,
    /// It is a lock of flock(2), else of fcntl(2).
    pub flock: bool,
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIn {
    /// The open file.
    pub fh: FuseFh,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted at most.
    pub size: u32,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// Whose locks it goes by, where that matters.
    pub lock_owner: Option<u64>,
}

/// A write, apart from its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIn {
    /// The open file.
    pub fh: FuseFh,
    /// First byte.
    pub offset: u64,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// It comes from the page cache (a mapping), so the caller is the kernel's guess.
    pub from_cache: bool,
    /// Set-id bits are to be cleared.
    pub kill_set_id: bool,
    /// Whose locks it goes by, where that matters.
    pub lock_owner: Option<u64>,
}

/// The close of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseIn {
    /// The open file.
    pub fh: FuseFh,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// Its flock(2) lock goes with it.
    pub flock_unlock: bool,
    /// Whose locks go with it.
    pub lock_owner: u64,
}

/// A new object that is neither file, directory nor symbolic link, or a file that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MknodIn {
    /// Type and permission bits; the umask is taken off already.
    pub mode: u32,
    /// Numbers of a device, packed as [`device_number`] does.
    pub device: u32,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenIn {
    /// Flags of open(2), without O_CREAT, O_EXCL and O_NOCTTY; 0x20 in them is the kernel's mark of
    /// an execve(2).
    pub flags: u32,
    /// Set-id bits are to be cleared by the truncation.
    pub kill_set_id: bool,
}

/// How a file is made and opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIn {
    /// Flags of open(2), O_EXCL included.
    pub flags: u32,
    /// Type and permission bits; the umask is taken off already.
    pub mode: u32,
    /// Set-id bits are to be cleared by the truncation.
    pub kill_set_id: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 3), (0xfff, 0xf_ffff), (10, 229)] {
            assert_eq!(device_parts(device_number(major, minor)), (major, minor));
        }
        assert_eq!(device_number(8, 1), 0x801);
    }
}
