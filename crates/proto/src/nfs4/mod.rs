//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 5662; RFC 7862 for 4.2's names).
//!
//! An operation `X` has `XArguments` (none if void) and `XOk` (none if void); its result is the
//! status, followed by `XOk` if it is `NFS4_OK`. A compound is decoded operation by operation, and
//! each operation's arguments when its turn comes: nothing is allocated by a count of the peer.

mod identifiers;
mod operation;
mod status;

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
