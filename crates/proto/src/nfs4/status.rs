//! The statuses of NFSv4: one table of number, name, meaning and fault (RFC 8881 section 15.1, RFC
//! 7530 section 13.1, RFC 7862 section 11.1, RFC 8276 section 8.5).

use core::fmt;

use curt_types::Fault;
use curt_xdr::{Decode, DecodeError, Decoder, Encode};

macro_rules! statuses {
    ($($variant:ident = $number:literal, $name:literal, $meaning:literal, $fault:ident;)*) => {
        /// The status of a compound and of each of its operations (`nfsstat4`), of all minor
        /// versions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum NfsStat4 {
            /// NFS4_OK: success.
            Ok = 0,
            $(#[doc = concat!($name, ": ", $meaning, ".")] $variant = $number,)*
        }

        impl NfsStat4 {
            /// Every status, in the order of their numbers.
            pub const ALL: &'static [Self] = &[Self::Ok, $(Self::$variant),*];

            /// The RFC's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { Self::Ok => "NFS4_OK", $(Self::$variant => $name),* }
            }

            /// The meaning, in a few words without a full stop.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { Self::Ok => "success", $(Self::$variant => $meaning),* }
            }

            /// The status with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { 0 => Some(Self::Ok), $($number => Some(Self::$variant),)* _ => None }
            }
        }

        impl From<NfsStat4> for Fault {
            /// For a failed operation: what its caller sees when the protocol has not dealt with
            /// the status. NFS4_OK here is an error of the server.
            fn from(status: NfsStat4) -> Self {
                match status {
                    NfsStat4::Ok => Self::Serverfault,
                    $(NfsStat4::$variant => Self::$fault),*
                }
            }
        }
    };
}

