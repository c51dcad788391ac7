//! Conversions between the protocol's types and the client's.

use curt_proto::nfs3::{self, Fattr, Ftype, NfsStat3, NfsTime, Sattr, WccData};

use crate::protocol::{
    Attributes, Device, Fault, FileType, PreOpAttr, SetAttributes, SetTime, Stability, Timestamp, Wcc,
};

macro_rules! faults {
    ($($name:ident)*) => {
        impl From<NfsStat3> for Fault {
            fn from(status: NfsStat3) -> Self {
                match status {
                    $(NfsStat3::$name => Self::$name,)*
                    // Ok is no refusal.
                    NfsStat3::Ok => Self::Serverfault,
                }
            }
        }

        impl From<Fault> for NfsStat3 {
            fn from(fault: Fault) -> Self {
                match fault { $(Fault::$name => Self::$name),* }
            }
        }
    };
}

faults! {
    Perm Noent Io Nxio Acces Exist Xdev Nodev Notdir Isdir
    Inval Fbig Nospc Rofs Mlink Nametoolong Notempty Dquot Stale Remote
    Badhandle NotSync BadCookie Notsupp Toosmall Badtype Jukebox Serverfault
}

/// The largest number of nanoseconds in a second's part; servers have been seen to send more.
const NANOSECONDS_MAX: u32 = 999_999_999;

impl From<NfsTime> for Timestamp {
    fn from(time: NfsTime) -> Self {
        Self {
            seconds: i64::from(time.seconds),
            nanoseconds: time.nanoseconds.min(NANOSECONDS_MAX),
        }
    }
}

impl From<Timestamp> for NfsTime {
    /// nfstime3 has unsigned seconds (RFC 1813 §2.5): times before 1970 and after 2106 become its
    /// first and its last second, as in Linux' client.
    fn from(time: Timestamp) -> Self {
        match u32::try_from(time.seconds) {
            Ok(seconds) => Self {
                seconds,
                nanoseconds: time.nanoseconds.min(NANOSECONDS_MAX),
            },
            Err(_) => Self {
                seconds: if time.seconds < 0 { 0 } else { u32::MAX },
                nanoseconds: 0,
            },
        }
    }
}

impl From<Fattr> for Attributes {
    fn from(fattr: Fattr) -> Self {
        Self {
            kind: fattr.kind.into(),
            mode: fattr.mode & 0o7777,
            links: fattr.nlink,
            uid: fattr.uid,
            gid: fattr.gid,
            size: fattr.size,
            used: fattr.used,
            device: Device {
                major: fattr.rdev.major,
                minor: fattr.rdev.minor,
            },
            fsid: fattr.fsid,
            fileid: fattr.fileid.0,
            atime: fattr.atime.into(),
            mtime: fattr.mtime.into(),
            ctime: fattr.ctime.into(),
        }
    }
}

impl From<Ftype> for FileType {
    fn from(kind: Ftype) -> Self {
        match kind {
            Ftype::Regular => Self::Regular,
            Ftype::Directory => Self::Directory,
            Ftype::BlockDevice => Self::Block,
            Ftype::CharacterDevice => Self::Character,
            Ftype::Symlink => Self::Symlink,
            Ftype::Socket => Self::Socket,
            Ftype::Fifo => Self::Fifo,
        }
    }
}

impl From<WccData> for Wcc {
    fn from(wcc: WccData) -> Self {
        let before = wcc.before.map(|before| PreOpAttr {
            size: before.size,
            mtime: before.mtime.into(),
            ctime: before.ctime.into(),
        });
        Self {
            before,
            after: wcc.after.map(Attributes::from),
        }
    }
}

impl From<SetTime> for nfs3::TimeHow {
    fn from(set: SetTime) -> Self {
        match set {
            SetTime::Keep => Self::DontChange,
            SetTime::ServerTime => Self::SetToServerTime,
            SetTime::Time(time) => Self::SetToClientTime(time.into()),
        }
    }
}

impl From<SetAttributes> for Sattr {
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

impl From<Stability> for nfs3::StableHow {
    fn from(stability: Stability) -> Self {
        match stability {
            Stability::Unstable => Self::Unstable,
            Stability::DataSync => Self::DataSync,
            Stability::FileSync => Self::FileSync,
        }
    }
}

impl From<nfs3::StableHow> for Stability {
    fn from(stability: nfs3::StableHow) -> Self {
        match stability {
            nfs3::StableHow::Unstable => Self::Unstable,
            nfs3::StableHow::DataSync => Self::DataSync,
            nfs3::StableHow::FileSync => Self::FileSync,
        }
    }
}

impl From<Device> for nfs3::SpecData {
    fn from(device: Device) -> Self {
        Self {
            major: device.major,
            minor: device.minor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: posix-4.
    #[test]
    fn times_that_the_protocol_cannot_say_become_the_nearest() {
        let nfs = |seconds, nanoseconds| NfsTime::from(Timestamp { seconds, nanoseconds });
        assert_eq!(
            nfs(-1, 5),
            NfsTime {
                seconds: 0,
                nanoseconds: 0
            }
        );
        assert_eq!(
            nfs(1 << 40, 5),
            NfsTime {
                seconds: u32::MAX,
                nanoseconds: 0
            }
        );
        let odd = Timestamp::from(NfsTime {
            seconds: 1,
            nanoseconds: u32::MAX,
        });
        assert_eq!(
            odd,
            Timestamp {
                seconds: 1,
                nanoseconds: NANOSECONDS_MAX
            }
        );
    }
}
