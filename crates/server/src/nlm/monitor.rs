//! NSM version 1 (XNFS): hosts report their restarts.
//!
//! A notice concerns the host whose address it comes from, whatever name it has, and comes from a
//! reserved port: other users of the host cannot free its locks. Nothing is monitored for other
//! lock managers of this machine.

use curt_proto::Operation;
use curt_proto::nsm::{
    MonArguments, MonResult, MonitorCallback, MonitorId, MonitorResult, MonitorState, MonitoredName,
    NsmProcedure, StateChange,
};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_xdr::Encode;

use super::{PORT_RESERVED, decoded};
use crate::service::NfsService;

/// Answers a call of NSM version 1.
pub(crate) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let manager = &service.lock_manager;
    if manager.serving.get().is_none() {
        return Err(CallFailure::ProgramUnavailable);
    }
    let procedure = NsmProcedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
    service.begin_call(Operation::Nsm(procedure), context);
    let refused = || MonResult { result: MonitorResult::Failure, state: manager.hosts.state() };
    match procedure {
        NsmProcedure::Null => decoded::<()>(call)?,
        NsmProcedure::Stat => {
            decoded::<MonitoredName<'_>>(call)?;
            refused().encode(reply);
        }
        NsmProcedure::Mon => {
            decoded::<MonArguments<'_>>(call)?;
            refused().encode(reply);
        }
        NsmProcedure::Unmon => {
            decoded::<MonitorId<'_>>(call)?;
            MonitorState(manager.hosts.state()).encode(reply);
        }
        NsmProcedure::UnmonAll => {
            decoded::<MonitorCallback<'_>>(call)?;
            MonitorState(manager.hosts.state()).encode(reply);
        }
        // Only a test of the monitor would ask for it, and its effect is that of a restart.
        NsmProcedure::SimuCrash => return Err(CallFailure::ProcedureUnavailable),
        NsmProcedure::Notify => {
            let change: StateChange<'_> = decoded(call)?;
            let peer = context.peer();
            if peer.port() < PORT_RESERVED {
                service.host_restarted(peer.ip(), change.state);
            }
        }
    }
    Ok(())
}
