//! LOOKUP, with what an open of the file needs that is found.

use curt_proto::nfs4::{
    AccessArgs4, Component, CompoundEncoder, GetfhOk4, LookupArgs4, Nfs4Operation, OpenOk4, ReadArgs4,
    Stateid,
};
use curt_types::{Attributes, Fault, FileHandle};
use curt_xdr::DecodeError;

use super::{
    NfsV4,
    abandoned_opens::{AbandonedOpen, OpenTarget},
    attributes,
    compound::request::{CompoundRequest, OWN_OPERATIONS_MAX, RESULTS_SMALL, get_attributes, put_fh},
    open::push_open,
    open_codec::{GrantedOpen, OPEN_RESULTS_MAX, OpenRequest},
    open_table::SentOpen,
    read_results,
    results::{CompoundResultReader, done, optional},
    server_traits::ServerFeature,
};
use crate::protocol::{
    Answer, LookupOpenReply, LookupOpenRequest, LookupReply, OpenOwner, RpcCaller, ShareAccess,
};

/// The position of the attributes of what LOOKUP has found. What follows does not concern the name:
/// it is not sent again for its sake.
const LOOKUP_ATTRIBUTES_AT: u32 = 4;

impl NfsV4 {
    /// A LOOKUP, and what is requested with it. The failure of what follows LOOKUP does not concern
    /// the name.
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
            (session.client, session.limits.operations_max >= OWN_OPERATIONS_MAX)
        };
        let used = self.server.used();
        let owner =
            with_open.and_then(|asked| asked.open).filter(|_| room && used.has(ServerFeature::OpenByHandle));
        let open = owner
            .map(|owner| OpenRequest::by_handle(client, owner.number, ShareAccess::Read, used.wish(true)));
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
            if let Some(with_open) = with_open {
                push_open_of_found(operations, with_open, open.as_ref());
            }
        };
        let asked = with_open.map_or(0, |asked| read_results::as_length(asked.read));
        let room = if open.is_some() { OPEN_RESULTS_MAX } else { 0 };
        let results_max = RESULTS_SMALL.saturating_add(room).saturating_add(asked);
        let required = with_open.map(|_| LOOKUP_ATTRIBUTES_AT);
        let target = || OpenTarget::Name(directory.clone(), name.to_vec());
        let abandoned = || {
            let open = owner.map(|owner| AbandonedOpen::new(target(), owner, ShareAccess::Read));
            open.into_iter().collect()
        };
        let opens: Option<&(dyn Fn() -> _ + Sync)> = Some(&abandoned);
        let opening = owner.map(|_| self.delegations.begin_opening());
        let opening = opening.as_ref();
        let request = CompoundRequest::idempotent(caller, operation, &append);
        let request = CompoundRequest { required, results_max, opens, opening, ..request };
        let answer = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            done!(results.pass(operation), about);
            let ok: GetfhOk4<'_> = done!(results.next(Nfs4Operation::Getfh), about);
            let found = LookupReply { handle: ok.object.into(), attributes: results.attributes()? };
            let mut found = LookupOpenReply::from(found);
            if let Some(with_open) = with_open {
                self.decode_open_of_found(results, with_open, owner, &mut found)?;
            }
            Ok((Ok(found), about))
        })?;
        if answer.outcome.as_ref().is_ok_and(|found| found.was_opened && found.delegation.is_none()) {
            self.close_soon();
        }
        Ok(answer)
    }

    /// Decodes the results of what follows a LOOKUP, up to the first failure. `owner`: of the OPEN,
    /// if there is one.
    fn decode_open_of_found(
        &self,
        results: &mut CompoundResultReader<'_>,
        with_open: LookupOpenRequest<'_>,
        owner: Option<OpenOwner<'_>>,
        found: &mut LookupOpenReply,
    ) -> Result<(), DecodeError> {
        found.granted = results.rights(with_open.rights)?;
        if let Some(owner) = owner {
            let ok: Option<OpenOk4<'_>> = optional(results.operations.next(Nfs4Operation::Open))?;
            let Some(ok) = ok else { return Ok(()) };
            let sent = SentOpen {
                access: ShareAccess::Read,
                wants_delegation: true,
                generation: results.generation,
                is_reopening: false,
            };
            found.delegation = self.opened(&found.found.handle, owner, sent, GrantedOpen::from(&ok));
            found.was_opened = true;
            found.granted = results.rights(with_open.rights)?;
            // The delegation does not cover attributes from before its grant. If the reply has none
            // from after it, they are dropped, and requested when needed.
            let former = found.found.attributes.filter(|_| found.delegation.is_none());
            found.found.attributes = results.attributes()?.or(former);
        }
        found.data = read_results::decode_optional_read(results, with_open.read)?;
        Ok(())
    }
}

/// Appends the operations that follow a LOOKUP. Without an OPEN their READ uses the anonymous
/// stateid: no open has to be closed if the file is not opened.
fn push_open_of_found(
    operations: &mut CompoundEncoder<'_>,
    with_open: LookupOpenRequest<'_>,
    open: Option<&OpenRequest<'_>>,
) {
    let LookupOpenRequest { rights, read: count, .. } = with_open;
    operations.push(&AccessArgs4 { access: rights.bits() });
    let mut stateid = Stateid::ANONYMOUS;
    if let Some(open) = open {
        push_open(operations, open, rights);
        stateid = Stateid::CURRENT;
    }
    operations.push(&ReadArgs4 { stateid, offset: 0, count });
}
