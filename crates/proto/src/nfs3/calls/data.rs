//! READ, WRITE, COMMIT (RFC 1813 sections 3.3.6, 3.3.7, 3.3.21).

use curt_xdr::{Encode, Opaque, Xdr};

use crate::nfs3::{DATA_MAX, Fattr, NfsFh3, WccData, WriteVerf3};

/// READ's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArguments {
    /// The file.
    pub file: NfsFh3,
    /// The offset in bytes.
    pub offset: u64,
    /// Maximum number of bytes.
    pub count: u32,
}

/// READ's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadOk<'a> {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// Number of bytes read; should be the length of `data`, which is used instead.
    pub count: u32,
    /// Whether the read reached the end of the file.
    pub eof: bool,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// The result of a failed READ: the file's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ReadFail {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
}

/// The stability of a WRITE: requested, or committed (`stable_how`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub enum StableHow {
    /// A COMMIT must follow.
    #[default]
    Unstable = 0,
    /// The data, and metadata needed to read them, are on stable storage.
    DataSync = 1,
    /// The data and all attributes are on stable storage.
    FileSync = 2,
}

/// WRITE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteArguments<'a> {
    /// The file.
    pub file: NfsFh3,
    /// The offset in bytes.
    pub offset: u64,
    /// Number of bytes; should be the length of `data`.
    pub count: u32,
    /// The requested stability.
    pub stable: StableHow,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// WRITE's arguments up to and including the data's length, for senders that append the data
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The file.
    pub file: NfsFh3,
    /// The offset in bytes.
    pub offset: u64,
    /// Number of bytes that follow (then their padding).
    pub count: u32,
    /// The requested stability.
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

/// WRITE's result; a failure has only the WCC data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk {
    /// The file before and after.
    pub wcc: WccData,
    /// Number of bytes written.
    pub count: u32,
    /// The stability; at least as requested.
    pub committed: StableHow,
    /// The server's write verifier.
    pub verifier: WriteVerf3,
}

/// COMMIT's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArguments {
    /// The file.
    pub file: NfsFh3,
    /// The offset in bytes.
    pub offset: u64,
    /// Number of bytes; 0 means to the end.
    pub count: u32,
}

/// COMMIT's result; a failure has only the WCC data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk {
    /// The file before and after.
    pub wcc: WccData,
    /// If it differs from that of a WRITE, the data of that WRITE may be lost.
    pub verifier: WriteVerf3,
}
