//! OPEN that creates a file.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use curt_proto::nfs4::{
    Component, CompoundEncoder, CreateHow4, Nfs4Operation, OpenClaim, OpenHow, OpenOk4, SetattrArgs4,
    Stateid, Verifier4,
};
use curt_rpc::client::CallError;
use curt_types::{Attributes, Fault, FileHandle, FileKind, SetAttributes, SetTime, Timestamp, Wcc};

use super::{
    NfsV4,
    abandoned_opens::{AbandonedOpen, OpenTarget},
    attributes::{self, EncodedAttributes, directory_step},
    compound::request::{CompoundRequest, RESULTS_SMALL, get_attributes, put_fh},
    open_codec::{GrantedOpen, OPEN_RESULTS_MAX, OpenRequest},
    open_key::CREATOR,
    open_table::SentOpen,
    results::{created, done},
    server_traits::{ServerFeature, UsedFeatures},
};
use crate::protocol::{
    Answer, CreateRequest, CreatedObject, FileOperations, LookupReply, OpenOwner, RpcCaller, ShareAccess,
};

impl NfsV4 {
    /// Creates a file as the server accepts it.
    pub(super) fn create_file_as_accepted(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let used: &[ServerFeature] = if new.is_exclusive {
            &[ServerFeature::DelegationWishes, ServerFeature::ExclusiveCreation]
        } else {
            &[ServerFeature::DelegationWishes]
        };
        let suspects = |fault| match fault {
            Fault::Inval | Fault::Notsupp => used,
            _ => &[],
        };
        let made = self.server.as_accepted(suspects, |features| {
            let is_exclusive = new.is_exclusive && features.has(ServerFeature::ExclusiveCreation);
            self.create_file(caller, directory, name, &CreateRequest { is_exclusive, ..*new }, features)
        })?;
        if made.outcome.is_ok() {
            self.server.accepted(used);
        }
        Ok(made)
    }

    /// A file is created by OPEN.
    fn create_file(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        new: &CreateRequest<'_>,
        used: UsedFeatures,
    ) -> Answer<CreatedObject, Wcc> {
        let nobody = Arc::new(caller.credential.clone());
        let owner = OpenOwner { number: CREATOR, credential: &nobody };
        let (owner, access) = new.open.map_or((owner, ShareAccess::Write), |open| (open.owner, open.access));
        let set = SetAttributes { mode: Some(new.mode), ..SetAttributes::default() };
        let encoded = EncodedAttributes::new(&set);
        let verifier = self.new_verifier(directory, name);
        let how = if new.is_exclusive {
            CreateHow4::Exclusive41(verifier, encoded.fattr())
        } else {
            CreateHow4::Guarded(encoded.fattr())
        };
        // The server may have kept the verifier in the times. From now on the time of the last
        // access distinguishes the file from those of others.
        let accessed = unique_time(self.rpc.wall_clock(), verifier);
        let times = SetAttributes { atime: SetTime::Time(accessed), mtime: SetTime::ServerTime, ..set };
        let times = EncodedAttributes::new(&times);
        let (client, is_exclusive) = (self.session.lock().client, new.is_exclusive);
        let open = OpenRequest {
            how: OpenHow::Create(how),
            claim: OpenClaim::Null(name),
            ..OpenRequest::by_handle(client, owner.number, access, used.wish(false))
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            push_creation(operations, directory, &open, is_exclusive.then_some(&times));
        };
        let target = || OpenTarget::Name(directory.clone(), name.bytes().to_vec());
        let abandoned = || vec![AbandonedOpen::new(target(), owner, access)];
        let request = CompoundRequest {
            results_max: OPEN_RESULTS_MAX + RESULTS_SMALL,
            opens: Some(&abandoned),
            ..CompoundRequest::non_idempotent(caller, Nfs4Operation::Open, 2, &append)
        };
        let mut made = self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
            let ok: OpenOk4<'_> = done!(results.next(Nfs4Operation::Open), Wcc::default());
            let generation = results.generation;
            let created = created(results, is_exclusive, |handle| {
                let sent = SentOpen { access, wants_delegation: false, generation, is_reopening: false };
                self.opened(handle, owner, sent, GrantedOpen::from(&ok));
            })?;
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(created), directory_step(Some(ok.directory), results.attributes()?)))
        })?;
        let may_be_ours = is_exclusive && made.lost_at.is_some() && made.outcome == Err(Fault::Exist);
        if may_be_ours && let Some(found) = self.find_accessed(caller, directory, name, accessed)? {
            self.open_again(&found.handle, owner, access, caller.interrupt)?;
            made.outcome = Ok(Ok(found));
        }
        if new.open.is_none() || made.outcome.is_err() {
            self.close_soon();
        }
        Ok(made)
    }

    /// Random, and different for each call: the keys of `RandomState` are the process's own.
    fn new_verifier(&self, directory: &FileHandle, name: Component<'_>) -> Verifier4 {
        let seed = (directory.as_bytes(), name.bytes(), self.rpc.now());
        Verifier4(RandomState::new().hash_one(seed).to_be_bytes())
    }

    /// The object of a name, if it is a regular file with this time of the last access.
    fn find_accessed(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        accessed: Timestamp,
    ) -> Result<Option<LookupReply>, CallError> {
        let is_it = |about: Attributes| about.kind == FileKind::Regular && about.atime == accessed;
        let found = self.find(caller, directory, name.bytes())?.outcome.ok();
        Ok(found.filter(|found| found.attributes.is_some_and(is_it)))
    }
}

/// OPEN in a directory, SETATTR of the times if these are given, and what is asked about both.
fn push_creation(
    operations: &mut CompoundEncoder<'_>,
    directory: &FileHandle,
    open: &OpenRequest<'_>,
    times: Option<&EncodedAttributes>,
) {
    put_fh(operations, directory);
    operations.bare(Nfs4Operation::Savefh);
    operations.push(&open.arguments());
    operations.bare(Nfs4Operation::Getfh);
    if let Some(times) = times {
        operations.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes: times.fattr() });
    }
    get_attributes(operations, attributes::OBJECT);
    operations.bare(Nfs4Operation::Restorefh);
    get_attributes(operations, attributes::OBJECT);
}

/// The time in seconds by the local clock, and a fraction of its own.
fn unique_time(now: SystemTime, verifier: Verifier4) -> Timestamp {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let fraction = u64::from_be_bytes(verifier.0) % 1_000_000_000;
    Timestamp::new(since.as_secs().cast_signed(), u32::try_from(fraction).unwrap_or_default())
}
