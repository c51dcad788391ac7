//! A request of the kernel: its header, and its body as a typed operation borrowed from the read
//! buffer (include/uapi/linux/fuse.h).
//!
//! Each access is checked against the request's length. Integers are in native byte order. An
//! operation that is unknown, or that this crate never offers, is [`RequestBody::Unsupported`] and
//! not an error.

use crate::{
    abi::{REQUEST_HEADER_BYTES, opcode, request_flag, set_valid},
    message_fields::{
        CreateIn, FuseFh, FuseTime, LkIn, LockKind, LockRange, MknodIn, NodeId, OpenIn, ReadIn, ReleaseIn,
        SetattrIn, SetattrTime, WriteIn,
    },
};

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InHeader {
    /// Identifies the request in its reply.
    pub(crate) unique: u64,
    /// The operation.
    pub(crate) opcode: u32,
    /// The object.
    pub(crate) node: NodeId,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The calling thread; 0 if it is in a pid namespace that the daemon cannot see.
    pub(crate) tid: u32,
}

/// The first request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) readahead_max: u32,
    pub(crate) features: u64,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestBody<'a> {
    Lookup { name: &'a [u8] },
    Forget { lookups: u64 },
    BatchForget(BatchForgetIn<'a>),
    Getattr { fh: Option<FuseFh> },
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], new: MknodIn },
    Mkdir { name: &'a [u8], mode: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], new_parent: NodeId, new_name: &'a [u8], flags: u32 },
    Link { node: NodeId, name: &'a [u8] },
    Open(OpenIn),
    Create { name: &'a [u8], create: CreateIn },
    Read(ReadIn),
    Write { write: WriteIn, data: &'a [u8] },
    Statfs,
    Flush { fh: FuseFh, lock_owner: u64 },
    Release(ReleaseIn),
    Fsync { fh: FuseFh, data_only: bool },
    Opendir { flags: u32 },
    Readdir { fh: FuseFh, offset: u64, size: u32, plus: bool },
    Releasedir { fh: FuseFh },
    Fsyncdir { fh: FuseFh },
    Access { mask: u32 },
    Getlk(LkIn),
    Setlk { lock: LkIn, wait: bool },
    Interrupt { unique: u64 },
    Init(InitIn),
    Destroy,
    Ioctl,
    Unsupported,
}

/// The entries of a BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchForgetIn<'a>(&'a [u8]);

impl BatchForgetIn<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.0.chunks_exact(16).filter_map(|pair| {
            let mut cursor = BodyReader::new(pair);
            Some((NodeId(cursor.u64().ok()?), cursor.u64().ok()?))
        })
    }
}

/// Splits a request into header and body.
pub(crate) fn split(bytes: &[u8]) -> Result<(InHeader, &[u8]), MalformedRequest> {
    let mut cursor = BodyReader::new(bytes);
    let length = cursor.u32()?;
    let opcode = cursor.u32()?;
    let header = InHeader {
        unique: cursor.u64()?,
        opcode,
        node: NodeId(cursor.u64()?),
        uid: cursor.u32()?,
        gid: cursor.u32()?,
        tid: cursor.u32()?,
    };
    // Extensions (7.38) are at the end of the body, in units of 8 bytes; none is negotiated, so
    // none is decoded.
    let extensions = usize::from(cursor.u16()?) * 8;
    let end = usize::try_from(length)
        .map_err(|_| MalformedRequest)?
        .checked_sub(extensions)
        .ok_or(MalformedRequest)?;
    let body = bytes.get(REQUEST_HEADER_BYTES..end).ok_or(MalformedRequest)?;
    Ok((header, body))
}

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

/// A request that is too short for its operation, or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of the kernel does not have the form of its operation")]
pub(crate) struct MalformedRequest;

/// The rest of a request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyReader<'a>(&'a [u8]);

