//! OPEN by handle, with what an open of the file needs.

use curt_proto::nfs4::{AccessArgs4, Clientid, CompoundEncoder, Nfs4Operation, OpenOk4, ReadArgs4, Stateid};
use curt_rpc::client::CallError;
use curt_types::{Access, Attributes, FileHandle, SetAttributes, Wcc};
use curt_xdr::DecodeError;

use super::{
    NfsV4,
    abandoned_opens::{AbandonedOpen, OpenTarget},
    attributes,
    compound::request::{CompoundRequest, RESULTS_SMALL, get_attributes, put_fh},
    delegation_table::OpeningGuard,
    open_codec::{GrantedOpen, OPEN_RESULTS_MAX, OpenRequest},
    open_key::OpenKey,
    open_table::SentOpen,
    read_results,
    results::{CompoundResultReader, done, optional},
    server_traits::{ServerFeature, UsedFeatures, suspects_of_open},
};
use crate::protocol::{
    Answer, FileOperations, IsLost, LookupOpenReply, LookupOpenRequest, LookupReply, NfsReply, OpenCaller,
    OpenExtras, OpenOperations, OpenOwner, OpenReply, RpcCaller, ShareAccess, SiblingOpenRequest,
};

/// The operations that open a file and read it, with their PUTFH.
const OPERATIONS: u32 = 5;

impl OpenOperations for NfsV4 {
    fn keeps_removed_file(&self, file: &FileHandle) -> bool {
        self.opens.is_preserved(file)
    }

    fn share_open(&self, file: &FileHandle, owner: OpenOwner<'_>, access: ShareAccess) -> bool {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let is_opened = self.server.has(ServerFeature::OpenByHandle);
        self.opens.share(&key, access)
            || !is_opened && self.opens.use_unopened(&key, owner.credential, access)
    }

    fn open(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        wanted: OpenExtras<'_>,
    ) -> Answer<OpenReply, Option<Attributes>> {
        self.server.as_accepted(suspects_of_open, |used| {
            if used.has(ServerFeature::OpenByHandle) {
                let open = || self.open_by_handle(caller, file, owner, access, wanted, used);
                return self.as_session_allows(open);
            }
            let answer = self.access(caller, file, wanted.rights)?;
            let outcome = answer.outcome.map(OpenReply::from);
            let NfsReply { sent_at, lost_at, attributes, .. } = answer;
            Ok(NfsReply { sent_at, lost_at, outcome, attributes })
        })
    }

    fn set_through_open(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        set: &SetAttributes,
        is_lost: IsLost<'_>,
    ) -> Answer<(), Wcc> {
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        self.set_by(open.rpc(), file, set, Some(&key), is_lost)
    }

    fn delay_open(&self, file: &FileHandle, owner: OpenOwner<'_>) -> bool {
        let key = OpenKey { file: file.clone(), owner: owner.number };
        self.opens.use_unopened(&key, owner.credential, ShareAccess::Read)
    }

    fn close(&self, file: &FileHandle, owner: u32, access: ShareAccess) {
        let key = OpenKey { file: file.clone(), owner };
        if self.opens.release(&key, access, self.rpc.now()) {
            self.close_when_due(&key);
        }
        self.tidy_locks(file);
    }

    fn find_to_open(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        request: LookupOpenRequest<'_>,
    ) -> Answer<LookupOpenReply, Option<Attributes>> {
        self.find_with_open(caller, directory, name, Some(request))
    }
}

