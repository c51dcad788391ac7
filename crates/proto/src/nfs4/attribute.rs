//! The attributes of NFSv4: one table of number, name, type, minor version and use, with the reason
//! why the server does not have one (RFC 8881 section 5, RFC 7862 section 12, RFC 8275, RFC 8276).
//! The table makes the type of their values, its encoder and its decoder: code without a loop, one
//! test for each attribute, in the order of their numbers.

use curt_xdr::{DecodeError, Decoder, Encode, Opaque, Xdr};

use super::{Bitmap4, Fsid4, Ftype4, NfsFh4, NfsStat4, NfsTime4, OpaqueLimited, SpecData4};

/// Maximum length of the values of a set of attributes when decoding, in bytes.
pub const ATTRIBUTES_MAX: usize = 1 << 20;

/// The permitted uses of an attribute by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeUse {
    /// Read it (GETATTR, READDIR, VERIFY).
    Get,
    /// Read and set it.
    GetSet,
    /// Set it (SETATTR, CREATE, OPEN).
    Set,
}

impl AttributeUse {
    /// Whether it may be read.
    #[must_use]
    pub const fn readable(self) -> bool {
        matches!(self, Self::Get | Self::GetSet)
    }

    /// Whether it may be set.
    #[must_use]
    pub const fn settable(self) -> bool {
        matches!(self, Self::Set | Self::GetSet)
    }
}

/// How a time is set (`settime4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[xdr(union)]
pub enum SetTime4 {
    /// To the server's current time.
    #[xdr(case = 0)]
    ServerTime,
    /// To this time.
    #[xdr(case = 1)]
    ClientTime(NfsTime4),
}

/// How the change attribute changes (`change_attr_type4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
#[repr(u32)]
pub enum ChangeAttrType {
    /// The attribute increases with each change.
    MonotonicIncr = 0,
    /// The attribute is a counter of all changes.
    VersionCounter = 1,
    /// A counter, but not for writes of pNFS.
    VersionCounterNoPnfs = 2,
    /// The attribute is the time of the last change of attributes.
    TimeMetadata = 3,
    /// Nothing is known of it but that it changes.
    Undefined = 4,
}

/// A mode, and the mask that applies where there is no default ACL (`mode_umask4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ModeUmask {
    /// The mode.
    pub mode: u32,
    /// The creator's mask.
    pub umask: u32,
}

/// The bits of a mode that are set, and which (`mode_masked4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ModeMasked {
    /// The bits' values.
    pub value: u32,
    /// The bits that change.
    pub mask: u32,
}

/// Attributes as they stand in a message (`fattr4`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Fattr4<'a> {
    /// Which.
    pub mask: Bitmap4,
    /// The values of the attributes, in ascending order of their numbers.
    pub values: Opaque<'a, ATTRIBUTES_MAX>,
}

