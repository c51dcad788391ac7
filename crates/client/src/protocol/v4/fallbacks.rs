//! Changes of names that are done in another way where the server refuses the usual one.

use curt_proto::nfs4::Component;
use curt_types::{Fault, FileHandle, FileKind, Wcc};

use super::{NfsV4, server_traits::ServerFeature};
use crate::protocol::{Answer, CreateRequest, CreatedObject, FileOperations as _, NfsReply, RpcCaller};

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
}
