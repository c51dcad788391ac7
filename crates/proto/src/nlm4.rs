//! The Network Lock Manager, version 4 (RFC 1813 appendix II; XNFS, chapter "Network Lock Manager
//! Protocol"): the locks of NFSv3.
//!
//! Each of the five calls has two forms: a call with a reply, and a message (`_MSG`) that is
//! answered by a call in the other direction (`_RES`), whose argument is the result.

use core::fmt;

use curt_types::{ByteRange, LockType};
use curt_xdr::{Decode, DecodeError, Decoder, Encode, Opaque, Xdr};

use crate::operation::procedures;

/// The RPC program number.
pub const PROGRAM: u32 = 100_021;
/// The version for NFS version 3.
pub const VERSION: u32 = 4;
/// Maximum length of a host's name in bytes (`LM_MAXSTRLEN`).
pub const NAME_MAX: usize = 1024;
/// Maximum length of a cookie, an owner or a handle in bytes (`MAXNETOBJ_SZ`).
pub const NETOBJ_MAX: usize = 1024;

/// The first bytes of the cookie of a LOCK whose client waits, and repeats it if it must.
///
/// If the LOCK does not block, its client cannot be called back: Curt's server keeps a place in the
/// queue for it, and replies [`NlmStat4::Blocked`]. If it blocks, but callbacks do not reach the
/// client, that server keeps a place, too, and replies [`NlmStat4::Denied`]. To other servers a
/// cookie has no meaning.
pub const REPEATED_COOKIE: [u8; 4] = *b"wait";

procedures! {
    /// A procedure of the program. Numbers 16 to 19 are not assigned.
    NlmProcedure, "NLMPROC4_";
    Null = 0, "NULL", "nothing";
    Test = 1, "TEST", "returns a lock that conflicts";
    Lock = 2, "LOCK", "locks a range";
    Cancel = 3, "CANCEL", "withdraws a LOCK that is blocked";
    Unlock = 4, "UNLOCK", "unlocks a range";
    Granted = 5, "GRANTED", "tells a client that its blocked LOCK is granted";
    TestMsg = 6, "TEST_MSG", "TEST, answered by TEST_RES";
    LockMsg = 7, "LOCK_MSG", "LOCK, answered by LOCK_RES";
    CancelMsg = 8, "CANCEL_MSG", "CANCEL, answered by CANCEL_RES";
    UnlockMsg = 9, "UNLOCK_MSG", "UNLOCK, answered by UNLOCK_RES";
    GrantedMsg = 10, "GRANTED_MSG", "GRANTED, answered by GRANTED_RES";
    TestRes = 11, "TEST_RES", "the result of TEST_MSG";
    LockRes = 12, "LOCK_RES", "the result of LOCK_MSG";
    CancelRes = 13, "CANCEL_RES", "the result of CANCEL_MSG";
    UnlockRes = 14, "UNLOCK_RES", "the result of UNLOCK_MSG";
    GrantedRes = 15, "GRANTED_RES", "the result of GRANTED_MSG";
    Share = 20, "SHARE", "reserves a file (DOS sharing)";
    Unshare = 21, "UNSHARE", "gives a reservation back";
    NmLock = 22, "NM_LOCK", "LOCK by a host that is not monitored";
    FreeAll = 23, "FREE_ALL", "frees everything that a host holds";
}

impl NlmProcedure {
    /// Its place among all procedures.
    #[must_use]
    pub const fn index(self) -> usize {
        let number = self as usize;
        if number >= Self::Share as usize { number - (Self::Share as usize - 16) } else { number }
    }
}

macro_rules! statuses {
    ($($variant:ident = $number:literal, $name:literal, $meaning:literal;)*) => {
        /// The status of every result (`nlm4_stats`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
        #[repr(u32)]
        pub enum NlmStat4 {
            $(#[doc = concat!($name, ": ", $meaning, ".")] $variant = $number,)*
        }

        impl NlmStat4 {
            /// Every status, in the order of their numbers, which are their indices.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The name in XNFS.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The meaning, in a few words without a full stop.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning),* }
            }
        }
    };
}

statuses! {
    Granted = 0, "NLM4_GRANTED", "success";
    Denied = 1, "NLM4_DENIED", "another owner has a conflicting lock";
    DeniedNolocks = 2, "NLM4_DENIED_NOLOCKS", "the server has no resources for the lock";
    Blocked = 3, "NLM4_BLOCKED", "the server keeps the request and calls back";
    DeniedGracePeriod = 4, "NLM4_DENIED_GRACE_PERIOD", "the server was restarted and accepts reclaims only";
    Deadlck = 5, "NLM4_DEADLCK", "waiting would never end";
    Rofs = 6, "NLM4_ROFS", "the file system is read-only";
    StaleFh = 7, "NLM4_STALE_FH", "the handle's file no longer exists";
    Fbig = 8, "NLM4_FBIG", "the range is beyond what the server supports";
    Failed = 9, "NLM4_FAILED", "the request failed for another reason";
}

impl fmt::Display for NlmStat4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.meaning())
    }
}

/// A cookie, an owner or a handle (`netobj`): bytes that mean something to their author alone.
pub type NetObj<'a> = Opaque<'a, NETOBJ_MAX>;

/// A host's name.
pub type CallerName<'a> = Opaque<'a, NAME_MAX>;

/// The lock of another owner that TEST found (`nlm4_holder`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmHolder<'a> {
    /// Whether it is a write lock.
    pub exclusive: bool,
    /// The owner's process at its host.
    pub svid: i32,
    /// The owner.
    pub oh: NetObj<'a>,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 0: up to 2^64-1.
    pub length: u64,
}

