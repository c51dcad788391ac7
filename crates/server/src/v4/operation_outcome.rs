//! The outcome of one operation.

use curt_proto::nfs4::NfsStat4;
use curt_types::Fault;
use curt_xdr::{Decode, DecodeError, Decoder};

use crate::request::Refusal;
use crate::state::StateFault;

/// The outcome of an operation, whose result was appended to the reply.
pub(crate) type Outcome = Result<(), OpFailure>;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpFailure {
    /// The status. What the operation appended is dropped.
    Status(NfsStat4),
    /// A status that has a body of its own: what the operation appended.
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

impl From<StateFault> for OpFailure {
    fn from(fault: StateFault) -> Self {
        Self::Status(match fault {
            StateFault::Invalid => NfsStat4::Inval,
            StateFault::Delay => NfsStat4::Delay,
            StateFault::NoSpace => NfsStat4::Nospc,
            // The only error of LOCK and LOCKU for that (RFC 8881 section 15.2).
            StateFault::TooManyLocks => NfsStat4::Serverfault,
            StateFault::NoRecord => NfsStat4::Noent,
            StateFault::NotSame => NfsStat4::NotSame,
            StateFault::NotPermitted => NfsStat4::Perm,
            StateFault::ClientInUse => NfsStat4::ClidInuse,
            StateFault::StaleClient => NfsStat4::StaleClientid,
            StateFault::ClientBusy => NfsStat4::ClientidBusy,
            StateFault::DeadSession => NfsStat4::Deadsession,
            StateFault::BadSession => NfsStat4::Badsession,
            StateFault::BadSlot => NfsStat4::Badslot,
            StateFault::BadHighSlot => NfsStat4::BadHighSlot,
            StateFault::Misordered => NfsStat4::SeqMisordered,
            StateFault::FalseRetry => NfsStat4::SeqFalseRetry,
            StateFault::TooManyOperations => NfsStat4::TooManyOps,
            StateFault::RequestTooBig => NfsStat4::ReqTooBig,
            StateFault::ReplyTooBig => NfsStat4::RepTooBig,
            StateFault::TooBigToCache => NfsStat4::RepTooBigToCache,
            StateFault::TooSmall => NfsStat4::Toosmall,
            StateFault::BadStateid => NfsStat4::BadStateid,
            StateFault::OldStateid => NfsStat4::OldStateid,
            StateFault::AdminRevoked => NfsStat4::AdminRevoked,
            StateFault::DelegationRevoked => NfsStat4::DelegRevoked,
            StateFault::ShareDenied => NfsStat4::ShareDenied,
            StateFault::OpenMode => NfsStat4::Openmode,
            StateFault::Locked => NfsStat4::Locked,
            StateFault::LocksHeld => NfsStat4::LocksHeld,
            StateFault::CompleteAlready => NfsStat4::CompleteAlready,
            StateFault::Grace => NfsStat4::Grace,
            StateFault::NoGrace => NfsStat4::NoGrace,
            StateFault::ReclaimBad => NfsStat4::ReclaimBad,
            StateFault::ReclaimConflict => NfsStat4::ReclaimConflict,
        })
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
