//! CREATE_SESSION (RFC 8881 section 18).

use curt_proto::nfs4::NfsStat4;
use curt_xdr::Decoder;

use super::{Compound, Outcome};

pub(super) fn create_session<'r>(
    _compound: &mut Compound<'r, '_>,
    _arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    Err(NfsStat4::Notsupp.into())
}
