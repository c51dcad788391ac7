//! Byte-range locks of one mount: who holds what, who waits, and what the server has to be asked.
//!
//! The lock agent ([`LockAgent`]) is a state machine: each event (a lock is wanted, a reply has
//! come, a wait is interrupted) returns the actions that follow from it (send a request, answer a
//! caller, set a timer). It has no clock and does no I/O; its caller does that, with the agent's
//! mutex released.
//!
//! - A blocking request that conflicts with a lock or an earlier waiter of this mount is queued
//!   without a request to the server. Only the first one in a range asks the server.
//! - What is pending is not held. A refusal or an interruption leaves the owner's locks as they
//!   were; what the server may have granted meanwhile is given back.
//! - A range is free only when the server has confirmed its UNLOCK. The next waiter starts with
//!   that reply.
//! - Requests of one owner for overlapping ranges are sent one after the other, since the server
//!   may execute them in any order.
//! - A deadlock among the fcntl locks of this mount, over all its files, is an error for the last
//!   one to wait, or for those who wait for the lock whose grant completes it. Waiting in the order
//!   of arrival never causes a deadlock: an owner passes waiters that wait for itself.
//!
//! The meaning of a conflict is that of fcntl(2). Locks of flock(2) are locks of the whole file: at
//! the server the two conflict, as with Linux's NFS client.

mod agent;
mod asking;
mod cancelled;
mod deadlock;
mod events;
mod intervals;
mod queries;
mod ranges;
mod reclaim;
mod releasing;
mod table;
mod waiters;

pub use agent::{LockAgent, RELEASES_MAX, WAITERS_MAX};
pub use events::{
    GrantedCallback, LocalLockOwner, LocalLockRequest, LockAction, LockCallId, LockError, LockFileId,
    LockOpenId, LockOptions, LockOrder, LockProcedure, LockReply, LockRequestId, LockServerCall, LockTest,
    LockTimer, LockWait,
};
pub use intervals::poll_interval;
pub use ranges::LockRanges;
