//! NFS version 3 (RFC 1813).
//!
//! A procedure `X` has `XArguments`, `XOk` and, if a failure has more than its status, `XFailed`;
//! its result is an [`NfsResult`] of the two.

mod attributes;
mod calls;
mod convert;
mod file_handle;
mod identifiers;
mod listing;
mod procedure;
mod result;
mod status;

pub use attributes::{Fattr, Ftype, NfsTime, Sattr, SpecData, TimeHow, WccAttr, WccData};
pub use calls::data::{
    CommitArguments, CommitOk, ReadArguments, ReadFail, ReadOk, StableHow, WriteArguments, WriteHead, WriteOk,
};
pub use calls::file_system::{FsProperties, FsinfoArguments, FsinfoOk, FsstatOk, PathconfOk};
pub use calls::inode::{AccessArguments, AccessOk, ReadlinkOk, SetattrArguments};
pub use calls::names::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, LinkArguments, LinkWcc, LookupOk, MkdirArguments,
    MknodArguments, MknodData, RenameArguments, RenameWcc, SymlinkArguments,
};
pub use file_handle::{FILE_HANDLE_MAX, NfsFh3};
pub use identifiers::{Cookie, CookieVerf3, CreateVerf3, Fileid, Filename, NfsPath, WriteVerf3};
pub use listing::{
    DirectoryEntry, DirectoryEntryPlus, ListingEncoder, ReaddirArguments, ReaddirEntries, ReaddirOk,
    ReaddirPlusArguments, ReplyFull,
};
pub use procedure::NfsProcedure;
pub use result::NfsResult;
pub use status::NfsStat3;

/// The RPC program number (RFC 1813 section 2.1).
pub const PROGRAM: u32 = 100_003;
/// The version of the program.
pub const VERSION: u32 = 3;
/// The registered port.
pub const PORT: u16 = 2049;
/// Maximum number of data bytes of one READ or WRITE: offered by the server (FSINFO), and the limit
/// when decoding.
pub const DATA_MAX: usize = 1 << 20;
/// Maximum length of a name when decoding, in bytes. Far above the limits of file systems, so that
/// a name that is too long gets `NFS3ERR_NAMETOOLONG` instead of GARBAGE_ARGS.
pub const FILENAME_MAX: usize = 65_535;
/// Maximum length of a symbolic link's target when decoding, in bytes; see [`FILENAME_MAX`].
pub const PATH_MAX: usize = 65_535;
