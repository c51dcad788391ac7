//! RECLAIM_COMPLETE (RFC 8881 section 18.51).

use curt_proto::nfs4::ReclaimCompleteArgs4;
use curt_xdr::Decoder;

use super::operation_outcome::decoded;
use super::{Compound, Outcome, names};

pub(super) fn reclaim_complete<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let asked: ReclaimCompleteArgs4 = decoded(arguments)?;
    if asked.one_file_system {
        // It follows a migration, of which this server has none. It does need a file system.
        compound.current()?;
        return Ok(());
    }
    // The client may have to be recorded.
    compound.request.context.may_block();
    // A host without an export gets no state: it must not fill the list, and nobody waits for it
    // after a restart.
    let is_recorded = names::may_use_an_export(&mut compound.request);
    let (service, slot) = (compound.request.service, compound.slot()?);
    if is_recorded {
        let may_delegate = service.grants_delegations() && slot.session().takes_callbacks();
        service.record_ahead(slot.client(), may_delegate);
    }
    service.complete_reclaim(slot.client())?;
    Ok(())
}
