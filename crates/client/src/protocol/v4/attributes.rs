//! The attributes of NFSv4 (RFC 8881 section 5), from and to the client's own types.
//!
//! Owners are decimal numbers in both directions (section 5.9): names are not mapped.

use curt_proto::nfs4::{
    Attribute, AttributeValues, Bitmap4, ChangeInfo, Fattr4, Fsid4, OpaqueLimited, SetTime4,
};
use curt_types::{Attributes, ChangeStamp, Device, PreOpState, SetAttributes, SetTime, Timestamp, Wcc};
use curt_xdr::{DecodeError, Opaque};

use crate::protocol::{Fsinfo, FsstatReply, Pathconf};

/// The attributes of an object that the client knows.
pub(super) const OBJECT: Bitmap4 = Attribute::set(&[
    Attribute::Type,
    Attribute::Change,
    Attribute::Size,
    Attribute::Fsid,
    Attribute::Fileid,
    Attribute::Mode,
    Attribute::Numlinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::Rawdev,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
]);

/// The state of an object before an operation.
pub(super) const CHANGE: Bitmap4 = Attribute::set(&[Attribute::Change]);

/// The type of an object alone.
pub(super) const TYPE: Bitmap4 = Attribute::set(&[Attribute::Type]);

/// The number of an object alone.
pub(super) const FILEID: Bitmap4 = Attribute::set(&[Attribute::Fileid]);

/// The attributes of an entry of a listing without attributes.
pub(super) const ENTRY: Bitmap4 = Attribute::set(&[Attribute::RdattrError, Attribute::Fileid]);

/// The attributes of an entry of a listing with attributes.
pub(super) const ENTRY_PLUS: Bitmap4 =
    OBJECT.union(Attribute::set(&[Attribute::RdattrError, Attribute::Filehandle]));

/// The time for which the server keeps the state of a silent client.
pub(super) const LEASE: Bitmap4 = Attribute::set(&[Attribute::LeaseTime]);

/// The space of a file system.
pub(super) const SPACE: Bitmap4 = Attribute::set(&[
    Attribute::SpaceTotal,
    Attribute::SpaceFree,
    Attribute::SpaceAvail,
    Attribute::FilesTotal,
    Attribute::FilesFree,
    Attribute::FilesAvail,
]);

/// The limits of a file system and of the server.
pub(super) const LIMITS: Bitmap4 = Attribute::set(&[
    Attribute::LeaseTime,
    Attribute::LinkSupport,
    Attribute::SymlinkSupport,
    Attribute::Cansettime,
    Attribute::Homogeneous,
    Attribute::Maxfilesize,
    Attribute::Maxlink,
    Attribute::Maxname,
    Attribute::Maxread,
    Attribute::Maxwrite,
    Attribute::NoTrunc,
    Attribute::ChownRestricted,
    Attribute::CaseInsensitive,
    Attribute::CasePreserving,
    Attribute::TimeDelta,
]);

/// The user and group of an owner that is no number (nobody and nogroup).
const UNKNOWN_ID: u32 = 65_534;

/// Decodes the values of attributes, none of which was not asked for.
pub(super) fn values<'a>(fattr: &Fattr4<'a>, asked: Bitmap4) -> Result<AttributeValues<'a>, DecodeError> {
    if !fattr.mask.without(asked).is_empty() {
        let value = fattr.mask.without(asked).numbers().next().unwrap_or(u32::MAX);
        return Err(DecodeError::BadValue { name: "an attribute that was not asked for", value });
    }
    AttributeValues::decode(fattr)
}

/// The attributes of an object; `None` if the server left out one that every object has.
pub(super) fn object(values: &AttributeValues<'_>) -> Option<Attributes> {
    let time =
        |time: Option<curt_proto::nfs4::NfsTime4>| time.map_or_else(Timestamp::default, Timestamp::from);
    let change = values.change?;
    Some(Attributes {
        kind: values.kind?.file_kind()?,
        mode: values.mode? & 0o7777,
        nlink: values.numlinks.unwrap_or(1),
        uid: values.owner.map_or(UNKNOWN_ID, id),
        gid: values.owner_group.map_or(UNKNOWN_ID, id),
        size: values.size?,
        used: values.space_used.or(values.size)?,
        rdev: values.rawdev.map_or_else(Device::default, Device::from),
        fsid: fsid(values.fsid?),
        fileid: values.fileid?,
        atime: time(values.time_access),
        mtime: time(values.time_modify),
        ctime: time(values.time_metadata),
        change: Some(change),
    })
}