statuses! {
    Perm = 1, "NFS4ERR_PERM", "only the owner or the superuser may do this", Perm;
    Noent = 2, "NFS4ERR_NOENT", "no such file or directory", Noent;
    Io = 5, "NFS4ERR_IO", "the disk or file system failed", Io;
    Nxio = 6, "NFS4ERR_NXIO", "no such device or address", Nxio;
    Access = 13, "NFS4ERR_ACCESS", "permission denied", Acces;
    Exist = 17, "NFS4ERR_EXIST", "the file exists", Exist;
    Xdev = 18, "NFS4ERR_XDEV", "a hard link or rename across file systems", Xdev;
    Notdir = 20, "NFS4ERR_NOTDIR", "not a directory", Notdir;
    Isdir = 21, "NFS4ERR_ISDIR", "a directory", Isdir;
    Inval = 22, "NFS4ERR_INVAL", "an invalid argument, or one not supported for this object", Inval;
    Fbig = 27, "NFS4ERR_FBIG", "the file would be larger than the server can keep", Fbig;
    Nospc = 28, "NFS4ERR_NOSPC", "no space is left on the device", Nospc;
    Rofs = 30, "NFS4ERR_ROFS", "the file system is read-only", Rofs;
    Mlink = 31, "NFS4ERR_MLINK", "too many hard links", Mlink;
    Nametoolong = 63, "NFS4ERR_NAMETOOLONG", "the name is too long", Nametoolong;
    Notempty = 66, "NFS4ERR_NOTEMPTY", "the directory is not empty", Notempty;
    Dquot = 69, "NFS4ERR_DQUOT", "the quota is exceeded", Dquot;
    Stale = 70, "NFS4ERR_STALE", "the handle's file no longer exists", Stale;
    Badhandle = 10001, "NFS4ERR_BADHANDLE", "the handle is none of this server's", Badhandle;
    BadCookie = 10003, "NFS4ERR_BAD_COOKIE", "the directory position is not valid", BadCookie;
    Notsupp = 10004, "NFS4ERR_NOTSUPP", "the operation is not supported", Notsupp;
    Toosmall = 10005, "NFS4ERR_TOOSMALL", "the buffer or request is too small", Toosmall;
    Serverfault = 10006, "NFS4ERR_SERVERFAULT", "the server failed in a way no other status describes", Serverfault;
    Badtype = 10007, "NFS4ERR_BADTYPE", "the server cannot create objects of this type", Badtype;
    Delay = 10008, "NFS4ERR_DELAY", "the server needs time: send the request again later", Jukebox;
    Same = 10009, "NFS4ERR_SAME", "the attributes of NVERIFY are the object's", NotSync;
    Denied = 10010, "NFS4ERR_DENIED", "another owner has a conflicting lock", Jukebox;
    Expired = 10011, "NFS4ERR_EXPIRED", "the state was lost with its lease", Io;
    Locked = 10012, "NFS4ERR_LOCKED", "another owner's share reservation or lock denies the I/O", Jukebox;
    Grace = 10013, "NFS4ERR_GRACE", "the server was restarted and accepts reclaims only", Jukebox;
    Fhexpired = 10014, "NFS4ERR_FHEXPIRED", "the volatile handle has expired", Stale;
    ShareDenied = 10015, "NFS4ERR_SHARE_DENIED", "another open's share reservation conflicts", Acces;
    Wrongsec = 10016, "NFS4ERR_WRONGSEC", "the security flavour is not allowed here", Acces;
    ClidInuse = 10017, "NFS4ERR_CLID_INUSE", "another principal uses the client identifier", Perm;
    Resource = 10018, "NFS4ERR_RESOURCE", "the server lacks resources (4.0 only)", Jukebox;
    Moved = 10019, "NFS4ERR_MOVED", "the file system is at another server", Remote;
    Nofilehandle = 10020, "NFS4ERR_NOFILEHANDLE", "there is no current filehandle", Serverfault;
    MinorVersMismatch = 10021, "NFS4ERR_MINOR_VERS_MISMATCH", "the minor version is not supported", Notsupp;
    StaleClientid = 10022, "NFS4ERR_STALE_CLIENTID", "the client identifier is unknown", Serverfault;
    StaleStateid = 10023, "NFS4ERR_STALE_STATEID", "the stateid is of an earlier instance of the server", Io;
    OldStateid = 10024, "NFS4ERR_OLD_STATEID", "the stateid has been superseded", Io;
    BadStateid = 10025, "NFS4ERR_BAD_STATEID", "the stateid is not valid", Io;
    BadSeqid = 10026, "NFS4ERR_BAD_SEQID", "the owner's sequence number is wrong (4.0 only)", Serverfault;
    NotSame = 10027, "NFS4ERR_NOT_SAME", "the attributes of VERIFY, or a cookie verifier, are not the object's", NotSync;
    LockRange = 10028, "NFS4ERR_LOCK_RANGE", "a lock cannot be split or joined", Inval;
    Symlink = 10029, "NFS4ERR_SYMLINK", "a symbolic link", Inval;
    Restorefh = 10030, "NFS4ERR_RESTOREFH", "there is no saved filehandle (4.0 only)", Serverfault;
    LeaseMoved = 10031, "NFS4ERR_LEASE_MOVED", "the lease is at another server (4.0 only)", Remote;
    Attrnotsupp = 10032, "NFS4ERR_ATTRNOTSUPP", "an attribute is not supported", Notsupp;
    NoGrace = 10033, "NFS4ERR_NO_GRACE", "state can no longer be reclaimed", Io;
    ReclaimBad = 10034, "NFS4ERR_RECLAIM_BAD", "the server does not know the state to be reclaimed", Io;
    ReclaimConflict = 10035, "NFS4ERR_RECLAIM_CONFLICT", "the state to be reclaimed conflicts with another's", Io;
    Badxdr = 10036, "NFS4ERR_BADXDR", "the arguments could not be decoded", Serverfault;
    LocksHeld = 10037, "NFS4ERR_LOCKS_HELD", "the open still has locks", Inval;
    Openmode = 10038, "NFS4ERR_OPENMODE", "the open is not for this kind of I/O", Acces;
    Badowner = 10039, "NFS4ERR_BADOWNER", "the owner cannot be translated", Inval;
    Badchar = 10040, "NFS4ERR_BADCHAR", "a name has a character that is not allowed", Inval;
    Badname = 10041, "NFS4ERR_BADNAME", "the name is not allowed", Inval;
    BadRange = 10042, "NFS4ERR_BAD_RANGE", "the range of a lock is not supported", Inval;
    LockNotsupp = 10043, "NFS4ERR_LOCK_NOTSUPP", "atomic upgrade or downgrade of a lock is not supported", Notsupp;
    OpIllegal = 10044, "NFS4ERR_OP_ILLEGAL", "the operation's number is unknown", Notsupp;
    Deadlock = 10045, "NFS4ERR_DEADLOCK", "waiting for the lock would never end", Jukebox;
    FileOpen = 10046, "NFS4ERR_FILE_OPEN", "the file is open", Jukebox;
    AdminRevoked = 10047, "NFS4ERR_ADMIN_REVOKED", "the administrator has revoked the state", Io;
    CbPathDown = 10048, "NFS4ERR_CB_PATH_DOWN", "the callback path does not work (4.0 only)", Serverfault;
    Badiomode = 10049, "NFS4ERR_BADIOMODE", "the layout's I/O mode is wrong", Inval;
    Badlayout = 10050, "NFS4ERR_BADLAYOUT", "the layout is wrong", Inval;
    BadSessionDigest = 10051, "NFS4ERR_BAD_SESSION_DIGEST", "the digest is wrong", Perm;
    Badsession = 10052, "NFS4ERR_BADSESSION", "the session is unknown", Serverfault;
    Badslot = 10053, "NFS4ERR_BADSLOT", "the slot is above the session's highest", Serverfault;
    CompleteAlready = 10054, "NFS4ERR_COMPLETE_ALREADY", "RECLAIM_COMPLETE has already been received", Serverfault;
    ConnNotBoundToSession = 10055, "NFS4ERR_CONN_NOT_BOUND_TO_SESSION", "the connection is not bound to the session", Serverfault;
    DelegAlreadyWanted = 10056, "NFS4ERR_DELEG_ALREADY_WANTED", "the client already wants this delegation", Serverfault;
    BackChanBusy = 10057, "NFS4ERR_BACK_CHAN_BUSY", "callbacks are outstanding on the session", Jukebox;
    Layouttrylater = 10058, "NFS4ERR_LAYOUTTRYLATER", "a layout may be available later", Jukebox;
    Layoutunavailable = 10059, "NFS4ERR_LAYOUTUNAVAILABLE", "no layout is available", Notsupp;
    NomatchingLayout = 10060, "NFS4ERR_NOMATCHING_LAYOUT", "the client has no such layout", Inval;
    Recallconflict = 10061, "NFS4ERR_RECALLCONFLICT", "a recall is outstanding", Jukebox;
    UnknownLayouttype = 10062, "NFS4ERR_UNKNOWN_LAYOUTTYPE", "the layout type is unknown", Notsupp;
    SeqMisordered = 10063, "NFS4ERR_SEQ_MISORDERED", "the slot's sequence number is wrong", Serverfault;
    SequencePos = 10064, "NFS4ERR_SEQUENCE_POS", "SEQUENCE is not the first operation", Serverfault;
    ReqTooBig = 10065, "NFS4ERR_REQ_TOO_BIG", "the request is larger than the session's limit", Serverfault;
    RepTooBig = 10066, "NFS4ERR_REP_TOO_BIG", "the reply would be larger than the session's limit", Toosmall;
    RepTooBigToCache = 10067, "NFS4ERR_REP_TOO_BIG_TO_CACHE", "the reply would be larger than the cached limit", Toosmall;
    RetryUncachedRep = 10068, "NFS4ERR_RETRY_UNCACHED_REP", "the reply to be repeated was not cached", Io;
    UnsafeCompound = 10069, "NFS4ERR_UNSAFE_COMPOUND", "the compound could not be undone", Serverfault;
    TooManyOps = 10070, "NFS4ERR_TOO_MANY_OPS", "the compound has more operations than the session allows", Serverfault;
    OpNotInSession = 10071, "NFS4ERR_OP_NOT_IN_SESSION", "the operation needs SEQUENCE before it", Serverfault;
    HashAlgUnsupp = 10072, "NFS4ERR_HASH_ALG_UNSUPP", "the hash algorithm is not supported", Notsupp;
    ClientidBusy = 10074, "NFS4ERR_CLIENTID_BUSY", "the client still has state", Jukebox;
    PnfsIoHole = 10075, "NFS4ERR_PNFS_IO_HOLE", "the I/O is to a hole of the data server", Io;
    SeqFalseRetry = 10076, "NFS4ERR_SEQ_FALSE_RETRY", "the slot's request is repeated with other contents", Serverfault;
    BadHighSlot = 10077, "NFS4ERR_BAD_HIGH_SLOT", "the highest slot is wrong", Serverfault;
    Deadsession = 10078, "NFS4ERR_DEADSESSION", "the session is being destroyed", Serverfault;
    EncrAlgUnsupp = 10079, "NFS4ERR_ENCR_ALG_UNSUPP", "the encryption algorithm is not supported", Notsupp;
    PnfsNoLayout = 10080, "NFS4ERR_PNFS_NO_LAYOUT", "the I/O needs a layout", Io;
    NotOnlyOp = 10081, "NFS4ERR_NOT_ONLY_OP", "the operation must be the compound's only one", Serverfault;
    WrongCred = 10082, "NFS4ERR_WRONG_CRED", "the state belongs to another principal", Perm;
    WrongType = 10083, "NFS4ERR_WRONG_TYPE", "the object is of the wrong type", Inval;
    DirdelegUnavail = 10084, "NFS4ERR_DIRDELEG_UNAVAIL", "a directory delegation is not available", Notsupp;
    RejectDeleg = 10085, "NFS4ERR_REJECT_DELEG", "the client does not accept the delegation", Serverfault;
    Returnconflict = 10086, "NFS4ERR_RETURNCONFLICT", "the layout is being returned", Jukebox;
    DelegRevoked = 10087, "NFS4ERR_DELEG_REVOKED", "the delegation was revoked", Io;
    PartnerNotsupp = 10088, "NFS4ERR_PARTNER_NOTSUPP", "the other server does not support the copy", Notsupp;
    PartnerNoAuth = 10089, "NFS4ERR_PARTNER_NO_AUTH", "the other server does not allow the copy", Acces;
    UnionNotsupp = 10090, "NFS4ERR_UNION_NOTSUPP", "this arm of a union is not supported", Notsupp;
    OffloadDenied = 10091, "NFS4ERR_OFFLOAD_DENIED", "the copy is not allowed", Acces;
    WrongLfs = 10092, "NFS4ERR_WRONG_LFS", "the security label is of another format", Inval;
    Badlabel = 10093, "NFS4ERR_BADLABEL", "the security label is not valid", Inval;
    OffloadNoReqs = 10094, "NFS4ERR_OFFLOAD_NO_REQS", "the copy cannot meet the requirements", Notsupp;
    Noxattr = 10095, "NFS4ERR_NOXATTR", "there is no such extended attribute", Noent;
    Xattr2big = 10096, "NFS4ERR_XATTR2BIG", "the extended attribute is too large", Fbig;
}

