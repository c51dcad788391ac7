//! The attributes of an object as NFSv4 returns them (RFC 8881 section 5): for GETATTR, READDIR,
//! VERIFY and NVERIFY.

use curt_proto::nfs4::{
    Attribute, AttributeValues, Bitmap4, ChangeAttrType, Fsid4, NfsFh4, NfsStat4, NfsTime4, OpaqueLimited,
};
use curt_types::{Attributes, Fault, FileHandle, Timestamp};
use curt_vfs::{FileSystemSpace, Limits};

use super::change::change;
use super::object::Object;
use super::settable_attributes::EXCLUSIVE_CREATE;
use super::{OpFailure, Outcome, names};
use crate::ops;
use crate::request::NfsRequest;

/// Handles are valid as long as their object (`FH4_PERSISTENT`).
const PERSISTENT: u32 = 0;
/// Handles may become stale when their object is renamed (`FH4_VOL_RENAME`).
const VOLATILE_AT_RENAME: u32 = 8;
/// No kind of ACL entry.
const NO_ACLS: u32 = 0;
/// Names may be any bytes (`FSCHARSET_CAP4_CONTAINS_NON_UTF8`).
const ANY_BYTES: u32 = 1;
/// The digits of the largest id.
const DIGITS_MAX: usize = 10;

/// The attributes that the limits of the file system decide.
const OF_LIMITS: Bitmap4 = Attribute::set(&[
    Attribute::LinkSupport,
    Attribute::SymlinkSupport,
    Attribute::CaseInsensitive,
    Attribute::CasePreserving,
    Attribute::Maxfilesize,
    Attribute::Maxlink,
    Attribute::Maxname,
    Attribute::TimeDelta,
]);

/// The attributes that the space of the file system decides.
const OF_SPACE: Bitmap4 = Attribute::set(&[
    Attribute::FilesAvail,
    Attribute::FilesFree,
    Attribute::FilesTotal,
    Attribute::SpaceAvail,
    Attribute::SpaceFree,
    Attribute::SpaceTotal,
]);

/// The attribute that not all file systems have.
const TIME_CREATE: Bitmap4 = Attribute::set(&[Attribute::TimeCreate]);

/// The limits of the pseudo file system.
const PSEUDO_LIMITS: Limits = Limits {
    file_size_max: i64::MAX.cast_unsigned(),
    time_delta: std::time::Duration::from_nanos(1),
    link_max: u32::MAX,
    name_max: 255,
    links: false,
    symlinks: false,
    case_insensitive: false,
    case_preserving: true,
};

/// The space of the pseudo file system.
const PSEUDO_SPACE: FileSystemSpace = FileSystemSpace {
    bytes_total: 0,
    bytes_free: 0,
    bytes_available: 0,
    files_total: 0,
    files_free: 0,
    files_available: 0,
};

/// The attributes that a client asks for and the server has.
#[derive(Clone, Copy)]
pub(super) struct RequestedAttributes {
    mask: Bitmap4,
    minor_version: u32,
}

impl RequestedAttributes {
    /// Attributes that are not supported are left out. Those that can only be set are
    /// `NFS4ERR_INVAL`, supported or not (RFC 8881 section 5.5).
    pub(super) fn new(asked: Bitmap4, minor_version: u32) -> Result<Self, OpFailure> {
        const SET_ONLY: Bitmap4 = Attribute::SETTABLE.without(Attribute::READABLE);
        if !asked.common(SET_ONLY).is_empty() {
            return Err(NfsStat4::Inval.into());
        }
        Ok(Self { mask: asked.common(Attribute::supported(minor_version)), minor_version })
    }

    pub(super) const fn contains(self, attribute: Attribute) -> bool {
        self.mask.contains(attribute.number())
    }

    /// Whether nothing beyond these is wanted.
    pub(super) const fn is_within(self, set: Bitmap4) -> bool {
        self.mask.without(set).is_empty()
    }

    pub(super) const fn mask(self) -> Bitmap4 {
        self.mask
    }

    const fn any_of(self, set: Bitmap4) -> bool {
        !self.mask.common(set).is_empty()
    }
}

