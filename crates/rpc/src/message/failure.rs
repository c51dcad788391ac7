//! Why a call has no results.

use crate::security::auth::AuthStatus;

/// The versions that a peer supports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// The lowest.
    pub low: u32,
    /// The highest.
    pub high: u32,
}

/// Why a call has no results; becomes the reply's status (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFailure {
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served in other versions.
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArguments,
    /// Another error, such as lack of memory.
    SystemError,
    /// The credential is rejected.
    Denied(AuthStatus),
    /// No reply is sent: the call is a duplicate of one that is in progress, whose reply will be
    /// sent, or it was deferred.
    NoReply,
}
