//! What is known of an object, and what may be set.

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A file with bytes.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharacterDevice,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
}

/// A device's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// What is known of an object (RFC 1813 §2.5, `fattr3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky: 0 to 0o7777.
    pub mode: u32,
    /// How many names it has.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes of disk it uses.
    pub used: u64,
    /// For devices: which.
    pub rdev: Device,
    /// Which file system it is on; not the same after a restart (see [`crate::Vfs::identity`]).
    pub fsid: u64,
    /// Its number, unique in its file system.
    pub fileid: u64,
    /// When it was last read.
    pub atime: Timestamp,
    /// When its content last changed.
    pub mtime: Timestamp,
    /// When anything of it last changed.
    pub ctime: Timestamp,
}

/// What to set a time to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's time.
    Now,
    /// This time.
    To(Timestamp),
}

/// Which attributes to set, and to what (RFC 1813 §2.5, `sattr3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits; those above 0o7777 are dropped.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// When it was last read.
    pub atime: SetTime,
    /// When it last changed.
    pub mtime: SetTime,
}

impl SetAttributes {
    /// Sets nothing but the permission bits.
    #[must_use]
    pub fn with_mode(mode: u32) -> Self {
        Self {
            mode: Some(mode),
            ..Self::default()
        }
    }
}
