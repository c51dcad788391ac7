//! The server's side: connections, the threads that serve them, and the limits on both.

mod context;
mod limits;

pub use context::Context;
pub use limits::Limits;

use crate::{
    auth::AuthStatus,
    message::{Call, Versions},
};

/// Something that answers calls. Called on many threads at once.
pub trait Service: Send + Sync {
    /// Answers one call: appends the procedure's results to `reply` and touches nothing that is in it already.
    ///
    /// # Errors
    /// [`CallFailure`]: whatever was appended is dropped, and the client told.
    fn call(
        &self,
        call: &Call<'_>,
        context: &mut Context<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure>;
}

/// Why a call has no results; becomes the reply's status (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFailure {
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served in other versions.
    ProgramMismatch(Versions),
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArguments,
    /// Something else, such as memory that ran out.
    SystemError,
    /// The credential is not believed.
    Denied(AuthStatus),
}
