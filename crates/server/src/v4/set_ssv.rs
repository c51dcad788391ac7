//! SET_SSV (RFC 8881 section 18.47).

use curt_proto::nfs4::{NfsStat4, SetSsvArgs4};
use curt_xdr::Decoder;

use super::operation_outcome::decoded;
use super::{Compound, Outcome};

/// No client has SP4_SSV, which EXCHANGE_ID refuses; others must not use the operation.
pub(super) fn set_ssv<'r>(
    _compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let _: SetSsvArgs4<'_> = decoded(arguments)?;
    Err(NfsStat4::Inval.into())
}
