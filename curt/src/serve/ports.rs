//! Keeps NFS and MOUNT on the ports that they were given, where these differ.

use std::{net::SocketAddr, sync::Arc};

use curt_proto::{mount3, nfs3};
use curt_rpc::{
    message::Call,
    server::{CallFailure, Context, Service},
};

use curt_trace::stages::StageTimes;

use super::listeners::Listeners;

/// A service of which each port answers its own programs only.
pub(super) struct ByPort {
    service: Arc<dyn Service>,
    nfs: Vec<u16>,
    mount: Vec<u16>,
}

impl ByPort {
    /// `service` with its programs on the ports of `listeners`; as it is, if they are the same.
    pub(super) fn of(service: Arc<dyn Service>, listeners: &Listeners) -> Arc<dyn Service> {
        let ports = |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::port).collect::<Vec<_>>();
        let (nfs, mount) = (ports(&listeners.nfs), ports(&listeners.mount));
        if nfs == mount {
            service
        } else {
            Arc::new(Self { service, nfs, mount })
        }
    }
}

impl Service for ByPort {
    fn call(
        &self,
        call: &Call<'_>,
        context: &mut Context<'_>,
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
