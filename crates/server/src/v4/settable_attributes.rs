//! The attributes that a client sets: SETATTR, CREATE, OPEN (RFC 8881 section 5).

use curt_proto::nfs4::{
    Attribute, AttributeValues, Bitmap4, Fattr4, ModeMasked, NfsStat4, NfsTime4, OpaqueLimited, SetTime4,
};
use curt_types::{Attributes, FileKind, PreOpState, SetAttributes, SetTime, Wcc};

use super::OpFailure;
use crate::ops;

/// The attributes that an exclusive creation may set (`suppattr_exclcreat`): not the times, which
/// hold its verifier, nor the size, which cannot be set without them.
pub(super) const EXCLUSIVE_CREATE: Bitmap4 =
    Attribute::set(&[Attribute::Mode, Attribute::Owner, Attribute::OwnerGroup]);

/// The two ways to set a mode.
const MODES: Bitmap4 = Attribute::set(&[Attribute::Mode, Attribute::ModeSetMasked]);

/// The largest mode: permission, set-id and sticky bits.
pub(super) const MODE_MAX: u32 = 0o7777;

/// Attributes to be set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settable {
    pub(super) values: SetAttributes,
    /// The bits of the mode to be changed; the others stay.
    pub(super) mode_bits: Option<ModeMasked>,
    /// Which ones.
    pub(super) mask: Bitmap4,
}

impl Settable {
    /// The attributes that were set on an object that has these now. The mode of a symbolic link
    /// does not change, and a creation leaves out an owner or a group that the caller may not set.
    pub(super) fn applied_to(&self, object: &Attributes) -> Bitmap4 {
        let differs = |asked: Option<u32>, is: u32| asked.is_some_and(|asked| asked != is);
        self.mask
            .without(if object.kind == FileKind::Symlink { MODES } else { Bitmap4::EMPTY })
            .without(only_if(differs(self.values.uid, object.uid), Attribute::Owner))
            .without(only_if(differs(self.values.gid, object.gid), Attribute::OwnerGroup))
    }

    /// The attributes that a SETATTR has set before it failed: the kernel sets them one after the
    /// other, the times last.
    pub(super) fn set_by_failed(&self, object: &Wcc) -> Bitmap4 {
        match (object.before, &object.after) {
            (Some(before), Some(after)) if before != PreOpState::from(after) => self
                .applied_to(after)
                .common(EXCLUSIVE_CREATE.union(MODES).union(Attribute::set(&[Attribute::Size])))
                .without(if self.values.mode == Some(after.mode) { Bitmap4::EMPTY } else { MODES })
                .without(only_if(self.values.size != Some(after.size), Attribute::Size)),
            _ => Bitmap4::EMPTY,
        }
    }
}

/// An attribute to be left out if `is_out`.
const fn only_if(is_out: bool, attribute: Attribute) -> Bitmap4 {
    if is_out { Attribute::set(&[attribute]) } else { Bitmap4::EMPTY }
}

/// Decodes attributes to be set.
pub(super) fn settable(fattr: &Fattr4<'_>, minor_version: u32) -> Result<Settable, OpFailure> {
    let mask = fattr.mask;
    if !mask.without(Attribute::supported(minor_version)).is_empty() {
        return Err(NfsStat4::Attrnotsupp.into());
    }
    if !mask.without(Attribute::SETTABLE).is_empty() {
        return Err(NfsStat4::Inval.into());
    }
    let values = AttributeValues::decode(fattr)?;
    let mode_bits = values.mode_set_masked;
    let is_valid = |mode: Option<u32>| mode.is_none_or(|mode| mode <= MODE_MAX);
    let are_valid = is_valid(values.mode) && is_valid(mode_bits.map(|bits| bits.value | bits.mask));
    if !are_valid || values.mode.is_some() && mode_bits.is_some() {
        return Err(NfsStat4::Inval.into());
    }
    if values.size.is_some_and(|size| size > ops::MAX_SIZE) {
        return Err(NfsStat4::Fbig.into());
    }
    let values = SetAttributes {
        mode: values.mode,
        uid: values.owner.map(id).transpose()?,
        gid: values.owner_group.map(id).transpose()?,
        size: values.size,
        atime: time(values.time_access_set)?,
        mtime: time(values.time_modify_set)?,
    };
    Ok(Settable { values, mode_bits, mask })
}

/// Decodes the attributes of a new object. Bits of a mode can be set of an existing one only (RFC
/// 8881 section 6.2.5).
pub(super) fn initial(fattr: &Fattr4<'_>, minor_version: u32) -> Result<Settable, OpFailure> {
    match settable(fattr, minor_version)? {
        Settable { mode_bits: Some(_), .. } => Err(NfsStat4::Inval.into()),
        set => Ok(set),
    }
}

/// A user or group as a number (RFC 8881 section 5.9): names are not mapped.
fn id(owner: OpaqueLimited<'_>) -> Result<u32, OpFailure> {
    let digits = owner.bytes();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let has_one_form = digits.len() == 1 || !digits.starts_with(b"0");
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    // The largest number is nobody's: to chown(2) it means no change.
    number
        .filter(|number| is_number && has_one_form && *number != u32::MAX)
        .ok_or(OpFailure::Status(NfsStat4::Badowner))
}

fn time(set: Option<SetTime4>) -> Result<SetTime, OpFailure> {
    match set {
        None => Ok(SetTime::Keep),
        Some(SetTime4::ServerTime) => Ok(SetTime::ServerTime),
        Some(SetTime4::ClientTime(NfsTime4 { nanoseconds, .. })) if nanoseconds >= 1_000_000_000 => {
            Err(NfsStat4::Inval.into())
        }
        Some(SetTime4::ClientTime(time)) => Ok(SetTime::Time(time.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: stateful-6.
    #[test]
    fn owners_are_decimal_numbers_in_one_form() {
        let id = |text: &str| id(OpaqueLimited::new(text.as_bytes()).expect("it is short")).ok();
        assert_eq!(["0", "1000", "4294967294"].map(id), [Some(0), Some(1000), Some(u32::MAX - 1)]);
        for other in
            ["", "00", "01", "+1", "-1", "4294967295", "4294967296", "root", "root@example.org", "1 "]
        {
            assert_eq!(id(other), None, "{other}");
        }
    }
}
