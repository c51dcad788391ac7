//! One call as its caller makes it, and why it may have no results.

use std::io;

use curt_xdr::{DecodeError, Encode, padding, put_fixed};

use crate::{
    message::{VersionRange, encode_signed_header},
    record,
    security::{
        auth::{AuthStatus, RpcCredential},
        flavor::AuthFlavor,
    },
};

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

impl<'a> RpcRequest<'a> {
    /// Appends the record of the call up to the data that end it; returns those data, which follow
    /// with their padding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, xid: u32, flavor: &dyn AuthFlavor) -> &'a [u8] {
        let body = record::begin_record(out);
        let numbers = [xid, self.program, self.version, self.procedure];
        encode_signed_header(out, numbers, flavor);
        let from = out.len();
        self.arguments.encode(out);
        if flavor.wraps() {
            put_fixed(out, self.bulk);
            flavor.wrap(out, from);
            record::finish_record(out, body, 0);
            return &[];
        }
        record::finish_record(out, body, self.bulk.len() + padding(self.bulk.len()));
        self.bulk
    }
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
    /// The transport was shut down by this side; of a [`Backchannel`](super::Backchannel): the
    /// connection is gone.
    #[error("the connection was closed")]
    Closed,
    /// Too many calls wait for the replies of this peer already.
    #[error("too many calls wait for replies")]
    TooManyCalls,
    /// The server rejects the credential, or its reply is not authentic
    /// ([`AuthStatus::InvalidResponse`]).
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
