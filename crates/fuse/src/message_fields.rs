//! The values of requests and replies.

use std::time::Duration;

/// An object's number in the FUSE protocol. 0 is invalid; 1 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

/// An open file or directory; the file system chooses the number at open.
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
    /// Disk space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
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
    /// Device number: 12 bits of major, 20 of minor, as `new_encode_dev` of the kernel packs them;
    /// otherwise 0.
    pub device: u32,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
}

/// The object of a name, and its timeouts in the kernel's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOut {
    /// The object; 0 for a missing name, which is then cached for `entry_valid`.
    pub node: NodeId,
    /// Unique together with `node` during the mount.
    pub generation: u64,
    /// The entry timeout.
    pub entry_valid: Duration,
    /// The attribute timeout.
    pub attributes_valid: Duration,
    /// The object's attributes.
    pub attributes: FuseAttr,
}

impl EntryOut {
    /// This entry with timeouts of zero.
    #[must_use]
    pub const fn without_lifetimes(self) -> Self {
        Self { entry_valid: Duration::ZERO, attributes_valid: Duration::ZERO, ..self }
    }

    /// A missing name, which may be cached for `entry_valid`.
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

/// Attributes, and their timeout in the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrOut {
    /// The attributes.
    pub attributes: FuseAttr,
    /// The attribute timeout.
    pub valid: Duration,
}

/// An opened file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOut {
    /// Its number in later requests.
    pub fh: FuseFh,
    /// Flags of [`crate::open_reply`].
    pub flags: u32,
}

/// Sizes of a file system, for statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatfsOut {
    /// Total blocks, of `fragment_size` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks available to the caller.
    pub blocks_available: u64,
    /// Total files.
    pub files: u64,
    /// Free files.
    pub files_free: u64,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Size of a block in bytes.
    pub fragment_size: u32,
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetattrTime {
    /// The server's current time.
    Now,
    /// A given time.
    To(FuseTime),
}

/// Attributes to be changed; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetattrIn {
    /// The open file of ftruncate(2).
    pub fh: Option<FuseFh>,
    /// Permission bits; type bits may be present too.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetattrTime>,
    /// Last change of the data.
    pub mtime: Option<SetattrTime>,
    /// Set-id bits are to be cleared.
    pub kill_set_id: bool,
}

/// The type of a lock.
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

/// A locked range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte (inclusive); `i64::MAX` for the end of the file.
    pub end: u64,
    /// The lock's type.
    pub kind: LockKind,
    /// The process that holds it, 0 if unknown.
    pub pid: u32,
}

/// A request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LkIn {
    /// The open file.
    pub fh: FuseFh,
    /// The lock owner: equal for processes that share locks.
    pub owner: u64,
    /// The requested range and type.
    pub range: LockRange,
    /// Whether it is a flock(2) lock; otherwise fcntl(2).
    pub flock: bool,
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIn {
    /// The open file.
    pub fh: FuseFh,
    /// First byte.
    pub offset: u64,
    /// Maximum number of bytes.
    pub size: u32,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// The lock owner, for mandatory locks.
    pub lock_owner: Option<u64>,
}

/// A write without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIn {
    /// The open file.
    pub fh: FuseFh,
    /// First byte.
    pub offset: u64,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// The data are from the page cache (a mapping), so the caller is a guess of the kernel.
    pub from_cache: bool,
    /// Set-id bits are to be cleared.
    pub kill_set_id: bool,
    /// The lock owner, for mandatory locks.
    pub lock_owner: Option<u64>,
}

/// The close of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseIn {
    /// The open file.
    pub fh: FuseFh,
    /// Flags of open(2) of the open file.
    pub flags: u32,
    /// Whether its flock(2) lock is released.
    pub flock_unlock: bool,
    /// The owner of the locks to release.
    pub lock_owner: u64,
}

/// A new object that is not a directory or symbolic link, or a file that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MknodIn {
    /// Type and permission bits, after the umask.
    pub mode: u32,
    /// Device number, packed as in [`FuseAttr`].
    pub device: u32,
}

/// Parameters of OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenIn {
    /// Flags of open(2), without O_CREAT, O_EXCL and O_NOCTTY; 0x20 is the kernel's flag for
    /// execve(2).
    pub flags: u32,
    /// The truncation clears set-id bits.
    pub kill_set_id: bool,
}

/// Parameters of CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIn {
    /// Flags of open(2), O_EXCL included.
    pub flags: u32,
    /// Type and permission bits, after the umask.
    pub mode: u32,
    /// The truncation clears set-id bits.
    pub kill_set_id: bool,
}
