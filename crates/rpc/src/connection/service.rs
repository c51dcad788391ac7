//! Who answers calls, and who can be called back, on either end of a connection.

use std::{sync::Arc, time::Duration};

use curt_trace::stages::StageTimes;

use super::{CallError, CallReply, RpcRequest, context::CallContext};
use crate::message::{CallFailure, CallMessage};

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

/// The way back to a client over the connection that it made (RFC 8881 section 2.10.3.1). A service
/// may keep it; it does not keep the connection open.
pub trait Backchannel: Send + Sync {
    /// Calls the client, and waits for its reply. Called once: a call whose connection ends is not
    /// sent again (RFC 8881 section 2.10.6.2).
    ///
    /// Not to be used by a thread that answers a call: a client that does not reply would hold the
    /// thread for as long as `timeout`. A call that depends on the reply is told to come back.
    ///
    /// # Errors
    /// [`CallError::TimedOut`] after `timeout`; [`CallError::Closed`] if the connection is gone or
    /// ends; [`CallError::TooManyCalls`]; others as for any call.
    fn call(&self, request: &RpcRequest<'_>, timeout: Duration) -> Result<CallReply, CallError>;

    /// Whether the connection is still there.
    fn is_open(&self) -> bool;
}
