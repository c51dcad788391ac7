//! The request for a compound, and the operations that many have.

use std::sync::Arc;

use curt_proto::nfs4::{Bitmap4, CompoundEncoder, GetattrArgs4, Nfs4Operation, NfsFh4, PutfhArgs4, Stateid};
use curt_types::{ByteRange, FileHandle};

use crate::protocol::{
    RpcCaller, ShareAccess,
    v4::{
        abandoned_opens::AbandonedOpen,
        delegation_table::OpeningGuard,
        open_key::OpenKey,
        results::{CompoundSink, Execution},
    },
};

/// The most operations of an intent, with SEQUENCE, but for those on many objects.
pub(in crate::protocol::v4) const OWN_OPERATIONS_MAX: u32 = 11;

/// Longest results without data, names or link targets, in bytes: two handles and five sets of
/// attributes, whose owners may be names.
pub(in crate::protocol::v4) const RESULTS_SMALL: usize = 8192;

/// Longest results with one name or link target, in bytes.
pub(in crate::protocol::v4) const RESULTS_NAME: usize = RESULTS_SMALL + (66 << 10);

/// Appends the operations of an intent, which use this stateid.
pub(in crate::protocol::v4) type Append<'a> = &'a (dyn Fn(&mut CompoundEncoder<'_>, Stateid) + Sync);

/// The compound of an intent.
#[derive(Clone, Copy)]
pub(in crate::protocol::v4) struct CompoundRequest<'a> {
    pub(in crate::protocol::v4) caller: RpcCaller<'a>,
    /// The operation that it counts as.
    pub(in crate::protocol::v4) operation: Nfs4Operation,
    /// Its operations.
    pub(in crate::protocol::v4) append: Append<'a>,
    /// The data that `append` omits from a WRITE, or more. They are sent without a copy.
    pub(in crate::protocol::v4) data: &'a [u8],
    /// The position of the last operation whose failure is that of the intent, from 0; `None`: the
    /// last of all. Those behind it only describe the result, and are not sent again.
    pub(in crate::protocol::v4) required: Option<u32>,
    /// The request must not be executed twice: the server has to keep the reply, unless it is
    /// larger than the session allows.
    pub(in crate::protocol::v4) keeps_reply: bool,
    /// The open whose stateid it uses, and for what. Its file is the current filehandle of the
    /// first operation.
    pub(in crate::protocol::v4) open: Option<(&'a OpenKey, ShareAccess)>,
    /// The stateid of a lock, which is used instead of the open's.
    pub(in crate::protocol::v4) lock: Option<Stateid>,
    /// The bytes that it reads, writes or cuts off: the stateid of a lock of some of them is used
    /// instead of the open's.
    pub(in crate::protocol::v4) io: Option<ByteRange>,
    /// Whether a lock of these bytes was lost since they were written, or the request began: it is
    /// not sent.
    pub(in crate::protocol::v4) is_lost: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// Longest results of its operations, in bytes.
    pub(in crate::protocol::v4) results_max: usize,
    /// May process the results of its operations in the receive buffer.
    pub(in crate::protocol::v4) sink: Option<&'a Arc<dyn CompoundSink>>,
    /// The compound has room for piggybacked operations.
    pub(in crate::protocol::v4) may_piggyback: bool,
    /// Returns the opens that the server may have made if the reply is lost.
    pub(in crate::protocol::v4) opens: Option<&'a (dyn Fn() -> Vec<AbandonedOpen> + Sync)>,
    /// One of its operations is an OPEN that may bring a delegation.
    pub(in crate::protocol::v4) opening: Option<&'a OpeningGuard<'a>>,
    /// No more operations than it has itself, with SEQUENCE.
    pub(in crate::protocol::v4) operations: u32,
    /// Called after each attempt that has brought no result, before the next one.
    pub(in crate::protocol::v4) again: Option<&'a (dyn Fn(Execution) + Sync)>,
}

impl<'a> CompoundRequest<'a> {
    /// A compound that changes nothing, or the same if it is repeated.
    pub(in crate::protocol::v4) fn idempotent(
        caller: RpcCaller<'a>,
        operation: Nfs4Operation,
        append: Append<'a>,
    ) -> Self {
        Self {
            caller,
            operation,
            append,
            data: &[],
            required: None,
            keeps_reply: false,
            open: None,
            lock: None,
            io: None,
            is_lost: None,
            results_max: RESULTS_SMALL,
            sink: None,
            may_piggyback: true,
            opens: None,
            opening: None,
            operations: OWN_OPERATIONS_MAX,
            again: None,
        }
    }

    /// A compound whose operation at position `required`, the last required one, must not be
    /// executed twice.
    pub(in crate::protocol::v4) fn non_idempotent(
        caller: RpcCaller<'a>,
        operation: Nfs4Operation,
        required: u32,
        append: Append<'a>,
    ) -> Self {
        Self { required: Some(required), keeps_reply: true, ..Self::idempotent(caller, operation, append) }
    }
}

pub(in crate::protocol::v4) fn put_fh(operations: &mut CompoundEncoder<'_>, object: &FileHandle) {
    operations.push(&PutfhArgs4 { object: NfsFh4::from(object) });
}

pub(in crate::protocol::v4) fn get_attributes(operations: &mut CompoundEncoder<'_>, attributes: Bitmap4) {
    operations.push(&GetattrArgs4 { attributes });
}
