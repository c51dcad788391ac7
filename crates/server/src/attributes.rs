//! Attributes between the file system's words and the wire's.

use curt_proto::nfs3;
use curt_vfs::{Attributes, FileKind, SetAttributes, SetTime, Timestamp, WccBefore};
use rustix::io::Errno;

const NANOSECONDS: u32 = 1_000_000_000;

/// As a client sees them. The fsid is the number that lasts over restarts, not the kernel's device.
pub(crate) fn to_wire(attributes: &Attributes, fsid: u64) -> nfs3::Fattr {
    nfs3::Fattr {
        kind: kind_to_wire(attributes.kind),
        mode: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used,
        rdev: nfs3::SpecData {
            major: attributes.rdev.major,
            minor: attributes.rdev.minor,
        },
        fsid,
        fileid: nfs3::Fileid(attributes.fileid),
        atime: time_to_wire(attributes.atime),
        mtime: time_to_wire(attributes.mtime),
        ctime: time_to_wire(attributes.ctime),
    }
}

const fn kind_to_wire(kind: FileKind) -> nfs3::Ftype {
    match kind {
        FileKind::Regular => nfs3::Ftype::Regular,
        FileKind::Directory => nfs3::Ftype::Directory,
        FileKind::Symlink => nfs3::Ftype::Symlink,
        FileKind::BlockDevice => nfs3::Ftype::BlockDevice,
        FileKind::CharacterDevice => nfs3::Ftype::CharacterDevice,
        FileKind::Fifo => nfs3::Ftype::Fifo,
        FileKind::Socket => nfs3::Ftype::Socket,
    }
}

/// The nearest time that the wire can say: it knows 1970 to 2106.
fn time_to_wire(time: Timestamp) -> nfs3::NfsTime {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfs3::NfsTime {
            seconds,
            nanoseconds: time.nanoseconds,
        },
        Err(_) if time.seconds < 0 => nfs3::NfsTime::default(),
        Err(_) => nfs3::NfsTime {
            seconds: u32::MAX,
            nanoseconds: NANOSECONDS - 1,
        },
    }
}

/// The before-attributes of WCC data.
pub(crate) fn before_to_wire(before: WccBefore) -> nfs3::WccAttr {
    nfs3::WccAttr {
        size: before.size,
        mtime: time_to_wire(before.mtime),
        ctime: time_to_wire(before.ctime),
    }
}

/// A time that a client sent; `EINVAL` if it has a second or more of nanoseconds.
pub(crate) fn time_from_wire(time: nfs3::NfsTime) -> Result<Timestamp, Errno> {
    if time.nanoseconds >= NANOSECONDS {
        return Err(Errno::INVAL);
    }
    Ok(Timestamp {
        seconds: i64::from(time.seconds),
        nanoseconds: time.nanoseconds,
    })
}

/// What a client wants set. Ids of all ones mean "none" to system calls and nobody on the wire:
/// `EINVAL`.
pub(crate) fn set_from_wire(set: &nfs3::Sattr) -> Result<SetAttributes, Errno> {
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) || set.size.is_some_and(|size| size > MAX_SIZE)
    {
        return Err(Errno::INVAL);
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

fn set_time_from_wire(set: nfs3::TimeHow) -> Result<SetTime, Errno> {
    Ok(match set {
        nfs3::TimeHow::DontChange => SetTime::Keep,
        nfs3::TimeHow::SetToServerTime => SetTime::Now,
        nfs3::TimeHow::SetToClientTime(time) => SetTime::To(time_from_wire(time)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_wires_range_are_the_nearest_within() {
        let wire = |seconds| {
            time_to_wire(Timestamp {
                seconds,
                nanoseconds: 5,
            })
        };
        assert_eq!(
            wire(1),
            nfs3::NfsTime {
                seconds: 1,
                nanoseconds: 5
            }
        );
        assert_eq!(
            wire(-1),
            nfs3::NfsTime {
                seconds: 0,
                nanoseconds: 0
            }
        );
        assert_eq!(
            wire(i64::from(u32::MAX)),
            nfs3::NfsTime {
                seconds: u32::MAX,
                nanoseconds: 5
            }
        );
        assert_eq!(
            wire(1 << 32),
            nfs3::NfsTime {
                seconds: u32::MAX,
                nanoseconds: 999_999_999
            }
        );
    }

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
            assert_eq!(set_from_wire(&set), Err(Errno::INVAL), "{set:?}");
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
