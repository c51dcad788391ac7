//! EXCHANGE_ID (RFC 8881 section 18.35).

use curt_proto::nfs4::{
    ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, ImplementationId, NfsStat4, OpaqueLimited, ServerOwner,
    StateProtectArgs, StateProtectOk,
};
use curt_xdr::{Decoder, Encode, Opaque, VarArray};

use super::operation_outcome::decoded;
use super::{Compound, Outcome};
use crate::state::ExchangeId;

/// The name of this implementation, with its version.
const IMPLEMENTATION: &str = concat!("Curt ", env!("CARGO_PKG_VERSION"));
/// `EXCHGID4_FLAG_SUPP_FENCE_OPS`, an argument since minor version 2 (RFC 7862 section 14.1).
const SUPP_FENCE_OPS: u32 = 0x4;

pub(super) fn exchange_id<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: ExchangeIdArgs4<'_> = decoded(arguments)?;
    let allowed = match compound.minor_version {
        1 => ExchangeIdFlags::MASK_A,
        _ => ExchangeIdFlags::MASK_A | SUPP_FENCE_OPS,
    };
    if asked.flags.0 & !allowed != 0 {
        return Err(NfsStat4::Inval.into());
    }
    match asked.state_protect {
        StateProtectArgs::None => {}
        // It needs a request with integrity of RPCSEC_GSS (section 18.35.3), which the server does
        // not support.
        StateProtectArgs::MachineCredential(_) => return Err(NfsStat4::Inval.into()),
        StateProtectArgs::Ssv(_) => return Err(NfsStat4::EncrAlgUnsupp.into()),
    }
    let service = compound.request.service;
    let presented = ExchangeId {
        owner: asked.owner.owner.bytes(),
        verifier: asked.owner.verifier,
        principal: compound.principal(),
        is_update: asked.flags.0 & ExchangeIdFlags::UPD_CONFIRMED_REC_A != 0,
        implementation: asked.implementation.first().map_or(&[], |client| client.name.bytes()),
        peer: compound.request.context.peer().ip(),
    };
    // A client that is replaced leaves the list on stable storage.
    compound.request.context.may_block();
    let exchanged = service.held.exchange_id(&presented, service.uptime());
    service.release_departing();
    let exchanged = exchanged?;
    let confirmed = if exchanged.is_confirmed { ExchangeIdFlags::CONFIRMED_R } else { 0 };
    let opaque = |bytes| OpaqueLimited::new(bytes).unwrap_or_default();
    let implementation = ImplementationId {
        domain: opaque(b"curt"),
        name: opaque(IMPLEMENTATION.as_bytes()),
        ..ImplementationId::default()
    };
    let granted = ExchangeIdOk4 {
        clientid: exchanged.client,
        sequence: exchanged.sequence,
        flags: ExchangeIdFlags(ExchangeIdFlags::USE_NON_PNFS | confirmed),
        state_protect: StateProtectOk::None,
        server_owner: ServerOwner { minor_id: 0, major_id: opaque(&service.server_owner) },
        server_scope: Opaque::new(&service.server_owner[..]).unwrap_or_default(),
        implementation: VarArray::new(vec![implementation]).unwrap_or_default(),
    };
    granted.encode(reply);
    Ok(())
}
