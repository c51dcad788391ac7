//! Attributes between the file system's words and the wire's.

use curt_proto::nfs3::{self, NfsStat3};
use curt_types::{Attributes, PreOpAttr, SetAttributes, SetTime, Timestamp};

const NANOSECONDS: u32 = 1_000_000_000;

/// As a client sees them. The fsid is the number that lasts over restarts, not the kernel's device.
pub(crate) fn to_wire(attributes: &Attributes, fsid: u64) -> nfs3::Fattr {
    nfs3::Fattr {
        kind: attributes.kind.into(),
        mode: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used,
        rdev: attributes.rdev.into(),
        fsid,
        fileid: nfs3::Fileid(attributes.fileid),
        atime: attributes.atime.into(),
        mtime: attributes.mtime.into(),
        ctime: attributes.ctime.into(),
    }
}

/// The before-attributes of WCC data.
pub(crate) fn before_to_wire(before: PreOpAttr) -> nfs3::WccAttr {
    nfs3::WccAttr {
        size: before.size,
        mtime: before.mtime.into(),
        ctime: before.ctime.into(),
    }
}

/// A time that a client sent; `NFS3ERR_INVAL` if it has a second or more of nanoseconds.
pub(crate) fn time_from_wire(time: nfs3::NfsTime) -> Result<Timestamp, NfsStat3> {
    if time.nanoseconds >= NANOSECONDS {
        return Err(NfsStat3::Inval);
    }
    Ok(time.into())
}

/// What a client wants set. Ids of all ones mean "none" to system calls and nobody on the wire:
/// `NFS3ERR_INVAL`.
pub(crate) fn set_from_wire(set: &nfs3::Sattr) -> Result<SetAttributes, NfsStat3> {
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) || set.size.is_some_and(|size| size > MAX_SIZE)
    {
        return Err(NfsStat3::Inval);
    }
    Ok(SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time_from_wire(set.atime)?,
        mtime: set_time_from_wire(set.mtime)?,
    })
}

/// The largest size that a file offset can say (`i64::MAX`); CVE-2022-48828 was a server without
/// this line.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

fn set_time_from_wire(set: nfs3::TimeHow) -> Result<SetTime, NfsStat3> {
    Ok(match set {
        nfs3::TimeHow::DontChange => SetTime::Keep,
        nfs3::TimeHow::SetToServerTime => SetTime::ServerTime,
        nfs3::TimeHow::SetToClientTime(time) => SetTime::Time(time_from_wire(time)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_system_call_takes_are_invalid() {
        let bad = nfs3::NfsTime {
            seconds: 1,
            nanoseconds: NANOSECONDS,
        };
        let keep = nfs3::Sattr::default();
        let refused = [
            nfs3::Sattr {
                uid: Some(u32::MAX),
                ..keep
            },
            nfs3::Sattr {
                gid: Some(u32::MAX),
                ..keep
            },
            nfs3::Sattr {
                size: Some(1 << 63),
                ..keep
            },
            nfs3::Sattr {
                size: Some(u64::MAX),
                ..keep
            },
            nfs3::Sattr {
                mtime: nfs3::TimeHow::SetToClientTime(bad),
                ..keep
            },
            nfs3::Sattr {
                atime: nfs3::TimeHow::SetToClientTime(bad),
                ..keep
            },
        ];
        for set in refused {
            assert_eq!(set_from_wire(&set), Err(NfsStat3::Inval), "{set:?}");
        }
        assert!(
            set_from_wire(&nfs3::Sattr {
                size: Some((1 << 63) - 1),
                ..keep
            })
            .is_ok()
        );
    }
}
