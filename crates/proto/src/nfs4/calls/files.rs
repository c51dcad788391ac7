//! Data, attributes and names: the operations that NFSv3 has too, and VERIFY, LOOKUPP and SECINFO
//! (RFC 8881 sections 18.1 to 18.34).

use curt_xdr::{Encode, Opaque, VarArray, Xdr};

use crate::nfs4::{
    Bitmap4, ChangeInfo, Component, DATA_MAX, Fattr4, LinkText, NfsFh4, OpaqueLimited, SpecData4, Stateid,
    Verifier4,
};

/// Maximum number of flavours of SECINFO when decoding.
const FLAVORS_MAX: usize = 16;

/// PUTFH's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PutfhArgs4<'a> {
    /// The handle.
    pub object: NfsFh4<'a>,
}

/// GETFH's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetfhOk4<'a> {
    /// The handle.
    pub object: NfsFh4<'a>,
}

/// ACCESS's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArgs4 {
    /// The rights asked for, with the bits of `curt_types::Access`.
    pub access: u32,
}

/// ACCESS's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk4 {
    /// The rights that the server can check.
    pub supported: u32,
    /// The rights granted.
    pub access: u32,
}

/// GETATTR's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrArgs4 {
    /// The attributes.
    pub attributes: Bitmap4,
}

/// GETATTR's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetattrOk4<'a> {
    /// The attributes.
    pub attributes: Fattr4<'a>,
}

/// SETATTR's arguments. Its result is the bitmap of the attributes set, with every status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArgs4<'a> {
    /// The open, lock or delegation if size is set.
    pub stateid: Stateid,
    /// The attributes.
    pub attributes: Fattr4<'a>,
}

/// VERIFY's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct VerifyArgs4<'a> {
    /// The attributes to compare.
    pub attributes: Fattr4<'a>,
}

/// NVERIFY's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NverifyArgs4<'a> {
    /// The attributes to compare.
    pub attributes: Fattr4<'a>,
}

/// LOOKUP's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupArgs4<'a> {
    /// The name.
    pub name: Component<'a>,
}

/// READLINK's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk4<'a> {
    /// The target.
    pub target: LinkText<'a>,
}

/// The type of object for CREATE, with what it needs (`createtype4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum CreateType4<'a> {
    /// A directory.
    #[xdr(case = 2)]
    Directory,
    /// A block device.
    #[xdr(case = 3)]
    BlockDevice(SpecData4),
    /// A character device.
    #[xdr(case = 4)]
    CharacterDevice(SpecData4),
    /// A symbolic link.
    #[xdr(case = 5)]
    Symlink(LinkText<'a>),
    /// A socket.
    #[xdr(case = 6)]
    Socket,
    /// A named pipe.
    #[xdr(case = 7)]
    Fifo,
    /// A type that CREATE cannot create (`NFS4ERR_BADTYPE`).
    #[xdr(default)]
    Other(u32),
}

/// CREATE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs4<'a> {
    /// The type.
    pub kind: CreateType4<'a>,
    /// The name in the current directory.
    pub name: Component<'a>,
    /// The initial attributes.
    pub attributes: Fattr4<'a>,
}

/// CREATE's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CreateOk4 {
    /// The directory's change attribute.
    pub directory: ChangeInfo,
    /// The attributes that were set.
    pub attributes_set: Bitmap4,
}

/// REMOVE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveArgs4<'a> {
    /// The name in the current directory.
    pub name: Component<'a>,
}

/// REMOVE's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RemoveOk4 {
    /// The directory's change attribute.
    pub directory: ChangeInfo,
}

/// RENAME's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArgs4<'a> {
    /// The name in the saved directory.
    pub from: Component<'a>,
    /// The new name in the current directory.
    pub to: Component<'a>,
}

/// RENAME's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenameOk4 {
    /// The saved directory's change attribute.
    pub source: ChangeInfo,
    /// The current directory's change attribute.
    pub target: ChangeInfo,
}

/// LINK's arguments: the saved file gets a name in the current directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArgs4<'a> {
    /// The new name.
    pub name: Component<'a>,
}

/// LINK's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LinkOk4 {
    /// The directory's change attribute.
    pub directory: ChangeInfo,
}

/// READ's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArgs4 {
    /// The open, lock or delegation.
    pub stateid: Stateid,
    /// The offset in bytes.
    pub offset: u64,
    /// Maximum number of bytes.
    pub count: u32,
}

/// READ's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadOk4<'a> {
    /// Whether the read reached the end of the file.
    pub eof: bool,
    /// The bytes.
    pub data: Opaque<'a, DATA_MAX>,
}

/// The stability of a WRITE: requested, or committed (`stable_how4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub enum StableHow4 {
    /// A COMMIT must follow.
    #[default]
    Unstable = 0,
    /// The data, and metadata needed to read them, are on stable storage.
    DataSync = 1,
    /// The data and all attributes are on stable storage.
    FileSync = 2,
}

/// WRITE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteArgs4<'a> {
    /// The open, lock or delegation.
    pub stateid: Stateid,
    /// The offset in bytes.
    pub offset: u64,
    /// The requested stability.
    pub stable: StableHow4,
    /// The bytes. Only the size of requests limits them: a server writes as many as it can.
    pub data: Opaque<'a, { u32::MAX as usize }>,
}

/// WRITE's arguments up to and including the data's length, for senders that append the data
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead4 {
    /// The open, lock or delegation.
    pub stateid: Stateid,
    /// The offset in bytes.
    pub offset: u64,
    /// The requested stability.
    pub stable: StableHow4,
    /// Number of bytes that follow (then their padding).
    pub count: u32,
}

impl Encode for WriteHead4 {
    fn encode(&self, out: &mut Vec<u8>) {
        self.stateid.encode(out);
        self.offset.encode(out);
        self.stable.encode(out);
        self.count.encode(out);
    }
}

/// WRITE's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteOk4 {
    /// Number of bytes written.
    pub count: u32,
    /// The stability; at least as requested.
    pub committed: StableHow4,
    /// The server's write verifier.
    pub verifier: Verifier4,
}

/// COMMIT's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitArgs4 {
    /// The offset in bytes.
    pub offset: u64,
    /// Number of bytes; 0 means to the end.
    pub count: u32,
}

/// COMMIT's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CommitOk4 {
    /// If it differs from that of a WRITE, the data of that WRITE may be lost.
    pub verifier: Verifier4,
}

/// SECINFO's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SecinfoArgs4<'a> {
    /// The name in the current directory.
    pub name: Component<'a>,
}

/// SECINFO_NO_NAME's arguments (`secinfo_style4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[repr(u32)]
pub enum SecinfoNoNameArgs4 {
    /// The current object.
    Current = 0,
    /// Its parent.
    Parent = 1,
}

/// A mechanism of RPCSEC_GSS (`rpcsec_gss_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GssInfo<'a> {
    /// The object identifier.
    pub oid: OpaqueLimited<'a>,
    /// The quality of protection.
    pub qop: u32,
    /// The service.
    pub service: u32,
}

/// A flavour of security (`secinfo4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum Secinfo<'a> {
    /// RPCSEC_GSS.
    #[xdr(case = 6)]
    Gss(GssInfo<'a>),
    /// Any other flavour.
    #[xdr(default)]
    Flavor(u32),
}

/// The result of SECINFO and SECINFO_NO_NAME: what may be used, the best first.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SecinfoOk4<'a> {
    /// The flavours.
    pub flavors: VarArray<Secinfo<'a>, FLAVORS_MAX>,
}