/// The lock that a call is about (`nlm4_lock`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmLock<'a> {
    /// The owner's host.
    pub caller_name: CallerName<'a>,
    /// The file: a handle of NFS.
    pub fh: NetObj<'a>,
    /// The owner. Linux's server ignores it, and compares host and `svid`.
    pub oh: NetObj<'a>,
    /// The owner's process at its host.
    pub svid: i32,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; 0: up to 2^64-1.
    pub length: u64,
}

impl NlmLock<'_> {
    /// The bytes, unless the range would reach beyond 2^64-1.
    #[must_use]
    pub const fn range(&self) -> Option<ByteRange> {
        ByteRange::of_length(self.offset, self.length)
    }
}

/// Offset and length of a range, as NLM writes them.
#[must_use]
pub const fn offset_and_length(range: ByteRange) -> (u64, u64) {
    let length = match range.last() {
        u64::MAX => 0,
        last => last - range.first() + 1,
    };
    (range.first(), length)
}

/// The type of a lock that is `exclusive` or not.
#[must_use]
pub const fn lock_type(exclusive: bool) -> LockType {
    if exclusive { LockType::Write } else { LockType::Read }
}

/// The argument of TEST and GRANTED (`nlm4_testargs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmTestArguments<'a> {
    /// Returned in the result.
    pub cookie: NetObj<'a>,
    /// Whether it is a write lock.
    pub exclusive: bool,
    /// The lock.
    pub lock: NlmLock<'a>,
}

/// The argument of LOCK and NM_LOCK (`nlm4_lockargs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmLockArguments<'a> {
    /// Returned in the result.
    pub cookie: NetObj<'a>,
    /// Whether to keep the request, and call back by GRANTED, if another owner holds the lock.
    pub block: bool,
    /// Whether it is a write lock.
    pub exclusive: bool,
    /// The lock.
    pub lock: NlmLock<'a>,
    /// Whether the client held it before the server was restarted.
    pub reclaim: bool,
    /// The state number of the client's NSM.
    pub state: i32,
}

/// The argument of CANCEL (`nlm4_cancargs`): that of the LOCK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmCancelArguments<'a> {
    /// Returned in the result.
    pub cookie: NetObj<'a>,
    /// As in the LOCK.
    pub block: bool,
    /// As in the LOCK.
    pub exclusive: bool,
    /// The lock.
    pub lock: NlmLock<'a>,
}

/// The argument of UNLOCK (`nlm4_unlockargs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmUnlockArguments<'a> {
    /// Returned in the result.
    pub cookie: NetObj<'a>,
    /// The lock.
    pub lock: NlmLock<'a>,
}

/// The result of LOCK, CANCEL, UNLOCK, GRANTED and NM_LOCK, and the argument of their `_RES`
/// (`nlm4_res`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmResult<'a> {
    /// The cookie of the argument.
    pub cookie: NetObj<'a>,
    /// The outcome.
    pub status: NlmStat4,
}

/// The result of TEST, and the argument of TEST_RES (`nlm4_testres`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmTestResult<'a> {
    /// The cookie of the argument.
    pub cookie: NetObj<'a>,
    /// The outcome.
    pub reply: NlmTestReply<'a>,
}

/// The result of TEST (`nlm4_testrply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NlmTestReply<'a> {
    /// A lock that conflicts.
    Denied(NlmHolder<'a>),
    /// Any other status; `Granted` if the lock could be placed.
    Other(NlmStat4),
}

impl Encode for NlmTestReply<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Denied(holder) => {
                NlmStat4::Denied.encode(out);
                holder.encode(out);
            }
            Self::Other(status) => {
                debug_assert_ne!(*status, NlmStat4::Denied, "this status comes with a holder");
                status.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for NlmTestReply<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match decoder.get()? {
            NlmStat4::Denied => decoder.get().map(Self::Denied),
            status => Ok(Self::Other(status)),
        }
    }
}

/// The access that a share reservation denies others (`fsh4_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum ShareDeny {
    /// Nothing (`fsm_DN`).
    None = 0,
    /// Reading (`fsm_DR`).
    Read = 1,
    /// Writing (`fsm_DW`).
    Write = 2,
    /// Both (`fsm_DRW`).
    Both = 3,
}

/// The access for which a share reservation is made (`fsh4_access`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
#[repr(u32)]
pub enum NlmShareAccess {
    /// Nothing (`fsa_NONE`).
    None = 0,
    /// Reading (`fsa_R`).
    Read = 1,
    /// Writing (`fsa_W`).
    Write = 2,
    /// Both (`fsa_RW`).
    Both = 3,
}

/// A share reservation (`nlm4_share`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmShare<'a> {
    /// The owner's host.
    pub caller_name: CallerName<'a>,
    /// The file: a handle of NFS.
    pub fh: NetObj<'a>,
    /// The owner.
    pub oh: NetObj<'a>,
    /// The access that it denies others.
    pub deny: ShareDeny,
    /// The access that it is made for.
    pub access: NlmShareAccess,
}

/// The argument of SHARE and UNSHARE (`nlm4_shareargs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmShareArguments<'a> {
    /// Returned in the result.
    pub cookie: NetObj<'a>,
    /// The reservation.
    pub share: NlmShare<'a>,
    /// Whether the client had it before the server was restarted.
    pub reclaim: bool,
}

/// The result of SHARE and UNSHARE (`nlm4_shareres`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmShareResult<'a> {
    /// The cookie of the argument.
    pub cookie: NetObj<'a>,
    /// The outcome.
    pub status: NlmStat4,
    /// Not used.
    pub sequence: i32,
}

/// The argument of FREE_ALL (`nlm4_notify`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct NlmNotify<'a> {
    /// The host.
    pub name: CallerName<'a>,
    /// The state number of its NSM.
    pub state: i32,
}