/// The attributes of a GETATTR that asked for those of an object.
pub(super) fn object_of(fattr: &Fattr4<'_>) -> Result<Attributes, DecodeError> {
    let missing = DecodeError::BadValue { name: "an attribute that every object has", value: 0 };
    object(&AttributeValues::decode_of(fattr, OBJECT)?).ok_or(missing)
}

/// Combines the two numbers of a file system into one. Servers use small or random numbers.
const fn fsid(fsid: Fsid4) -> u64 {
    match fsid.minor {
        0 => fsid.major,
        minor => fsid.major.rotate_left(32) ^ minor.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// The number of a user or group.
fn id(owner: OpaqueLimited<'_>) -> u32 {
    let number = owner.bytes().iter().try_fold(0_u32, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    });
    number.filter(|_| !owner.bytes().is_empty()).unwrap_or(UNKNOWN_ID)
}

/// A directory before and after an operation. `before` is used only if the server declares the
/// change atomic, and if the directory did not change again before its attributes were returned.
pub(super) fn directory_step(info: Option<ChangeInfo>, after: Option<Attributes>) -> Wcc {
    let is_one_step =
        |info: &ChangeInfo| info.atomic && after.is_some_and(|after| after.change == Some(info.after));
    let before = info.filter(is_one_step).map(|info| PreOpState::new(0, ChangeStamp::Change(info.before)));
    Wcc { before, after }
}

/// A file before and after an operation, from two GETATTRs around it in the same compound. A change
/// by another client between them is not detected (`docs/decisions/changes-by-others.md`).
pub(super) fn file_step(before: Option<u64>, after: Option<Attributes>) -> Wcc {
    Wcc { before: before.map(|change| PreOpState::new(0, ChangeStamp::Change(change))), after }
}

/// Attributes to be set, encoded.
#[derive(Debug, Default)]
pub(super) struct EncodedAttributes {
    mask: Bitmap4,
    values: Vec<u8>,
}

impl EncodedAttributes {
    pub(super) fn new(set: &SetAttributes) -> Self {
        let (user, group) = (set.uid.map(|id| id.to_string()), set.gid.map(|id| id.to_string()));
        let values = AttributeValues {
            size: set.size,
            mode: set.mode,
            owner: user.as_deref().and_then(opaque),
            owner_group: group.as_deref().and_then(opaque),
            time_access_set: time(set.atime),
            time_modify_set: time(set.mtime),
            ..AttributeValues::default()
        };
        let (mask, mut encoded) = (values.present(), Vec::new());
        values.encode_values(mask, &mut encoded);
        Self { mask, values: encoded }
    }

    /// The type of a directory alone, for VERIFY and NVERIFY.
    pub(super) fn directory_type() -> Self {
        let kind = Some(curt_proto::nfs4::Ftype4::Directory);
        let values = AttributeValues { kind, ..AttributeValues::default() };
        let mut encoded = Vec::new();
        values.encode_values(TYPE, &mut encoded);
        Self { mask: TYPE, values: encoded }
    }

    pub(super) fn fattr(&self) -> Fattr4<'_> {
        Fattr4 { mask: self.mask, values: Opaque::new(&self.values).unwrap_or_default() }
    }
}

fn opaque(text: &str) -> Option<OpaqueLimited<'_>> {
    OpaqueLimited::new(text.as_bytes()).ok()
}

fn time(set: SetTime) -> Option<SetTime4> {
    match set {
        SetTime::Keep => None,
        SetTime::ServerTime => Some(SetTime4::ServerTime),
        SetTime::Time(time) => Some(SetTime4::ClientTime(time.into())),
    }
}

/// The space of a file system; what a server does not say is zero.
pub(super) fn space(values: &AttributeValues<'_>) -> FsstatReply {
    FsstatReply {
        total_bytes: values.space_total.unwrap_or(0),
        free_bytes: values.space_free.unwrap_or(0),
        available_bytes: values.space_avail.unwrap_or(0),
        total_files: values.files_total.unwrap_or(0),
        free_files: values.files_free.unwrap_or(0),
        available_files: values.files_avail.unwrap_or(0),
        invariant_seconds: 0,
    }
}

