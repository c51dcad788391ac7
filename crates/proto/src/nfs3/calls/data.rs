//! READ, WRITE, COMMIT (RFC 1813 sections 3.3.6, 3.3.7, 3.3.21).

use curt_xdr::{Encode, Opaque, Xdr};

use crate::nfs3::{DATA_MAX, Fattr, NfsFh3, WccData, WriteVerifier};

/// READ's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArguments {
    /// The file.
    pub file: NfsFh3,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// How many bytes at most.
    pub count: u32,
}

/// READ's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadOk<'a> {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// How many bytes were read; should be the length of `data`, which is what counts.
    pub count: u32,
    /// Whether the read reached the end of the file.
    pub eof: bool,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// What a failed READ carries: the file's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ReadFail {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
}

/// How firmly a WRITE must be kept before it is answered, or was (`stable_how`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub enum StableHow {
    /// A COMMIT must follow.
    #[default]
    Unstable = 0,
    /// The data, and the attributes needed to find them, are on stable storage.
    DataSync = 1,
    /// The data and all attributes are on stable storage.
    FileSync = 2,
}

/// WRITE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteArguments<'a> {
    /// The file.
    pub file: NfsFh3,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// How many bytes; should be the length of `data`.
    pub count: u32,
    /// How firmly they must be kept.
    pub stable: StableHow,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// WRITE's arguments up to and with the data's length, for senders that append the data themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The file.
    pub file: NfsFh3,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// How many bytes follow this head (then their padding).
    pub count: u32,
    /// How firmly they must be kept.
    pub stable: StableHow,
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

/// WRITE's result; a failure carries the WCC data alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk {
    /// The file before and after.
    pub wcc: WccData,
    /// How many bytes were written.
    pub count: u32,
    /// How firmly; at least as asked.
    pub committed: StableHow,
    /// Which life of the server holds them.
    pub verifier: WriteVerifier,
}

/// COMMIT's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArguments {
    /// The file.
    pub file: NfsFh3,
    /// Where to begin, in bytes.
    pub offset: u64,
    /// How many bytes; 0 is all to the end.
    pub count: u32,
}

/// COMMIT's result; a failure carries the WCC data alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk {
    /// The file before and after.
    pub wcc: WccData,
    /// If it is not the one that a WRITE returned, that WRITE may be lost.
    pub verifier: WriteVerifier,
}
