//! Opens, delegations and locks: OPEN, OPEN_DOWNGRADE, CLOSE, DELEGRETURN, GET_DIR_DELEGATION,
//! LOCK, LOCKT, LOCKU, TEST_STATEID, FREE_STATEID (RFC 8881 sections 18.2, 18.6, 18.10 to 18.12,
//! 18.16, 18.18, 18.38, 18.39, 18.48).

use curt_types::LockType;
use curt_xdr::{VarArray, Xdr};

use crate::nfs4::{
    Bitmap4, ChangeInfo, Clientid, Component, Fattr4, NfsStat4, NfsTime4, OpaqueLimited, Stateid, Verifier4,
};

/// Maximum number of stateids of a TEST_STATEID when decoding.
pub const TEST_STATEIDS_MAX: usize = 4096;

/// The owner of opens or locks (`state_owner4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub struct StateOwner<'a> {
    /// The client; with a session that of the session counts.
    pub clientid: Clientid,
    /// Its owner.
    pub owner: OpaqueLimited<'a>,
}

/// The purpose of an open, and the delegation that the client wants (`OPEN4_SHARE_ACCESS_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub struct ShareAccess4(pub u32);

impl ShareAccess4 {
    /// Reading.
    pub const READ: u32 = 1;
    /// Writing.
    pub const WRITE: u32 = 2;
    /// Both.
    pub const BOTH: u32 = 3;
    /// The bits of the delegation wanted.
    pub const WANT_MASK: u32 = 0xff00;
    /// A read delegation is wanted.
    pub const WANT_READ_DELEG: u32 = 0x100;
    /// A write delegation is wanted.
    pub const WANT_WRITE_DELEG: u32 = 0x200;
    /// Any delegation is wanted.
    pub const WANT_ANY_DELEG: u32 = 0x300;
    /// No delegation is wanted.
    pub const WANT_NO_DELEG: u32 = 0x400;
    /// An earlier want is cancelled.
    pub const WANT_CANCEL: u32 = 0x500;
    /// The server may signal when a delegation is available.
    pub const WANT_SIGNAL_WHEN_AVAILABLE: u32 = 0x1_0000;
    /// The server may push a delegation when there is no contention.
    pub const WANT_PUSH_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// All bits that may be set.
    pub const ALL: u32 =
        Self::BOTH | Self::WANT_MASK | Self::WANT_SIGNAL_WHEN_AVAILABLE | Self::WANT_PUSH_WHEN_UNCONTENDED;

    /// The bits of reading and writing.
    #[must_use]
    pub const fn access(self) -> u32 {
        self.0 & Self::BOTH
    }

    /// The bits of the delegation wanted.
    #[must_use]
    pub const fn wanted(self) -> u32 {
        self.0 & Self::WANT_MASK
    }
}

