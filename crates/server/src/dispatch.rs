//! Finds the program and version of a call. It does not decode arguments.

use std::sync::Arc;

use curt_observe::events::{ShortText, procedure_name};
use curt_observe::stages::{self, StageTimes};
use curt_observe::{ServerCounter, probe};
use curt_proto::{Operation, mount3, nfs3, nfs4, nlm4, nsm};
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::message::{CallMessage, VersionRange};
use curt_rpc::server::{CallContext, CallFailure, RpcService};

use crate::service::NfsService;
use crate::{mount3 as mount, nlm, v3, v4};

impl NfsService {
    fn dispatch(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let versions = |low, high| Err(CallFailure::ProgramMismatch(VersionRange { low, high }));
        match call.program {
            nfs3::PROGRAM => {
                if !context.was_deferred() {
                    self.counters.count(ServerCounter::Requests);
                }
                let (v3, v4) = (self.versions.v3, self.versions.v4());
                match call.version {
                    nfs3::VERSION if v3 => v3::call(self, call, context, reply),
                    nfs4::VERSION if v4 => v4::call(self, call, context, reply),
                    _ => versions(
                        if v3 { nfs3::VERSION } else { nfs4::VERSION },
                        if v4 { nfs4::VERSION } else { nfs3::VERSION },
                    ),
                }
            }
            mount3::PROGRAM => {
                self.counters.count(ServerCounter::RequestsMount);
                match call.version {
                    mount3::VERSION | mount3::VERSION_1 => mount::call(self, call, context, reply),
                    _ => versions(mount3::VERSION_1, mount3::VERSION),
                }
            }
            nlm4::PROGRAM => {
                if !context.was_deferred() {
                    self.counters.count(ServerCounter::RequestsLock);
                }
                match call.version {
                    nlm4::VERSION => nlm::call(self, call, context, reply),
                    _ => versions(nlm4::VERSION, nlm4::VERSION),
                }
            }
            nsm::PROGRAM => {
                self.counters.count(ServerCounter::RequestsLock);
                match call.version {
                    nsm::VERSION => nlm::call_monitor(self, call, context, reply),
                    _ => versions(nsm::VERSION, nsm::VERSION),
                }
            }
            _ => Err(CallFailure::ProgramUnavailable),
        }
    }

    /// Counts a call, unless it was deferred and is counted already, and names it in the stages.
    #[inline]
    pub(crate) fn begin_call(&self, operation: Operation, context: &CallContext<'_>) {
        if !context.was_deferred() {
            self.counters.calls.count(operation);
        }
        stages::set_operation(operation);
    }
}

impl RpcService for NfsService {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let start = reply.len();
        let name = || procedure_name(call.program, call.version, call.procedure);
        probe!(NfsdCall {
            xid: call.xid,
            procedure: name().bytes(),
            uid: uid_of(&call.credential),
            peer: ShortText::of(context.peer()).bytes()
        });
        let outcome = self.dispatch(call, context, reply);
        match outcome {
            Ok(()) => {}
            // The call is a duplicate, and counted as one; or it waits.
            Err(CallFailure::NoReply) => reply.truncate(start),
            Err(failure) => {
                self.counters.count(ServerCounter::RequestsRejected);
                reply.truncate(start);
                probe!(NfsdRejected {
                    xid: call.xid,
                    procedure: name().bytes(),
                    peer: ShortText::of(context.peer()).bytes(),
                    reason: ShortText::of(format_args!("{failure:?}")).bytes()
                });
            }
        }
        let results = reply.get(start..).unwrap_or_default();
        probe!(NfsdReply {
            xid: call.xid,
            procedure: name().bytes(),
            status: status_of(call.program, call.procedure, results),
            res: results.len()
        });
        outcome
    }

    fn resume_deferred(&self) {
        self.waiting_calls.resume_all();
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        Some(Arc::clone(&self.counters.stages))
    }
}

/// The status at the beginning of results. Of MOUNT's procedures only MNT has one (RFC 1813 section
/// 5.2.1); DUMP and EXPORT begin with the flag whether a list continues.
fn status_of(program: u32, procedure: u32, results: &[u8]) -> u32 {
    let has_one = match program {
        nfs3::PROGRAM => true,
        mount3::PROGRAM => procedure == mount3::MountProcedure::Mount as u32,
        _ => false,
    };
    let first = results.first_chunk().filter(|_| has_one);
    first.map_or(0, |status| u32::from_be_bytes(*status))
}

/// The uid in a credential; u32::MAX if it has none.
fn uid_of(credential: &OpaqueAuth<'_>) -> u32 {
    match credential {
        OpaqueAuth::Sys(sys) => sys.uid,
        OpaqueAuth::None | OpaqueAuth::Other { .. } => u32::MAX,
    }
}
