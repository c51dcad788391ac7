//! Identifiers, verifiers, times and names (RFC 8881 section 3.3).

use core::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode, Opaque, Xdr, put_opaque};

use super::{FILE_HANDLE_MAX, FILENAME_MAX, OPAQUE_MAX, PATH_MAX};

/// A client that has presented itself (`clientid4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct Clientid(pub u64);

/// The sequence number of a slot, of CREATE_SESSION or of a client's record (`sequenceid4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct SequenceId(pub u32);

impl SequenceId {
    /// The next one; 2^32-1 is followed by 0.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A slot of a session (`slotid4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct SlotId(pub u32);

/// A session (`sessionid4`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// A verifier of a client's instance, a write, a cookie or an exclusive creation (`verifier4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Verifier4(pub [u8; 8]);

/// Names a state: an open, locks of an owner, a delegation (`stateid4`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Stateid {
    /// Counts the changes of the state; 0 stands for the newest.
    pub seqid: u32,
    /// The state.
    pub other: [u8; 12],
}

impl Stateid {
    /// Neither open nor lock: share reservations and locks of others are respected (RFC 8881
    /// section 8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// READ may bypass the locks of others.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid of the compound.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// Never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Whether `other` is reserved: the stateid is special, or an error.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

impl fmt::Debug for Stateid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stateid({}:", self.seqid)?;
        for byte in self.other {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// A time (`nfstime4`). A peer may send more than 999,999,999 nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Xdr)]
pub struct NfsTime4 {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// A directory's change attribute before and after an operation (`change_info4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct ChangeInfo {
    /// Whether nothing else changed the directory between the two.
    pub atomic: bool,
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// A file system's identifier (`fsid4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct Fsid4 {
    /// The major number.
    pub major: u64,
    /// The minor number.
    pub minor: u64,
}

/// The type of an object (`nfs_ftype4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum Ftype4 {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A block device.
    BlockDevice = 3,
    /// A character device.
    CharacterDevice = 4,
    /// A symbolic link.
    Symlink = 5,
    /// A socket.
    Socket = 6,
    /// A named pipe.
    Fifo = 7,
    /// A named attribute directory.
    AttributeDirectory = 8,
    /// A named attribute.
    NamedAttribute = 9,
}

/// A device number (`specdata4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct SpecData4 {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// A component of a path: any bytes (`component4`). The server decides which names are valid.
pub type Component<'a> = Opaque<'a, FILENAME_MAX>;

/// The target of a symbolic link (`linktext4`).
pub type LinkText<'a> = Opaque<'a, PATH_MAX>;

/// Bytes that mean something to their author alone, at most `NFS4_OPAQUE_LIMIT`.
pub type OpaqueLimited<'a> = Opaque<'a, OPAQUE_MAX>;

/// A file handle, borrowed from the message (`nfs_fh4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NfsFh4<'a>(Opaque<'a, FILE_HANDLE_MAX>);

impl<'a> NfsFh4<'a> {
    /// Wraps `bytes`, unless there are more than [`FILE_HANDLE_MAX`].
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        Opaque::new(bytes).ok().map(Self)
    }

    /// The handle's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0.bytes()
    }
}

impl<'a> Decode<'a> for NfsFh4<'a> {
    #[inline]
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        decoder.get().map(Self)
    }
}

impl Encode for NfsFh4<'_> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.0.bytes());
    }
}
