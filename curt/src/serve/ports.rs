//! Restricts programs to their ports, if these differ.

use std::{net::SocketAddr, sync::Arc};

use curt_proto::{mount3, nfs3, nlm4, nsm};
use curt_rpc::{
    message::CallMessage,
    server::{CallContext, CallFailure, RpcService},
};

use curt_observe::stages::StageTimes;

use super::listeners::Listeners;

/// A service that serves only the programs of each port.
pub(super) struct PortRouter {
    service: Arc<dyn RpcService>,
    ports: ProgramPorts,
}

/// The ports of each program.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ProgramPorts {
    nfs: Vec<u16>,
    mount: Vec<u16>,
    lock: Vec<u16>,
    statd: Vec<u16>,
}

impl ProgramPorts {
    /// The ports of TCP.
    pub(super) fn of(listeners: &Listeners) -> Self {
        let ports = |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::port).collect();
        Self {
            nfs: ports(&listeners.nfs),
            mount: ports(&listeners.mount),
            lock: ports(&listeners.lock),
            statd: ports(&listeners.statd),
        }
    }

    /// The ports of UDP: NFS and MOUNT are not served.
    pub(super) fn without_nfs(&self) -> Self {
        Self { nfs: Vec::new(), mount: Vec::new(), ..self.clone() }
    }

    fn of_program(&self, program: u32) -> &[u16] {
        match program {
            nfs3::PROGRAM => &self.nfs,
            mount3::PROGRAM => &self.mount,
            nlm4::PROGRAM => &self.lock,
            nsm::PROGRAM => &self.statd,
            _ => &[],
        }
    }

    fn are_all_equal(&self) -> bool {
        [&self.mount, &self.lock, &self.statd].into_iter().all(|ports| *ports == self.nfs)
    }
}

impl PortRouter {
    /// `service` with its programs on their ports; unchanged if all ports have the same programs.
    pub(super) fn of(service: Arc<dyn RpcService>, ports: ProgramPorts) -> Arc<dyn RpcService> {
        if ports.are_all_equal() { service } else { Arc::new(Self { service, ports }) }
    }
}

impl RpcService for PortRouter {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if self.ports.of_program(call.program).contains(&context.local().port()) {
            self.service.call(call, context, reply)
        } else {
            Err(CallFailure::ProgramUnavailable)
        }
    }

    fn resume_deferred(&self) {
        self.service.resume_deferred();
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        self.service.stages()
    }
}
