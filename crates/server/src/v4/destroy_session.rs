//! DESTROY_SESSION (RFC 8881 section 18.37).

use curt_proto::nfs4::{DestroySessionArgs4, NfsStat4};
use curt_xdr::Decoder;

use super::operation_outcome::decoded;
use super::{Compound, Outcome};

pub(super) fn destroy_session<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let asked: DestroySessionArgs4 = decoded(arguments)?;
    let own = compound.slot.as_ref().filter(|slot| slot.session().id == asked.session);
    let is_last = compound.position + 1 == compound.operations;
    if own.is_some() && !is_last {
        return Err(NfsStat4::NotOnlyOp.into());
    }
    let held = &compound.request.service.held;
    if !compound.is_associated(&held.session(&asked.session)?.id) {
        return Err(NfsStat4::ConnNotBoundToSession.into());
    }
    held.destroy_session(&asked.session, own)?;
    Ok(())
}
