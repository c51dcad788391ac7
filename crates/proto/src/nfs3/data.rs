//! READ, WRITE and COMMIT. READ's failure carries the file's attributes, those of WRITE and COMMIT its [`WccData`].

use curt_xdr::{Encode, Opaque, Xdr, put_padding};

use super::{Fattr, FileHandle, Status, WccData, WriteVerifier};

/// Bytes of a READ or WRITE at most.
pub const DATA_MAX: usize = 1 << 20;

/// READ3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArguments {
    /// The file.
    pub file: FileHandle,
    /// Where to begin.
    pub offset: u64,
    /// Bytes wanted.
    pub count: u32,
}

/// READ3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadOk<'a> {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// Bytes read.
    pub count: u32,
    /// Whether the last byte read is the file's last.
    pub eof: bool,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// A successful READ's result as a server makes it: the bytes are read into their place in the reply, and the attributes
/// of the moment after that are put before them.
#[derive(Debug)]
pub struct ReadReply {
    start: usize,
}

impl ReadReply {
    /// Status, attributes, count, eof and the data's length.
    const HEAD: usize = 4 + 4 + Fattr::SIZE + 4 + 4 + 4;

    /// Makes room for the head. `count` bytes of data may be appended to `out` next.
    #[must_use]
    pub fn begin(out: &mut Vec<u8>) -> Self {
        let start = out.len();
        out.resize(start + Self::HEAD, 0);
        Self { start }
    }

    /// Fills in the head before the data that now follow it, and pads them.
    pub fn finish(self, out: &mut Vec<u8>, attributes: &Fattr, eof: bool) {
        let length = out.len() - self.start - Self::HEAD;
        put_padding(out, length);
        let count = u32::try_from(length).unwrap_or(u32::MAX);
        // Encoded behind the data, where there is room, and moved to its place.
        let end = out.len();
        Status::Ok.encode(out);
        Some(*attributes).encode(out);
        count.encode(out);
        eof.encode(out);
        count.encode(out);
        debug_assert_eq!(out.len() - end, Self::HEAD);
        out.copy_within(end.., self.start);
        out.truncate(end);
    }

    /// Takes the room back: the READ failed.
    pub fn cancel(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }
}

/// stable_how: how safe written data are when the reply comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Xdr)]
#[repr(u32)]
pub enum Stability {
    /// In memory; COMMIT makes them safe.
    Unstable = 0,
    /// The data are on stable storage.
    DataSync = 1,
    /// Data and attributes are on stable storage.
    FileSync = 2,
}

/// WRITE3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteArguments<'a> {
    /// The file.
    pub file: FileHandle,
    /// Where to begin.
    pub offset: u64,
    /// Bytes to write; not more than there are data.
    pub count: u32,
    /// How safe they shall be.
    pub stable: Stability,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// WRITE3args without the bytes, which a client sends behind it from where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The file.
    pub file: FileHandle,
    /// Where to begin.
    pub offset: u64,
    /// Bytes that follow.
    pub count: u32,
    /// How safe they shall be.
    pub stable: Stability,
}

impl Encode for WriteHead {
    fn encode(&self, out: &mut Vec<u8>) {
        self.file.encode(out);
        self.offset.encode(out);
        self.count.encode(out);
        self.stable.encode(out);
        self.count.encode(out);
    }
}

/// WRITE3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk {
    /// The file around the operation.
    pub wcc: WccData,
    /// Bytes written.
    pub count: u32,
    /// How safe they are.
    pub committed: Stability,
    /// The server's instance.
    pub verifier: WriteVerifier,
}

/// COMMIT3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArguments {
    /// The file.
    pub file: FileHandle,
    /// Where to begin.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub count: u32,
}

/// COMMIT3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk {
    /// The file around the operation.
    pub wcc: WccData,
    /// The server's instance.
    pub verifier: WriteVerifier,
}
