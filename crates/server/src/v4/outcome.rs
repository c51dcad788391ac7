//! The outcome of one operation.

use curt_proto::nfs4::NfsStat4;
use curt_types::Fault;
use curt_xdr::{Decode, DecodeError, Decoder};

use crate::request::Refusal;

/// The outcome of an operation, whose result was appended to the reply.
pub(crate) type Outcome = Result<(), OpFailure>;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpFailure {
    /// With this status. What the operation appended is dropped.
    Status(NfsStat4),
    /// With this status; what the operation appended is the body of its result (`LOCK4denied`).
    WithBody(NfsStat4),
}

impl OpFailure {
    pub(crate) const fn status(self) -> NfsStat4 {
        match self {
            Self::Status(status) | Self::WithBody(status) => status,
        }
    }
}

impl From<NfsStat4> for OpFailure {
    fn from(status: NfsStat4) -> Self {
        Self::Status(status)
    }
}

impl From<Fault> for OpFailure {
    fn from(fault: Fault) -> Self {
        Self::Status(fault.into())
    }
}

impl From<DecodeError> for OpFailure {
    fn from(_: DecodeError) -> Self {
        Self::Status(NfsStat4::Badxdr)
    }
}

impl From<Refusal> for OpFailure {
    /// A credential that is refused by the export of a handle was not refused by the server
    /// ([`compound`](super::compound) checks that first): another flavor may be accepted.
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Fault(fault) => fault.into(),
            Refusal::Call(_) => Self::Status(NfsStat4::Wrongsec),
        }
    }
}

/// Decodes the arguments of an operation.
pub(crate) fn decoded<'a, T: Decode<'a>>(arguments: &mut Decoder<'a>) -> Result<T, OpFailure> {
    Ok(arguments.get()?)
}
