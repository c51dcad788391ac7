//! Byte-range locks at the server: who holds what, who waits, and who is next.
//!
//! [`LockTable`] is a state machine without clock and I/O, the same for NLM and NFSv4. Each request
//! is answered at once. What has to be sent to clients as a consequence is returned as
//! [`LockCallback`]s; the caller sends them after it has released its mutex, and reports the
//! answers.
//!
//! - The locks of an owner merge and split as those of fcntl(2). Time and memory of a lock do not
//!   depend on how many others there are (`held`).
//! - Clients that wait take turns, and the requests of one client are served in the order of their
//!   arrival (`queue`). A request also waits for conflicting requests before it, so readers do not
//!   starve a writer. An owner passes those that wait for its own locks.
//! - A waiter is granted the lock and notified (NLM), or notified to ask again (NFSv4). In the
//!   second case nothing is reserved until its client has answered; then for four round trips,
//!   once. A client that cannot be called repeats its request (`LockWait::Repeated`): when it is
//!   first, the range is reserved for the next repetition.
//! - A grant that its client refuses, cancels or cannot have received is taken back. One that the
//!   client may know of stays until the client unlocks or cancels it, or restarts: NLM has no
//!   lease. It is retransmitted until it is answered.
//! - No waiter that can have its lock is left waiting: after each change that frees bytes there is
//!   a pass over the queue (`promotion`).
//!
//! Deadlocks of clients over several locks are not detected, as with knfsd.

mod callbacks;
mod held;
mod owners;
mod promotion;
mod queue;
mod ranges;
mod requests;
mod table;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(in crate::state) use held::visits;
pub use owners::{ClientAccount, ClientLimits};
pub(crate) use owners::{LockUsage, owner_weight};
pub use requests::{
    CallbackAnswer, CallbackId, CallbackStyle, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial,
    LockFile, LockHolder, LockOutcome, LockOwner, LockRequest, LockTableCounts, LockWait, OWNER_NAME_MAX,
};
pub use table::{LockTable, LockTableOptions};
