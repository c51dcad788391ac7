//! GETFH (RFC 8881 section 18.8).

use curt_xdr::{Decoder, put_opaque};

use super::{Compound, Outcome};

pub(super) fn getfh<'r>(
    compound: &mut Compound<'r, '_>,
    _arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let (object, _) = compound.current_in_request()?;
    put_opaque(reply, object.handle().as_bytes());
    Ok(())
}
