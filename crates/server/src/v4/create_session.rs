//! CREATE_SESSION (RFC 8881 section 18.36).

use curt_proto::nfs4::{
    CallbackSecParms4, ChannelAttributes, CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4, NfsStat4,
};
use curt_xdr::{Decoder, Encode, VarArray};

use super::operation_outcome::decoded;
use super::{Compound, Outcome};
use crate::state::{CallbackSecurity, ChannelLimits, CreateSession};

pub(super) fn create_session<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: CreateSessionArgs4<'_> = decoded(arguments)?;
    if asked.flags.0 & !CreateSessionFlags::MASK != 0 {
        return Err(NfsStat4::Inval.into());
    }
    let service = compound.request.service;
    let callback_security = callback_security(&asked.callback_security);
    let wants_backchannel =
        asked.flags.0 & CreateSessionFlags::CONN_BACK_CHAN != 0 && callback_security.is_some();
    let creation = CreateSession {
        client: asked.clientid,
        sequence: asked.sequence,
        principal: compound.principal(),
        fore: limits(&asked.fore),
        back: limits(&asked.back),
        backchannel: compound.request.context.backchannel().filter(|_| wants_backchannel),
        callback_program: asked.callback_program,
        callback_security,
        minor_version: compound.minor_version,
    };
    // An earlier instance of the client leaves the list on stable storage.
    compound.request.context.may_block();
    let created = service.held.create_session(&creation, service.uptime())?;
    service.release_departing();
    compound.associate(&created.session);
    let flags = if created.has_backchannel { CreateSessionFlags::CONN_BACK_CHAN } else { 0 };
    let granted = CreateSessionOk4 {
        session: created.session,
        sequence: created.sequence,
        flags: CreateSessionFlags(flags),
        fore: attributes(&created.fore),
        back: attributes(&created.back),
    };
    granted.encode(reply);
    Ok(())
}

/// The credential for callbacks: AUTH_SYS if the client accepts it, or AUTH_NONE.
pub(super) fn callback_security(offered: &[CallbackSecParms4<'_>]) -> Option<CallbackSecurity> {
    let sys = offered.iter().find_map(|offered| match offered {
        CallbackSecParms4::Sys(sys) => Some(CallbackSecurity::Sys {
            machine_name: sys.machine_name.bytes().into(),
            uid: sys.uid,
            gid: sys.gid,
        }),
        CallbackSecParms4::None | CallbackSecParms4::Gss(_) => None,
    });
    sys.or_else(|| offered.contains(&CallbackSecParms4::None).then_some(CallbackSecurity::None))
}

const fn limits(asked: &ChannelAttributes) -> ChannelLimits {
    ChannelLimits {
        request: asked.request_max,
        reply: asked.response_max,
        cached: asked.response_cached_max,
        operations: asked.operations_max,
        slots: asked.requests_max,
    }
}

fn attributes(granted: &ChannelLimits) -> ChannelAttributes {
    ChannelAttributes {
        header_padding: 0,
        request_max: granted.request,
        response_max: granted.reply,
        response_cached_max: granted.cached,
        operations_max: granted.operations,
        requests_max: granted.slots,
        rdma_ird: VarArray::default(),
    }
}
