//! Passes calls of the lock programs to the server or to the mounts of this host.

use std::net::IpAddr;
use std::sync::Arc;

use curt_mount::lock_service::{
    CallbackPrograms, CallbackReceiver, Grant, GrantReply, MONITOR_CALLBACK, PORT_RESERVED, ServerLockService,
};
use curt_observe::stages::StageTimes;
use curt_proto::nlm4::{self, NlmProcedure};
use curt_proto::nsm::{self, NsmProcedure, StateChange};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure, RpcService};
use curt_server::NfsService;
use curt_xdr::decode_all;

/// The programs, for the calls that come by one transport.
pub(super) struct LockRouter {
    pub(super) service: Arc<NfsService>,
    /// The programs that servers call.
    pub(super) callbacks: CallbackPrograms<HostReceiver>,
}

/// Receives what servers, and the system's monitor, say.
pub(super) struct HostReceiver {
    pub(super) service: Arc<NfsService>,
    pub(super) mounts: Option<Arc<ServerLockService>>,
}

impl RpcService for LockRouter {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        const GRANTED: u32 = NlmProcedure::Granted as u32;
        const GRANTED_MSG: u32 = NlmProcedure::GrantedMsg as u32;
        const NOTIFY: u32 = NsmProcedure::Notify as u32;
        let program = (call.program, call.version);
        match (program, call.procedure) {
            ((nlm4::PROGRAM, nlm4::VERSION), GRANTED | GRANTED_MSG | MONITOR_CALLBACK) => {
                self.callbacks.call(call, context, reply)
            }
            ((nsm::PROGRAM, nsm::VERSION), NOTIFY) => {
                let peer = context.peer();
                self.service.call(call, context, reply)?;
                // The host may be a server of mounts, too. Its other users cannot say so.
                if peer.port() < PORT_RESERVED
                    && let (Some(mounts), Ok(change)) =
                        (&self.callbacks.receiver().mounts, decode_all::<StateChange<'_>>(call.arguments))
                {
                    mounts.restarted(peer.ip(), change.state);
                }
                Ok(())
            }
            _ => self.service.call(call, context, reply),
        }
    }

    fn resume_deferred(&self) {
        self.service.resume_deferred();
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        self.service.stages()
    }
}

impl CallbackReceiver for HostReceiver {
    fn granted(&self, server: IpAddr, grant: &Grant) -> GrantReply {
        self.mounts.as_ref().map_or(GrantReply::Stranger, |mounts| mounts.granted(server, grant))
    }

    /// Reported by the system's monitor.
    fn restarted(&self, host: IpAddr, state: i32) {
        self.service.host_restarted(host, state);
        if let Some(mounts) = &self.mounts {
            mounts.restarted(host, state);
        }
    }

    fn is_monitor(&self) -> bool {
        false
    }

    fn state(&self) -> i32 {
        self.mounts.as_ref().map_or(0, |mounts| mounts.state())
    }
}
