//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 5662; RFC 7862 for 4.2's names).
//!
//! An operation `X` has `XArgs4` (none if void) and `XOk4` (none if void, or a single stateid).
//! Its result is the status, followed by `XOk4` if it is `NFS4_OK`. A compound is decoded operation
//! by operation, and each operation's arguments when its turn comes: nothing is allocated by a
//! count of the peer.

mod attribute;
mod bitmap;
mod calls;
mod compound;
mod convert;
mod identifiers;
mod operation;
mod status;

pub use attribute::{
    ATTRIBUTES_MAX, Attribute, AttributeUse, AttributeValues, ChangeAttrType, Fattr4, ModeMasked, ModeUmask,
    SetTime4,
};
pub use bitmap::Bitmap4;
pub use calls::callback::{
    CbGetattrArgs4, CbNotifyLockArgs4, CbRecallAnyArgs4, CbRecallArgs4, CbSequenceArgs4, CbSequenceOk4,
    REFERRING_MAX, ReferringCall, ReferringCalls,
};
pub use calls::files::{
    AccessArgs4, AccessOk4, CommitArgs4, CommitOk4, CreateArgs4, CreateOk4, CreateType4, GetattrArgs4,
    GetattrOk4, GetfhOk4, GssInfo, LinkArgs4, LinkOk4, LookupArgs4, NverifyArgs4, PutfhArgs4, ReadArgs4,
    ReadOk4, ReadlinkOk4, RemoveArgs4, RemoveOk4, RenameArgs4, RenameOk4, Secinfo, SecinfoArgs4,
    SecinfoNoNameArgs4, SecinfoOk4, SetattrArgs4, StableHow4, VerifyArgs4, WriteArgs4, WriteHead4, WriteOk4,
};
pub use calls::listing::{DirectoryEntry4, ListingEncoder4, ListingFull, ListingItem4, ReaddirArgs4};
pub use calls::session::{
    BackchannelCtlArgs4, BindConnToSessionArgs4, BindConnToSessionOk4, CALLBACK_FLAVORS_MAX,
    CallbackGssHandles, CallbackSecParms4, CallbackSysCredentials, ChannelAttributes, ChannelDirFromClient,
    ChannelDirFromServer, ClientOwner, CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4,
    DestroyClientidArgs4, DestroySessionArgs4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4,
    ImplementationId, ReclaimCompleteArgs4, SequenceArgs4, SequenceOk4, SequenceStatusFlags, ServerOwner,
    SetSsvArgs4, SsvInfo, SsvParameters, StateProtectArgs, StateProtectOk, StateProtectOps,
};
pub use calls::state::{
    CloseArgs4, CreateHow4, DelegationType, DelegreturnArgs4, FreeStateidArgs4, GetDirDelegationArgs4,
    GetDirDelegationOk4, LockArgs4, LockDenied, LockType4, Locker, LocktArgs4, LockuArgs4, Nfsace4,
    NoDelegation, OpenArgs4, OpenClaim, OpenDelegation, OpenDowngradeArgs4, OpenHow, OpenOk4,
    OpenResultFlags, ShareAccess4, SpaceLimit, StateOwner, TEST_STATEIDS_MAX, TestStateidArgs4,
    TestStateidOk4,
};
pub use compound::{
    CallbackHeader, CompoundEncoder, CompoundHeader, CompoundReplyHeader, CompoundResults, OmittedData,
    OperationArguments, ResultError, ResultHeader,
};
pub use convert::{lock_offset_and_length, lock_range};
pub use identifiers::{
    ChangeInfo, Clientid, Component, Fsid4, Ftype4, LinkText, NfsFh4, NfsTime4, OpaqueLimited, SequenceId,
    SessionId, SlotId, SpecData4, Stateid, Verifier4,
};
pub use operation::{
    Availability, CallbackOperation, HandlesNeeded, MINOR_VERSION_MAX, Nfs4Operation, Nfs4Procedure,
    OperationProperties, Position,
};
pub use status::NfsStat4;

/// The RPC program number.
pub const PROGRAM: u32 = 100_003;
/// The version of the program.
pub const VERSION: u32 = 4;
/// The version of the callback program, whose number the client chooses.
pub const CALLBACK_VERSION: u32 = 1;
/// Maximum length of a file handle in bytes (`NFS4_FHSIZE`).
pub const FILE_HANDLE_MAX: usize = curt_types::FILE_HANDLE_MAX;
/// Maximum length of an owner or another opaque in bytes (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_MAX: usize = 1024;
/// Maximum length of a name when decoding, in bytes: far above the limits of file systems, so that
/// a name that is too long gets `NFS4ERR_NAMETOOLONG`, not `NFS4ERR_BADXDR`.
pub const FILENAME_MAX: usize = 65_535;
/// Maximum length of a symbolic link's target when decoding, in bytes; see [`FILENAME_MAX`].
pub const PATH_MAX: usize = 65_535;
/// Maximum number of data bytes of one READ or WRITE.
pub const DATA_MAX: usize = 1 << 20;
/// Maximum length of a compound's tag when decoding, in bytes. A tag is only returned.
pub const TAG_MAX: usize = 1024;