impl NfsV4 {
    /// OPEN, with what is wanted beside.
    fn open_by_handle(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        wanted: OpenExtras<'_>,
        used: UsedFeatures,
    ) -> Answer<OpenReply, Option<Attributes>> {
        let OpenExtras { rights, read, siblings } = wanted;
        let wants_delegation = self.wants_delegation(file, access);
        let (client, room) = self.client_and_sibling_opens_max();
        let room = if wants_delegation { room } else { 0 };
        let siblings = siblings.get(..room).unwrap_or(siblings);
        let open = OpenRequest::by_handle(client, owner.number, access, used.wish(wants_delegation));
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            push_open(operations, &open, rights);
            if let Some(count) = read {
                let count = count.min(self.session.lock().limits.read_max());
                operations.push(&ReadArgs4 { stateid: Stateid::CURRENT, offset: 0, count });
            }
            for sibling in siblings {
                put_fh(operations, sibling.file);
                push_open(operations, &open, rights);
                operations.push(&ReadArgs4 { stateid: Stateid::CURRENT, offset: 0, count: sibling.read });
            }
        };
        let abandoned = || {
            let files = std::iter::once(file).chain(siblings.iter().map(|sibling| sibling.file));
            files.map(|file| AbandonedOpen::new(OpenTarget::File(file.clone()), owner, access)).collect()
        };
        let opening = wants_delegation.then(|| self.delegations.begin_opening());
        // Another OPEN of the same owner changes nothing, but is not sent for the sake of what
        // follows it.
        let request = CompoundRequest {
            required: Some(1),
            results_max: results_max(read, siblings),
            may_piggyback: siblings.is_empty(),
            opens: Some(&abandoned),
            opening: opening.as_ref(),
            ..CompoundRequest::idempotent(caller, Nfs4Operation::Open, &append)
        };
        let mut has_rights = true;
        let mut answer = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let ok: OpenOk4<'_> = done!(results.next(Nfs4Operation::Open), None);
            let sent =
                SentOpen { access, wants_delegation, generation: results.generation, is_reopening: false };
            self.server.accepted_open(used);
            let delegation = self.opened(file, owner, sent, GrantedOpen::from(&ok));
            let granted = results.rights(rights)?;
            has_rights = granted.is_some();
            let granted = granted.unwrap_or(Access::NONE);
            let about = results.attributes()?;
            let data = read.map(|asked| read_results::decode_optional_read(results, asked)).transpose()?;
            let data = data.flatten();
            let siblings =
                self.decode_sibling_opens(results, owner, sent, rights, siblings, opening.as_ref());
            Ok((Ok(OpenReply { granted, data, siblings, delegation }), about))
        })?;
        if !has_rights {
            self.ask_rights_alone(caller, file, rights, &mut answer)?;
        }
        Ok(answer)
    }

    /// Asks for the rights alone, because the server has refused the ACCESS behind an OPEN. That
    /// does not concern the OPEN, which is closed if it is not used.
    fn ask_rights_alone(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        rights: Access,
        answer: &mut NfsReply<OpenReply, Option<Attributes>>,
    ) -> Result<(), CallError> {
        let Ok(reply) = &mut answer.outcome else { return Ok(()) };
        self.close_soon();
        let access = self.access(caller, file, rights)?;
        answer.attributes = access.attributes;
        match access.outcome {
            Ok(granted) => reply.granted = granted,
            Err(fault) => answer.outcome = Err(fault),
        }
        Ok(())
    }

    /// The client ID, and how many files a compound has room for beside the one that it opens.
    fn client_and_sibling_opens_max(&self) -> (Clientid, usize) {
        let session = self.session.lock();
        let room = session.limits.operations_max.saturating_sub(1 + OPERATIONS) / OPERATIONS;
        (session.client, usize::try_from(room).unwrap_or(0))
    }

    /// The files that were opened with another. Malformed results (knfsd: see
    /// [`CompoundResults::status`](curt_proto::nfs4::CompoundResults::status)) do not concern that
    /// one; the files from there on are not used, and closed, and their delegations are returned
    /// when the server recalls them.
    fn decode_sibling_opens(
        &self,
        results: &mut CompoundResultReader<'_>,
        owner: OpenOwner<'_>,
        sent: SentOpen,
        rights: Access,
        siblings: &[SiblingOpenRequest<'_>],
        opening: Option<&OpeningGuard<'_>>,
    ) -> Vec<LookupOpenReply> {
        let mut opened = Vec::with_capacity(siblings.len());
        for sibling in siblings {
            match self.decode_sibling_open(results, owner, sent, rights, *sibling) {
                Ok(Some(found)) => opened.push(found),
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "malformed results of files that are opened in advance");
                    let others = siblings[opened.len()..].iter().map(|sibling| sibling.file);
                    let others = others.map(|file| OpenTarget::File(file.clone()));
                    let others = others.map(|file| AbandonedOpen::new(file, owner, sent.access));
                    if let Some(opening) = opening {
                        opening.lose_reply(owner.credential);
                    }
                    self.abandon(others.collect());
                    break;
                }
            }
        }
        opened
    }

    /// A file that was opened with another; `None` if it was not.
    fn decode_sibling_open(
        &self,
        results: &mut CompoundResultReader<'_>,
        owner: OpenOwner<'_>,
        sent: SentOpen,
        rights: Access,
        sibling: SiblingOpenRequest<'_>,
    ) -> Result<Option<LookupOpenReply>, DecodeError> {
        if optional(results.operations.next::<()>(Nfs4Operation::Putfh))?.is_none() {
            return Ok(None);
        }
        let Some(ok) = optional(results.operations.next::<OpenOk4<'_>>(Nfs4Operation::Open))? else {
            return Ok(None);
        };
        let delegation = self.opened(sibling.file, owner, sent, GrantedOpen::from(&ok));
        if delegation.is_none() {
            self.close_soon();
        }
        let granted = results.rights(rights)?;
        let found = LookupReply { handle: sibling.file.clone(), attributes: results.attributes()? };
        let data = read_results::decode_optional_read(results, sibling.read)?;
        Ok(Some(LookupOpenReply { found, granted, data, was_opened: true, delegation }))
    }
}

/// Longest results of the operations, in bytes.
fn results_max(read: Option<u32>, siblings: &[SiblingOpenRequest<'_>]) -> usize {
    let reads = std::iter::once(read.unwrap_or(0)).chain(siblings.iter().map(|sibling| sibling.read));
    reads.fold(0, |bytes: usize, read| {
        bytes.saturating_add(OPEN_RESULTS_MAX + RESULTS_SMALL).saturating_add(read_results::as_length(read))
    })
}

/// OPEN of the current filehandle, and what is asked about the file because of it.
pub(super) fn push_open(operations: &mut CompoundEncoder<'_>, open: &OpenRequest<'_>, rights: Access) {
    operations.push(&open.arguments());
    operations.push(&AccessArgs4 { access: rights.bits() });
    get_attributes(operations, attributes::OBJECT);
}
