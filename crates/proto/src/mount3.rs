//! MOUNT version 3 (RFC 1813 appendix I), and what of version 1 (RFC 1094 appendix A) is laid out
//! alike: all but MNT, whose version 1 handles are 32 bytes.

use core::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Opaque, OptionalList, VarArray, Xdr};

use crate::nfs3::NfsFh3;
use crate::operation::procedures;

/// The RPC program number.
pub const PROGRAM: u32 = 100_005;
/// The version that goes with NFS version 3.
pub const VERSION: u32 = 3;
/// The version that old tools ask for lists with.
pub const VERSION_1: u32 = 1;
/// Longest path, in bytes (`MNTPATHLEN`).
pub const PATH_MAX: usize = 1024;
/// Longest name of a client, in bytes (`MNTNAMLEN`).
pub const NAME_MAX: usize = 255;
/// Most entries that a list may have.
pub const ENTRIES_MAX: usize = 65_536;
/// Most security flavours of one export.
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
        /// What became of a MNT (`mountstat3`).
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

            /// What it means, in a few words without a full stop.
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
    /// The root of what was mounted.
    Ok(MountOk),
    /// Any other status.
    Failed(MountStat3),
}

/// The root of what was mounted, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MountOk {
    /// The root's handle.
    pub root: NfsFh3,
    /// The RPC authentication flavours that the export takes, best first.
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
            None => Err(DecodeError::BadValue {
                name: "mountstat3",
                value,
            }),
        }
    }
}

/// One line of DUMP: who has mounted what (`mountbody`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct MountBody<'a> {
    /// The client.
    pub client: ClientName<'a>,
    /// The path it mounted.
    pub path: DirPath<'a>,
}

/// DUMP's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct MountList<'a>(pub OptionalList<MountBody<'a>, ENTRIES_MAX>);

/// One line of EXPORT: what is exported to whom (`exportnode`). No groups means everybody.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExportNode<'a> {
    /// The path.
    pub path: DirPath<'a>,
    /// Who may mount it.
    pub groups: OptionalList<ClientName<'a>, ENTRIES_MAX>,
}

/// EXPORT's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ExportList<'a>(pub OptionalList<ExportNode<'a>, ENTRIES_MAX>);
