//! LOOKUP, with what an open of the file needs that is found.

use std::sync::Arc;

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, Component, CompoundEncoder, GetfhOk4, LookupArgs4, Nfs4Operation, OpenClaim,
    OpenHow, OpenOk4, ReadArgs4, Stateid,
};
use curt_types::{Access, Attributes, Fault, FileHandle};

use super::{
    NfsV4, RESULTS_SMALL, attributes,
    compound::{CompoundRequest, OWN_OPERATIONS_MAX, REPEATABLE},
    get_attributes,
    open::{AbandonedOpen, GrantedOpen, OpenTarget, SentOpen},
    put_fh, question, read_results,
    recovery::{OPEN_RESULTS_MAX, open_arguments, owner_name},
    results::{done, optional},
    server_traits::ServerFeature,
};
use crate::protocol::{Answer, LookupOpenReply, LookupOpenRequest, LookupReply, RpcCaller, ShareAccess};

/// The position of the attributes of what LOOKUP has found. What follows does not concern the name:
/// it is not sent again for its sake.
const LOOKUP_ATTRIBUTES_AT: u32 = 4;

impl NfsV4 {
    /// A LOOKUP, and what is requested with it. Without an OPEN its READ uses the anonymous
    /// stateid: no open has to be closed if the file is not opened. The failure of what follows
    /// LOOKUP does not concern the name.
    ///
    /// The operations after OPEN are executed after the delegation was granted. Those before it
    /// serve objects that cannot be opened.
    pub(super) fn find_with_open(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        with_open: Option<LookupOpenRequest<'_>>,
    ) -> Answer<LookupOpenReply, Option<Attributes>> {
        let Ok(component) = Component::new(name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let is_parent = name == b"..";
        let operation = if is_parent { Nfs4Operation::Lookupp } else { Nfs4Operation::Lookup };
        let (client, room) = {
            let session = self.session.lock();
            (session.client, session.operations_max >= OWN_OPERATIONS_MAX)
        };
        let owner = with_open
            .and_then(|asked| asked.open)
            .filter(|_| room && self.server.has(ServerFeature::OpenByHandle));
        let owner_name = owner.map(|owner| owner_name(owner.number));
        let open = owner_name.as_ref().map(|owner| {
            let (how, claim) = (OpenHow::NoCreate, OpenClaim::Fh);
            self.server.wishing(open_arguments(client, owner, ShareAccess::Read, how, claim), true)
        });
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            get_attributes(operations, attributes::OBJECT);
            if is_parent {
                operations.bare(operation);
            } else {
                operations.push(&LookupArgs4 { name: component });
            }
            operations.bare(Nfs4Operation::Getfh);
            get_attributes(operations, attributes::OBJECT);
            let Some(LookupOpenRequest { rights, read: count, .. }) = with_open else { return };
            operations.push(&AccessArgs4 { access: rights.bits() });
            let mut stateid = Stateid::ANONYMOUS;
            if let Some(open) = &open {
                operations.push(open);
                operations.push(&AccessArgs4 { access: rights.bits() });
                get_attributes(operations, attributes::OBJECT);
                stateid = Stateid::CURRENT;
            }
            operations.push(&ReadArgs4 { stateid, offset: 0, count });
        };
        let asked = usize::try_from(with_open.map_or(0, |asked| asked.read)).unwrap_or(usize::MAX);
        let room = if open.is_some() { OPEN_RESULTS_MAX } else { 0 };
        let results_max = RESULTS_SMALL.saturating_add(room).saturating_add(asked);
        let main = if with_open.is_some() { LOOKUP_ATTRIBUTES_AT } else { REPEATABLE };
        let abandoned = || {
            let open = owner.map(|owner| AbandonedOpen {
                target: OpenTarget::Name(directory.clone(), name.to_vec()),
                owner: owner.number,
                credential: Arc::clone(owner.credential),
                access: ShareAccess::Read,
            });
            open.into_iter().collect()
        };
        let opens: Option<&(dyn Fn() -> _ + Sync)> = Some(&abandoned);
        let opening = owner.map(|_| self.delegations.begin_opening());
        let opening = opening.as_ref();
        let request =
            CompoundRequest { main, results_max, opens, opening, ..question(caller, operation, &append) };
        let answer = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            done!(results.pass(operation), about);
            let ok: GetfhOk4<'_> = done!(results.next(Nfs4Operation::Getfh), about);
            let found = LookupReply { handle: ok.object.into(), attributes: results.attributes()? };
            let mut found = LookupOpenReply::from(found);
            let Some(with_open) = with_open else { return Ok((Ok(found), about)) };
            let granted = |ok: AccessOk4| Access::from_bits(ok.access).common(with_open.rights);
            found.granted = optional(results.0.next(Nfs4Operation::Access))?.map(granted);
            if let Some(owner) = owner {
                let Some(ok) = optional(results.0.next::<OpenOk4<'_>>(Nfs4Operation::Open))? else {
                    return Ok((Ok(found), about));
                };
                let (access, generation) = (ShareAccess::Read, results.1);
                let sent = SentOpen { access, wants_delegation: true, generation };
                found.delegation = self.opened(&found.found.handle, owner, sent, GrantedOpen::from(&ok));
                found.was_opened = true;
                found.granted = optional(results.0.next(Nfs4Operation::Access))?.map(granted);
                // Attributes of before the grant are not covered by the delegation: others are
                // requested if there are none of after it.
                let former = found.found.attributes.filter(|_| found.delegation.is_none());
                found.found.attributes = results.attributes()?.or(former);
            }
            found.data = read_results::decode_optional_read(results, asked)?;
            Ok((Ok(found), about))
        });
        if let (Some(opening), Err(_)) = (opening, &answer) {
            opening.lose_reply(caller.credential);
        }
        let answer = answer?;
        if answer.outcome.as_ref().is_ok_and(|found| found.was_opened && found.delegation.is_none()) {
            self.close_soon();
        }
        Ok(answer)
    }
}
