//! Inode IDs and callers.

use std::{fmt, sync::Arc};

use curt_rpc::client::Interrupt;

/// The ID of an inode of this client. Stable while its lookup count is above 0 (see
/// [`crate::Superblock::forget`]); never reused for another object within one mount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

impl fmt::Debug for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The credentials and process of an operation's caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// All supplementary groups, in any order; AUTH_SYS carries up to 16 (RFC 5531, appendix A),
    /// which [`crate::caller::RpcSecurity::credential`] selects.
    pub groups: Arc<[u32]>,
    /// The process ID, for log lines only; 0 if there is none.
    pub pid: u32,
    /// Raised when the operation is interrupted.
    pub interrupt: Interrupt,
}

impl Caller {
    /// A caller with these IDs, no process and no interrupt.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { uid, gid, groups: groups.into(), pid: 0, interrupt: Interrupt::never() }
    }
}

/// A name in a directory, as a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NameKey {
    directory: InodeId,
    name: Box<[u8]>,
}

impl NameKey {
    pub(crate) fn new(directory: InodeId, name: &[u8]) -> Self {
        Self { directory, name: name.into() }
    }
}
