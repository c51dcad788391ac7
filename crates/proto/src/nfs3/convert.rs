//! Conversions between the wire types and those of the crate `types`.

use curt_types::{
    Attributes, ChangeStamp, CookieVerifier, Device, FileHandle, FileKind, PreOpState, SetAttributes,
    SetTime, Stability, Timestamp, Wcc, WriteVerifier,
};

use super::{
    CookieVerf3, Fattr, Fileid, Ftype, NfsFh3, NfsTime, Sattr, SpecData, StableHow, TimeHow, WccAttr,
    WccData, WriteVerf3,
};

impl From<NfsTime> for Timestamp {
    #[inline]
    fn from(time: NfsTime) -> Self {
        Self::new(i64::from(time.seconds), time.nanoseconds)
    }
}

impl From<Timestamp> for NfsTime {
    /// nfstime3 has unsigned seconds (RFC 1813 section 2.5): times before 1970 and after 2106 are
    /// clamped, as in the Linux client.
    #[inline]
    fn from(time: Timestamp) -> Self {
        let (seconds, nanoseconds) = time.parts();
        match u32::try_from(seconds) {
            Ok(seconds) => Self { seconds, nanoseconds },
            Err(_) => Self { seconds: if seconds < 0 { 0 } else { u32::MAX }, nanoseconds: 0 },
        }
    }
}

impl From<Fattr> for Attributes {
    #[inline]
    fn from(fattr: Fattr) -> Self {
        Self {
            kind: fattr.kind.into(),
            mode: fattr.mode & 0o7777,
            nlink: fattr.nlink,
            uid: fattr.uid,
            gid: fattr.gid,
            size: fattr.size,
            used: fattr.used,
            rdev: fattr.rdev.into(),
            fsid: fattr.fsid,
            fileid: fattr.fileid.0,
            atime: fattr.atime.into(),
            mtime: fattr.mtime.into(),
            ctime: fattr.ctime.into(),
            change: None,
        }
    }
}

impl From<Attributes> for Fattr {
    #[inline]
    fn from(attributes: Attributes) -> Self {
        Self {
            kind: attributes.kind.into(),
            mode: attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            used: attributes.used,
            rdev: attributes.rdev.into(),
            fsid: attributes.fsid,
            fileid: Fileid(attributes.fileid),
            atime: attributes.atime.into(),
            mtime: attributes.mtime.into(),
            ctime: attributes.ctime.into(),
        }
    }
}

impl From<Ftype> for FileKind {
    #[inline]
    fn from(kind: Ftype) -> Self {
        match kind {
            Ftype::Regular => Self::Regular,
            Ftype::Directory => Self::Directory,
            Ftype::BlockDevice => Self::BlockDevice,
            Ftype::CharacterDevice => Self::CharacterDevice,
            Ftype::Symlink => Self::Symlink,
            Ftype::Socket => Self::Socket,
            Ftype::Fifo => Self::Fifo,
        }
    }
}

impl From<FileKind> for Ftype {
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

impl From<NfsFh3> for FileHandle {
    #[inline]
    fn from(handle: NfsFh3) -> Self {
        Self::new(handle.as_bytes()).expect("64 bytes are less than 128")
    }
}

impl From<WccData> for Wcc {
    #[inline]
    fn from(wcc: WccData) -> Self {
        let before = |before: WccAttr| {
            let (mtime, ctime) = (before.mtime.into(), before.ctime.into());
            PreOpState::new(before.size, ChangeStamp::Times { mtime, ctime })
        };
        Self { before: wcc.before.map(before), after: wcc.after.map(Attributes::from) }
    }
}

impl From<Wcc> for WccData {
    #[inline]
    fn from(wcc: Wcc) -> Self {
        let before = |before: PreOpState| match (before.size(), before.stamp()) {
            (Some(size), ChangeStamp::Times { mtime, ctime }) => {
                Some(WccAttr { size, mtime: mtime.into(), ctime: ctime.into() })
            }
            _ => None,
        };
        Self { before: wcc.before.and_then(before), after: wcc.after.map(Fattr::from) }
    }
}

impl From<SetTime> for TimeHow {
    #[inline]
    fn from(set: SetTime) -> Self {
        match set {
            SetTime::Keep => Self::DontChange,
            SetTime::ServerTime => Self::SetToServerTime,
            SetTime::Time(time) => Self::SetToClientTime(time.into()),
        }
    }
}

impl From<SetAttributes> for Sattr {
    #[inline]
    fn from(set: SetAttributes) -> Self {
        Self {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.into(),
            mtime: set.mtime.into(),
        }
    }
}

impl From<Stability> for StableHow {
    #[inline]
    fn from(stability: Stability) -> Self {
        match stability {
            Stability::Unstable => Self::Unstable,
            Stability::DataSync => Self::DataSync,
            Stability::FileSync => Self::FileSync,
        }
    }
}

impl From<StableHow> for Stability {
    #[inline]
    fn from(stability: StableHow) -> Self {
        match stability {
            StableHow::Unstable => Self::Unstable,
            StableHow::DataSync => Self::DataSync,
            StableHow::FileSync => Self::FileSync,
        }
    }
}

impl From<Device> for SpecData {
    #[inline]
    fn from(device: Device) -> Self {
        Self { major: device.major, minor: device.minor }
    }
}

impl From<SpecData> for Device {
    #[inline]
    fn from(numbers: SpecData) -> Self {
        Self { major: numbers.major, minor: numbers.minor }
    }
}

impl From<CookieVerifier> for CookieVerf3 {
    #[inline]
    fn from(verifier: CookieVerifier) -> Self {
        Self(verifier.0)
    }
}

impl From<CookieVerf3> for CookieVerifier {
    #[inline]
    fn from(verifier: CookieVerf3) -> Self {
        Self(verifier.0)
    }
}

impl From<WriteVerf3> for WriteVerifier {
    #[inline]
    fn from(verifier: WriteVerf3) -> Self {
        Self(verifier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: posix-4.
    #[test]
    fn times_that_the_protocol_cannot_say_become_the_nearest() {
        let nfs = |seconds, nanoseconds| NfsTime::from(Timestamp::new(seconds, nanoseconds));
        assert_eq!(nfs(-1, 5), NfsTime { seconds: 0, nanoseconds: 0 });
        assert_eq!(nfs(i64::from(u32::MAX), 5), NfsTime { seconds: u32::MAX, nanoseconds: 5 });
        assert_eq!(nfs(1 << 32, 5), NfsTime { seconds: u32::MAX, nanoseconds: 0 });
        let odd = Timestamp::from(NfsTime { seconds: 1, nanoseconds: u32::MAX });
        assert_eq!(odd, Timestamp::new(1, 999_999_999));
    }
}
