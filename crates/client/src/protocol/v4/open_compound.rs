//! OPEN by handle, with what an open of the file needs.

use std::sync::Arc;

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, CompoundEncoder, Nfs4Operation, OpenClaim, OpenHow, OpenOk4, ReadArgs4, Stateid,
};
use curt_types::{Access, Attributes, FileHandle};
use curt_xdr::DecodeError;

use super::{
    NfsV4, RESULTS_SMALL, attributes,
    compound::CompoundRequest,
    get_attributes,
    open::{self, AbandonedOpen, GrantedOpen, OpenTarget, SentOpen},
    put_fh, question, read_results,
    recovery::{OPEN_RESULTS_MAX, open_arguments, owner_name},
    results::{CompoundResultReader, done, optional},
};
use crate::protocol::{
    Answer, FileOperations, LookupOpenReply, LookupReply, OpenExtras, OpenOwner, OpenReply, RpcCaller,
    ShareAccess, SiblingOpenRequest,
};

impl NfsV4 {
    /// OPEN, with what is wanted beside.
    pub(super) fn open_by_handle(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        access: ShareAccess,
        wanted: OpenExtras<'_>,
    ) -> Answer<OpenReply, Option<Attributes>> {
        let OpenExtras { rights, read, siblings } = wanted;
        let name = owner_name(owner.number);
        let (client, room) = {
            let session = self.session.lock();
            (session.client, session.operations_max.saturating_sub(1 + open::OPERATIONS) / open::OPERATIONS)
        };
        let wants_delegation = self.wants_delegation(file, access);
        let room = if wants_delegation { usize::try_from(room).unwrap_or(0) } else { 0 };
        let siblings = siblings.get(..room).unwrap_or(siblings);
        let arguments = open_arguments(client, &name, access, OpenHow::NoCreate, OpenClaim::Fh);
        let arguments = self.server.wishing(arguments, wants_delegation);
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.push(&arguments);
            operations.push(&AccessArgs4 { access: rights.bits() });
            get_attributes(operations, attributes::OBJECT);
            if let Some(count) = read {
                let count = count.min(self.session.lock().read_max());
                operations.push(&ReadArgs4 { stateid: Stateid::CURRENT, offset: 0, count });
            }
            for sibling in siblings {
                put_fh(operations, sibling.file);
                operations.push(&arguments);
                operations.push(&AccessArgs4 { access: rights.bits() });
                get_attributes(operations, attributes::OBJECT);
                operations.push(&ReadArgs4 { stateid: Stateid::CURRENT, offset: 0, count: sibling.read });
            }
        };
        let asked = usize::try_from(read.unwrap_or(0)).unwrap_or(usize::MAX);
        let length = |asked| (OPEN_RESULTS_MAX + RESULTS_SMALL).saturating_add(asked);
        let lengths = siblings.iter().map(|sibling| length(usize::try_from(sibling.read).unwrap_or(0)));
        let results_max = lengths.fold(length(asked), usize::saturating_add);
        // Another OPEN of the same owner changes nothing, but is not sent for the sake of what
        // follows it.
        let question = question(caller, Nfs4Operation::Open, &append);
        let may_piggyback = siblings.is_empty();
        let abandoned_open = |file: &FileHandle| AbandonedOpen {
            target: OpenTarget::File(file.clone()),
            owner: owner.number,
            credential: Arc::clone(owner.credential),
            access,
        };
        let abandoned = || {
            let files = std::iter::once(file).chain(siblings.iter().map(|sibling| sibling.file));
            files.map(abandoned_open).collect()
        };
        let opens: Option<&(dyn Fn() -> _ + Sync)> = Some(&abandoned);
        let opening = wants_delegation.then(|| self.delegations.begin_opening());
        let opening = opening.as_ref();
        let request = CompoundRequest { results_max, main: 1, may_piggyback, opens, opening, ..question };
        let mut has_rights = true;
        let answer = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let ok: OpenOk4<'_> = done!(results.next(Nfs4Operation::Open), None);
            let sent = SentOpen { access, wants_delegation, generation: results.1 };
            self.server.accepted_open();
            self.opened(file, owner, sent, GrantedOpen::from(&ok));
            let access = optional(results.0.next::<AccessOk4>(Nfs4Operation::Access))?;
            has_rights = access.is_some();
            let granted = access.map_or(Access::NONE, |ok| Access::from_bits(ok.access).common(rights));
            let about = results.attributes()?;
            let data =
                if read.is_some() { read_results::decode_optional_read(results, asked)? } else { None };
            let mut opened = Vec::with_capacity(siblings.len());
            for sibling in siblings {
                match self.decode_sibling_open(results, owner, sent, rights, *sibling) {
                    Ok(Some(found)) => opened.push(found),
                    Ok(None) => break,
                    Err(error) => {
                        // knfsd: see `CompoundResults::status`. The file itself is open.
                        tracing::debug!(%error, "malformed results of files that are opened in advance");
                        let others = siblings[opened.len()..].iter().map(|sibling| sibling.file);
                        self.abandon(others.map(abandoned_open).collect());
                        break;
                    }
                }
            }
            Ok((Ok(OpenReply { granted, data, siblings: opened }), about))
        });
        if let (Some(opening), Err(_)) = (opening, &answer) {
            opening.lose_reply(caller.credential);
        }
        let mut answer = answer?;
        if let (Ok(reply), false) = (&mut answer.outcome, has_rights) {
            // The refusal of ACCESS does not concern the OPEN, which is closed if it is not used.
            self.close_soon();
            let access = self.access(caller, file, rights)?;
            answer.attributes = access.attributes;
            match access.outcome {
                Ok(granted) => reply.granted = granted,
                Err(fault) => answer.outcome = Err(fault),
            }
        }
        Ok(answer)
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
        if optional(results.0.next::<()>(Nfs4Operation::Putfh))?.is_none() {
            return Ok(None);
        }
        let Some(ok) = optional(results.0.next::<OpenOk4<'_>>(Nfs4Operation::Open))? else {
            return Ok(None);
        };
        let delegation = self.opened(sibling.file, owner, sent, GrantedOpen::from(&ok));
        if delegation.is_none() {
            self.close_soon();
        }
        let granted = optional(results.0.next::<AccessOk4>(Nfs4Operation::Access))?;
        let granted = granted.map(|ok| Access::from_bits(ok.access).common(rights));
        let found = LookupReply { handle: sibling.file.clone(), attributes: results.attributes()? };
        let asked = usize::try_from(sibling.read).unwrap_or(usize::MAX);
        let data = read_results::decode_optional_read(results, asked)?;
        Ok(Some(LookupOpenReply { found, granted, data, was_opened: true, delegation }))
    }
}
