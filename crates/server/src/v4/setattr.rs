//! SETATTR (RFC 8881 section 18.30).

use curt_proto::nfs4::{ModeMasked, NfsStat4, SetattrArgs4};
use curt_types::{Attributes, Fault, SetAttributes};
use curt_xdr::{Decoder, Encode};

use super::settable_attributes::settable;
use super::{Compound, OpFailure, Outcome, decoded, io};
use crate::ops::{self, WccOp};
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::IoDirection;

/// Maximum number of attempts to change bits of a mode while others change the object.
const TRIES_MAX: usize = 16;

/// The stateid counts if the size is set, which is a write.
pub(super) fn setattr<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let SetattrArgs4 { stateid, attributes } = decoded(arguments)?;
    let object = compound.current()?;
    let mut set = settable(&attributes, compound.minor_version)?;
    let target = object.changeable()?;
    let resizes = set.values.size.is_some();
    let _change =
        if resizes { io::check_stateid(compound, target, stateid, IoDirection::Write)? } else { None };
    let changed = match set.mode_bits {
        Some(bits) => set_mode_bits(&mut compound.request, target, &mut set.values, bits)?,
        None => ops::setattr(&mut compound.request, target, &set.values, None),
    };
    let after = changed.attributes.after.as_ref();
    if let Err(fault) = changed.value {
        set.set_by_failed(&changed.attributes).encode(reply);
        return Err(OpFailure::WithBody(failure(fault, after.filter(|_| resizes)).status()));
    }
    after.map_or(set.mask, |after| set.applied_to(after)).encode(reply);
    compound.keep_attributes(changed.attributes.after);
    Ok(())
}

/// Sets attributes, and bits of the mode beside those that it has. No other request changes the
/// object in between, as its ctime shows.
fn set_mode_bits<'r>(
    request: &mut NfsRequest<'r, '_>,
    target: &VerifiedHandle<'r>,
    set: &mut SetAttributes,
    bits: ModeMasked,
) -> Result<WccOp<()>, OpFailure> {
    for _ in 0..TRIES_MAX {
        let status = ops::getattr(request, target)?;
        set.mode = Some(status.mode & !bits.mask | bits.value & bits.mask);
        let changed = ops::setattr(request, target, set, Some(status.ctime));
        if changed.value != Err(Fault::NotSync) {
            return Ok(changed);
        }
    }
    Err(NfsStat4::Delay.into())
}

/// The status of a failure, with the attributes of an object whose size was to be set. SETATTR has
/// one status for all objects without a size (RFC 8881 section 15.2).
fn failure(fault: Fault, resized: Option<&Attributes>) -> OpFailure {
    match io::failure(fault, resized).status() {
        NfsStat4::Isdir | NfsStat4::Symlink => NfsStat4::WrongType.into(),
        status => status.into(),
    }
}