impl<'a> BodyReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MalformedRequest> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedRequest)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, MalformedRequest> {
        self.fixed().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MalformedRequest> {
        self.fixed().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MalformedRequest> {
        self.fixed().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, MalformedRequest> {
        self.fixed().map(i64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), MalformedRequest> {
        self.0 = self.0.get(bytes..).ok_or(MalformedRequest)?;
        Ok(())
    }

    /// A non-empty name that ends with NUL; the NUL is not included.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let text = self.text()?;
        if text.is_empty() { Err(MalformedRequest) } else { Ok(text) }
    }

    /// Bytes that end with NUL; the NUL is not included.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(MalformedRequest)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).ok_or(MalformedRequest)?;
        Ok(text)
    }

    /// Exactly `length` bytes.
    pub(crate) fn bytes(&mut self, length: u32) -> Result<&'a [u8], MalformedRequest> {
        let length = usize::try_from(length).map_err(|_| MalformedRequest)?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(MalformedRequest)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;

    fn request(number: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = u32::try_from(REQUEST_HEADER_BYTES + body.len()).expect("short");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        for word in [77_u64, 5] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [1000_u32, 100, 4321, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_header_names_who_asks() {
        let bytes = request(opcode::LOOKUP, b"name\0");
        let (header, body) = split(&bytes).expect("well formed");
        let expected =
            InHeader { unique: 77, opcode: opcode::LOOKUP, node: NodeId(5), uid: 1000, gid: 100, tid: 4321 };
        assert_eq!(header, expected);
        assert!(matches!(parse(&header, body), Ok(RequestBody::Lookup { name: b"name" })));
    }

    #[test]
    fn every_operation_cut_anywhere_is_refused_or_read_but_never_panics() {
        for number in 0..=60 {
            let whole = request(number, &[1; 120]);
            for cut in REQUEST_HEADER_BYTES..whole.len() {
                let mut bytes = whole[..cut].to_vec();
                let length = u32::try_from(cut).expect("short");
                bytes[..4].copy_from_slice(&length.to_ne_bytes());
                let (header, body) = split(&bytes).expect("the header is whole");
                let _ = parse(&header, body);
            }
        }
    }

    #[test]
    fn extensions_are_not_part_of_the_body() {
        let mut bytes = request(opcode::UNLINK, b"n\0......12345678");
        bytes[36..38].copy_from_slice(&1_u16.to_ne_bytes());
        let (_, body) = split(&bytes).expect("well formed");
        assert_eq!(body, b"n\0......");
        bytes[36..38].copy_from_slice(&1000_u16.to_ne_bytes());
        assert_eq!(split(&bytes).err(), Some(MalformedRequest));
    }

    #[test]
    fn a_write_holds_exactly_its_data() {
        let mut body = words(&[1, 0, 2, 0, 3, 1 << 2, 0, 0, 0, 0]);
        body.extend(b"abc");
        let bytes = request(opcode::WRITE, &body);
        let (header, body) = split(&bytes).expect("well formed");
        let Ok(RequestBody::Write { write, data }) = parse(&header, body) else { panic!("a write") };
        assert_eq!((write.fh, write.offset, write.kill_set_id, data), (FuseFh(1), 2, true, &b"abc"[..]));
        assert!(parse(&header, &body[..body.len() - 1]).is_err());
        assert!(parse(&header, &[body, b"d"].concat()).is_err());
    }

    #[test]
    fn a_batch_of_forgets_must_be_whole() {
        let mut body = words(&[2, 0]);
        for word in [5_u64, 1, 6, 2] {
            body.extend(word.to_ne_bytes());
        }
        let bytes = request(opcode::BATCH_FORGET, &body);
        let (header, body) = split(&bytes).expect("well formed");
        let Ok(RequestBody::BatchForget(forgets)) = parse(&header, body) else { panic!("forgets") };
        assert_eq!(forgets.iter().collect::<Vec<_>>(), [(NodeId(5), 1), (NodeId(6), 2)]);
        assert!(parse(&header, &body[..body.len() - 8]).is_err());
    }

    #[test]
    fn short_bytes_are_malformed_and_never_a_panic() {
        for length in 0..8 {
            let bytes = vec![1_u8; length];
            assert_eq!(BodyReader::new(&bytes).u64(), Err(MalformedRequest));
            assert_eq!(BodyReader::new(&bytes).name(), Err(MalformedRequest));
        }
        assert_eq!(BodyReader::new(&[1; 8]).bytes(9), Err(MalformedRequest));
    }

    #[test]
    fn names_end_at_their_nul() {
        let mut cursor = BodyReader::new(b"old\0new\0");
        assert_eq!(cursor.name(), Ok(&b"old"[..]));
        assert_eq!(cursor.name(), Ok(&b"new"[..]));
        assert_eq!(cursor.name(), Err(MalformedRequest));
        assert_eq!(BodyReader::new(b"\0").name(), Err(MalformedRequest));
        assert_eq!(BodyReader::new(b"\0").text(), Ok(&b""[..]));
    }
}
