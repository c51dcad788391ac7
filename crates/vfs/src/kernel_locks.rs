//! Locks of the kernel, for processes of this machine.

use curt_types::{ByteRange, LockType};

use crate::error::Error;

/// An open file description that holds byte-range locks of the kernel (OFD locks) on behalf of all
/// clients, so that they and processes of this machine exclude each other. Dropping it releases
/// them. No call waits for a lock. A file that cannot be opened for writing has read locks in place
/// of write locks: no client can write to it through this tree.
pub trait KernelLocks: Send {
    /// Holds the range with this type from now on (none: not at all). Nothing changes if it
    /// conflicts.
    ///
    /// # Errors
    /// [`KernelLockError`].
    fn set(&mut self, range: ByteRange, lock_type: Option<LockType>) -> Result<(), KernelLockError>;

    /// The lock of a process that does not allow one of this type and range.
    ///
    /// # Errors
    /// The kernel's error.
    fn test(&self, range: ByteRange, lock_type: LockType) -> Result<Option<ProcessLock>, Error>;
}

/// A lock of a process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLock {
    /// The process; 0 if the lock belongs to an open file description, or to a process in another
    /// namespace.
    pub process: u32,
    /// Its type.
    pub lock_type: LockType,
    /// Its range.
    pub range: ByteRange,
}

/// Why the kernel did not lock a range.
#[derive(Debug, thiserror::Error)]
pub enum KernelLockError {
    /// A process of this machine has a lock that conflicts.
    #[error("a local process holds a conflicting lock")]
    Conflict,
    /// The call failed.
    #[error(transparent)]
    Failed(#[from] Error),
}
