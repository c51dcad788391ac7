//! REMOVE.

use curt_proto::nfs4::{
    Component, CompoundEncoder, LookupArgs4, Nfs4Operation, NfsStat4, NverifyArgs4, RemoveArgs4, RemoveOk4,
    Stateid, VerifyArgs4,
};
use curt_types::{Fault, FileHandle, FileKind, Wcc};
use curt_xdr::DecodeError;

use super::{
    NfsV4,
    attributes::{self, EncodedAttributes, directory_step},
    compound::request::{CompoundRequest, get_attributes, put_fh},
    results::{CompoundResultReader, done, fault, outcome},
    server_traits::ServerFeature,
};
use crate::protocol::{Answer, FileOperations, NfsReply, RpcCaller};

impl NfsV4 {
    /// Removes an object as the server accepts it.
    pub(super) fn remove_as_accepted(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        let used: &[ServerFeature] = &[ServerFeature::TypeComparison];
        let suspects = |fault| if fault == Fault::Notsupp { used } else { &[] };
        let removed = self.server.as_accepted(suspects, |features| {
            if features.has(ServerFeature::TypeComparison) {
                self.remove_compared(caller, directory, name, Some(is_directory))
            } else {
                self.remove_looked_up(caller, directory, name, is_directory)
            }
        })?;
        if removed.outcome.is_ok() {
            self.server.accepted(used);
        }
        Ok(removed)
    }

    fn remove_looked_up(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        let NfsReply { sent_at, lost_at, outcome, .. } = self.find(caller, directory, name.bytes())?;
        let fault = match outcome.map(|found| found.attributes.map(|about| about.kind)) {
            Ok(Some(FileKind::Directory)) if !is_directory => Fault::Isdir,
            Ok(Some(kind)) if is_directory && kind != FileKind::Directory => Fault::Notdir,
            Ok(_) => return self.remove_compared(caller, directory, name, None),
            Err(fault) => fault,
        };
        Ok(NfsReply { sent_at, lost_at, outcome: Err(fault), attributes: Wcc::default() })
    }

    /// REMOVE removes objects of all types, so the type is compared before, unless it is known.
    fn remove_compared(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: Component<'_>,
        is_directory: Option<bool>,
    ) -> Answer<(), Wcc> {
        let directory_type = EncodedAttributes::directory_type();
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            if let Some(is_directory) = is_directory {
                operations.bare(Nfs4Operation::Savefh);
                operations.push(&LookupArgs4 { name });
                if is_directory {
                    operations.push(&VerifyArgs4 { attributes: directory_type.fattr() });
                } else {
                    operations.push(&NverifyArgs4 { attributes: directory_type.fattr() });
                }
                operations.bare(Nfs4Operation::Restorefh);
            }
            operations.push(&RemoveArgs4 { name });
            get_attributes(operations, attributes::OBJECT);
        };
        let required = if is_directory.is_some() { 5 } else { 1 };
        let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::Remove, required, &append);
        self.ask(&request, |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            if let Some(is_directory) = is_directory {
                let compare = if is_directory { Nfs4Operation::Verify } else { Nfs4Operation::Nverify };
                done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
                done!(results.pass(Nfs4Operation::Lookup), Wcc::default());
                done!(compared(results, compare), Wcc::default());
                done!(results.pass(Nfs4Operation::Restorefh), Wcc::default());
            }
            let ok: RemoveOk4 = done!(results.next(Nfs4Operation::Remove), Wcc::default());
            Ok((Ok(()), directory_step(Some(ok.directory), results.attributes()?)))
        })
    }
}

/// The comparison of an object's type before its removal.
pub(super) fn compared(
    results: &mut CompoundResultReader<'_>,
    compare: Nfs4Operation,
) -> Result<Result<(), Fault>, DecodeError> {
    Ok(outcome(results.operations.next::<()>(compare))?.map_err(|status| match status {
        NfsStat4::NotSame => Fault::Notdir,
        NfsStat4::Same => Fault::Isdir,
        status => fault(status),
    }))
}