macro_rules! attributes {
    (
        values {$(
            $variant:ident = $number:literal, $name:literal, $field:ident: $type:ty,
            $minor:literal, $use:ident $(=> $why:literal)?;
        )*}
        others {$(
            $other:ident = $other_number:literal, $other_name:literal,
            $other_minor:literal, $other_use:ident => $other_why:literal;
        )*}
    ) => {
        /// An attribute of an object or of its file system.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Attribute {
            $(#[doc = concat!("`", $name, "`.")] $variant = $number,)*
            $(#[doc = concat!("`", $other_name, "`.")] $other = $other_number,)*
        }

        impl Attribute {
            /// Every attribute; those without a value here are last.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)* $(Self::$other),*];

            /// The RFC's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* $(Self::$other => $other_name),* }
            }

            /// The attribute with this number, in any minor version.
            #[must_use]
            #[inline]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    $($other_number => Some(Self::$other),)*
                    _ => None,
                }
            }

            /// The first minor version that has it.
            #[must_use]
            pub const fn first_minor(self) -> u32 {
                match self { $(Self::$variant => $minor,)* $(Self::$other => $other_minor),* }
            }

            /// The permitted uses by clients.
            #[must_use]
            pub const fn allows(self) -> AttributeUse {
                match self {
                    $(Self::$variant => AttributeUse::$use,)*
                    $(Self::$other => AttributeUse::$other_use),*
                }
            }

            /// Why the server does not support it, if it does not.
            #[must_use]
            #[allow(unreachable_code, reason = "a row without a reason")]
            pub const fn unsupported(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => { $(return Some($why);)? None })*
                    $(Self::$other => Some($other_why)),*
                }
            }

            /// The type of its value here, if there is one.
            #[must_use]
            pub const fn type_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(stringify!($type)),)*
                    $(Self::$other => None),*
                }
            }
        }

        /// The values of attributes, of those that have one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct AttributeValues<'a> {
            $(#[doc = concat!("`", $name, "`.")] pub $field: Option<$type>,)*
        }

        impl<'a> AttributeValues<'a> {
            /// The attributes that have a value.
            #[must_use]
            pub fn present(&self) -> Bitmap4 {
                let mut present = Bitmap4::EMPTY;
                $(if self.$field.is_some() { present = present.with($number); })*
                present
            }

            /// Those that have a value here.
            const VALUED: Bitmap4 = Bitmap4::EMPTY $(.with($number))*;

            /// Appends the values of the attributes in `mask`, without mask and length. Returns
            /// those of them that have no value.
            pub fn encode_values(&self, mask: Bitmap4, out: &mut Vec<u8>) -> Bitmap4 {
                let mut missing = mask.without(Self::VALUED);
                $(if mask.contains($number) {
                    match &self.$field {
                        Some(value) => value.encode(out),
                        None => missing = missing.with($number),
                    }
                })*
                missing
            }

            /// Decodes the values of the attributes that are in both sets. If `asked` is constant,
            /// nothing is left of the others.
            #[inline(always)]
            fn decode_values(
                &mut self,
                asked: Bitmap4,
                mask: Bitmap4,
                decoder: &mut Decoder<'a>,
            ) -> Result<(), DecodeError> {
                $(if asked.contains($number) && mask.contains($number) {
                    self.$field = Some(decoder.get()?);
                })*
                Ok(())
            }
        }
    };
}

