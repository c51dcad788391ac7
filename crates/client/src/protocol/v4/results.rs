//! The results of a compound.

use curt_proto::nfs4::{
    AccessOk4, AttributeValues, Bitmap4, CompoundResults, GetattrOk4, GetfhOk4, Nfs4Operation, NfsStat4,
    ResultError,
};
use curt_types::{Access, Attributes, Fault, FileHandle};
use curt_xdr::{Decode, DecodeError};

use super::{
    attributes::{self, object_of},
    session::SessionGeneration,
};
use crate::protocol::{CreatedObject, LookupReply};

/// Reads the results of a compound, operation by operation.
pub(super) struct CompoundResultReader<'a> {
    pub(super) operations: CompoundResults<'a>,
    /// The session that executed the compound.
    pub(super) generation: SessionGeneration,
}

/// The outcome of a compound: a value or a fault, and attributes.
pub(super) type DecodedReply<T, A> = Result<(Result<T, Fault>, A), DecodeError>;

impl<'a> CompoundResultReader<'a> {
    pub(super) const fn new(operations: CompoundResults<'a>, generation: SessionGeneration) -> Self {
        Self { operations, generation }
    }

    /// The result of an operation whose failure is that of the intent.
    pub(super) fn next<T: Decode<'a>>(
        &mut self,
        operation: Nfs4Operation,
    ) -> Result<Result<T, Fault>, DecodeError> {
        Ok(outcome(self.operations.next(operation))?.map_err(fault))
    }

    /// The attributes of an object; `None` if they are not there.
    pub(super) fn attributes(&mut self) -> Result<Option<Attributes>, DecodeError> {
        let fattr: Option<GetattrOk4<'a>> = optional(self.operations.next(Nfs4Operation::Getattr))?;
        fattr.map(|ok| object_of(&ok.attributes)).transpose()
    }

    /// Other attributes.
    pub(super) fn values(&mut self, asked: Bitmap4) -> Result<Option<AttributeValues<'a>>, DecodeError> {
        let fattr: Option<GetattrOk4<'a>> = optional(self.operations.next(Nfs4Operation::Getattr))?;
        fattr.map(|ok| attributes::values(&ok.attributes, asked)).transpose()
    }

    /// A change attribute.
    pub(super) fn change(&mut self) -> Result<Option<u64>, DecodeError> {
        Ok(self.values(attributes::CHANGE)?.and_then(|values| values.change))
    }

    /// The rights of `asked` that an ACCESS of an open has granted; `None` if it failed.
    pub(super) fn rights(&mut self, asked: Access) -> Result<Option<Access>, DecodeError> {
        let ok: Option<AccessOk4> = optional(self.operations.next(Nfs4Operation::Access))?;
        Ok(ok.map(|ok| Access::from_bits(ok.access).common(asked)))
    }

    /// An operation without a result.
    pub(super) fn pass(&mut self, operation: Nfs4Operation) -> Result<Result<(), Fault>, DecodeError> {
        self.next(operation)
    }
}

/// Returns the fault of an intent together with these attributes, or the value.
macro_rules! done {
    ($result:expr, $attributes:expr) => {
        match $result? {
            Ok(value) => value,
            Err(fault) => return Ok((Err(fault), $attributes)),
        }
    };
}

pub(super) use done;

/// The result of an operation: the outer error is that of a malformed reply.
pub(super) fn outcome<T>(result: Result<T, ResultError>) -> Result<Result<T, NfsStat4>, DecodeError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(ResultError::NotExecuted(NfsStat4::Ok)) => {
            // The server has answered fewer operations than it was asked for, and calls that
            // success.
            Err(DecodeError::Short)
        }
        Err(ResultError::Failed(status) | ResultError::NotExecuted(status)) => Ok(Err(status)),
        Err(ResultError::OtherOperation(operation)) => {
            Err(DecodeError::BadValue { name: "resop", value: operation.number() })
        }
        Err(ResultError::Decode(error)) => Err(error),
    }
}

/// The result of an operation that only describes one that has succeeded: it may be missing.
pub(super) fn optional<T>(result: Result<T, ResultError>) -> Result<Option<T>, DecodeError> {
    outcome(result).map(Result::ok)
}

/// Whether a status says that the server has revoked a state, which it keeps until the client frees
/// it (RFC 8881 section 18.38).
pub(super) const fn is_revoked(status: NfsStat4) -> bool {
    matches!(status, NfsStat4::AdminRevoked | NfsStat4::DelegRevoked | NfsStat4::Expired)
}

/// Whether the server has executed the required operations of an attempt that has brought no
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    /// Certainly not.
    None,
    /// Perhaps.
    Possible,
}

/// Processes the results of a compound's own operations in the receive buffer.
pub(super) trait CompoundSink: Send + Sync {
    /// As [`ReplySink::consume`](curt_rpc::client::ReplySink::consume).
    fn consume(&self, results: CompoundResults<'_>) -> bool;
}

/// The fault of a status, for an intent.
pub(super) fn fault(status: NfsStat4) -> Fault {
    Fault::from(status)
}

/// The object of GETFH and GETATTR, which follow its creation. Between them its times may be set:
/// if that fails, the attributes are missing.
pub(super) fn created(
    results: &mut CompoundResultReader<'_>,
    are_times_set: bool,
    found: impl FnOnce(&FileHandle),
) -> Result<CreatedObject, DecodeError> {
    let handle: Result<GetfhOk4<'_>, Fault> = results.next(Nfs4Operation::Getfh)?;
    Ok(match handle {
        Ok(ok) => {
            let handle = FileHandle::from(ok.object);
            found(&handle);
            if are_times_set {
                optional(results.operations.next::<Bitmap4>(Nfs4Operation::Setattr))?;
            }
            Ok(LookupReply { handle, attributes: results.attributes()? })
        }
        Err(fault) => Err(fault),
    })
}
