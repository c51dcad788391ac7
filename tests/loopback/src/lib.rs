//! A transport that calls a service in the same process, on the caller's thread. It is for tests
//! and replays that count every request, have no concurrency, and control the clock.

mod forward;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_rpc::message::{CallDecodeError, CallMessage, encode_call_header};
use curt_rpc::server::{Backchannel, CallContext, CallFailure, RpcService};
use curt_xdr::DecodeError;

/// When the hook of a [`LoopbackTransport`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackStep {
    /// Before the service is called: the clock may advance by the time to the server.
    Sent,
    /// After the service has replied: the clock may advance by the time of the work and back.
    Answered,
}

/// Called before and after each request with its program and procedure.
type LoopbackHook = dyn Fn(LoopbackStep, u32, u32) + Send + Sync;

/// The first xid of the next loopback. Relaxed: the xids only have to differ, because a service
/// takes a repeated xid for a duplicate.
static FIRST_XID: AtomicU32 = AtomicU32::new(1);

/// More calls than one loopback makes while a service caches the replies to another.
const XIDS_EACH: u32 = 1 << 24;

/// A transport that calls a service directly.
pub struct LoopbackTransport {
    service: Arc<dyn RpcService>,
    client: SocketAddr,
    server: SocketAddr,
    hook: Box<LoopbackHook>,
    xid: AtomicU32,
    backchannel: Option<Arc<dyn Backchannel>>,
}

/// A backchannel that calls the client's service directly, on the server's thread.
struct LoopbackBackchannel {
    service: Arc<dyn RpcService>,
    xid: AtomicU32,
}

impl LoopbackTransport {
    /// A client on a reserved port of 127.0.0.1.
    #[must_use]
    pub fn new(service: Arc<dyn RpcService>) -> Self {
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            service,
            client: address(1023),
            server: address(curt_proto::nfs3::PORT),
            hook: Box::new(|_, _, _| {}),
            xid: AtomicU32::new(FIRST_XID.fetch_add(XIDS_EACH, Ordering::Relaxed)),
            backchannel: None,
        }
    }

    /// The transport with a service of the client, which the server may call.
    #[must_use]
    pub fn with_callbacks(mut self, service: Arc<dyn RpcService>) -> Self {
        self.backchannel = Some(Arc::new(LoopbackBackchannel { service, xid: AtomicU32::new(1) }));
        self
    }

    /// The transport with a hook, called around each request.
    #[must_use]
    pub fn with_hook(mut self, hook: impl Fn(LoopbackStep, u32, u32) + Send + Sync + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }
}

fn record(xid: &AtomicU32, request: &RpcRequest<'_>) -> Vec<u8> {
    let mut record = Vec::new();
    let xid = xid.fetch_add(1, Ordering::Relaxed);
    encode_call_header(
        &mut record,
        xid,
        request.program,
        request.version,
        request.procedure,
        request.credential,
    );
    request.copy_arguments(&mut record);
    record
}

fn call_error(error: &CallDecodeError) -> CallError {
    match *error {
        CallDecodeError::NotACall(error) => CallError::Malformed(error),
        CallDecodeError::RpcVersion { .. } => CallError::SystemError,
        CallDecodeError::Authentication { status, .. } => CallError::Denied(status),
    }
}

fn failure(failure: CallFailure) -> CallError {
    match failure {
        CallFailure::ProgramUnavailable => CallError::ProgramUnavailable,
        CallFailure::ProgramMismatch(versions) => CallError::ProgramMismatch(versions),
        CallFailure::ProcedureUnavailable => CallError::ProcedureUnavailable,
        CallFailure::GarbageArguments => CallError::GarbageArguments,
        // Without a network there are no duplicates, so no call is dropped.
        CallFailure::SystemError | CallFailure::NoReply => CallError::SystemError,
        CallFailure::Denied(status) => CallError::Denied(status),
    }
}

impl Backchannel for LoopbackBackchannel {
    fn call(&self, request: &RpcRequest<'_>, _: Duration) -> Result<CallReply, CallError> {
        let record = record(&self.xid, request);
        let call = CallMessage::decode(&record).map_err(|error| call_error(&error))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1023));
        let mut results = Vec::new();
        let answer = self.service.call(&call, &mut CallContext::detached(address, address), &mut results);
        answer.map_err(failure).map(|()| CallReply::from_results(results))
    }

    fn is_open(&self) -> bool {
        true
    }

    fn connection(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Transport for LoopbackTransport {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if interrupt.is_raised() {
            return Err(CallError::Interrupted);
        }
        let record = record(&self.xid, request);
        let call = CallMessage::decode(&record).map_err(|error| call_error(&error))?;
        (self.hook)(LoopbackStep::Sent, request.program, request.procedure);
        let mut results = Vec::new();
        let answer = match &self.backchannel {
            Some(backchannel) => {
                let backchannel = || Arc::clone(backchannel);
                let mut context =
                    CallContext::detached_with_backchannel(self.client, self.server, &backchannel);
                self.service.call(&call, &mut context, &mut results)
            }
            None => {
                self.service.call(&call, &mut CallContext::detached(self.client, self.server), &mut results)
            }
        };
        (self.hook)(LoopbackStep::Answered, request.program, request.procedure);
        answer.map_err(failure)?;
        // A real connection fails here, too: the reply is longer than the call allows.
        if results.len() > request.results_max {
            let length = u32::try_from(results.len()).unwrap_or(u32::MAX);
            let limit = u32::try_from(request.results_max).unwrap_or(u32::MAX);
            return Err(CallError::Malformed(DecodeError::TooLong { length, limit }));
        }
        Ok(CallReply::from_results(results))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use curt_proto::mount3::{DirPath, MountReply, PROGRAM};
    use curt_proto::nfs3::NfsProcedure;
    use curt_rpc::auth::RpcCredential;
    use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState};
    use curt_vfs::{MemoryOptions, MemoryVfs};
    use curt_xdr::{Opaque, decode_all};

    use super::*;

    #[test]
    fn loopback_calls_the_hook_around_each_request() {
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        let export = ExportDefinition::for_everyone(b"/srv/data".to_vec(), vfs, ExportRules::default());
        let service = NfsService::new(NfsServiceConfig {
            state: PersistentState::with_key([1; 16]),
            exports: vec![export],
            counters: Arc::default(),
        });
        let service = service.unwrap();
        let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let hook = {
            let seen = Arc::clone(&seen);
            move |moment, program, procedure| seen.lock().push((moment, program, procedure))
        };
        let transport = LoopbackTransport::new(Arc::new(service)).with_hook(hook);
        let arguments = DirPath(Opaque::new(b"/srv/data").unwrap());
        let request = RpcRequest {
            program: PROGRAM,
            version: 3,
            procedure: 1,
            credential: &RpcCredential::None,
            arguments: &arguments,
            results_max: 100,
        };
        let reply = transport.call(&request, &Interrupt::never()).unwrap();
        let MountReply::Ok(ok) = decode_all(reply.results()).unwrap() else { panic!("refused") };
        assert_eq!(*seen.lock(), [(LoopbackStep::Sent, PROGRAM, 1), (LoopbackStep::Answered, PROGRAM, 1)]);
        let getattr = RpcRequest {
            program: curt_proto::nfs3::PROGRAM,
            procedure: NfsProcedure::Getattr.number(),
            arguments: &ok.root,
            ..request
        };
        assert_eq!(transport.call(&getattr, &Interrupt::never()).unwrap().results().len(), 88);
        assert!(transport.call(&RpcRequest { results_max: 80, ..getattr }, &Interrupt::never()).is_err());
    }
}
