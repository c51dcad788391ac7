//! The kinds of operations for opens and delegations that are added to other compounds.

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, ResultError, Stateid};

use crate::protocol::ShareAccess;

/// The operation of a [`PiggybackedOperation`](super::open::PiggybackedOperation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PiggybackedKind {
    Close,
    Downgrade(ShareAccess),
    /// DELEGRETURN.
    Return,
}

impl PiggybackedKind {
    pub(super) const fn operation(self) -> Nfs4Operation {
        match self {
            Self::Close => Nfs4Operation::Close,
            Self::Downgrade(_) => Nfs4Operation::OpenDowngrade,
            Self::Return => Nfs4Operation::Delegreturn,
        }
    }

    /// The piggybacked operation's result: its new stateid.
    pub(super) fn result(self, results: &mut CompoundResults<'_>) -> Result<Stateid, ResultError> {
        results.next::<()>(Nfs4Operation::Putfh)?;
        match self {
            Self::Return => results.next::<()>(self.operation()).map(|()| Stateid::INVALID),
            Self::Close | Self::Downgrade(_) => results.next(self.operation()),
        }
    }
}