/// The requested values of an object's file system and of the server.
pub(super) struct FileSystemFacts {
    limits: Option<Limits>,
    space: Option<FileSystemSpace>,
    /// No handle contains a directory in which its object is, as under subtree_check: a file may be
    /// in several, and be moved to others.
    unique_handles: bool,
    /// Whether it stores when objects were created.
    has_time_create: bool,
    lease_seconds: u32,
}

impl FileSystemFacts {
    /// Queries the file system, as far as something of it is wanted.
    pub(super) fn query(
        request: &mut NfsRequest<'_, '_>,
        object: &Object<'_>,
        wanted: RequestedAttributes,
    ) -> Result<Self, OpFailure> {
        let (of_limits, of_space) = (wanted.any_of(OF_LIMITS), wanted.any_of(OF_SPACE));
        let (limits, space, unique_handles) = match object {
            Object::Exported(target) => {
                let limits = of_limits.then(|| ops::limits(request, target).value).transpose()?;
                let space = of_space.then(|| ops::space(request, target).value).transpose()?;
                (limits, space, !target.rules().subtree_check)
            }
            Object::Pseudo(_) => (Some(PSEUDO_LIMITS), Some(PSEUDO_SPACE), true),
            Object::WrongFlavor(_) => return Err(NfsStat4::Wrongsec.into()),
        };
        let lease_seconds = u32::try_from(request.service.held.lease().as_secs()).unwrap_or(u32::MAX);
        let has_time_create = wanted.contains(Attribute::SupportedAttrs) && created(object)?.is_some();
        Ok(Self { limits, space, unique_handles, has_time_create, lease_seconds })
    }
}

/// When an object was created, if its file system stores that.
fn created(object: &Object<'_>) -> Result<Option<Timestamp>, OpFailure> {
    match object {
        Object::Exported(target) => Ok(target.vfs().created(&target.node).map_err(Fault::from)?),
        Object::Pseudo(node) => Ok(Some(node.attributes().ctime)),
        Object::WrongFlavor(_) => Err(NfsStat4::Wrongsec.into()),
    }
}

/// An object whose attributes are returned.
pub(super) struct Described<'a> {
    pub(super) attributes: &'a Attributes,
    /// If it is wanted.
    pub(super) handle: Option<&'a FileHandle>,
    pub(super) mounted_on_fileid: u64,
    /// If it is wanted, and known.
    pub(super) created: Option<Timestamp>,
}

impl Described<'_> {
    /// Passes the values of the wanted attributes to `consume`. Values that are not wanted may be
    /// among them.
    #[inline]
    pub(super) fn values<R>(
        &self,
        facts: &FileSystemFacts,
        wanted: RequestedAttributes,
        consume: impl FnOnce(&AttributeValues<'_>) -> R,
    ) -> R {
        let object = self.attributes;
        let (mut uid, mut gid) = ([0; DIGITS_MAX], [0; DIGITS_MAX]);
        let supported = Attribute::supported(wanted.minor_version);
        let missing = if facts.has_time_create { Bitmap4::EMPTY } else { TIME_CREATE };
        let mut values = AttributeValues {
            supported_attrs: Some(supported.without(missing)),
            kind: Some(object.kind.into()),
            fh_expire_type: Some(if facts.unique_handles { PERSISTENT } else { VOLATILE_AT_RENAME }),
            change: Some(change(object)),
            size: Some(object.size),
            named_attr: Some(false),
            fsid: Some(Fsid4 { major: object.fsid, minor: 0 }),
            unique_handles: Some(facts.unique_handles),
            lease_time: Some(facts.lease_seconds),
            rdattr_error: Some(NfsStat4::Ok),
            aclsupport: Some(NO_ACLS),
            cansettime: Some(true),
            chown_restricted: Some(true),
            filehandle: self.handle.map(NfsFh4::from),
            fileid: Some(object.fileid),
            homogeneous: Some(true),
            maxread: Some(ops::TRANSFER_MAX.into()),
            maxwrite: Some(ops::TRANSFER_MAX.into()),
            mode: Some(object.mode),
            no_trunc: Some(true),
            numlinks: Some(object.nlink),
            owner: Some(decimal(object.uid, &mut uid)),
            owner_group: Some(decimal(object.gid, &mut gid)),
            rawdev: Some(object.rdev.into()),
            space_used: Some(object.used),
            time_access: Some(object.atime.into()),
            time_create: self.created.map(NfsTime4::from),
            time_metadata: Some(object.ctime.into()),
            time_modify: Some(object.mtime.into()),
            mounted_on_fileid: Some(self.mounted_on_fileid),
            suppattr_exclcreat: Some(EXCLUSIVE_CREATE),
            fs_charset_cap: Some(ANY_BYTES),
            change_attr_type: Some(change_type(object)),
            xattr_support: Some(false),
            ..AttributeValues::default()
        };
        if let Some(limits) = &facts.limits {
            set_limits(&mut values, limits);
        }
        if let Some(space) = &facts.space {
            set_space(&mut values, space);
        }
        consume(&values)
    }
}

