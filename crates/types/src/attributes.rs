//! Attributes of an object, and attributes to be set (RFC 1813 sections 2.3 and 2.6).

use crate::{ChangeStamp, Timestamp};

/// The type of a file system object (RFC 1813 section 2.3.3, ftype3).
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
    /// A socket.
    Socket,
}

/// A device number (specdata3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl Device {
    /// The number as in the kernel's `new_encode_dev` and in FUSE: 12 bits of major, 20 of minor.
    #[must_use]
    pub const fn packed(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0xfff00) << 12)
    }

    /// The number that [`Self::packed`] has packed.
    #[must_use]
    pub const fn unpack(packed: u32) -> Self {
        Self { major: (packed >> 8) & 0xfff, minor: (packed & 0xff) | ((packed >> 12) & 0xfff00) }
    }
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
    /// Disk space in bytes.
    pub used: u64,
    /// The device number of a device, otherwise zeros.
    pub rdev: Device,
    /// The number of its file system.
    pub fsid: u64,
    /// Its number, unique in its file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// The change attribute (RFC 8881 §5.8.1.4); `None` where there is none, as in NFSv3.
    pub change: Option<u64>,
}

impl Attributes {
    /// The stamp of this state of the object: it differs in other states.
    #[must_use]
    #[inline]
    pub const fn stamp(&self) -> ChangeStamp {
        match self.change {
            Some(change) => ChangeStamp::Change(change),
            None => ChangeStamp::Times { mtime: self.mtime, ctime: self.ctime },
        }
    }
}

/// The state of an object just before or after an operation of ours, taken by the server under the
/// same lock: size and times (RFC 1813 §2.6, wcc_attr) or the change attribute (RFC 8881 §3.3.3,
/// change_info4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreOpState {
    /// Length in bytes; 0 beside a change attribute, which differs wherever the size does.
    size: u64,
    stamp: ChangeStamp,
}

impl PreOpState {
    /// The state of an object of `size` bytes with this stamp.
    #[must_use]
    #[inline]
    pub const fn new(size: u64, stamp: ChangeStamp) -> Self {
        let size = match stamp {
            ChangeStamp::Times { .. } => size,
            ChangeStamp::Change(_) => 0,
        };
        Self { size, stamp }
    }

    /// Its length in bytes, if the reply contains it.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> Option<u64> {
        match self.stamp {
            ChangeStamp::Times { .. } => Some(self.size),
            ChangeStamp::Change(_) => None,
        }
    }

    /// The stamp of this state: it differs in other states.
    #[must_use]
    #[inline]
    pub const fn stamp(&self) -> ChangeStamp {
        self.stamp
    }
}

impl From<&Attributes> for PreOpState {
    fn from(attributes: &Attributes) -> Self {
        Self::new(attributes.size, attributes.stamp())
    }
}

/// An object just before and just after an operation that changes it (wcc_data); a server may leave
/// out either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// The state before; if it equals the cached one, no other client has changed the object.
    pub before: Option<PreOpState>,
    /// After.
    pub after: Option<Attributes>,
}

/// How to set one of a file's times (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Do not change it.
    #[default]
    Keep,
    /// The server's current time.
    ServerTime,
    /// This time.
    Time(Timestamp),
}

/// Attributes to be set; `None` leaves a value unchanged (sattr3).
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
    /// Last access.
    pub atime: SetTime,
    /// Last change of the data.
    pub mtime: SetTime,
}

impl SetAttributes {
    /// Sets only the permission bits.
    #[must_use]
    pub fn with_mode(mode: u32) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }
}

/// How durable a WRITE is when the server replies (RFC 1813 section 3.3.7, stable_how), weakest
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// The data may be lost until COMMIT.
    Unstable,
    /// The data, and metadata needed to read them, are on stable storage.
    DataSync,
    /// The data and all attributes are on stable storage.
    FileSync,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 3), (0xfff, 0xf_ffff), (10, 229)] {
            let device = Device { major, minor };
            assert_eq!(Device::unpack(device.packed()), device);
        }
        assert_eq!(Device { major: 8, minor: 1 }.packed(), 0x801);
    }
}
