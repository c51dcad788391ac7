//! Arguments and results of the operations.

pub(super) mod callback;
pub(super) mod files;
pub(super) mod listing;
pub(super) mod session;
pub(super) mod state;

use super::{Nfs4Operation, OperationArguments};

macro_rules! arguments {
    ($($type:ty => $operation:ident;)*) => {
        $(impl OperationArguments for $type {
            const OPERATION: Nfs4Operation = Nfs4Operation::$operation;
        })*
    };
}

arguments! {
    files::AccessArgs4 => Access;
    state::CloseArgs4 => Close;
    files::CommitArgs4 => Commit;
    files::CreateArgs4<'_> => Create;
    state::DelegreturnArgs4 => Delegreturn;
    files::GetattrArgs4 => Getattr;
    files::LinkArgs4<'_> => Link;
    state::LockArgs4<'_> => Lock;
    state::LocktArgs4<'_> => Lockt;
    state::LockuArgs4 => Locku;
    files::LookupArgs4<'_> => Lookup;
    files::NverifyArgs4<'_> => Nverify;
    state::OpenArgs4<'_> => Open;
    state::OpenDowngradeArgs4 => OpenDowngrade;
    files::PutfhArgs4<'_> => Putfh;
    files::ReadArgs4 => Read;
    listing::ReaddirArgs4 => Readdir;
    files::RemoveArgs4<'_> => Remove;
    files::RenameArgs4<'_> => Rename;
    files::SecinfoArgs4<'_> => Secinfo;
    files::SetattrArgs4<'_> => Setattr;
    files::VerifyArgs4<'_> => Verify;
    files::WriteArgs4<'_> => Write;
    files::WriteHead4 => Write;
    session::BackchannelCtlArgs4<'_> => BackchannelCtl;
    session::BindConnToSessionArgs4 => BindConnToSession;
    session::ExchangeIdArgs4<'_> => ExchangeId;
    session::CreateSessionArgs4<'_> => CreateSession;
    session::DestroySessionArgs4 => DestroySession;
    state::FreeStateidArgs4 => FreeStateid;
    state::GetDirDelegationArgs4 => GetDirDelegation;
    files::SecinfoNoNameArgs4 => SecinfoNoName;
    session::SequenceArgs4 => Sequence;
    session::SetSsvArgs4<'_> => SetSsv;
    state::TestStateidArgs4 => TestStateid;
    session::DestroyClientidArgs4 => DestroyClientid;
    session::ReclaimCompleteArgs4 => ReclaimComplete;
}