fn set_limits(values: &mut AttributeValues<'_>, limits: &Limits) {
    let delta = limits.time_delta;
    let seconds = i64::try_from(delta.as_secs()).unwrap_or(i64::MAX);
    values.link_support = Some(limits.links);
    values.symlink_support = Some(limits.symlinks);
    values.case_insensitive = Some(limits.case_insensitive);
    values.case_preserving = Some(limits.case_preserving);
    values.maxfilesize = Some(limits.file_size_max);
    values.maxlink = Some(limits.link_max);
    values.maxname = Some(limits.name_max);
    values.time_delta = Some(NfsTime4 { seconds, nanoseconds: delta.subsec_nanos() });
}

const fn set_space(values: &mut AttributeValues<'_>, space: &FileSystemSpace) {
    values.files_avail = Some(space.files_available);
    values.files_free = Some(space.files_free);
    values.files_total = Some(space.files_total);
    values.space_avail = Some(space.bytes_available);
    values.space_free = Some(space.bytes_free);
    values.space_total = Some(space.bytes_total);
}

/// How the change attribute changes: the time of the last change is the kernel's. Nothing is
/// promised of a value of a file system's own.
const fn change_type(attributes: &Attributes) -> ChangeAttrType {
    match attributes.change {
        None => ChangeAttrType::TimeMetadata,
        Some(_) => ChangeAttrType::Undefined,
    }
}

/// An id as a string of digits: the form of owners without a mapping of names (RFC 8881 section
/// 5.9).
fn decimal(id: u32, digits: &mut [u8; DIGITS_MAX]) -> OpaqueLimited<'_> {
    let (mut rest, mut first) = (id, DIGITS_MAX);
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(rest % 10).expect("a digit is below 10");
        rest /= 10;
        if rest == 0 {
            return OpaqueLimited::new(&digits[first..]).expect("ten digits are below the limit");
        }
    }
}

/// Passes the values of the wanted attributes of an object to `consume`. The tree is asked for what
/// is not in `known`.
pub(super) fn values<R>(
    request: &mut NfsRequest<'_, '_>,
    object: &Object<'_>,
    known: Option<Attributes>,
    wanted: RequestedAttributes,
    consume: impl FnOnce(&AttributeValues<'_>) -> R,
) -> Result<R, OpFailure> {
    let attributes = match known {
        Some(known) => known,
        None => names::attributes(request, object)?,
    };
    let facts = FileSystemFacts::query(request, object, wanted)?;
    let mounted_on_fileid = if wanted.contains(Attribute::MountedOnFileid) {
        names::mounted_on_fileid(object, attributes.fileid)
    } else {
        attributes.fileid
    };
    let created = if wanted.contains(Attribute::TimeCreate) { created(object)? } else { None };
    let handle = Some(object.handle());
    let described = Described { attributes: &attributes, handle, mounted_on_fileid, created };
    Ok(described.values(&facts, wanted, consume))
}

/// Appends the wanted attributes of an object (`fattr4`).
pub(super) fn append(
    request: &mut NfsRequest<'_, '_>,
    object: &Object<'_>,
    known: Option<Attributes>,
    wanted: RequestedAttributes,
    reply: &mut Vec<u8>,
) -> Outcome {
    values(request, object, known, wanted, |values| values.encode(wanted.mask(), reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_decimal() {
        for id in [0, 7, 10, 65_534, u32::MAX] {
            let mut digits = [0; DIGITS_MAX];
            assert_eq!(decimal(id, &mut digits).bytes(), id.to_string().as_bytes());
        }
    }
}
