//! COMPOUND and CB_COMPOUND: a header, then operations one after the other (RFC 8881 sections 16.2
//! and 20.1).

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Opaque, Xdr};

use super::{Nfs4Operation, NfsStat4, TAG_MAX, WriteHead4};

/// The header before the operations of a COMPOUND (`COMPOUND4args`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct CompoundHeader<'a> {
    /// Chosen by the client, returned in the reply.
    pub tag: Opaque<'a, TAG_MAX>,
    /// The minor version.
    pub minor_version: u32,
    /// The number of operations that follow.
    pub operations: u32,
}

/// The header before the operations of a CB_COMPOUND (`CB_COMPOUND4args`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct CallbackHeader<'a> {
    /// Chosen by the server, returned in the reply.
    pub tag: Opaque<'a, TAG_MAX>,
    /// The minor version.
    pub minor_version: u32,
    /// Used by 4.0 only.
    pub callback_ident: u32,
    /// The number of operations that follow.
    pub operations: u32,
}

/// The header before the results of a COMPOUND or CB_COMPOUND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CompoundReplyHeader<'a> {
    /// The status of the last result.
    pub status: NfsStat4,
    /// The tag of the request.
    pub tag: Opaque<'a, TAG_MAX>,
    /// The number of results that follow.
    pub results: u32,
}

/// The header before the result of an operation that is `NFS4_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ResultHeader {
    /// The operation.
    pub operation: Nfs4Operation,
    /// Its status.
    pub status: NfsStat4,
}

/// The arguments of an operation that has some, for a client that encodes them.
pub trait OperationArguments: Encode {
    /// The operation.
    const OPERATION: Nfs4Operation;
}

/// Encodes the operations of a COMPOUND; their number is written at the end.
#[derive(Debug)]
pub struct CompoundEncoder<'b> {
    out: &'b mut Vec<u8>,
    count_at: usize,
    operations: u32,
    omitted: Option<OmittedData>,
}

/// The data of a WRITE that are not encoded: whoever sends the compound inserts them, with their
/// padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OmittedData {
    /// Where they belong in the buffer.
    pub at: usize,
    /// The number of bytes.
    pub length: u32,
}

impl<'b> CompoundEncoder<'b> {
    /// Appends the header.
    pub fn new(out: &'b mut Vec<u8>, tag: Opaque<'_, TAG_MAX>, minor_version: u32) -> Self {
        CompoundHeader { tag, minor_version, operations: 0 }.encode(out);
        let count_at = out.len() - 4;
        Self { out, count_at, operations: 0, omitted: None }
    }

    /// Appends an operation without arguments.
    #[inline]
    pub fn bare(&mut self, operation: Nfs4Operation) {
        operation.encode(self.out);
        self.operations += 1;
    }

    /// Appends an operation.
    #[inline]
    pub fn push<A: OperationArguments>(&mut self, arguments: &A) {
        self.bare(A::OPERATION);
        arguments.encode(self.out);
    }

    /// Appends a WRITE without its data.
    ///
    /// # Panics
    /// If this is the compound's second one.
    pub fn push_write(&mut self, head: &WriteHead4) {
        self.push(head);
        let data = OmittedData { at: self.out.len(), length: head.count };
        assert!(self.omitted.replace(data).is_none(), "a compound has one WRITE without data");
    }

    /// Writes the number of operations.
    pub fn finish(self) -> Option<OmittedData> {
        self.out[self.count_at..self.count_at + 4].copy_from_slice(&self.operations.to_be_bytes());
        self.omitted
    }
}

/// The results of a COMPOUND, decoded one at a time in the order of the request.
#[derive(Clone, Debug)]
pub struct CompoundResults<'a> {
    decoder: Decoder<'a>,
    header: CompoundReplyHeader<'a>,
    left: u32,
}

/// Why an operation's result is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// The operation failed; it is the last one executed.
    #[error("{0}")]
    Failed(NfsStat4),
    /// An earlier operation failed.
    #[error("the operation was not executed: {0}")]
    NotExecuted(NfsStat4),
    /// The server answered another operation.
    #[error("the result is that of {0}")]
    OtherOperation(Nfs4Operation),
    /// The result could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl<'a> CompoundResults<'a> {
    /// Decodes the header.
    ///
    /// # Errors
    /// The errors of the header.
    pub fn new(reply: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(reply);
        let header: CompoundReplyHeader<'a> = decoder.get()?;
        Ok(Self { decoder, header, left: header.results })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &CompoundReplyHeader<'a> {
        &self.header
    }

    /// Whether there is no further result.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.left == 0
    }

    /// The next operation's status, which has a body if it is `NFS4_OK`; for operations whose
    /// failures have one too.
    ///
    /// The status encoded with each result is redundant: all but the last result are `NFS4_OK`, and
    /// that of the last is in the header (RFC 8881 section 16.2.3). It is not looked at, because
    /// knfsd before Linux 6.14 leaves it undefined if a page of its buffer ends within an
    /// operation's number and status, and overwrites the word after them with the status. Results
    /// that follow more than 4 KiB of others may be damaged so.
    ///
    /// # Errors
    /// Any [`ResultError`] but [`ResultError::Failed`].
    #[inline]
    pub fn status(&mut self, operation: Nfs4Operation) -> Result<NfsStat4, ResultError> {
        self.left = self.left.checked_sub(1).ok_or(ResultError::NotExecuted(self.header.status))?;
        let answered: Nfs4Operation = self.decoder.get()?;
        let _encoded: u32 = self.decoder.get()?;
        if answered != operation {
            return Err(ResultError::OtherOperation(answered));
        }
        Ok(if self.is_at_end() { self.header.status } else { NfsStat4::Ok })
    }

    /// The next operation's result.
    ///
    /// # Errors
    /// Any [`ResultError`].
    #[inline]
    pub fn next<T: Decode<'a>>(&mut self, operation: Nfs4Operation) -> Result<T, ResultError> {
        match self.status(operation)? {
            NfsStat4::Ok => Ok(self.decoder.get()?),
            status => Err(ResultError::Failed(status)),
        }
    }

    /// The cursor, for a body that [`status`](Self::status) precedes.
    pub const fn decoder(&mut self) -> &mut Decoder<'a> {
        &mut self.decoder
    }
}
