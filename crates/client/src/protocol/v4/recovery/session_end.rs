//! DESTROY_SESSION and DESTROY_CLIENTID (RFC 8881 sections 18.37 and 18.50).

use curt_proto::nfs4::{
    CompoundEncoder, DestroyClientidArgs4, DestroySessionArgs4, Nfs4Operation, NfsStat4, SessionId, Stateid,
};
use curt_rpc::client::{CallError, Interrupt};
use curt_types::Fault;

use super::RECOVERY_PAUSE;
use crate::protocol::{
    RpcCaller,
    v4::{NfsV4, compound::request::Append, results::fault, session::RecoveryStep},
};

/// How often the server is asked to end a session or the client's record.
const ENDS_MAX: u32 = 5;

impl NfsV4 {
    /// Ends the session and the client's record, with all that it had open, locked or delegated, in
    /// four requests: the server discards that when another instance of the client creates a
    /// session. To close thousands of files one by one takes longer than the end of a mount may.
    pub(in crate::protocol::v4) fn destroy(&self, interrupt: &Interrupt) -> Result<(), CallError> {
        self.session.lock().client_unknown();
        if let Err(error) = self.recover_steps(interrupt, false, RecoveryStep::Reclaim) {
            tracing::debug!(?error, "the server keeps what is open until the lease ends");
        }
        let caller = RpcCaller { credential: &self.machine, interrupt };
        let (session, client) = {
            let state = self.session.lock();
            (state.session, state.client)
        };
        self.destroy_session(caller, session)?;
        let client = DestroyClientidArgs4 { clientid: client };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&client);
        if let Err(status) = self.end_at_server(caller, Nfs4Operation::DestroyClientid, &append)? {
            tracing::debug!(%status, "the server keeps this client's state until its lease ends");
        }
        Ok(())
    }

    /// Ends a session that another has replaced, when the requests that were sent in it have ended:
    /// as long as the server has it, it executes none of them twice. If they take longer than a
    /// server gets to end a session, the session is left to it.
    pub(super) fn destroy_replaced(
        &self,
        caller: RpcCaller<'_>,
        session: SessionId,
    ) -> Result<(), CallError> {
        let mut wait = RECOVERY_PAUSE;
        for _ in 1..ENDS_MAX {
            if !self.session.lock().is_replaced_in_use() {
                break;
            }
            wait = self.pause_longer(wait, caller.interrupt)?;
        }
        if self.session.lock().is_replaced_in_use() {
            tracing::debug!("a session that is replaced is still in use");
            return Ok(());
        }
        self.destroy_session(caller, session)
    }

    /// Ends a session of which the server may know nothing any more.
    pub(super) fn destroy_session(&self, caller: RpcCaller<'_>, session: SessionId) -> Result<(), CallError> {
        let arguments = DestroySessionArgs4 { session };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&arguments);
        if let Err(status) = self.end_at_server(caller, Nfs4Operation::DestroySession, &append)? {
            tracing::debug!(%status, "the server does not end a session");
        }
        Ok(())
    }

    /// Has the server end a session or the client's record. It asks for time while it executes
    /// requests for it.
    fn end_at_server(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        append: Append<'_>,
    ) -> Result<Result<(), NfsStat4>, CallError> {
        let mut wait = RECOVERY_PAUSE;
        for _ in 1..ENDS_MAX {
            let ended = self.send_alone::<()>(caller, operation, append)?;
            if !ended.is_err_and(|status| fault(status) == Fault::Jukebox) {
                return Ok(ended);
            }
            wait = self.pause_longer(wait, caller.interrupt)?;
        }
        self.send_alone(caller, operation, append)
    }
}
