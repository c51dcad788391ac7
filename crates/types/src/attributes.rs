//! What is known of an object, and what may be set (RFC 1813 §2.3 and §2.6).

use crate::Timestamp;

/// The type of a file system object (RFC 1813 §2.3.3, ftype3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
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

/// The numbers of a device (specdata3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its driver.
    pub major: u32,
    /// Which of the driver's.
    pub minor: u32,
}

/// The attributes of an object (fattr3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits: the low 12 bits of a Unix mode.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes of disk it takes.
    pub used: u64,
    /// Its numbers if it is a device, else zeros.
    pub rdev: Device,
    /// The file system it is in.
    pub fsid: u64,
    /// Its number, unique in its file system.
    pub fileid: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

/// What an object was like just before an operation (wcc_attr).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreOpAttr {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

impl From<&Attributes> for PreOpAttr {
    fn from(attributes: &Attributes) -> Self {
        Self {
            size: attributes.size,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        }
    }
}

/// An object just before and just after an operation that changes it (wcc_data); a server may leave
/// out either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// Before; equal to what is cached means that nobody else changed it since.
    pub before: Option<PreOpAttr>,
    /// After.
    pub after: Option<Attributes>,
}

/// What to do with one of a file's times (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's present.
    ServerTime,
    /// This time.
    Time(Timestamp),
}

/// Attributes to be set; what is `None` stays (sattr3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last change of the data.
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

/// How durable a WRITE is before it is answered (RFC 1813 §3.3.7, stable_how), weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// The data may be lost until COMMIT.
    Unstable,
    /// The data, and what is needed to read them back, are on stable storage.
    DataSync,
    /// The data and all attributes are on stable storage.
    FileSync,
}