/// How an open creates (`createhow4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum CreateHow4<'a> {
    /// An existing file is used, and truncated if size is 0.
    #[xdr(case = 0)]
    Unchecked(Fattr4<'a>),
    /// An existing file is an error.
    #[xdr(case = 1)]
    Guarded(Fattr4<'a>),
    /// As `Guarded`, but a repeated request succeeds.
    #[xdr(case = 2)]
    Exclusive(Verifier4),
    /// As `Exclusive`, with attributes.
    #[xdr(case = 3)]
    Exclusive41(Verifier4, Fattr4<'a>),
}

/// Whether an open creates (`openflag4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum OpenHow<'a> {
    /// The file is not created.
    #[xdr(case = 0)]
    NoCreate,
    /// The file is created.
    #[xdr(case = 1)]
    Create(CreateHow4<'a>),
}

/// The type of a delegation (`open_delegation_type4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum DelegationType {
    /// None.
    None = 0,
    /// For reading.
    Read = 1,
    /// For writing.
    Write = 2,
    /// None, with the reason.
    NoneExt = 3,
}

/// The basis of an open (`open_claim4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum OpenClaim<'a> {
    /// A name in the current directory.
    #[xdr(case = 0)]
    Null(Component<'a>),
    /// An open of before the server's restart, of the current file.
    #[xdr(case = 1)]
    Previous(DelegationType),
    /// A delegation, and a name in the current directory.
    #[xdr(case = 2)]
    DelegateCur(Stateid, Component<'a>),
    /// A delegation of the client's earlier instance, and a name.
    #[xdr(case = 3)]
    DelegatePrev(Component<'a>),
    /// The current file.
    #[xdr(case = 4)]
    Fh,
    /// A delegation of the current file.
    #[xdr(case = 5)]
    DelegCurFh(Stateid),
    /// A delegation of the client's earlier instance, of the current file.
    #[xdr(case = 6)]
    DelegPrevFh,
}

impl OpenClaim<'_> {
    /// Whether it names a file in the current directory; otherwise that is the current filehandle.
    #[must_use]
    pub const fn is_by_name(&self) -> bool {
        matches!(self, Self::Null(_) | Self::DelegateCur(..) | Self::DelegatePrev(_))
    }
}

/// OPEN's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenArgs4<'a> {
    /// Not used with sessions.
    pub seqid: u32,
    /// The purpose of the open.
    pub share_access: ShareAccess4,
    /// The access that it denies others: the bits of [`ShareAccess4::BOTH`].
    pub share_deny: u32,
    /// Its owner.
    pub owner: StateOwner<'a>,
    /// Whether it creates.
    pub how: OpenHow<'a>,
    /// The basis of the open.
    pub claim: OpenClaim<'a>,
}

/// Flags of OPEN's result (`OPEN4_RESULT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct OpenResultFlags(pub u32);

impl OpenResultFlags {
    /// OPEN_CONFIRM is needed (4.0 only).
    pub const CONFIRM: u32 = 2;
    /// Locks behave as POSIX says.
    pub const LOCKTYPE_POSIX: u32 = 4;
    /// The file exists until CLOSE even if it is removed.
    pub const PRESERVE_UNLINKED: u32 = 8;
    /// The server may send CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

/// An entry of an access control list (`nfsace4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Nfsace4<'a> {
    /// Its type.
    pub kind: u32,
    /// Its flags.
    pub flags: u32,
    /// The rights.
    pub mask: u32,
    /// The user or group that it is about.
    pub who: OpaqueLimited<'a>,
}

/// How far a file may grow under a write delegation (`nfs_space_limit4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum SpaceLimit {
    /// To this size in bytes.
    #[xdr(case = 1)]
    Size(u64),
    /// By a number of blocks of a size in bytes.
    #[xdr(case = 2)]
    Blocks(u32, u32),
}

/// Why there is no delegation (`open_none_delegation4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum NoDelegation {
    /// None was wanted.
    #[xdr(case = 0)]
    NotWanted,
    /// Others use the file; whether the server will push one later.
    #[xdr(case = 1)]
    Contention(bool),
    /// The server lacks resources; whether it will signal when it has some.
    #[xdr(case = 2)]
    Resource(bool),
    /// Files of this type have none.
    #[xdr(case = 3)]
    NotSupportedForType,
    /// Files of this type have none for writing.
    #[xdr(case = 4)]
    WriteNotSupportedForType,
    /// A delegation cannot be upgraded.
    #[xdr(case = 5)]
    NoUpgrade,
    /// A delegation cannot be downgraded.
    #[xdr(case = 6)]
    NoDowngrade,
    /// The want was cancelled.
    #[xdr(case = 7)]
    Cancelled,
    /// A directory.
    #[xdr(case = 8)]
    IsDirectory,
}

/// The delegation that an OPEN returns (`open_delegation4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum OpenDelegation<'a> {
    /// None.
    #[xdr(case = 0)]
    None,
    /// For reading.
    #[xdr(case = 1)]
    Read {
        /// The delegation.
        stateid: Stateid,
        /// Whether it is recalled already.
        recall: bool,
        /// The users who may open without a request.
        permissions: Nfsace4<'a>,
    },
    /// For writing.
    #[xdr(case = 2)]
    Write {
        /// The delegation.
        stateid: Stateid,
        /// Whether it is recalled already.
        recall: bool,
        /// How far the file may grow.
        space_limit: SpaceLimit,
        /// The users who may open without a request.
        permissions: Nfsace4<'a>,
    },
    /// None, with the reason.
    #[xdr(case = 3)]
    NoneExt(NoDelegation),
}

/// OPEN's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenOk4<'a> {
    /// The open.
    pub stateid: Stateid,
    /// The directory's change attribute.
    pub directory: ChangeInfo,
    /// Flags.
    pub flags: OpenResultFlags,
    /// The attributes that were set.
    pub attributes_set: Bitmap4,
    /// The delegation.
    pub delegation: OpenDelegation<'a>,
}

/// OPEN_DOWNGRADE's arguments. Its result is the stateid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OpenDowngradeArgs4 {
    /// The open.
    pub stateid: Stateid,
    /// Not used with sessions.
    pub seqid: u32,
    /// The purpose of the open from now on.
    pub share_access: ShareAccess4,
    /// The access that it denies others from now on.
    pub share_deny: u32,
}

