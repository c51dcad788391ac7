//! The operations that precede those of an intent, between SEQUENCE and them: piggybacked ones, and
//! PUTFH of the file whose open the intent uses, with the OPEN if that is delayed.

use std::sync::Arc;

use curt_proto::nfs4::{
    Clientid, CloseArgs4, CompoundEncoder, CompoundResults, DelegreturnArgs4, Nfs4Operation,
    OpenDowngradeArgs4, OpenOk4, ResultError, SequenceOk4, ShareAccess4, Stateid,
};
use curt_rpc::auth::RpcCredential;
use curt_xdr::DecodeError;

use super::request::put_fh;
use crate::protocol::{
    ShareAccess,
    v4::{
        abandoned_opens::{AbandonedOpen, OpenTarget},
        open_codec::{GrantedOpen, OpenRequest, wire},
        open_key::OpenKey,
        piggybacked::{PiggybackedKind, PiggybackedOperation},
        server_traits::UsedFeatures,
    },
};

/// Longest SEQUENCE and piggybacked operations in a reply, in bytes.
pub(super) const PREFIX_MAX: usize = 2048;

/// The operations that precede those of an intent in one attempt, after SEQUENCE.
#[derive(Default)]
pub(super) struct CompoundPrefix<'a> {
    pub(super) piggybacked: Vec<PiggybackedOperation>,
    pub(super) open: Option<UsedOpen<'a>>,
}

/// The open that a compound uses.
pub(super) struct UsedOpen<'a> {
    pub(super) key: &'a OpenKey,
    pub(super) stateid: Stateid,
    /// The OPEN for reading before the operations of the intent.
    pub(super) delayed: Option<DelayedOpen>,
}

/// An OPEN for reading in a [`CompoundPrefix`].
pub(super) struct DelayedOpen {
    pub(super) client: Clientid,
    pub(super) credential: Arc<RpcCredential>,
    pub(super) wants_delegation: bool,
    pub(super) features: UsedFeatures,
}

/// The operations of a [`CompoundPrefix`].
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixLayout {
    piggybacked: Vec<PiggybackedKind>,
    has_file: bool,
    pub(super) has_open: bool,
}

impl<'a> UsedOpen<'a> {
    /// The open whose stateid this is, without an OPEN.
    pub(super) const fn with_stateid(key: &'a OpenKey, stateid: Stateid) -> Self {
        Self { key, stateid, delayed: None }
    }

    /// The OPEN that precedes, if nobody waits for its reply.
    pub(super) fn abandoned(&self) -> Option<AbandonedOpen> {
        self.delayed.as_ref().map(|delayed| AbandonedOpen {
            target: OpenTarget::File(self.key.file.clone()),
            owner: self.key.owner,
            credential: Arc::clone(&delayed.credential),
            access: ShareAccess::Read,
        })
    }
}

impl CompoundPrefix<'_> {
    /// The stateid that the intent's operations use.
    pub(super) fn stateid(&self) -> Stateid {
        self.open.as_ref().map_or(Stateid::ANONYMOUS, |open| open.stateid)
    }

    pub(super) fn layout(&self) -> PrefixLayout {
        PrefixLayout {
            piggybacked: self.piggybacked.iter().map(|operation| operation.kind).collect(),
            has_file: self.open.is_some(),
            has_open: self.open.as_ref().is_some_and(|open| open.delayed.is_some()),
        }
    }

    /// Appends the operations.
    pub(super) fn push(&self, operations: &mut CompoundEncoder<'_>) {
        for operation in &self.piggybacked {
            put_fh(operations, &operation.key.file);
            match operation.kind {
                PiggybackedKind::Close => {
                    operations.push(&CloseArgs4 { seqid: 0, stateid: operation.stateid })
                }
                PiggybackedKind::Return => operations.push(&DelegreturnArgs4 { stateid: operation.stateid }),
                PiggybackedKind::Downgrade(access) => operations.push(&OpenDowngradeArgs4 {
                    stateid: operation.stateid,
                    seqid: 0,
                    share_access: ShareAccess4(wire(access)),
                    share_deny: 0,
                }),
            }
        }
        if let Some(open) = &self.open {
            put_fh(operations, &open.key.file);
            if let Some(delayed) = &open.delayed {
                let wish = delayed.features.wish(delayed.wants_delegation);
                let open = OpenRequest::by_handle(delayed.client, open.key.owner, ShareAccess::Read, wish);
                operations.push(&open.arguments());
            }
        }
    }
}

impl PrefixLayout {
    /// The number of operations, with SEQUENCE.
    pub(super) fn operations(&self) -> u32 {
        let piggybacked = u32::try_from(self.piggybacked.len()).unwrap_or(u32::MAX);
        1 + 2 * piggybacked + u32::from(self.has_file) + u32::from(self.has_open)
    }
}

/// Decodes SEQUENCE and what follows it, which all have succeeded. Returns the result of the OPEN.
pub(super) fn decode_prefix(
    results: &mut CompoundResults<'_>,
    prefix: &PrefixLayout,
) -> Result<Option<GrantedOpen>, DecodeError> {
    let malformed = |error| match error {
        ResultError::Decode(error) => error,
        _ => DecodeError::Short,
    };
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).map_err(malformed)?;
    for operation in &prefix.piggybacked {
        operation.result(results).map_err(malformed)?;
    }
    if prefix.has_file {
        results.next::<()>(Nfs4Operation::Putfh).map_err(malformed)?;
    }
    if !prefix.has_open {
        return Ok(None);
    }
    let ok: OpenOk4<'_> = results.next(Nfs4Operation::Open).map_err(malformed)?;
    Ok(Some(GrantedOpen::from(&ok)))
}
