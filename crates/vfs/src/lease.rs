//! Leases of the kernel: it notifies when a process of this machine wants to write a file.

/// A lease on a file. Dropping it gives it up; then processes that wait for it continue.
pub trait FileLease: Send + Sync {
    /// Whether a process wants to write the file.
    fn is_broken(&self) -> bool;
}

/// Called when a process wants to write a file, on the thread of a
/// [`LeaseWatcher`](crate::LeaseWatcher).
pub type LeaseBroken = Box<dyn Fn() + Send + Sync>;