attributes! {
    values {
        SupportedAttrs = 0, "supported_attrs", supported_attrs: Bitmap4, 0, Get;
        Type = 1, "type", kind: Ftype4, 0, Get;
        FhExpireType = 2, "fh_expire_type", fh_expire_type: u32, 0, Get;
        Change = 3, "change", change: u64, 0, Get;
        Size = 4, "size", size: u64, 0, GetSet;
        LinkSupport = 5, "link_support", link_support: bool, 0, Get;
        SymlinkSupport = 6, "symlink_support", symlink_support: bool, 0, Get;
        NamedAttr = 7, "named_attr", named_attr: bool, 0, Get;
        Fsid = 8, "fsid", fsid: Fsid4, 0, Get;
        UniqueHandles = 9, "unique_handles", unique_handles: bool, 0, Get;
        LeaseTime = 10, "lease_time", lease_time: u32, 0, Get;
        RdattrError = 11, "rdattr_error", rdattr_error: NfsStat4, 0, Get;
        Aclsupport = 13, "aclsupport", aclsupport: u32, 0, Get;
        Archive = 14, "archive", archive: bool, 0, GetSet => "Unix file systems do not have it";
        Cansettime = 15, "cansettime", cansettime: bool, 0, Get;
        CaseInsensitive = 16, "case_insensitive", case_insensitive: bool, 0, Get;
        CasePreserving = 17, "case_preserving", case_preserving: bool, 0, Get;
        ChownRestricted = 18, "chown_restricted", chown_restricted: bool, 0, Get;
        Filehandle = 19, "filehandle", filehandle: NfsFh4<'a>, 0, Get;
        Fileid = 20, "fileid", fileid: u64, 0, Get;
        FilesAvail = 21, "files_avail", files_avail: u64, 0, Get;
        FilesFree = 22, "files_free", files_free: u64, 0, Get;
        FilesTotal = 23, "files_total", files_total: u64, 0, Get;
        Hidden = 25, "hidden", hidden: bool, 0, GetSet => "Unix file systems do not have it";
        Homogeneous = 26, "homogeneous", homogeneous: bool, 0, Get;
        Maxfilesize = 27, "maxfilesize", maxfilesize: u64, 0, Get;
        Maxlink = 28, "maxlink", maxlink: u32, 0, Get;
        Maxname = 29, "maxname", maxname: u32, 0, Get;
        Maxread = 30, "maxread", maxread: u64, 0, Get;
        Maxwrite = 31, "maxwrite", maxwrite: u64, 0, Get;
        Mimetype = 32, "mimetype", mimetype: OpaqueLimited<'a>, 0, GetSet
            => "Unix file systems do not have it";
        Mode = 33, "mode", mode: u32, 0, GetSet;
        NoTrunc = 34, "no_trunc", no_trunc: bool, 0, Get;
        Numlinks = 35, "numlinks", numlinks: u32, 0, Get;
        Owner = 36, "owner", owner: OpaqueLimited<'a>, 0, GetSet;
        OwnerGroup = 37, "owner_group", owner_group: OpaqueLimited<'a>, 0, GetSet;
        QuotaAvailHard = 38, "quota_avail_hard", quota_avail_hard: u64, 0, Get
            => "the kernel reports another user's quota only to a process with CAP_SYS_ADMIN; writes fail with NFS4ERR_DQUOT";
        QuotaAvailSoft = 39, "quota_avail_soft", quota_avail_soft: u64, 0, Get
            => "the kernel reports another user's quota only to a process with CAP_SYS_ADMIN; writes fail with NFS4ERR_DQUOT";
        QuotaUsed = 40, "quota_used", quota_used: u64, 0, Get
            => "the kernel reports another user's quota only to a process with CAP_SYS_ADMIN; writes fail with NFS4ERR_DQUOT";
        Rawdev = 41, "rawdev", rawdev: SpecData4, 0, Get;
        SpaceAvail = 42, "space_avail", space_avail: u64, 0, Get;
        SpaceFree = 43, "space_free", space_free: u64, 0, Get;
        SpaceTotal = 44, "space_total", space_total: u64, 0, Get;
        SpaceUsed = 45, "space_used", space_used: u64, 0, Get;
        System = 46, "system", system: bool, 0, GetSet => "Unix file systems do not have it";
        TimeAccess = 47, "time_access", time_access: NfsTime4, 0, Get;
        TimeAccessSet = 48, "time_access_set", time_access_set: SetTime4, 0, Set;
        TimeBackup = 49, "time_backup", time_backup: NfsTime4, 0, GetSet
            => "Unix file systems do not have it";
        // The RFC lets clients set it, Unix does not.
        TimeCreate = 50, "time_create", time_create: NfsTime4, 0, Get;
        TimeDelta = 51, "time_delta", time_delta: NfsTime4, 0, Get;
        TimeMetadata = 52, "time_metadata", time_metadata: NfsTime4, 0, Get;
        TimeModify = 53, "time_modify", time_modify: NfsTime4, 0, Get;
        TimeModifySet = 54, "time_modify_set", time_modify_set: SetTime4, 0, Set;
        MountedOnFileid = 55, "mounted_on_fileid", mounted_on_fileid: u64, 0, Get;
        ModeSetMasked = 74, "mode_set_masked", mode_set_masked: ModeMasked, 1, Set;
        SuppattrExclcreat = 75, "suppattr_exclcreat", suppattr_exclcreat: Bitmap4, 1, Get;
        FsCharsetCap = 76, "fs_charset_cap", fs_charset_cap: u32, 1, Get;
        CloneBlksize = 77, "clone_blksize", clone_blksize: u32, 2, Get => "CLONE is not supported";
        SpaceFreed = 78, "space_freed", space_freed: u64, 2, Get
            => "file systems do not report shared extents";
        ChangeAttrType = 79, "change_attr_type", change_attr_type: ChangeAttrType, 2, Get;
        ModeUmask = 81, "mode_umask", mode_umask: ModeUmask, 2, Set
            => "differs from mode only with default ACLs";
        XattrSupport = 82, "xattr_support", xattr_support: bool, 2, Get;
    }
    others {
        Acl = 12, "acl", 0, GetSet => "ACLs are not supported yet";
        FsLocations = 24, "fs_locations", 0, Get => "there are no referrals and replicas";
        DirNotifDelay = 56, "dir_notif_delay", 1, Get => "there are no notifications";
        DirentNotifDelay = 57, "dirent_notif_delay", 1, Get => "there are no notifications";
        Dacl = 58, "dacl", 1, GetSet => "ACLs are not supported yet";
        Sacl = 59, "sacl", 1, GetSet => "Unix has no audit and alarm entries";
        ChangePolicy = 60, "change_policy", 1, Get => "there are no referrals and replicas";
        FsStatus = 61, "fs_status", 1, Get => "there are no referrals and replicas";
        FsLayoutType = 62, "fs_layout_type", 1, Get => "pNFS is not supported";
        LayoutHint = 63, "layout_hint", 1, Set => "pNFS is not supported";
        LayoutType = 64, "layout_type", 1, Get => "pNFS is not supported";
        LayoutBlksize = 65, "layout_blksize", 1, Get => "pNFS is not supported";
        LayoutAlignment = 66, "layout_alignment", 1, Get => "pNFS is not supported";
        FsLocationsInfo = 67, "fs_locations_info", 1, Get => "there are no referrals and replicas";
        Mdsthreshold = 68, "mdsthreshold", 1, Get => "pNFS is not supported";
        RetentionGet = 69, "retention_get", 1, Get => "Unix file systems have no retention";
        RetentionSet = 70, "retention_set", 1, Set => "Unix file systems have no retention";
        RetentevtGet = 71, "retentevt_get", 1, Get => "Unix file systems have no retention";
        RetentevtSet = 72, "retentevt_set", 1, Set => "Unix file systems have no retention";
        RetentionHold = 73, "retention_hold", 1, GetSet => "Unix file systems have no retention";
        SecLabel = 80, "sec_label", 2, GetSet => "labels are not supported yet";
    }
}

