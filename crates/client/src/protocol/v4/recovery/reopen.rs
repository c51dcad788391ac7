//! OPENs of files that were open: the server has lost their opens, or only the server knows them.

use std::sync::Arc;

use curt_proto::nfs4::{CompoundEncoder, CompoundResults, Nfs4Operation, NfsStat4, OpenOk4, Stateid};
use curt_rpc::client::{CallError, Interrupt};
use curt_types::FileHandle;

use crate::protocol::{
    HeldDelegation, OpenOwner, RpcCaller, ShareAccess,
    v4::{
        NfsV4,
        compound::request::{CompoundRequest, put_fh},
        open_codec::{GrantedOpen, OpenRequest},
        open_key::OpenKey,
        open_table::{OpenToRestore, SentOpen},
        results::{fault, outcome},
        server_traits::{ServerFeature, UsedFeatures},
    },
};

impl NfsV4 {
    /// Opens a file again whose open the server does not know any more.
    pub(in crate::protocol::v4) fn reopen(
        &self,
        key: &OpenKey,
        interrupt: &Interrupt,
    ) -> Result<(), CallError> {
        let Some(open) = self.opens.to_reopen(key) else { return Ok(()) };
        if !self.server.has(ServerFeature::OpenByHandle) {
            self.opens.forget(key);
            return Ok(());
        }
        for access in &open.accesses {
            let used = self.server.used();
            match self.send_open_again(&open, *access, used, interrupt)? {
                Ok(()) => {}
                // The caller asks for it again, in another way.
                Err(status) if self.server.refused_open(fault(status), used) => break,
                Err(status) => {
                    tracing::warn!(%status, "a file cannot be opened again");
                    self.opens.lose(key);
                    break;
                }
            }
        }
        if open.accesses.is_empty() {
            // Data that are written later use the anonymous stateid.
            self.opens.forget(key);
        }
        if !self.opens.has_users(key) {
            self.close_soon();
        }
        Ok(())
    }

    /// Opens a file of which only the server may know that it is open. A refusal is that of the
    /// next open.
    pub(in crate::protocol::v4) fn open_again(
        &self,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        interrupt: &Interrupt,
    ) -> Result<(), CallError> {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let credential = Arc::clone(owner.credential);
        let open = OpenToRestore { key, credential, accesses: Vec::new() };
        let _ = self.send_open_again(&open, access, self.server.used(), interrupt)?;
        self.opens.narrow(&open.key);
        self.close_soon();
        Ok(())
    }

    /// Sends an OPEN of a file that was open.
    fn send_open_again(
        &self,
        open: &OpenToRestore,
        access: ShareAccess,
        used: UsedFeatures,
        interrupt: &Interrupt,
    ) -> Result<Result<(), NfsStat4>, CallError> {
        let client = self.session.lock().client;
        let asked = OpenRequest::by_handle(client, open.key.owner, access, used.wish(false));
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, &open.key.file);
            operations.push(&asked.arguments());
        };
        let caller = RpcCaller { credential: &open.credential, interrupt };
        let reply = self.send(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Open, 1, &append))?;
        let owner = OpenOwner { number: open.key.owner, credential: &open.credential };
        let generation = reply.generation();
        let sent = SentOpen { access, wants_delegation: false, generation, is_reopening: true };
        let mut results = self.decoded(reply.results())?;
        Ok(self.opened_again(&mut results, &open.key, owner, sent)?.map(drop))
    }

    /// Reads the results of PUTFH and of an OPEN that was sent again. Returns its delegation.
    pub(super) fn opened_again(
        &self,
        results: &mut CompoundResults<'_>,
        key: &OpenKey,
        owner: OpenOwner<'_>,
        sent: SentOpen,
    ) -> Result<Result<Option<Arc<HeldDelegation>>, NfsStat4>, CallError> {
        let found = outcome(results.next::<()>(Nfs4Operation::Putfh));
        let opened = outcome(results.next::<OpenOk4<'_>>(Nfs4Operation::Open));
        let opened = self.decoded(found.and_then(|found| opened.map(|opened| found.and(opened))))?;
        Ok(opened.map(|ok| self.opened(&key.file, owner, sent, GrantedOpen::from(&ok))))
    }
}
