//! SAVEFH and RESTOREFH (RFC 8881 sections 18.28 and 18.27).

use curt_xdr::Decoder;

use super::{Compound, Outcome, putfh};

pub(super) fn savefh<'r>(
    compound: &mut Compound<'r, '_>,
    _arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    compound.save();
    Ok(())
}

pub(super) fn restorefh<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let saved = compound.saved()?;
    putfh::put(compound, saved, arguments)?;
    compound.restore_stateid();
    Ok(())
}
