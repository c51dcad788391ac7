//! OPEN of files that exist and of new ones, with what is asked for beside.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, Component, CompoundEncoder, CreateHow4, Nfs4Operation, OpenClaim, OpenHow,
    OpenOk4, ReadArgs4, SetattrArgs4, Stateid, Verifier4,
};
use curt_types::{Access, Attributes, Fault, FileHandle, FileKind, SetAttributes, SetTime, Timestamp, Wcc};
use curt_xdr::DecodeError;

use super::{
    NfsV4, RESULTS_SMALL,
    attributes::{self, EncodedAttributes, directory_step},
    compound::{CompoundRequest, OWN_OPERATIONS_MAX},
    created, get_attributes,
    open::{self, AbandonedOpen, GrantedOpen, OpenPlace, SentOpen},
    put_fh, question, read_results,
    recovery::{OPEN_RESULTS_MAX, open_arguments, owner_name},
    results::{Results, done, optional},
};
use crate::protocol::{
    Answer, CreateRequest, CreatedObject, FileOperations as _, LookupOpenReply, LookupReply, OpenExtras,
    OpenOwner, OpenReply, RpcCaller, ShareAccess, SiblingOpenRequest,
};

impl NfsV4 {
    /// A file is created by OPEN.
    pub(super) fn create_file(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let nobody = Arc::new(caller.credential.clone());
        let owner = OpenOwner { number: u32::MAX, credential: &nobody };
        let (owner, access) = new.open.map_or((owner, ShareAccess::Write), |open| (open.owner, open.access));
        let set = SetAttributes { mode: Some(new.mode), ..SetAttributes::default() };
        let encoded = EncodedAttributes::new(&set);
        // Random, and different for each call: the keys of RandomState are the process's own.
        let seed = (directory.as_bytes(), name.bytes(), self.rpc.now());
        let verifier = Verifier4(RandomState::new().hash_one(seed).to_be_bytes());
        let how = if new.is_exclusive {
            CreateHow4::Exclusive41(verifier, encoded.fattr())
        } else {
            CreateHow4::Guarded(encoded.fattr())
        };
        // The server may have kept the verifier in the times. From now on the time of the last
        // access distinguishes the file from those of others.
        let accessed = unique_time(verifier);
        let times = SetAttributes { atime: SetTime::Time(accessed), mtime: SetTime::ServerTime, ..set };
        let times = EncodedAttributes::new(&times);
        let owner_name = owner_name(owner.number);
        let (client, is_exclusive) = (self.session.lock().client, new.is_exclusive);
        let arguments =
            open_arguments(client, &owner_name, access, OpenHow::Create(how), OpenClaim::Null(name));
        let arguments = self.server.wishing(arguments, false);
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            operations.bare(Nfs4Operation::Savefh);
            operations.push(&arguments);
            operations.bare(Nfs4Operation::Getfh);
            if is_exclusive {
                operations.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes: times.fattr() });
            }
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        let abandoned = || {
            let place = OpenPlace::Name(directory.clone(), name.bytes().to_vec());
            let (owner, credential) = (owner.number, Arc::clone(owner.credential));
            vec![AbandonedOpen { place, owner, credential, access }]
        };
        let request = CompoundRequest {
            caller,
            operation: Nfs4Operation::Open,
            append: &append,
            main: 2,
            open: None,
            lock: None,
            results_max: OPEN_RESULTS_MAX + RESULTS_SMALL,
            sink: None,
            may_piggyback: true,
            opens: Some(&abandoned),
            operations: OWN_OPERATIONS_MAX,
            keeps_reply: true,
        };
        let mut made = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
            let ok: OpenOk4<'_> = done!(results.next(Nfs4Operation::Open), Wcc::default());
            let generation = results.1;
            let created = created(results, is_exclusive, |handle| {
                let sent = SentOpen { access, wants_delegation: false, generation };
                self.opened(handle, owner, sent, GrantedOpen::from(&ok));
            })?;
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(created), directory_step(Some(ok.directory), results.attributes()?)))
        })?;
        if is_exclusive && made.lost_at.is_some() && made.outcome == Err(Fault::Exist) {
            let found = self.find(caller, directory, name.bytes())?.outcome;
            let is_ours = |about: Attributes| about.kind == FileKind::Regular && about.atime == accessed;
            if let Ok(found) = found
                && found.attributes.is_some_and(is_ours)
            {
                self.open_again(&found.handle, owner, access, caller.interrupt)?;
                made.outcome = Ok(Ok(found));
            }
        }
        if new.open.is_none() || made.outcome.is_err() {
            self.close_soon();
        }
        Ok(made)
    }

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
        let abandoned = || {
            let files = std::iter::once(file).chain(siblings.iter().map(|sibling| sibling.file));
            let open = |file: &FileHandle| AbandonedOpen {
                place: OpenPlace::File(file.clone()),
                owner: owner.number,
                credential: Arc::clone(owner.credential),
                access,
            };
            files.map(open).collect()
        };
        let opens: Option<&(dyn Fn() -> _ + Sync)> = Some(&abandoned);
        let request = CompoundRequest { results_max, main: 1, may_piggyback, opens, ..question };
        let opening = wants_delegation.then(|| self.delegations.begin_opening());
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
                let Some(found) = self.decode_sibling_open(results, owner, sent, rights, *sibling)? else {
                    break;
                };
                opened.push(found);
            }
            Ok((Ok(OpenReply { granted, data, siblings: opened }), about))
        });
        if let (Some(opening), Err(_)) = (&opening, &answer) {
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
        results: &mut Results<'_>,
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

/// The present time in seconds by the local clock, and a fraction of its own.
fn unique_time(verifier: Verifier4) -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let fraction = u64::from_be_bytes(verifier.0) % 1_000_000_000;
    Timestamp::new(since.as_secs().cast_signed(), u32::try_from(fraction).unwrap_or_default())
}
