//! Who answers calls, on either side of a connection.

use std::sync::Arc;

use curt_trace::stages::StageTimes;

use super::context::CallContext;
use crate::{
    auth::AuthStatus,
    message::{CallMessage, VersionRange},
};

/// Something that answers calls. Called on many threads at once.
pub trait RpcService: Send + Sync {
    /// Answers one call: appends the procedure's results to `reply` and touches nothing that is in
    /// it already.
    ///
    /// # Errors
    /// [`CallFailure`]: whatever was appended is dropped, and the client told.
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure>;

    /// Where it wants to know where the time of its calls goes, if it does. Asked once, when a
    /// server is made.
    fn stages(&self) -> Option<Arc<StageTimes>> {
        None
    }
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
    /// Something else, such as memory that ran out.
    SystemError,
    /// The credential is not believed.
    Denied(AuthStatus),
    /// There is to be no reply at all: the call is a duplicate of one that is still being executed,
    /// whose reply will come.
    NoReply,
}
