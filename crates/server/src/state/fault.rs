//! Why a request on state fails, in terms of no protocol version.

/// The cause of a failed request on state. `v4` converts it to a status in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateFault {
    /// An argument is invalid.
    Invalid,
    /// The request must be repeated later: it is in progress, or a limit is reached for the moment.
    Delay,
    /// A limit of this client is reached.
    NoSpace,
    /// There are too many locks, or the client has too many.
    TooManyLocks,
    /// No record of the client exists.
    NoRecord,
    /// The record belongs to another verifier.
    NotSame,
    /// The record belongs to another principal.
    NotPermitted,
    /// Another principal uses the client's owner.
    ClientInUse,
    /// The client id is unknown, or of an earlier run of the server.
    StaleClient,
    /// The client still has sessions or state.
    ClientBusy,
    /// The client was removed while its request was executed.
    DeadSession,
    /// The session is unknown.
    BadSession,
    /// The slot is beyond the session's.
    BadSlot,
    /// The highest slot is beyond the session's.
    BadHighSlot,
    /// The sequence id is neither that of the last request nor the next one.
    Misordered,
    /// The sequence id is that of the last request, whose contents were different.
    FalseRetry,
    /// The compound has more operations than the session allows.
    TooManyOperations,
    /// The request is larger than the session allows.
    RequestTooBig,
    /// The session takes no reply of the size that the smallest would have.
    ReplyTooBig,
    /// The reply is to be cached, and no reply is small enough for the session's cache.
    TooBigToCache,
    /// The channel's sizes are too small for any request.
    TooSmall,
    /// The stateid is of no state of this client, or of an earlier run of the server.
    BadStateid,
    /// The state has changed since the stateid was issued.
    OldStateid,
    /// The administrator has revoked the state.
    AdminRevoked,
    /// The delegation was recalled and not returned.
    DelegationRevoked,
    /// An open of another owner denies the access, or has an access that would be denied.
    ShareDenied,
    /// The open does not include this access.
    OpenMode,
    /// An open of another owner denies the I/O.
    Locked,
    /// The state still has locks.
    LocksHeld,
    /// The client has completed its reclaims before.
    CompleteAlready,
    /// The client has to complete its reclaims first, or the server is in its grace period.
    Grace,
    /// There is nothing to reclaim, or no longer.
    NoGrace,
    /// The client has no record of the state that it reclaims.
    ReclaimBad,
    /// The state to be reclaimed conflicts with another.
    ReclaimConflict,
}
