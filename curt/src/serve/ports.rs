//! Restricts NFS and MOUNT to their ports, if these differ.

use std::{net::SocketAddr, sync::Arc};

use curt_proto::{mount3, nfs3};
use curt_rpc::{
    message::CallMessage,
    server::{CallContext, CallFailure, RpcService},
};

use curt_observe::stages::StageTimes;

use super::listeners::Listeners;

/// A service that serves only the programs of each port.
pub(super) struct PortRouter {
    service: Arc<dyn RpcService>,
    nfs: Vec<u16>,
    mount: Vec<u16>,
}

impl PortRouter {
    /// `service` with its programs on the ports of `listeners`; unchanged if all ports have the
    /// same programs.
    pub(super) fn of(service: Arc<dyn RpcService>, listeners: &Listeners) -> Arc<dyn RpcService> {
        let ports = |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::port).collect::<Vec<_>>();
        let (nfs, mount) = (ports(&listeners.nfs), ports(&listeners.mount));
        if nfs == mount { service } else { Arc::new(Self { service, nfs, mount }) }
    }
}

impl RpcService for PortRouter {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let ports = match call.program {
            nfs3::PROGRAM => &self.nfs,
            mount3::PROGRAM => &self.mount,
            _ => return Err(CallFailure::ProgramUnavailable),
        };
        if ports.contains(&context.local().port()) {
            self.service.call(call, context, reply)
        } else {
            Err(CallFailure::ProgramUnavailable)
        }
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        self.service.stages()
    }
}
