//! Callers and inode numbers.

use std::{fmt, sync::Arc};

use curt_rpc::client::Interrupt;

/// An inode of this client. Stable while its look-up count is above 0 (see
/// [`crate::Superblock::forget`]); never used again for another object within one mount.
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

/// On whose behalf an operation is done.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// All supplementary groups, in any order; AUTH_SYS carries the first 16 of them (RFC 5531,
    /// appendix A).
    pub groups: Arc<[u32]>,
    /// The process, for log lines only; 0 if there is none.
    pub pid: u32,
    /// Raised when the caller does not wait any more.
    pub interrupt: Interrupt,
}

impl Caller {
    /// A caller with these ids, no process and no interrupt.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { uid, gid, groups: groups.into(), pid: 0, interrupt: Interrupt::never() }
    }
}
