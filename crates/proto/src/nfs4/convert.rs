//! Conversions between the wire types and those of the crate `types`.

use curt_types::{
    ByteRange, CookieVerifier, Device, FileHandle, FileKind, Stability, Timestamp, WriteVerifier,
};

use super::{Ftype4, NfsFh4, NfsTime4, SpecData4, StableHow4, Verifier4};

impl From<NfsTime4> for Timestamp {
    #[inline]
    fn from(time: NfsTime4) -> Self {
        Self::new(time.seconds, time.nanoseconds)
    }
}

impl From<Timestamp> for NfsTime4 {
    #[inline]
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds(), nanoseconds: time.nanoseconds() }
    }
}

impl From<FileKind> for Ftype4 {
    #[inline]
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => Self::Regular,
            FileKind::Directory => Self::Directory,
            FileKind::BlockDevice => Self::BlockDevice,
            FileKind::CharacterDevice => Self::CharacterDevice,
            FileKind::Symlink => Self::Symlink,
            FileKind::Socket => Self::Socket,
            FileKind::Fifo => Self::Fifo,
        }
    }
}

impl Ftype4 {
    /// The type of object; `None` for named attributes and their directories.
    #[must_use]
    pub const fn file_kind(self) -> Option<FileKind> {
        Some(match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::BlockDevice => FileKind::BlockDevice,
            Self::CharacterDevice => FileKind::CharacterDevice,
            Self::Symlink => FileKind::Symlink,
            Self::Socket => FileKind::Socket,
            Self::Fifo => FileKind::Fifo,
            Self::AttributeDirectory | Self::NamedAttribute => return None,
        })
    }
}

impl From<NfsFh4<'_>> for FileHandle {
    #[inline]
    fn from(handle: NfsFh4<'_>) -> Self {
        Self::new(handle.bytes()).expect("both have the same limit")
    }
}

impl<'a> From<&'a FileHandle> for NfsFh4<'a> {
    #[inline]
    fn from(handle: &'a FileHandle) -> Self {
        Self::new(handle.as_bytes()).expect("both have the same limit")
    }
}

impl From<Device> for SpecData4 {
    #[inline]
    fn from(device: Device) -> Self {
        Self { major: device.major, minor: device.minor }
    }
}

impl From<SpecData4> for Device {
    #[inline]
    fn from(numbers: SpecData4) -> Self {
        Self { major: numbers.major, minor: numbers.minor }
    }
}

impl From<Stability> for StableHow4 {
    #[inline]
    fn from(stability: Stability) -> Self {
        match stability {
            Stability::Unstable => Self::Unstable,
            Stability::DataSync => Self::DataSync,
            Stability::FileSync => Self::FileSync,
        }
    }
}

impl From<StableHow4> for Stability {
    #[inline]
    fn from(stability: StableHow4) -> Self {
        match stability {
            StableHow4::Unstable => Self::Unstable,
            StableHow4::DataSync => Self::DataSync,
            StableHow4::FileSync => Self::FileSync,
        }
    }
}

impl From<CookieVerifier> for Verifier4 {
    #[inline]
    fn from(verifier: CookieVerifier) -> Self {
        Self(verifier.0)
    }
}

impl From<Verifier4> for CookieVerifier {
    #[inline]
    fn from(verifier: Verifier4) -> Self {
        Self(verifier.0)
    }
}

impl From<WriteVerifier> for Verifier4 {
    #[inline]
    fn from(verifier: WriteVerifier) -> Self {
        Self(verifier.0)
    }
}

impl From<Verifier4> for WriteVerifier {
    #[inline]
    fn from(verifier: Verifier4) -> Self {
        Self(verifier.0)
    }
}

/// The range of a lock (RFC 8881 section 18.10.3): a length of 2^64-1 reaches to the end of every
/// file, and only such a range has the last byte of all. `None` if the length is 0, or offset and
/// length together exceed 2^64-1.
#[must_use]
pub const fn lock_range(offset: u64, length: u64) -> Option<ByteRange> {
    match length {
        0 => None,
        u64::MAX => ByteRange::new(offset, u64::MAX),
        length => match offset.checked_add(length) {
            Some(end) => ByteRange::new(offset, end - 1),
            None => None,
        },
    }
}

/// Offset and length of a lock's range.
#[must_use]
pub const fn lock_offset_and_length(range: ByteRange) -> (u64, u64) {
    match range.last() {
        u64::MAX => (range.first(), u64::MAX),
        last => (range.first(), last - range.first() + 1),
    }
}
