//! A transport that calls a service in the same process, on the caller's thread. It is for tests
//! and replays that count every request, have no concurrency, and control the clock.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_rpc::message::{CallDecodeError, CallMessage, encode_call_header};
use curt_rpc::server::{CallContext, CallFailure, RpcService};
use curt_xdr::{DecodeError, put_fixed};

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
        }
    }

    /// The same with a hook, called around each request.
    #[must_use]
    pub fn with_hook(mut self, hook: impl Fn(LoopbackStep, u32, u32) + Send + Sync + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }

    fn record(&self, request: &RpcRequest<'_>) -> Vec<u8> {
        let mut record = Vec::new();
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        encode_call_header(
            &mut record,
            xid,
            request.program,
            request.version,
            request.procedure,
            request.credential,
        );
        request.arguments.encode(&mut record);
        put_fixed(&mut record, request.bulk);
        record
    }
}

impl Transport for LoopbackTransport {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if interrupt.is_raised() {
            return Err(CallError::Interrupted);
        }
        let record = self.record(request);
        let call = CallMessage::decode(&record).map_err(|defect| match defect {
            CallDecodeError::NotACall(error) => CallError::Malformed(error),
            CallDecodeError::RpcVersion { .. } => CallError::SystemError,
            CallDecodeError::Authentication { status, .. } => CallError::Denied(status),
        })?;
        (self.hook)(LoopbackStep::Sent, request.program, request.procedure);
        let mut results = Vec::new();
        let answer =
            self.service.call(&call, &mut CallContext::detached(self.client, self.server), &mut results);
        (self.hook)(LoopbackStep::Answered, request.program, request.procedure);
        answer.map_err(|failure| match failure {
            CallFailure::ProgramUnavailable => CallError::ProgramUnavailable,
            CallFailure::ProgramMismatch(versions) => CallError::ProgramMismatch(versions),
            CallFailure::ProcedureUnavailable => CallError::ProcedureUnavailable,
            CallFailure::GarbageArguments => CallError::GarbageArguments,
            // Without a network there are no duplicates, so no call is dropped.
            CallFailure::SystemError | CallFailure::NoReply => CallError::SystemError,
            CallFailure::Denied(status) => CallError::Denied(status),
        })?;
        // A real connection fails here, too: the reply is longer than the call allows.
        if results.len() > request.results_max {
            let length = u32::try_from(results.len()).unwrap_or(u32::MAX);
            let limit = u32::try_from(request.results_max).unwrap_or(u32::MAX);
            return Err(CallError::Malformed(DecodeError::TooLong { length, limit }));
        }
        Ok(CallReply::from_results(results))
    }
}
