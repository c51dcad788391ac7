//! Services that execute calls, and backchannels, on either end of a connection.

use std::{sync::Arc, time::Duration};

use curt_observe::stages::StageTimes;

use super::{
    context::CallContext,
    reply::CallReply,
    request::{CallError, RpcRequest},
};
use crate::message::{call::CallMessage, failure::CallFailure};

/// Executes calls. Called on many threads at once.
pub trait RpcService: Send + Sync {
    /// Executes one call: appends the procedure's results to `reply` and does not change its
    /// present contents.
    ///
    /// # Errors
    /// [`CallFailure`]: appended bytes are dropped, and the reply has the failure's status.
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure>;

    /// Resumes the calls that it has deferred. The server stops, and waits for them.
    fn resume_deferred(&self) {}

    /// The times of stages, if the service measures them. Called once, when a server is created.
    fn stages(&self) -> Option<Arc<StageTimes>> {
        None
    }
}

/// Calls to a client over the connection that the client opened (RFC 8881 section 2.10.3.1). A
/// service may keep it; it does not keep the connection open.
pub trait Backchannel: Send + Sync {
    /// Calls the client, and waits for its reply. A call whose connection ends is not sent again
    /// (RFC 8881 section 2.10.6.2).
    ///
    /// Must not be used by a thread that executes a call: a client that does not reply would block
    /// the thread for `timeout`. A call that depends on the reply gets NFS4ERR_DELAY or a similar
    /// status.
    ///
    /// # Errors
    /// [`CallError::TimedOut`] after `timeout`; [`CallError::Closed`] if the connection is lost;
    /// [`CallError::TooManyCalls`]; others as for any call.
    fn call(&self, request: &RpcRequest<'_>, timeout: Duration) -> Result<CallReply, CallError>;

    /// Whether the connection is open.
    fn is_open(&self) -> bool;

    /// A number that is equal for the backchannels of one connection, and differs for those of
    /// others while both are kept.
    fn connection(&self) -> usize;
}