/// CLOSE's arguments. Its result is a stateid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CloseArgs4 {
    /// Not used with sessions.
    pub seqid: u32,
    /// The open.
    pub stateid: Stateid,
}

/// DELEGRETURN's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DelegreturnArgs4 {
    /// The delegation.
    pub stateid: Stateid,
}

/// GET_DIR_DELEGATION's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetDirDelegationArgs4 {
    /// Whether the server may signal when a delegation is available.
    pub signal_when_available: bool,
    /// Kinds of notification wanted.
    pub notification_types: Bitmap4,
    /// How long changes of children's attributes may be collected.
    pub child_attribute_delay: NfsTime4,
    /// How long changes of the directory's attributes may be collected.
    pub directory_attribute_delay: NfsTime4,
    /// Attributes of children wanted.
    pub child_attributes: Bitmap4,
    /// Attributes of the directory wanted.
    pub directory_attributes: Bitmap4,
}

/// GET_DIR_DELEGATION's result (`GET_DIR_DELEGATION4res_non_fatal`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum GetDirDelegationOk4 {
    /// A delegation.
    #[xdr(case = 0)]
    Granted {
        /// The directory's cookie verifier.
        verifier: Verifier4,
        /// The delegation.
        stateid: Stateid,
        /// Kinds of notification granted.
        notification_types: Bitmap4,
        /// Attributes of children in notifications.
        child_attributes: Bitmap4,
        /// Attributes of the directory in notifications.
        directory_attributes: Bitmap4,
    },
    /// None; whether the server will signal when one is available.
    #[xdr(case = 1)]
    Unavailable(bool),
}

/// The type of a lock (`nfs_lock_type4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum LockType4 {
    /// Shared.
    Read = 1,
    /// Exclusive.
    Write = 2,
    /// Shared; the client waits.
    ReadWait = 3,
    /// Exclusive; the client waits.
    WriteWait = 4,
}

impl LockType4 {
    /// Shared or exclusive.
    #[must_use]
    pub const fn lock_type(self) -> LockType {
        match self {
            Self::Read | Self::ReadWait => LockType::Read,
            Self::Write | Self::WriteWait => LockType::Write,
        }
    }

    /// Whether the client waits.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, Self::ReadWait | Self::WriteWait)
    }
}

/// The owner of a lock (`locker4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum Locker<'a> {
    /// An owner that has a stateid for the file.
    #[xdr(case = 0)]
    Existing {
        /// The stateid.
        stateid: Stateid,
        /// Not used with sessions.
        seqid: u32,
    },
    /// An owner that is new to the file, with the open on which its locks are based.
    #[xdr(case = 1)]
    New {
        /// Not used with sessions.
        open_seqid: u32,
        /// The open.
        open_stateid: Stateid,
        /// Not used with sessions.
        seqid: u32,
        /// The owner.
        owner: StateOwner<'a>,
    },
}

/// LOCK's arguments. Its result is the stateid, or [`LockDenied`] with `NFS4ERR_DENIED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockArgs4<'a> {
    /// The type.
    pub kind: LockType4,
    /// Whether the client held it before the server was restarted.
    pub reclaim: bool,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 2^64-1: to the end of the file.
    pub length: u64,
    /// The owner of the lock.
    pub locker: Locker<'a>,
}

/// The lock that conflicts (`LOCK4denied`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockDenied<'a> {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 2^64-1: to the end of the file.
    pub length: u64,
    /// The type.
    pub kind: LockType4,
    /// The owner of the lock.
    pub owner: StateOwner<'a>,
}

/// LOCKT's arguments. [`LockDenied`] follows `NFS4ERR_DENIED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LocktArgs4<'a> {
    /// The type.
    pub kind: LockType4,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 2^64-1: to the end of the file.
    pub length: u64,
    /// The owner of the lock.
    pub owner: StateOwner<'a>,
}

/// LOCKU's arguments. Its result is the stateid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LockuArgs4 {
    /// The type; not used.
    pub kind: LockType4,
    /// Not used with sessions.
    pub seqid: u32,
    /// The owner's stateid for the file.
    pub stateid: Stateid,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 2^64-1: to the end of the file.
    pub length: u64,
}

/// TEST_STATEID's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestStateidArgs4 {
    /// The stateids.
    pub stateids: VarArray<Stateid, TEST_STATEIDS_MAX>,
}

/// TEST_STATEID's result.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct TestStateidOk4 {
    /// The status of each.
    pub statuses: VarArray<NfsStat4, TEST_STATEIDS_MAX>,
}

/// FREE_STATEID's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FreeStateidArgs4 {
    /// The stateid.
    pub stateid: Stateid,
}
