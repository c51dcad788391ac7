//! The client's side: calls that wait for their replies.
//!
//! [`Transport`] is all that the layers above know; [`TcpTransport`] is the real one. A call is
//! synchronous: the thread that makes it waits, and is let go at once when the call's [`Interrupt`]
//! is raised.

mod activity;
mod call_in_progress;
mod connect;
mod connection;
mod connection_slot;
mod events;
mod interrupt;
mod options;
mod outgoing;
mod probing;
mod reply;
mod reply_sink;
mod silence;
mod statistics;
mod sys;
mod tcp;
mod timer;
mod waiter;

use std::{io, sync::Arc, time::Duration};

use curt_trace::TransportReport;
use curt_xdr::{DecodeError, Encode};

pub use events::{NoTransportEvents, TransportEvents};
pub use interrupt::{Interrupt, Wake, WakerRegistration};
pub use options::{AddressFamily, PortSource, RecoveryMode, ServerName, TcpOptions};
pub use reply::CallReply;
pub use reply_sink::ReplySink;
pub use statistics::CallStatistics;
pub use tcp::TcpTransport;

use crate::{
    auth::{AuthStatus, RpcCredential},
    message::VersionRange,
};

/// Something that carries calls to a server and brings the replies.
pub trait Transport: Send + Sync {
    /// Makes one call and waits for its reply, or until `interrupt` is raised.
    ///
    /// # Errors
    /// [`CallError`]; after any of them the server may or may not have executed the call.
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError>;

    /// The same, and fills in the call's `journey`. A transport without a wire reports one
    /// transmission, and the sizes of arguments and results alone.
    ///
    /// # Errors
    /// As [`Transport::call`]; `journey` is filled in nevertheless.
    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        journey: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.arguments.encode(&mut arguments);
        journey.transmissions = 1;
        journey.bytes_sent = (arguments.len() + request.bulk.len()) as u64;
        let result = self.call(request, interrupt);
        journey.bytes_received = result.as_ref().map_or(0, |reply| reply.results().len() as u64);
        result
    }

    /// As [`Transport::call_with_statistics`], but `taker` may process the results in the receive
    /// buffer; the reply then [`was taken`](Reply::was_taken). A transport without a receive buffer
    /// returns all replies as usual.
    ///
    /// A caller whose results were taken may return up to 20 ms later than that: meanwhile its
    /// thread receives replies for other callers that have takers, and runs these. An interrupt
    /// ends that at once.
    ///
    /// # Errors
    /// As [`Transport::call`].
    fn call_with_sink(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        journey: &mut CallStatistics,
        _: &Arc<dyn ReplySink>,
    ) -> Result<CallReply, CallError> {
        self.call_with_statistics(request, interrupt, journey)
    }

    /// The traffic of the connections so far; all zero for a transport without connections.
    fn report(&self) -> TransportReport {
        TransportReport::default()
    }

    /// For how long a call has been waiting without any reply from the server; `None` while none
    /// waits.
    fn silent_for(&self) -> Option<Duration> {
        None
    }
}

/// One call.
#[derive(Clone, Copy)]
pub struct RpcRequest<'a> {
    /// The program that is called.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure within the program.
    pub procedure: u32,
    /// Who calls.
    pub credential: &'a RpcCredential,
    /// The procedure's arguments, or all but the last of them if there is [`bulk`](Self::bulk).
    pub arguments: &'a (dyn Encode + Sync),
    /// Bytes that end the arguments and are sent from where they are, without a copy, padded as XDR
    /// wants it: the data of a WRITE. Their length is to be encoded by `arguments`. Empty if there
    /// are none.
    pub bulk: &'a [u8],
    /// How many bytes of results the procedure may return at most, given these arguments. A longer
    /// reply is malformed.
    pub results_max: usize,
}

/// Why a call has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The call's [`Interrupt`] was raised; a reply that still comes is dropped.
    #[error("interrupted")]
    Interrupted,
    /// No reply within the time that a soft mount gives.
    #[error("the server did not answer in time")]
    TimedOut {
        /// The mount is `softerr`: applications are to see ETIMEDOUT rather than EIO.
        softerr: bool,
    },
    /// The server cannot be reached. Only from an attempt that is not to be repeated: see
    /// [`TcpTransport::connect`].
    #[error("the server cannot be reached: {0}")]
    Unreachable(io::ErrorKind),
    /// The transport was shut down by this side.
    #[error("the connection was closed")]
    Closed,
    /// The server rejects the credential.
    #[error("the server refused the credential: {0:?}")]
    Denied(AuthStatus),
    /// The server wants another version of RPC itself.
    #[error("the server wants RPC versions {} to {}", .0.low, .0.high)]
    RpcMismatch(VersionRange),
    /// The program is not served there.
    #[error("the server does not serve the program")]
    ProgramUnavailable,
    /// The program is served there in other versions.
    #[error("the server serves versions {} to {} of the program", .0.low, .0.high)]
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    #[error("the server does not support the procedure")]
    ProcedureUnavailable,
    /// The server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArguments,
    /// The server had an error of another kind, such as memory that ran out.
    #[error("the server had a system error")]
    SystemError,
    /// The reply does not conform to RPC, or to the procedure's definition.
    #[error("malformed reply: {0}")]
    Malformed(#[from] DecodeError),
}

impl CallError {
    /// The errno that events show; a program may get another one.
    fn negative_errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Interrupted => Errno::INTR,
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::Unreachable(_) => Errno::HOSTUNREACH,
            Self::Closed => Errno::NOTCONN,
            Self::Denied(_) => Errno::ACCESS,
            Self::RpcMismatch(_)
            | Self::ProgramUnavailable
            | Self::ProgramMismatch(_)
            | Self::ProcedureUnavailable => Errno::OPNOTSUPP,
            Self::GarbageArguments | Self::SystemError => Errno::REMOTEIO,
            Self::Malformed(_) => Errno::PROTO,
        };
        -errno.raw_os_error()
    }
}
