//! Attributes: as reported, as set, and before and after an operation (RFC 1813 sections 2.3 and
//! 2.6).

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Xdr};

use super::Fileid;

/// The type of a file (`ftype3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum Ftype {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A block device.
    BlockDevice = 3,
    /// A character device.
    CharacterDevice = 4,
    /// A symbolic link.
    Symlink = 5,
    /// A socket.
    Socket = 6,
    /// A named pipe.
    Fifo = 7,
}

/// A device number (`specdata3`); zeros for other objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct SpecData {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// A time since 1970 (`nfstime3`). A peer may send more than 999,999,999 nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct NfsTime {
    /// Seconds, unsigned: up to the year 2106.
    pub seconds: u32,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// The attributes of a file (`fattr3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fattr {
    /// The type.
    pub kind: Ftype,
    /// Permission bits, setuid, setgid and sticky: the low twelve bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The space on disk in bytes.
    pub used: u64,
    /// The device number, for devices.
    pub rdev: SpecData,
    /// The file system's identifier.
    pub fsid: u64,
    /// The file's number in it.
    pub fileid: Fileid,
    /// Time of last access.
    pub atime: NfsTime,
    /// Time of last modification of the data.
    pub mtime: NfsTime,
    /// Time of last change of the attributes.
    pub ctime: NfsTime,
}

impl Fattr {
    /// The encoded size, in bytes.
    pub const ENCODED: usize = 84;
}

// By hand and in one piece: almost each reply contains one or two of these, a directory listing
// hundreds.
impl Encode for Fattr {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; Self::ENCODED];
        let words = [self.kind as u32, self.mode, self.nlink, self.uid, self.gid];
        let numbers = [self.size, self.used];
        let device = [self.rdev.major, self.rdev.minor];
        let identity = [self.fsid, self.fileid.0];
        let times = [self.atime, self.mtime, self.ctime];
        let (words_out, rest) = bytes.as_chunks_mut::<4>().0.split_at_mut(5);
        for (slot, word) in words_out.iter_mut().zip(words) {
            *slot = word.to_be_bytes();
        }
        let (numbers_out, rest) = rest.split_at_mut(4);
        put_wide(numbers_out, numbers);
        let (device_out, rest) = rest.split_at_mut(2);
        for (slot, word) in device_out.iter_mut().zip(device) {
            *slot = word.to_be_bytes();
        }
        let (identity_out, times_out) = rest.split_at_mut(4);
        put_wide(identity_out, identity);
        for (slot, time) in times_out.as_chunks_mut::<2>().0.iter_mut().zip(times) {
            *slot = [time.seconds.to_be_bytes(), time.nanoseconds.to_be_bytes()];
        }
        out.extend_from_slice(&bytes);
    }
}

#[inline]
fn put_wide(slots: &mut [[u8; 4]], numbers: [u64; 2]) {
    for (slot, number) in slots.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
        let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
        *slot = [[a, b, c, d], [e, f, g, h]];
    }
}

impl Decode<'_> for Fattr {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: decoder.get()?,
            mode: decoder.u32()?,
            nlink: decoder.u32()?,
            uid: decoder.u32()?,
            gid: decoder.u32()?,
            size: decoder.u64()?,
            used: decoder.u64()?,
            rdev: decoder.get()?,
            fsid: decoder.u64()?,
            fileid: decoder.get()?,
            atime: decoder.get()?,
            mtime: decoder.get()?,
            ctime: decoder.get()?,
        })
    }
}

/// How SETATTR sets a time (`set_atime`, `set_mtime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum TimeHow {
    /// Do not change it.
    #[default]
    #[xdr(case = 0)]
    DontChange,
    /// The server's current time.
    #[xdr(case = 1)]
    SetToServerTime,
    /// The given time.
    #[xdr(case = 2)]
    SetToClientTime(NfsTime),
}

/// Attributes to be set; `None` leaves a value unchanged (`sattr3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Sattr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The time of last access.
    pub atime: TimeHow,
    /// The time of last modification.
    pub mtime: TimeHow,
}

/// Attributes before an operation (`wcc_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct WccAttr {
    /// The size in bytes.
    pub size: u64,
    /// Time of last modification of the data.
    pub mtime: NfsTime,
    /// Time of last change of the attributes.
    pub ctime: NfsTime,
}

/// Attributes before and after an operation (`wcc_data`): if `before` equals the cached attributes,
/// no other client changed the file, and `after` may replace them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct WccData {
    /// Before the operation.
    pub before: Option<WccAttr>,
    /// After it.
    pub after: Option<Fattr>,
}
