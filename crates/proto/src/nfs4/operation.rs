//! The operations of NFSv4: one table of what a dispatcher, statistics and documents need to know
//! of each (RFC 8881 section 17, RFC 7530 section 16, RFC 7862 section 13, RFC 8276 section 8.4).

use core::fmt;

use curt_xdr::{Decode, DecodeError, Decoder, Encode};

use crate::operation::procedures;

procedures! {
    /// A procedure of the program, and of the callback program.
    Nfs4Procedure, "NFSPROC4_";
    Null = 0, "NULL", "nothing";
    Compound = 1, "COMPOUND", "executes operations one after the other until one fails";
}

/// The filehandles that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlesNeeded {
    /// None.
    Neither,
    /// The current filehandle.
    Current,
    /// The saved filehandle.
    Saved,
    /// Both.
    Both,
}

impl HandlesNeeded {
    /// Whether the current filehandle is needed.
    #[must_use]
    pub const fn current(self) -> bool {
        matches!(self, Self::Current | Self::Both)
    }

    /// Whether the saved filehandle is needed.
    #[must_use]
    pub const fn saved(self) -> bool {
        matches!(self, Self::Saved | Self::Both)
    }
}

/// Where an operation may stand in a compound of minor version 1 and later (RFC 8881 section
/// 2.10.6.4 and the operation's own section).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// After SEQUENCE only.
    InSession,
    /// First: SEQUENCE.
    First,
    /// After SEQUENCE, or as the only operation.
    InSessionOrAlone,
    /// As the only operation.
    Alone,
}

/// The properties of an operation that a dispatcher uses without decoding its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationProperties {
    /// The first minor version that has it.
    pub first_minor: u32,
    /// The last minor version in which it may be used; later ones answer `NFS4ERR_NOTSUPP`.
    pub last_minor: u32,
    /// The filehandles that it needs.
    pub handles: HandlesNeeded,
    /// Where it may stand.
    pub position: Position,
    /// Whether it may wait for a disk, a lock or another client.
    pub may_block: bool,
    /// Whether it changes files or state: a repeated request must not do it again.
    pub changes: bool,
    /// Why the server answers `NFS4ERR_NOTSUPP`, if it does.
    pub unsupported: Option<&'static str>,
}

/// Whether a minor version has an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The operation is known and supported.
    Supported,
    /// `NFS4ERR_NOTSUPP`.
    NotSupported,
    /// `NFS4ERR_OP_ILLEGAL`: the minor version does not have the number.
    Illegal,
}

/// The last minor version.
pub const MINOR_VERSION_MAX: u32 = 2;

const LATER: Option<&str> = Some("not implemented yet");
const NO_LAYOUTS: Option<&str> = Some("pNFS: the server has no layouts");
const ONLY_4_0: Option<&str> = Some("NFSv4.0 only; sessions replace it");
const OPTIONAL: Option<&str> = Some("optional; not implemented yet");
const NO_DELEGATION: Option<&str> =
    Some("delegations are granted with OPEN and GET_DIR_DELEGATION alone, and end with their client");

macro_rules! operations {
    (
        $($variant:ident = $number:literal, $name:literal,
          $first:literal ..= $last:literal, $handles:ident, $position:ident
          $(, $flag:ident)* $(=> $why:ident)?;)*
    ) => {
        /// An operation of a compound (`nfs_opnum4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Nfs4Operation {
            $(#[doc = concat!("OP_", $name, ".")] $variant = $number,)*
        }

        impl Nfs4Operation {
            /// Every operation, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The RFC's name, without its prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The operation with this number, in any minor version.
            #[must_use]
            #[inline]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The properties of the operation.
            #[must_use]
            #[inline]
            #[allow(unused_mut, reason = "a row may have no flag")]
            pub const fn properties(self) -> OperationProperties {
                match self {
                    $(Self::$variant => {
                        let mut properties = OperationProperties {
                            first_minor: $first,
                            last_minor: $last,
                            handles: HandlesNeeded::$handles,
                            position: Position::$position,
                            may_block: false,
                            changes: false,
                            unsupported: None,
                        };
                        $(properties.$flag = true;)*
                        $(properties.unsupported = $why;)?
                        properties
                    })*
                }
            }
        }
    };
}

