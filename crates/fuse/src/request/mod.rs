//! A request of the kernel: its header, and its body as a typed operation borrowed from the read
//! buffer.
//!
//! An operation that is unknown, or that this crate never offers, is [`RequestBody::Unsupported`]
//! and not an error.

pub(crate) mod body;

use crate::{
    abi::{
        REQUEST_HEADER_BYTES,
        parse::{BodyReader, MalformedRequest},
    },
    values::{CreateIn, FuseFh, LkIn, MknodIn, NodeId, OpenIn, ReadIn, ReleaseIn, SetattrIn, WriteIn},
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

#[cfg(test)]
mod tests {
    use super::{body::parse, *};
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
}
