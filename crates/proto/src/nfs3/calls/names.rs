//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK (RFC 1813 sections 3.3.3 and
//! 3.3.8 to 3.3.15).

use curt_xdr::Xdr;

use crate::nfs3::{CreateVerf3, Fattr, Filename, NfsFh3, NfsPath, Sattr, SpecData, WccData};

/// A name in a directory (`diropargs3`): the arguments of LOOKUP, REMOVE and RMDIR. The latter two
/// return [`WccData`] of the directory in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpArgs<'a> {
    /// The directory.
    pub directory: NfsFh3,
    /// The name in it.
    pub name: Filename<'a>,
}

/// LOOKUP's result; a failure has the directory's attributes, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupOk {
    /// The file found.
    pub object: NfsFh3,
    /// Its attributes.
    pub attributes: Option<Fattr>,
    /// The directory's attributes.
    pub directory: Option<Fattr>,
}

/// How CREATE handles an existing file, and the attributes to set (`createhow3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum CreateHow {
    /// The existing file is used (and truncated to the size, if given).
    #[xdr(case = 0)]
    Unchecked(Sattr),
    /// An existing file is an error.
    #[xdr(case = 1)]
    Guarded(Sattr),
    /// An existing file is an error unless an earlier transmission of the same call created it.
    #[xdr(case = 2)]
    Exclusive(CreateVerf3),
}

/// CREATE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArguments<'a> {
    /// The directory and name.
    pub place: DirOpArgs<'a>,
    /// The mode of creation.
    pub how: CreateHow,
}

/// The result of CREATE, MKDIR, SYMLINK and MKNOD; a failure has only the directory's WCC data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateOk {
    /// The new file.
    pub object: Option<NfsFh3>,
    /// Its attributes.
    pub attributes: Option<Fattr>,
    /// The directory before and after.
    pub directory: WccData,
}

/// MKDIR's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MkdirArguments<'a> {
    /// The directory and name.
    pub place: DirOpArgs<'a>,
    /// The initial attributes.
    pub attributes: Sattr,
}

/// SYMLINK's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArguments<'a> {
    /// The directory and name.
    pub place: DirOpArgs<'a>,
    /// The initial attributes.
    pub attributes: Sattr,
    /// The link's target.
    pub target: NfsPath<'a>,
}

/// The type of object for MKNOD (`mknoddata3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum MknodData {
    /// A block device.
    #[xdr(case = 3)]
    BlockDevice(Sattr, SpecData),
    /// A character device.
    #[xdr(case = 4)]
    CharacterDevice(Sattr, SpecData),
    /// A socket.
    #[xdr(case = 6)]
    Socket(Sattr),
    /// A named pipe.
    #[xdr(case = 7)]
    Fifo(Sattr),
    /// A type that MKNOD cannot create (`NFS3ERR_BADTYPE`).
    #[xdr(default)]
    Other(u32),
}

/// MKNOD's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MknodArguments<'a> {
    /// The directory and name.
    pub place: DirOpArgs<'a>,
    /// The type and attributes.
    pub what: MknodData,
}

/// RENAME's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArguments<'a> {
    /// The old directory and name.
    pub from: DirOpArgs<'a>,
    /// The new directory and name.
    pub to: DirOpArgs<'a>,
}

/// The result of RENAME in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct RenameWcc {
    /// The directory of the old name.
    pub from: WccData,
    /// The directory of the new name.
    pub to: WccData,
}

/// LINK's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArguments<'a> {
    /// The file.
    pub file: NfsFh3,
    /// The new directory and name.
    pub place: DirOpArgs<'a>,
}

/// The result of LINK in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LinkWcc {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// The directory before and after.
    pub directory: WccData,
}
