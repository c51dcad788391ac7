//! The bodies of requests, by operation (include/uapi/linux/fuse.h). Does not depend on headers and
//! replies.

use super::{BatchForgetIn, InHeader, InitIn, RequestBody};
use crate::{
    abi::{
        opcode,
        parse::{BodyReader, MalformedRequest},
        request_flag, set_valid,
    },
    values::{
        CreateIn, FuseFh, FuseTime, LkIn, LockKind, LockRange, MknodIn, NodeId, OpenIn, ReadIn, ReleaseIn,
        SetattrIn, SetattrTime, WriteIn,
    },
};

/// Decodes the body of a request.
pub(crate) fn parse<'a>(header: &InHeader, body: &'a [u8]) -> Result<RequestBody<'a>, MalformedRequest> {
    let mut c = BodyReader::new(body);
    Ok(match header.opcode {
        opcode::LOOKUP => RequestBody::Lookup { name: c.name()? },
        opcode::FORGET => RequestBody::Forget { lookups: c.u64()? },
        opcode::BATCH_FORGET => parse_forgets(c)?,
        opcode::GETATTR => parse_getattr(c)?,
        opcode::SETATTR => RequestBody::Setattr(parse_setattr(c)?),
        opcode::READLINK => RequestBody::Readlink,
        opcode::ACCESS => RequestBody::Access { mask: c.u32()? },
        opcode::STATFS => RequestBody::Statfs,
        opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::UNLINK | opcode::RMDIR | opcode::LINK => {
            parse_naming(header.opcode, c)?
        }
        opcode::RENAME => parse_rename(NodeId(c.u64()?), 0, c)?,
        opcode::RENAME2 => {
            let new_parent = NodeId(c.u64()?);
            let flags = c.u32()?;
            c.skip(4)?;
            parse_rename(new_parent, flags, c)?
        }
        opcode::OPEN | opcode::CREATE | opcode::OPENDIR => parse_open(header.opcode, c)?,
        opcode::READ => RequestBody::Read(parse_read(c)?),
        opcode::WRITE => parse_write(c)?,
        opcode::FLUSH | opcode::FSYNC | opcode::FSYNCDIR => parse_sync(header.opcode, c)?,
        opcode::RELEASE | opcode::RELEASEDIR => parse_release(header.opcode, c)?,
        opcode::READDIR | opcode::READDIRPLUS => {
            let read = parse_read(c)?;
            let plus = header.opcode == opcode::READDIRPLUS;
            RequestBody::Readdir { fh: read.fh, offset: read.offset, size: read.size, plus }
        }
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => parse_lock(header.opcode, c)?,
        opcode::INTERRUPT => RequestBody::Interrupt { unique: c.u64()? },
        opcode::INIT => RequestBody::Init(parse_init(c)?),
        opcode::DESTROY => RequestBody::Destroy,
        opcode::IOCTL => RequestBody::Ioctl,
        // The reply is ENOSYS, after which the kernel handles these itself: extended attributes are
        // EOPNOTSUPP and not requested again (so no write requests security.capability),
        // fallocate(2) and O_TMPFILE are EOPNOTSUPP, lseek(2) treats the file as one extent of
        // data, copy_file_range(2) copies, statx(2) uses GETATTR, syncfs(2) syncs the kernel's part
        // only, poll(2) is always ready, FIBMAP is EINVAL.
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            RequestBody::Unsupported
        }
        opcode::FALLOCATE | opcode::TMPFILE | opcode::LSEEK | opcode::COPY_FILE_RANGE => {
            RequestBody::Unsupported
        }
        opcode::COPY_FILE_RANGE_64 | opcode::STATX | opcode::SYNCFS | opcode::POLL | opcode::BMAP => {
            RequestBody::Unsupported
        }
        // Only sent in reply to a notification that this crate does not send.
        opcode::NOTIFY_REPLY => RequestBody::Unsupported,
        _ => RequestBody::Unsupported,
    })
}

fn parse_forgets(mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let count = c.u32()?;
    c.skip(4)?;
    let bytes = c.bytes(count.checked_mul(16).ok_or(MalformedRequest)?)?;
    Ok(RequestBody::BatchForget(BatchForgetIn(bytes)))
}

fn parse_getattr(mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let flags = c.u32()?;
    c.skip(4)?;
    let fh = FuseFh(c.u64()?);
    Ok(RequestBody::Getattr { fh: (flags & request_flag::GETATTR_FH != 0).then_some(fh) })
}

fn parse_setattr(mut c: BodyReader<'_>) -> Result<SetattrIn, MalformedRequest> {
    let valid = c.u32()?;
    let has = |bit: u32| valid & bit != 0;
    c.skip(4)?;
    let fh = c.u64()?;
    let size = c.u64()?;
    c.skip(8)?;
    let (atime, mtime, _ctime) = (c.i64()?, c.i64()?, c.i64()?);
    let (atime_nanoseconds, mtime_nanoseconds, _) = (c.u32()?, c.u32()?, c.u32()?);
    let mode = c.u32()?;
    c.skip(4)?;
    let (uid, gid) = (c.u32()?, c.u32()?);
    let time = |now: u32, to: u32, seconds: i64, nanoseconds: u32| {
        if has(now) {
            Some(SetattrTime::Now)
        } else {
            has(to).then_some(SetattrTime::To(FuseTime { seconds, nanoseconds }))
        }
    };
    Ok(SetattrIn {
        fh: has(set_valid::FH).then_some(FuseFh(fh)),
        mode: has(set_valid::MODE).then_some(mode),
        uid: has(set_valid::UID).then_some(uid),
        gid: has(set_valid::GID).then_some(gid),
        size: has(set_valid::SIZE).then_some(size),
        atime: time(set_valid::ATIME_NOW, set_valid::ATIME, atime, atime_nanoseconds),
        mtime: time(set_valid::MTIME_NOW, set_valid::MTIME, mtime, mtime_nanoseconds),
        kill_set_id: has(set_valid::KILL_SUIDGID),
    })
}

