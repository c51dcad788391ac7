//! Byte-range locks at the server: who holds what, who waits, and who is next.
//!
//! [`LockTable`] is a state machine without clock and I/O, the same for NLM and NFSv4. Each request
//! is answered at once. What has to be sent to clients as a consequence is returned as
//! [`LockCallback`]s; the caller sends them after it has released its mutex, and reports the answers.

mod held;
mod owners;
mod queue;
mod ranges;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use owners::{ClientAccount, ClientLimits};
pub use table::{LockTable, LockTableOptions};
pub use values::{
    CallbackAnswer, CallbackId, CallbackStyle, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial,
    LockFile, LockHolder, LockOutcome, LockOwner, LockRequest, LockTableCounts, LockWait, OWNER_NAME_MAX,
};