// Number, name, minor versions, filehandles needed, position, and what it may do; after an
// arrow why it is not supported.
operations! {
    Access = 3, "ACCESS", 0..=2, Current, InSession, may_block;
    Close = 4, "CLOSE", 0..=2, Current, InSession, changes, may_block;
    Commit = 5, "COMMIT", 0..=2, Current, InSession, changes, may_block;
    Create = 6, "CREATE", 0..=2, Current, InSession, changes, may_block;
    Delegpurge = 7, "DELEGPURGE", 0..=2, Neither, InSession, changes => NO_DELEGATION;
    Delegreturn = 8, "DELEGRETURN", 0..=2, Current, InSession, changes;
    Getattr = 9, "GETATTR", 0..=2, Current, InSession, may_block;
    Getfh = 10, "GETFH", 0..=2, Current, InSession;
    Link = 11, "LINK", 0..=2, Both, InSession, changes, may_block;
    Lock = 12, "LOCK", 0..=2, Current, InSession, changes, may_block;
    Lockt = 13, "LOCKT", 0..=2, Current, InSession, may_block;
    Locku = 14, "LOCKU", 0..=2, Current, InSession, changes, may_block;
    Lookup = 15, "LOOKUP", 0..=2, Current, InSession, may_block;
    Lookupp = 16, "LOOKUPP", 0..=2, Current, InSession, may_block;
    Nverify = 17, "NVERIFY", 0..=2, Current, InSession, may_block;
    Open = 18, "OPEN", 0..=2, Current, InSession, changes, may_block;
    Openattr = 19, "OPENATTR", 0..=2, Current, InSession, changes => LATER;
    OpenConfirm = 20, "OPEN_CONFIRM", 0..=0, Current, InSession, changes => ONLY_4_0;
    OpenDowngrade = 21, "OPEN_DOWNGRADE", 0..=2, Current, InSession, changes;
    Putfh = 22, "PUTFH", 0..=2, Neither, InSession;
    Putpubfh = 23, "PUTPUBFH", 0..=2, Neither, InSession;
    Putrootfh = 24, "PUTROOTFH", 0..=2, Neither, InSession;
    Read = 25, "READ", 0..=2, Current, InSession, may_block;
    Readdir = 26, "READDIR", 0..=2, Current, InSession, may_block;
    Readlink = 27, "READLINK", 0..=2, Current, InSession, may_block;
    Remove = 28, "REMOVE", 0..=2, Current, InSession, changes, may_block;
    Rename = 29, "RENAME", 0..=2, Both, InSession, changes, may_block;
    Renew = 30, "RENEW", 0..=0, Neither, InSession, changes => ONLY_4_0;
    Restorefh = 31, "RESTOREFH", 0..=2, Saved, InSession;
    Savefh = 32, "SAVEFH", 0..=2, Current, InSession;
    Secinfo = 33, "SECINFO", 0..=2, Current, InSession, may_block;
    Setattr = 34, "SETATTR", 0..=2, Current, InSession, changes, may_block;
    Setclientid = 35, "SETCLIENTID", 0..=0, Neither, InSession, changes => ONLY_4_0;
    SetclientidConfirm = 36, "SETCLIENTID_CONFIRM", 0..=0, Neither, InSession, changes => ONLY_4_0;
    Verify = 37, "VERIFY", 0..=2, Current, InSession, may_block;
    Write = 38, "WRITE", 0..=2, Current, InSession, changes, may_block;
    ReleaseLockowner = 39, "RELEASE_LOCKOWNER", 0..=0, Neither, InSession, changes => ONLY_4_0;
    BackchannelCtl = 40, "BACKCHANNEL_CTL", 1..=2, Neither, InSession, changes;
    BindConnToSession = 41, "BIND_CONN_TO_SESSION", 1..=2, Neither, Alone, changes;
    ExchangeId = 42, "EXCHANGE_ID", 1..=2, Neither, InSessionOrAlone, changes;
    CreateSession = 43, "CREATE_SESSION", 1..=2, Neither, InSessionOrAlone, changes;
    DestroySession = 44, "DESTROY_SESSION", 1..=2, Neither, InSessionOrAlone, changes;
    FreeStateid = 45, "FREE_STATEID", 1..=2, Neither, InSession, changes;
    GetDirDelegation = 46, "GET_DIR_DELEGATION", 1..=2, Current, InSession, changes;
    Getdeviceinfo = 47, "GETDEVICEINFO", 1..=2, Neither, InSession => NO_LAYOUTS;
    Getdevicelist = 48, "GETDEVICELIST", 1..=2, Current, InSession => NO_LAYOUTS;
    Layoutcommit = 49, "LAYOUTCOMMIT", 1..=2, Current, InSession, changes => NO_LAYOUTS;
    Layoutget = 50, "LAYOUTGET", 1..=2, Current, InSession, changes => NO_LAYOUTS;
    Layoutreturn = 51, "LAYOUTRETURN", 1..=2, Current, InSession, changes => NO_LAYOUTS;
    SecinfoNoName = 52, "SECINFO_NO_NAME", 1..=2, Current, InSession, may_block;
    Sequence = 53, "SEQUENCE", 1..=2, Neither, First;
    SetSsv = 54, "SET_SSV", 1..=2, Neither, InSession;
    TestStateid = 55, "TEST_STATEID", 1..=2, Neither, InSession;
    WantDelegation = 56, "WANT_DELEGATION", 1..=2, Neither, InSession, changes => NO_DELEGATION;
    DestroyClientid = 57, "DESTROY_CLIENTID", 1..=2, Neither, InSessionOrAlone, changes;
    ReclaimComplete = 58, "RECLAIM_COMPLETE", 1..=2, Neither, InSession, changes;
    Allocate = 59, "ALLOCATE", 2..=2, Current, InSession, changes, may_block => OPTIONAL;
    Copy = 60, "COPY", 2..=2, Both, InSession, changes, may_block => OPTIONAL;
    CopyNotify = 61, "COPY_NOTIFY", 2..=2, Current, InSession, changes => OPTIONAL;
    Deallocate = 62, "DEALLOCATE", 2..=2, Current, InSession, changes, may_block => OPTIONAL;
    IoAdvise = 63, "IO_ADVISE", 2..=2, Current, InSession => OPTIONAL;
    Layouterror = 64, "LAYOUTERROR", 2..=2, Current, InSession => NO_LAYOUTS;
    Layoutstats = 65, "LAYOUTSTATS", 2..=2, Current, InSession => NO_LAYOUTS;
    OffloadCancel = 66, "OFFLOAD_CANCEL", 2..=2, Current, InSession, changes => OPTIONAL;
    OffloadStatus = 67, "OFFLOAD_STATUS", 2..=2, Current, InSession => OPTIONAL;
    ReadPlus = 68, "READ_PLUS", 2..=2, Current, InSession, may_block => OPTIONAL;
    Seek = 69, "SEEK", 2..=2, Current, InSession, may_block => OPTIONAL;
    WriteSame = 70, "WRITE_SAME", 2..=2, Current, InSession, changes, may_block => OPTIONAL;
    Clone = 71, "CLONE", 2..=2, Both, InSession, changes, may_block => OPTIONAL;
    Getxattr = 72, "GETXATTR", 2..=2, Current, InSession, may_block => LATER;
    Setxattr = 73, "SETXATTR", 2..=2, Current, InSession, changes, may_block => LATER;
    Listxattrs = 74, "LISTXATTRS", 2..=2, Current, InSession, may_block => LATER;
    Removexattr = 75, "REMOVEXATTR", 2..=2, Current, InSession, changes, may_block => LATER;
    Illegal = 10044, "ILLEGAL", 0..=2, Neither, InSession;
}