impl NfsStat4 {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl From<Fault> for NfsStat4 {
    /// The status that has the fault's meaning. NFSv4 has no `NODEV`, `NOT_SYNC` and `REMOTE`.
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Perm => Self::Perm,
            Fault::Noent => Self::Noent,
            Fault::Io => Self::Io,
            Fault::Nxio | Fault::Nodev => Self::Nxio,
            Fault::Acces => Self::Access,
            Fault::Exist => Self::Exist,
            Fault::Xdev => Self::Xdev,
            Fault::Notdir => Self::Notdir,
            Fault::Isdir => Self::Isdir,
            Fault::Inval => Self::Inval,
            Fault::Fbig => Self::Fbig,
            Fault::Nospc => Self::Nospc,
            Fault::Rofs => Self::Rofs,
            Fault::Mlink => Self::Mlink,
            Fault::Nametoolong => Self::Nametoolong,
            Fault::Notempty => Self::Notempty,
            Fault::Dquot => Self::Dquot,
            Fault::Stale => Self::Stale,
            Fault::Badhandle => Self::Badhandle,
            Fault::NotSync => Self::NotSame,
            Fault::BadCookie => Self::BadCookie,
            Fault::Notsupp => Self::Notsupp,
            Fault::Toosmall => Self::Toosmall,
            Fault::Remote => Self::Moved,
            Fault::Serverfault => Self::Serverfault,
            Fault::Badtype => Self::Badtype,
            Fault::Jukebox => Self::Delay,
        }
    }
}

impl fmt::Display for NfsStat4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.meaning())
    }
}

impl Encode for NfsStat4 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.number().encode(out);
    }
}

impl Decode<'_> for NfsStat4 {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = decoder.u32()?;
        Self::from_number(value).ok_or(DecodeError::BadValue { name: "nfsstat4", value })
    }
}
