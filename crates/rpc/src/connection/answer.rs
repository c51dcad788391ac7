//! Answering a call: verification, execution by the service, protection of the reply.
//!
//! Both ends of a connection use this for calls that they receive. It does not depend on where the
//! reply is sent. Invariant: each call has at most one reply, and the reply is complete, whatever
//! arrives and whatever a service does.

use std::{
    borrow::Cow,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use curt_xdr::DecodeError;

use super::{
    context::{AttachedRange, CallContext},
    service::RpcService,
};
use crate::{
    message::{
        call::{CallDecodeError, CallMessage, SignedCall},
        failure::CallFailure,
        reply::{
            AcceptStatus, RPC_MISMATCH, RejectedReply, encode_accepted, encode_accepted_header, encode_denied,
        },
    },
    record,
    security::{
        auth::OpaqueAuth,
        flavor::{AuthFlavor, AuthNone, FlavorAcceptor},
    },
};

/// Executes the calls that one end of a connection receives.
#[derive(Clone)]
pub struct CallHandler {
    /// The service.
    pub service: Arc<dyn RpcService>,
    /// Handles calls of flavors other than AUTH_NONE and AUTH_SYS. Without it the service gets such
    /// calls unverified.
    pub acceptor: Option<Arc<dyn FlavorAcceptor>>,
}

/// The result of answering a call.
pub(crate) enum Answered {
    /// The reply was appended; it contains this range of a file.
    Reply(Option<AttachedRange>),
    /// No reply is sent.
    Nothing,
}

impl CallHandler {
    /// A handler without additional flavors.
    #[must_use]
    pub const fn of(service: Arc<dyn RpcService>) -> Self {
        Self { service, acceptor: None }
    }

    /// Answers the call in `message`: appends the record of the reply to `out`. `log` gets the
    /// error of a malformed call.
    ///
    /// # Errors
    /// It is not a call, and no reply is possible.
    pub(crate) fn answer(
        &self,
        message: &[u8],
        context: &mut CallContext<'_>,
        out: &mut Vec<u8>,
        log: &dyn Fn(&str),
    ) -> Result<Answered, DecodeError> {
        let start = out.len();
        let body = record::begin_record(out);
        let mut piece = None;
        // By reference: moving a decoded call would copy it.
        match &SignedCall::decode(message) {
            Ok(signed) => match self.execute(signed, context, out, log) {
                Answered::Reply(range) => piece = range,
                Answered::Nothing => {
                    out.truncate(start);
                    return Ok(Answered::Nothing);
                }
            },
            Err(CallDecodeError::NotACall(defect)) => {
                out.truncate(start);
                return Err(*defect);
            }
            Err(defect) => {
                log(&defect.to_string());
                match defect {
                    CallDecodeError::RpcVersion { xid, .. } => {
                        encode_denied(out, *xid, RPC_MISMATCH);
                    }
                    CallDecodeError::Authentication { xid, status } => {
                        encode_denied(out, *xid, RejectedReply::Authentication(*status));
                    }
                    CallDecodeError::NotACall(_) => unreachable!("it is returned above"),
                }
            }
        }
        let beyond = piece.as_ref().map_or(0, |piece: &AttachedRange| piece.range.length());
        record::finish_record(out, body, beyond);
        Ok(Answered::Reply(piece))
    }

    /// Executes the call, and appends the reply without its record mark.
    fn execute(
        &self,
        signed: &SignedCall<'_>,
        context: &mut CallContext<'_>,
        out: &mut Vec<u8>,
        log: &dyn Fn(&str),
    ) -> Answered {
        let (start, call) = (out.len(), &signed.call);
        let accepted = match (&self.acceptor, &call.credential) {
            (Some(acceptor), OpaqueAuth::Other { flavor, body }) => acceptor.accept(*flavor, body).map(Some),
            _ => Ok(None),
        };
        let executed = match &accepted {
            Ok(Some(flavor)) => self.execute_verified(signed, &**flavor, context, out),
            // AUTH_NONE and AUTH_SYS protect nothing.
            Ok(None) => {
                encode_accepted_header(out, call.xid);
                self.call_service(call, context, out)
            }
            Err(failure) => Err(*failure),
        };
        let Err(failure) = executed else {
            return Answered::Reply(context.take_file_range());
        };
        let flavor = match &accepted {
            Ok(Some(flavor)) => &**flavor,
            Ok(None) | Err(_) => &AuthNone,
        };
        out.truncate(start);
        let status = match failure {
            CallFailure::NoReply => return Answered::Nothing,
            CallFailure::Denied(status) => {
                encode_denied(out, call.xid, RejectedReply::Authentication(status));
                return Answered::Reply(None);
            }
            CallFailure::ProgramUnavailable => AcceptStatus::ProgramUnavailable,
            CallFailure::ProgramMismatch(versions) => AcceptStatus::ProgramMismatch(versions),
            CallFailure::ProcedureUnavailable => AcceptStatus::ProcedureUnavailable,
            CallFailure::GarbageArguments => {
                log(&format!(
                    "the arguments of program {} version {} procedure {} cannot be decoded",
                    call.program, call.version, call.procedure
                ));
                AcceptStatus::GarbageArguments
            }
            CallFailure::SystemError => AcceptStatus::SystemError,
        };
        encode_accepted(out, call.xid, status, flavor);
        Answered::Reply(None)
    }

    /// Executes a call for a call that `flavor` protects.
    fn execute_verified(
        &self,
        signed: &SignedCall<'_>,
        flavor: &dyn AuthFlavor,
        context: &mut CallContext<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let verified = flavor.verify(signed.signed, signed.verifier);
        verified.map_err(CallFailure::Denied)?;
        let arguments = if flavor.wraps() {
            context.forbid_sendfile();
            let unwrapped = flavor.unwrap(signed.call.arguments);
            unwrapped.map_err(|_| CallFailure::GarbageArguments)?
        } else {
            Cow::Borrowed(signed.call.arguments)
        };
        encode_accepted(out, signed.call.xid, AcceptStatus::Success, flavor);
        let results = out.len();
        let call = CallMessage { arguments: &arguments, ..signed.call };
        self.call_service(&call, context, out)?;
        if flavor.wraps() {
            flavor.wrap(out, results);
        }
        Ok(())
    }

    /// Calls the service; a panic of the service becomes a reply too.
    fn call_service(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let answered = catch_unwind(AssertUnwindSafe(|| self.service.call(call, context, out)));
        answered.unwrap_or_else(|_| {
            tracing::error!(
                "panic in program {} version {} procedure {}: replying SYSTEM_ERR to {}",
                call.program,
                call.version,
                call.procedure,
                context.peer(),
            );
            Err(CallFailure::SystemError)
        })
    }
}

impl fmt::Debug for CallHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallHandler").field("acceptor", &self.acceptor).finish_non_exhaustive()
    }
}
