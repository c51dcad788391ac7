//! The statuses of NFSv3: one table of number, name and meaning (RFC 1813 section 2.6).

use core::fmt;

use curt_types::Fault;
use curt_xdr::{Decode, DecodeError, Decoder, Encode};

macro_rules! statuses {
    (
        Ok = $ok:literal, $ok_name:literal, $ok_meaning:literal;
        $($variant:ident = $number:literal, $name:literal, $meaning:literal;)*
    ) => {
        /// The status of a call (`nfsstat3`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum NfsStat3 {
            #[doc = concat!($ok_name, ": ", $ok_meaning, ".")] Ok = $ok,
            $(#[doc = concat!($name, ": ", $meaning, ".")] $variant = $number,)*
        }

        impl NfsStat3 {
            /// Every status, in the order of their numbers.
            pub const ALL: &'static [Self] = &[Self::Ok, $(Self::$variant),*];

            /// The RFC's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { Self::Ok => $ok_name, $(Self::$variant => $name),* }
            }

            /// The meaning, in a few words without a full stop.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { Self::Ok => $ok_meaning, $(Self::$variant => $meaning),* }
            }

            /// The status with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $ok => Some(Self::Ok), $($number => Some(Self::$variant),)* _ => None }
            }
        }

        impl From<Fault> for NfsStat3 {
            fn from(fault: Fault) -> Self {
                match fault { $(Fault::$variant => Self::$variant),* }
            }
        }

        impl From<NfsStat3> for Fault {
            /// For a failed call: NFS3_OK here is an error of the server.
            fn from(status: NfsStat3) -> Self {
                match status {
                    NfsStat3::Ok => Self::Serverfault,
                    $(NfsStat3::$variant => Self::$variant),*
                }
            }
        }
    };
}

statuses! {
    Ok = 0, "NFS3_OK", "success";
    Perm = 1, "NFS3ERR_PERM", "only the owner or the superuser may do this";
    Noent = 2, "NFS3ERR_NOENT", "no such file or directory";
    Io = 5, "NFS3ERR_IO", "the disk or file system failed";
    Nxio = 6, "NFS3ERR_NXIO", "no such device or address";
    Acces = 13, "NFS3ERR_ACCES", "permission denied";
    Exist = 17, "NFS3ERR_EXIST", "the file exists";
    Xdev = 18, "NFS3ERR_XDEV", "a hard link or rename across file systems";
    Nodev = 19, "NFS3ERR_NODEV", "no such device";
    Notdir = 20, "NFS3ERR_NOTDIR", "not a directory";
    Isdir = 21, "NFS3ERR_ISDIR", "a directory";
    Inval = 22, "NFS3ERR_INVAL", "an invalid argument, or one not supported for this object";
    Fbig = 27, "NFS3ERR_FBIG", "the file would be larger than the server can keep";
    Nospc = 28, "NFS3ERR_NOSPC", "no space is left on the device";
    Rofs = 30, "NFS3ERR_ROFS", "the file system is read-only";
    Mlink = 31, "NFS3ERR_MLINK", "too many hard links";
    Nametoolong = 63, "NFS3ERR_NAMETOOLONG", "the name is too long";
    Notempty = 66, "NFS3ERR_NOTEMPTY", "the directory is not empty";
    Dquot = 69, "NFS3ERR_DQUOT", "the quota is exceeded";
    Stale = 70, "NFS3ERR_STALE", "the handle's file no longer exists";
    Remote = 71, "NFS3ERR_REMOTE", "too many levels of remote in the path";
    Badhandle = 10001, "NFS3ERR_BADHANDLE", "the handle is none of this server's";
    NotSync = 10002, "NFS3ERR_NOT_SYNC", "the guard of a SETATTR does not match";
    BadCookie = 10003, "NFS3ERR_BAD_COOKIE", "the directory position is not valid any more";
    Notsupp = 10004, "NFS3ERR_NOTSUPP", "the operation is not supported";
    Toosmall = 10005, "NFS3ERR_TOOSMALL", "the buffer or request is too small";
    Serverfault = 10006, "NFS3ERR_SERVERFAULT", "the server failed in a way no other status describes";
    Badtype = 10007, "NFS3ERR_BADTYPE", "the server cannot create objects of this type";
    Jukebox = 10008, "NFS3ERR_JUKEBOX", "the server began but needs time: ask again later";
}

impl NfsStat3 {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for NfsStat3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.meaning())
    }
}

impl Encode for NfsStat3 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.number().encode(out);
    }
}

impl Decode<'_> for NfsStat3 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = decoder.u32()?;
        Self::from_number(value).ok_or(DecodeError::BadValue { name: "nfsstat3", value })
    }
}
