//! Operations for opens and delegations that are added to other compounds: their kinds, and when
//! they are sent again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, ResultError, Stateid};
use curt_rpc::auth::RpcCredential;

use super::open_key::OpenKey;
use crate::protocol::ShareAccess;

/// The first pause before an operation that the server has delayed is sent again. Each is twice the
/// one before, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest of these pauses. Another client may wait for the operation.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The time before which an operation is not sent, because the server has delayed it: behind it
/// nothing of its compound is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Postponement {
    pause: Duration,
    until: Option<Instant>,
}

impl Postponement {
    /// The server has delayed the operation once more.
    pub(super) fn longer(self, now: Instant) -> Self {
        let pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
        Self { pause, until: Some(now + pause) }
    }

    pub(super) fn is_over(self, now: Instant) -> bool {
        self.left(now).is_zero()
    }

    /// How long it still lasts.
    pub(super) fn left(self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// An operation for an open or a delegation that is added to a compound.
#[derive(Clone, Debug)]
pub(super) struct PiggybackedOperation {
    pub(super) key: OpenKey,
    pub(super) stateid: Stateid,
    pub(super) kind: PiggybackedKind,
    pub(super) credential: Arc<RpcCredential>,
    /// An earlier copy has failed. A delegation is then returned with its own credential only.
    pub(super) has_failed: bool,
    pub(super) postponement: Postponement,
}

impl PiggybackedOperation {
    /// DELEGRETURN of the delegation that came with an open.
    pub(super) fn delegreturn(key: OpenKey, stateid: Stateid, credential: Arc<RpcCredential>) -> Self {
        let (kind, postponement) = (PiggybackedKind::Return, Postponement::default());
        Self { key, stateid, kind, credential, has_failed: false, postponement }
    }

    /// Whether it can be sent now, in a compound of this credential.
    pub(super) fn can_be_sent(&self, credential: &RpcCredential, now: Instant) -> bool {
        let takes_any_credential = self.kind == PiggybackedKind::Return && !self.has_failed;
        self.postponement.is_over(now) && (takes_any_credential || *self.credential == *credential)
    }
}

/// The opens without users that are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedOpens {
    /// Those that are not kept any longer.
    Due,
    All,
}

impl ClosedOpens {
    /// The time by which it is decided how long they are kept.
    pub(super) fn at(self, now: Instant) -> Option<Instant> {
        (self == Self::Due).then_some(now)
    }
}

/// The kind of a [`PiggybackedOperation`].
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