/// Operations that create or remove a name. The kernel has already applied the umask to the mode.
fn parse_naming(number: u32, mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    Ok(match number {
        opcode::SYMLINK => RequestBody::Symlink { name: c.name()?, target: c.name()? },
        opcode::MKNOD => {
            let new = MknodIn { mode: c.u32()?, device: c.u32()? };
            c.skip(8)?;
            RequestBody::Mknod { name: c.name()?, new }
        }
        opcode::MKDIR => {
            let mode = c.u32()?;
            c.skip(4)?;
            RequestBody::Mkdir { name: c.name()?, mode }
        }
        opcode::UNLINK => RequestBody::Unlink { name: c.name()? },
        opcode::RMDIR => RequestBody::Rmdir { name: c.name()? },
        _ => RequestBody::Link { node: NodeId(c.u64()?), name: c.name()? },
    })
}

fn parse_rename(
    new_parent: NodeId,
    flags: u32,
    mut c: BodyReader<'_>,
) -> Result<RequestBody<'_>, MalformedRequest> {
    Ok(RequestBody::Rename { name: c.name()?, new_parent, new_name: c.name()?, flags })
}

fn parse_open(number: u32, mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let flags = c.u32()?;
    match number {
        opcode::OPENDIR => Ok(RequestBody::Opendir { flags }),
        opcode::OPEN => {
            let kill_set_id = c.u32()? & request_flag::OPEN_KILL_SUIDGID != 0;
            Ok(RequestBody::Open(OpenIn { flags, kill_set_id }))
        }
        _ => {
            let mode = c.u32()?;
            c.skip(4)?;
            let kill_set_id = c.u32()? & request_flag::OPEN_KILL_SUIDGID != 0;
            Ok(RequestBody::Create { name: c.name()?, create: CreateIn { flags, mode, kill_set_id } })
        }
    }
}

fn parse_sync(number: u32, mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let fh = FuseFh(c.u64()?);
    Ok(match number {
        opcode::FLUSH => {
            c.skip(8)?;
            RequestBody::Flush { fh, lock_owner: c.u64()? }
        }
        opcode::FSYNC => RequestBody::Fsync { fh, data_only: c.u32()? & request_flag::FSYNC_DATA_ONLY != 0 },
        _ => RequestBody::Fsyncdir { fh },
    })
}

fn parse_read(mut c: BodyReader<'_>) -> Result<ReadIn, MalformedRequest> {
    let fh = FuseFh(c.u64()?);
    let offset = c.u64()?;
    let size = c.u32()?;
    let read_flags = c.u32()?;
    let lock_owner = c.u64()?;
    let flags = c.u32()?;
    let lock_owner = (read_flags & request_flag::READ_LOCK_OWNER != 0).then_some(lock_owner);
    Ok(ReadIn { fh, offset, size, flags, lock_owner })
}

fn parse_write(mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let fh = FuseFh(c.u64()?);
    let offset = c.u64()?;
    let size = c.u32()?;
    let write_flags = c.u32()?;
    let lock_owner = c.u64()?;
    let flags = c.u32()?;
    c.skip(4)?;
    let has = |bit: u32| write_flags & bit != 0;
    let write = WriteIn {
        fh,
        offset,
        flags,
        from_cache: has(request_flag::WRITE_CACHE),
        kill_set_id: has(request_flag::WRITE_KILL_SUIDGID),
        lock_owner: has(request_flag::WRITE_LOCK_OWNER).then_some(lock_owner),
    };
    let data = c.bytes(size)?;
    if c.rest().is_empty() { Ok(RequestBody::Write { write, data }) } else { Err(MalformedRequest) }
}

fn parse_release(number: u32, mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let fh = FuseFh(c.u64()?);
    let flags = c.u32()?;
    let release_flags = c.u32()?;
    let lock_owner = c.u64()?;
    if number == opcode::RELEASEDIR {
        return Ok(RequestBody::Releasedir { fh });
    }
    let flock_unlock = release_flags & request_flag::RELEASE_FLOCK_UNLOCK != 0;
    Ok(RequestBody::Release(ReleaseIn { fh, flags, flock_unlock, lock_owner }))
}

fn parse_lock(number: u32, mut c: BodyReader<'_>) -> Result<RequestBody<'_>, MalformedRequest> {
    let fh = FuseFh(c.u64()?);
    let owner = c.u64()?;
    let (start, end) = (c.u64()?, c.u64()?);
    let kind = LockKind::from_wire(c.u32()?).ok_or(MalformedRequest)?;
    let pid = c.u32()?;
    let flock = c.u32()? & request_flag::LOCK_FLOCK != 0;
    let lock = LkIn { fh, owner, range: LockRange { start, end, kind, pid }, flock };
    Ok(match number {
        opcode::GETLK => RequestBody::Getlk(lock),
        _ => RequestBody::Setlk { lock, wait: number == opcode::SETLKW },
    })
}

fn parse_init(mut c: BodyReader<'_>) -> Result<InitIn, MalformedRequest> {
    let (major, minor) = (c.u32()?, c.u32()?);
    // The following fields exist since 7.6, the second word of features since 7.36.
    let readahead_max = c.u32().unwrap_or(0);
    let low = c.u32().unwrap_or(0);
    let high = c.u32().unwrap_or(0);
    Ok(InitIn { major, minor, readahead_max, features: u64::from(low) | u64::from(high) << 32 })
}
