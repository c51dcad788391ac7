//! MOUNT version 3 (RFC 1813 appendix I), and the procedures of version 1 (RFC 1094 appendix A)
//! with the same layout: all but MNT, whose version 1 handles have 32 bytes.

use core::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Opaque, OptionalList, VarArray, Xdr};

use crate::nfs3::NfsFh3;
use crate::operation::procedures;

/// The RPC program number.
pub const PROGRAM: u32 = 100_005;
/// The version for NFS version 3.
pub const VERSION: u32 = 3;
/// The version with which old tools request lists.
pub const VERSION_1: u32 = 1;
/// Maximum length of a path in bytes (`MNTPATHLEN`).
pub const PATH_MAX: usize = 1024;
/// Maximum length of a client's name in bytes (`MNTNAMLEN`).
pub const NAME_MAX: usize = 255;
/// Maximum number of entries of a list.
pub const ENTRIES_MAX: usize = 65_536;
/// Maximum number of authentication flavors of one export.
pub const FLAVORS_MAX: usize = 64;

procedures! {
    /// A procedure of the program; the numbers are the same in versions 1 and 3.
    MountProcedure, "MOUNTPROC3_";
    Null = 0, "NULL", "nothing";
    Mount = 1, "MNT", "takes a path, returns its handle";
    Dump = 2, "DUMP", "returns who has mounted what";
    Unmount = 3, "UMNT", "takes a path, forgets that the caller mounted it";
    UnmountAll = 4, "UMNTALL", "forgets everything that the caller mounted";
    Export = 5, "EXPORT", "returns what is exported to whom";
}

macro_rules! statuses {
    ($($variant:ident = $number:literal, $name:literal, $meaning:literal;)*) => {
        /// The status of MNT (`mountstat3`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum MountStat3 {
            $(#[doc = concat!($name, ": ", $meaning, ".")] $variant = $number,)*
        }

        impl MountStat3 {
            /// Every status, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The RFC's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The meaning, in a few words without a full stop.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning),* }
            }

            /// The status with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

statuses! {
    Ok = 0, "MNT3_OK", "success";
    Perm = 1, "MNT3ERR_PERM", "not the owner";
    Noent = 2, "MNT3ERR_NOENT", "no such file or directory";
    Io = 5, "MNT3ERR_IO", "the disk or file system failed";
    Acces = 13, "MNT3ERR_ACCES", "permission denied";
    Notdir = 20, "MNT3ERR_NOTDIR", "not a directory";
    Inval = 22, "MNT3ERR_INVAL", "an invalid argument";
    Nametoolong = 63, "MNT3ERR_NAMETOOLONG", "the path is too long";
    Notsupp = 10004, "MNT3ERR_NOTSUPP", "the operation is not supported";
    Serverfault = 10006, "MNT3ERR_SERVERFAULT", "the server failed";
}

impl fmt::Display for MountStat3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.meaning())
    }
}

impl MountStat3 {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The path of an export (`dirpath`): the argument of MNT and UMNT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct DirPath<'a>(pub Opaque<'a, PATH_MAX>);

/// A client's name, or a group of them (`name`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct ClientName<'a>(pub Opaque<'a, NAME_MAX>);

/// MNT's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountReply {
    /// The root of the export.
    Ok(MountOk),
    /// Any other status.
    Failed(MountStat3),
}

/// The root of the export, and its authentication flavors.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MountOk {
    /// The root's handle.
    pub root: NfsFh3,
    /// The RPC authentication flavors of the export, preferred ones first.
    pub flavors: VarArray<u32, FLAVORS_MAX>,
}

impl Encode for MountReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ok(ok) => {
                MountStat3::Ok.number().encode(out);
                ok.encode(out);
            }
            Self::Failed(status) => status.number().encode(out),
        }
    }
}

impl Decode<'_> for MountReply {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = decoder.u32()?;
        match MountStat3::from_number(value) {
            Some(MountStat3::Ok) => decoder.get().map(Self::Ok),
            Some(status) => Ok(Self::Failed(status)),
            None => Err(DecodeError::BadValue { name: "mountstat3", value }),
        }
    }
}

/// An entry of DUMP: a client and its mount (`mountbody`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MountBody<'a> {
    /// The client.
    pub client: ClientName<'a>,
    /// The mounted path.
    pub path: DirPath<'a>,
}

/// DUMP's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MountList<'a>(pub OptionalList<MountBody<'a>, ENTRIES_MAX>);

/// An entry of EXPORT: a path and its clients (`exportnode`). An empty list means all clients.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExportNode<'a> {
    /// The path.
    pub path: DirPath<'a>,
    /// The clients that may mount it.
    pub groups: OptionalList<ClientName<'a>, ENTRIES_MAX>,
}

/// EXPORT's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExportList<'a>(pub OptionalList<ExportNode<'a>, ENTRIES_MAX>);
