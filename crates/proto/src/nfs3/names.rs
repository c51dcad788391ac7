//! LOOKUP and the procedures that make, remove and rename names. A failure of those that change a directory carries
//! its [`super::WccData`]; LOOKUP's the directory's attributes.

use curt_xdr::{Opaque, Xdr};

use super::{Fattr, FileHandle, Sattr, SpecData, WccData};

/// Bytes of a name or path that are decoded at most; whether it is too long is for the server to say.
pub const NAME_LENGTH_MAX: usize = 65_536;

/// filename3.
pub type Name<'a> = Opaque<'a, NAME_LENGTH_MAX>;

/// nfspath3.
pub type Path<'a> = Opaque<'a, NAME_LENGTH_MAX>;

/// diropargs3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirOp<'a> {
    /// The directory.
    pub directory: FileHandle,
    /// A name in it.
    pub name: Name<'a>,
}

/// LOOKUP3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupOk {
    /// The object's handle.
    pub object: FileHandle,
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// The directory's attributes.
    pub directory: Option<Fattr>,
}

/// createverf3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct CreateVerifier(pub [u8; 8]);

/// createhow3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum CreateHow {
    /// Whether it exists does not matter.
    #[xdr(case = 0)]
    Unchecked(Sattr),
    /// It must not exist.
    #[xdr(case = 1)]
    Guarded(Sattr),
    /// It must not exist, but if it was made with this verifier the call is a repetition and succeeds.
    #[xdr(case = 2)]
    Exclusive(CreateVerifier),
}

/// CREATE3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArguments<'a> {
    /// Where.
    pub location: DirOp<'a>,
    /// How.
    pub how: CreateHow,
}

/// CREATE3resok, and those of MKDIR, SYMLINK and MKNOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MadeOk {
    /// The new object's handle.
    pub object: Option<FileHandle>,
    /// The new object's attributes.
    pub attributes: Option<Fattr>,
    /// The directory around the operation.
    pub directory: WccData,
}

/// MKDIR3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MkdirArguments<'a> {
    /// Where.
    pub location: DirOp<'a>,
    /// Initial attributes.
    pub attributes: Sattr,
}

/// SYMLINK3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArguments<'a> {
    /// Where.
    pub location: DirOp<'a>,
    /// Initial attributes.
    pub attributes: Sattr,
    /// What it points to.
    pub target: Path<'a>,
}

/// devicedata3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DeviceData {
    /// Initial attributes.
    pub attributes: Sattr,
    /// The device's numbers.
    pub numbers: SpecData,
}

/// mknoddata3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum MknodData {
    /// A character device.
    #[xdr(case = 4)]
    Character(DeviceData),
    /// A block device.
    #[xdr(case = 3)]
    Block(DeviceData),
    /// A socket.
    #[xdr(case = 6)]
    Socket(Sattr),
    /// A named pipe.
    #[xdr(case = 7)]
    Fifo(Sattr),
    /// What MKNOD cannot make: BADTYPE. The number is that of [`super::FileType`], or of nothing.
    #[xdr(default)]
    Other(u32),
}

/// MKNOD3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MknodArguments<'a> {
    /// Where.
    pub location: DirOp<'a>,
    /// What.
    pub what: MknodData,
}

/// RENAME3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArguments<'a> {
    /// The old name.
    pub from: DirOp<'a>,
    /// The new name.
    pub to: DirOp<'a>,
}

/// What RENAME carries in both arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct RenameWcc {
    /// The old name's directory.
    pub from: WccData,
    /// The new name's directory.
    pub to: WccData,
}

/// LINK3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArguments<'a> {
    /// The object.
    pub object: FileHandle,
    /// Its new name.
    pub link: DirOp<'a>,
}

/// What LINK carries in both arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct LinkOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// The new name's directory.
    pub directory: WccData,
}
