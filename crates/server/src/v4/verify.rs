//! VERIFY and NVERIFY (RFC 8881 sections 18.31 and 18.15).

use curt_proto::nfs4::{Attribute, AttributeValues, Fattr4, NfsStat4, NverifyArgs4, VerifyArgs4};
use curt_xdr::Decoder;

use super::attributes::{self, RequestedAttributes};
use super::settable_attributes::MODE_MAX;
use super::{Compound, OpFailure, Outcome, decoded};

pub(super) fn verify<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let VerifyArgs4 { attributes } = decoded(arguments)?;
    if has(compound, &attributes)? { Ok(()) } else { Err(NfsStat4::NotSame.into()) }
}

pub(super) fn nverify<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let NverifyArgs4 { attributes } = decoded(arguments)?;
    if has(compound, &attributes)? { Err(NfsStat4::Same.into()) } else { Ok(()) }
}

/// Whether the current object has these attributes.
fn has(compound: &mut Compound<'_, '_>, given: &Fattr4<'_>) -> Result<bool, OpFailure> {
    let object = compound.current()?;
    let minor_version = compound.minor_version;
    if !given.mask.without(Attribute::supported(minor_version)).is_empty() {
        return Err(NfsStat4::Attrnotsupp.into());
    }
    if given.mask.contains(Attribute::RdattrError.number()) {
        return Err(NfsStat4::Inval.into());
    }
    let wanted = RequestedAttributes::new(given.mask, minor_version)?;
    let values = AttributeValues::decode(given)?;
    if values.mode.is_some_and(|mode| mode > MODE_MAX) {
        return Err(NfsStat4::Inval.into());
    }
    let mut own = Vec::new();
    let known = compound.kept_attributes();
    let missing = attributes::values(&mut compound.request, &object, known, wanted, |values| {
        values.encode_values(wanted.mask(), &mut own)
    })?;
    // Not every file system has it.
    if !missing.is_empty() {
        return Err(NfsStat4::Attrnotsupp.into());
    }
    let mut sent = Vec::new();
    values.encode_values(wanted.mask(), &mut sent);
    Ok(own == sent)
}