impl Nfs4Operation {
    /// The number on the wire.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Its place among all operations: numbers are dense but for the first three and ILLEGAL.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Self::Illegal => Self::ALL.len() - 1,
            _ => self as usize - Self::Access as usize,
        }
    }

    /// Whether a minor version that the server speaks has it.
    #[must_use]
    #[inline]
    pub const fn availability(self, minor_version: u32) -> Availability {
        let properties = self.properties();
        if matches!(self, Self::Illegal) || minor_version < properties.first_minor {
            return Availability::Illegal;
        }
        if minor_version > properties.last_minor || properties.unsupported.is_some() {
            return Availability::NotSupported;
        }
        Availability::Supported
    }
}

impl fmt::Display for Nfs4Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Encode for Nfs4Operation {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.number().encode(out);
    }
}

impl Decode<'_> for Nfs4Operation {
    /// For the client: a reply's operation. A server looks numbers up itself, because an unknown
    /// one is answered.
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = decoder.u32()?;
        Self::from_number(value).ok_or(DecodeError::BadValue { name: "nfs_opnum4", value })
    }
}

macro_rules! callbacks {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// An operation of a callback compound (`nfs_cb_opnum4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum CallbackOperation {
            $(#[doc = concat!("OP_", $name, ".")] $variant = $number,)*
        }

        impl CallbackOperation {
            /// Every operation, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The RFC's name, without its prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The operation with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

callbacks! {
    Getattr = 3, "CB_GETATTR";
    Recall = 4, "CB_RECALL";
    Layoutrecall = 5, "CB_LAYOUTRECALL";
    Notify = 6, "CB_NOTIFY";
    PushDeleg = 7, "CB_PUSH_DELEG";
    RecallAny = 8, "CB_RECALL_ANY";
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL";
    RecallSlot = 10, "CB_RECALL_SLOT";
    Sequence = 11, "CB_SEQUENCE";
    WantsCancelled = 12, "CB_WANTS_CANCELLED";
    NotifyLock = 13, "CB_NOTIFY_LOCK";
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID";
    Offload = 15, "CB_OFFLOAD";
    Illegal = 10044, "CB_ILLEGAL";
}

impl CallbackOperation {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Its place among all callbacks.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Illegal => Self::ALL.len() - 1,
            _ => self as usize - Self::Getattr as usize,
        }
    }
}

impl Encode for CallbackOperation {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.number().encode(out);
    }
}

impl Decode<'_> for CallbackOperation {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = decoder.u32()?;
        Self::from_number(value).ok_or(DecodeError::BadValue { name: "nfs_cb_opnum4", value })
    }
}