impl Attribute {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The set of these attributes.
    #[must_use]
    pub const fn set(attributes: &[Self]) -> Bitmap4 {
        let mut set = Bitmap4::EMPTY;
        let mut index = 0;
        while index < attributes.len() {
            set = set.with(attributes[index].number());
            index += 1;
        }
        set
    }

    const fn supported_by(minor_version: u32) -> Bitmap4 {
        let mut set = Bitmap4::EMPTY;
        let mut index = 0;
        while index < Self::ALL.len() {
            let attribute = Self::ALL[index];
            if attribute.unsupported().is_none() && attribute.first_minor() <= minor_version {
                set = set.with(attribute.number());
            }
            index += 1;
        }
        set
    }

    /// The attributes that the server supports in a minor version.
    #[must_use]
    #[inline]
    pub const fn supported(minor_version: u32) -> Bitmap4 {
        const BY_MINOR: [Bitmap4; 3] =
            [Attribute::supported_by(0), Attribute::supported_by(1), Attribute::supported_by(2)];
        if minor_version < 2 { BY_MINOR[minor_version as usize] } else { BY_MINOR[2] }
    }

    const fn with_use(readable: bool) -> Bitmap4 {
        let mut set = Bitmap4::EMPTY;
        let mut index = 0;
        while index < Self::ALL.len() {
            let allows = Self::ALL[index].allows();
            if (readable && allows.readable()) || (!readable && allows.settable()) {
                set = set.with(Self::ALL[index].number());
            }
            index += 1;
        }
        set
    }

    /// The attributes that can be read, in any minor version.
    pub const READABLE: Bitmap4 = Self::with_use(true);
    /// The attributes that can be set, in any minor version.
    pub const SETTABLE: Bitmap4 = Self::with_use(false);
}

impl<'a> AttributeValues<'a> {
    /// Decodes all attributes of `fattr`.
    ///
    /// # Errors
    /// The errors of the values; [`DecodeError::BadValue`] for an attribute that has no value here;
    /// [`DecodeError::Trailing`] for bytes after the last.
    pub fn decode(fattr: &Fattr4<'a>) -> Result<Self, DecodeError> {
        Self::decode_of(fattr, Self::VALUED)
    }

    /// As [`Self::decode`], of these attributes alone, which are best constant: others have no
    /// value here.
    ///
    /// # Errors
    /// As [`Self::decode`].
    #[inline(always)]
    pub fn decode_of(fattr: &Fattr4<'a>, asked: Bitmap4) -> Result<Self, DecodeError> {
        let others = fattr.mask.without(asked);
        if !others.is_empty() {
            let value = others.numbers().next().unwrap_or(u32::MAX);
            return Err(DecodeError::BadValue { name: "attribute", value });
        }
        let mut values = AttributeValues::default();
        let mut decoder = Decoder::new(fattr.values.bytes());
        values.decode_values(asked, fattr.mask, &mut decoder)?;
        decoder.finish()?;
        Ok(values)
    }

    /// Appends a `fattr4` of the attributes in `mask` that have a value.
    pub fn encode(&self, mask: Bitmap4, out: &mut Vec<u8>) {
        let (start, mut mask) = (out.len(), mask.common(Self::VALUED));
        loop {
            mask.encode(out);
            let length_at = out.len();
            0u32.encode(out);
            let missing = self.encode_values(mask, out);
            if missing.is_empty() {
                let length = out.len() - length_at - 4;
                let length = u32::try_from(length).expect("a message is shorter than 4 GiB");
                out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
                return;
            }
            // Few objects lack an attribute that is asked for.
            out.truncate(start);
            mask = mask.without(missing);
        }
    }
}
