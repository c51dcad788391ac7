//! The values of opens, independent of a protocol version.

use std::sync::Arc;

use curt_rpc::auth::RpcCredential;

/// What a file is opened for. NFSv4 calls it share access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    Both,
}

impl ShareAccess {
    /// The access of an open with these flags. An open for neither, as for execution, reads.
    #[must_use]
    pub const fn of(reads: bool, writes: bool) -> Self {
        match (reads, writes) {
            (_, false) => Self::Read,
            (false, true) => Self::Write,
            (true, true) => Self::Both,
        }
    }
}

/// The opener of a file: the client's number for a user with its groups, and the credential.
#[derive(Clone, Copy, Debug)]
pub struct OpenOwner<'a> {
    /// The number.
    pub number: u32,
    /// The credential.
    pub credential: &'a Arc<RpcCredential>,
}

/// The open of a file that is created.
#[derive(Clone, Copy, Debug)]
pub struct NewOpen<'a> {
    /// Whose.
    pub owner: OpenOwner<'a>,
    /// What for.
    pub access: ShareAccess,
}
