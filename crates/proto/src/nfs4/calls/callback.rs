//! Callbacks: CB_SEQUENCE, CB_RECALL, CB_RECALL_ANY, CB_NOTIFY_LOCK, CB_GETATTR (RFC 8881 section
//! 20).

use curt_xdr::{VarArray, Xdr};

use crate::nfs4::{Bitmap4, NfsFh4, SequenceId, SessionId, SlotId, StateOwner, Stateid};

/// Maximum number of lists of referring calls, and of calls in each, when decoding.
pub const REFERRING_MAX: usize = 64;

/// A request to which a callback refers (`referring_call4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReferringCall {
    /// Its sequence number.
    pub sequence: SequenceId,
    /// Its slot.
    pub slot: SlotId,
}

/// The requests of a session to which a callback refers (`referring_call_list4`).
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReferringCalls {
    /// The session.
    pub session: SessionId,
    /// The requests.
    pub calls: VarArray<ReferringCall, REFERRING_MAX>,
}

/// CB_SEQUENCE's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbSequenceArgs4 {
    /// The session.
    pub session: SessionId,
    /// The slot's sequence number.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot in use by the server.
    pub highest_slot: SlotId,
    /// Whether the reply is to be kept.
    pub cache_this: bool,
    /// The requests to which the callback refers.
    pub referring: VarArray<ReferringCalls, REFERRING_MAX>,
}

/// CB_SEQUENCE's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbSequenceOk4 {
    /// The session.
    pub session: SessionId,
    /// The slot's sequence number.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot that the client accepts.
    pub highest_slot: SlotId,
    /// The highest slot that the server should use.
    pub target_highest_slot: SlotId,
}

/// CB_RECALL's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallArgs4<'a> {
    /// The delegation.
    pub stateid: Stateid,
    /// Whether the file is about to be truncated: data need not be written.
    pub truncate: bool,
    /// The file.
    pub object: NfsFh4<'a>,
}

/// CB_RECALL_ANY's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbRecallAnyArgs4 {
    /// How many delegations and layouts the client may keep.
    pub objects_to_keep: u32,
    /// The types to be returned (`RCA4_TYPE_MASK_*`).
    pub types: Bitmap4,
}

impl CbRecallAnyArgs4 {
    /// Read delegations.
    pub const READ_DELEGATIONS: u32 = 0;
    /// Write delegations.
    pub const WRITE_DELEGATIONS: u32 = 1;
    /// Directory delegations.
    pub const DIRECTORY_DELEGATIONS: u32 = 2;
    /// All types that are defined: also layouts of files and blocks, ranges for those of objects
    /// and for others (RFC 8881 section 20.6.3), and flexible files (RFC 8435 section 11.2).
    pub const TYPES: Bitmap4 = Bitmap4::EMPTY
        .with(Self::READ_DELEGATIONS)
        .with(Self::WRITE_DELEGATIONS)
        .with(Self::DIRECTORY_DELEGATIONS)
        .with(3)
        .with(4)
        .with(8)
        .with(9)
        .with(12)
        .with(13)
        .with(14)
        .with(15)
        .with(16)
        .with(17);
}

/// CB_NOTIFY_LOCK's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbNotifyLockArgs4<'a> {
    /// The file.
    pub object: NfsFh4<'a>,
    /// The owner whose lock may be granted now.
    pub owner: StateOwner<'a>,
}

/// CB_GETATTR's arguments. Its result is [`GetattrOk4`](crate::nfs4::GetattrOk4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CbGetattrArgs4<'a> {
    /// The file.
    pub object: NfsFh4<'a>,
    /// The attributes.
    pub attributes: Bitmap4,
}
