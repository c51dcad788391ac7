//! A call as its caller makes it, and the errors of calls.

use std::io;

use curt_xdr::DecodeError;

use super::arguments::{BulkData, CallArguments};
use crate::{
    message::{ProcedureId, call::encode_signed_header, failure::VersionRange},
    record,
    security::{auth::AuthStatus, credential::RpcCredential, flavor::AuthFlavor},
};

/// A call.
#[derive(Clone, Copy)]
pub struct RpcRequest<'a> {
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure of the program.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: &'a RpcCredential,
    /// The procedure's arguments.
    pub arguments: &'a dyn CallArguments,
    /// Maximum size of the procedure's results in bytes, given these arguments. A longer reply is
    /// malformed.
    pub results_max: usize,
}

impl<'a> RpcRequest<'a> {
    /// A call without a credential (AUTH_NONE).
    #[must_use]
    pub const fn anonymous(
        procedure: ProcedureId,
        arguments: &'a dyn CallArguments,
        results_max: usize,
    ) -> Self {
        let ProcedureId { program, version, procedure } = procedure;
        let credential = &RpcCredential::None;
        Self { program, version, procedure, credential, arguments, results_max }
    }

    /// Appends the arguments as the server gets them, with a copy of their bulk data.
    pub fn copy_arguments(&self, out: &mut Vec<u8>) {
        self.arguments.encode_around(out).copy_into(out);
    }

    /// Appends the record of the call, except for the bulk data that are returned.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, xid: u32, flavor: &dyn AuthFlavor) -> BulkData<'a> {
        let body = record::begin_record(out);
        let numbers = [xid, self.program, self.version, self.procedure];
        encode_signed_header(out, numbers, flavor);
        let from = out.len();
        if flavor.wraps() {
            self.copy_arguments(out);
            flavor.wrap(out, from);
            record::finish_record(out, body, 0);
            return BulkData::default();
        }
        let bulk = self.arguments.encode_around(out);
        record::finish_record(out, body, bulk.encoded_len());
        bulk
    }
}

/// Why a call has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The call's [`Interrupt`](super::Interrupt) was raised; a later reply is dropped.
    #[error("interrupted")]
    Interrupted,
    /// No reply within the timeout of a soft mount.
    #[error("the server did not answer in time")]
    TimedOut {
        /// The mount is `softerr`: applications get ETIMEDOUT instead of EIO.
        softerr: bool,
    },
    /// The server cannot be reached. Only returned by attempts that are not repeated: see
    /// `TcpTransport::connect`.
    #[error("the server cannot be reached: {0}")]
    Unreachable(io::ErrorKind),
    /// The transport was closed on this side; for a [`Backchannel`](super::Backchannel): the
    /// connection is lost.
    #[error("the connection was closed")]
    Closed,
    /// Too many calls already wait for replies of this peer.
    #[error("too many calls wait for replies")]
    TooManyCalls,
    /// The server rejects the credential, or its reply is not authentic
    /// ([`AuthStatus::InvalidResponse`]).
    #[error("the server refused the credential: {0:?}")]
    Denied(AuthStatus),
    /// The server supports other versions of RPC.
    #[error("the server wants RPC versions {} to {}", .0.low, .0.high)]
    RpcMismatch(VersionRange),
    /// The server does not have the program.
    #[error("the server does not serve the program")]
    ProgramUnavailable,
    /// The server has other versions of the program.
    #[error("the server serves versions {} to {} of the program", .0.low, .0.high)]
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    #[error("the server does not support the procedure")]
    ProcedureUnavailable,
    /// The server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArguments,
    /// The server had another error, such as lack of memory.
    #[error("the server had a system error")]
    SystemError,
    /// The reply does not conform to RPC, or to the procedure's definition.
    #[error("malformed reply: {0}")]
    Malformed(#[from] DecodeError),
}

impl CallError {
    /// The errno in tracepoints; a program may get another one.
    pub(crate) fn negative_errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Interrupted => Errno::INTR,
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::Unreachable(_) => Errno::HOSTUNREACH,
            Self::Closed => Errno::NOTCONN,
            Self::TooManyCalls => Errno::AGAIN,
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