/// The limits of a root. A session limits `read` and `write` as well.
pub(super) fn limits(values: &AttributeValues<'_>, read: u32, write: u32) -> (Fsinfo, Pathconf) {
    let size = |asked: Option<u64>, most: u32| {
        asked
            .and_then(|size| u32::try_from(size).ok())
            .filter(|size| *size > 0)
            .map_or(most, |size| size.min(most))
    };
    let (read, write) = (size(values.maxread, read), size(values.maxwrite, write));
    let fsinfo = Fsinfo {
        read_max: read,
        read_preferred: read,
        read_multiple: 1,
        write_max: write,
        write_preferred: write,
        write_multiple: 1,
        listing_preferred: read,
        file_size_max: values.maxfilesize.unwrap_or(i64::MAX.cast_unsigned()),
        time_step: values.time_delta.map_or_else(|| Timestamp::new(0, 1), Timestamp::from),
        links: values.link_support.unwrap_or(true),
        symlinks: values.symlink_support.unwrap_or(true),
        homogeneous: values.homogeneous.unwrap_or(true),
        sets_times: values.cansettime.unwrap_or(true),
    };
    let pathconf = Pathconf {
        links_max: values.maxlink.unwrap_or(1),
        name_max: values.maxname.unwrap_or(0),
        no_truncation: values.no_trunc.unwrap_or(true),
        chown_restricted: values.chown_restricted.unwrap_or(true),
        case_insensitive: values.case_insensitive.unwrap_or(false),
        case_preserving: values.case_preserving.unwrap_or(true),
    };
    (fsinfo, pathconf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(change: u64) -> Attributes {
        let owner = OpaqueLimited::new(b"1000").expect("it is short");
        let values = AttributeValues {
            kind: Some(curt_proto::nfs4::Ftype4::Regular),
            change: Some(change),
            size: Some(3),
            fsid: Some(Fsid4 { major: 7, minor: 0 }),
            fileid: Some(9),
            mode: Some(0o644),
            owner: Some(owner),
            ..AttributeValues::default()
        };
        object(&values).expect("all that every object has")
    }

    // SEMANTICS: sessions-4.
    #[test]
    fn owners_that_are_no_numbers_are_nobody() {
        assert_eq!(attributes(1).uid, 1000);
        let id = |text: &str| id(OpaqueLimited::new(text.as_bytes()).expect("it is short"));
        assert_eq!(["0", "4294967295"].map(id), [0, u32::MAX]);
        for other in ["", "root@example.org", "-1", "+1", "4294967296"] {
            assert_eq!(id(other), UNKNOWN_ID, "{other}");
        }
    }

    #[test]
    fn a_change_of_a_directory_is_ours_alone_only_if_the_server_says_so() {
        let info = ChangeInfo { atomic: true, before: 4, after: 5 };
        let before = |info, after| directory_step(Some(info), Some(attributes(after))).before;
        assert_eq!(before(info, 5), Some(PreOpState::new(0, ChangeStamp::Change(4))));
        assert_eq!(before(info, 6), None, "somebody changed it before GETATTR");
        assert_eq!(before(ChangeInfo { atomic: false, ..info }, 5), None);
        assert_eq!(directory_step(Some(info), None), Wcc::default());
    }

    // SEMANTICS: sessions-5.
    #[test]
    fn a_change_of_a_file_by_others_between_two_getattrs_is_taken_for_ours() {
        for after in [5, 6] {
            let step = file_step(Some(4), Some(attributes(after)));
            assert_eq!(step.before, Some(PreOpState::new(0, ChangeStamp::Change(4))));
            assert_eq!(step.after, Some(attributes(after)));
        }
    }

    #[test]
    fn attributes_that_were_not_asked_for_are_refused() {
        let encoded = EncodedAttributes::new(&SetAttributes::with_mode(0o600));
        assert!(values(&encoded.fattr(), OBJECT).is_ok_and(|values| values.mode == Some(0o600)));
        assert!(values(&encoded.fattr(), CHANGE).is_err());
        assert!(object_of(&encoded.fattr()).is_err(), "a mode alone is no object");
    }

    #[test]
    fn two_numbers_of_a_file_system_become_one() {
        assert_eq!(fsid(Fsid4 { major: 7, minor: 0 }), 7);
        assert_ne!(fsid(Fsid4 { major: 7, minor: 1 }), fsid(Fsid4 { major: 1, minor: 7 }));
    }
}
