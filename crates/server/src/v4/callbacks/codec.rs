//! The messages of callbacks: CB_COMPOUND with CB_SEQUENCE and one other operation.

use curt_proto::nfs4::{
    Bitmap4, CallbackHeader, CallbackOperation, CbNotifyLockArgs4, CbRecallAnyArgs4, CbRecallArgs4,
    CbSequenceArgs4, CbSequenceOk4, Clientid, CompoundReplyHeader, NfsFh4, NfsStat4, OpaqueLimited,
    REFERRING_MAX, ReferringCall, ReferringCalls, SessionId, StateOwner, Stateid,
};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_types::FileHandle;
use curt_xdr::{DecodeError, Decoder, Encode as _, VarArray};

use crate::state::{CallbackRoute, CallbackSecurity, GrantingCall, SentCallback, Session};

/// The operations of a callback.
const OPERATIONS: u32 = 2;

/// The operation after CB_SEQUENCE.
pub(super) enum CallbackArguments<'a> {
    /// CB_NOTIFY_LOCK: the lock of this owner may be free.
    NotifyLock {
        /// The file.
        file: &'a FileHandle,
        /// The client, and its owner of the lock.
        client: Clientid,
        /// See `client`.
        owner: &'a [u8],
    },
    /// CB_RECALL_ANY: the client may keep so many delegations of files and directories.
    RecallAny {
        /// The number that the client may keep.
        keep: u32,
    },
    /// CB_RECALL.
    Recall {
        /// The delegation.
        stateid: Stateid,
        /// Its file.
        file: &'a FileHandle,
        /// The request that got it, if its reply may not have arrived.
        granted_by: Option<GrantingCall>,
    },
}

impl CallbackArguments<'_> {
    const fn operation(&self) -> CallbackOperation {
        match self {
            Self::NotifyLock { .. } => CallbackOperation::NotifyLock,
            Self::RecallAny { .. } => CallbackOperation::RecallAny,
            Self::Recall { .. } => CallbackOperation::Recall,
        }
    }

    /// The call, with the arguments of CB_COMPOUND.
    pub(super) fn encoded(&self, session: &Session, route: &CallbackRoute) -> SentCallback {
        let mut out = Vec::new();
        CallbackHeader {
            minor_version: session.minor_version,
            operations: OPERATIONS,
            ..CallbackHeader::default()
        }
        .encode(&mut out);
        CallbackOperation::Sequence.encode(&mut out);
        CbSequenceArgs4 {
            session: session.id,
            sequence: route.sequence,
            slot: route.slot,
            highest_slot: route.highest_slot,
            cache_this: false,
            referring: self.referring(),
        }
        .encode(&mut out);
        let begin = out.len();
        self.operation().encode(&mut out);
        match self {
            Self::NotifyLock { file, client, owner } => CbNotifyLockArgs4 {
                object: NfsFh4::from(*file),
                owner: StateOwner { clientid: *client, owner: OpaqueLimited::new(owner).unwrap_or_default() },
            }
            .encode(&mut out),
            Self::RecallAny { keep } => {
                let types = Bitmap4::EMPTY
                    .with(CbRecallAnyArgs4::READ_DELEGATIONS)
                    .with(CbRecallAnyArgs4::DIRECTORY_DELEGATIONS);
                CbRecallAnyArgs4 { objects_to_keep: *keep, types }.encode(&mut out);
            }
            Self::Recall { stateid, file, .. } => {
                CbRecallArgs4 { stateid: *stateid, truncate: false, object: NfsFh4::from(*file) }
                    .encode(&mut out);
            }
        }
        SentCallback { operation: self.operation(), arguments: out, begin }
    }

    /// The client waits for the reply to the request before it looks for the delegation (RFC 8881
    /// section 2.10.6.3).
    fn referring(&self) -> VarArray<ReferringCalls, REFERRING_MAX> {
        match self {
            Self::Recall { granted_by: Some(call), .. } => {
                let calls = vec![ReferringCall { sequence: call.sequence, slot: call.slot }];
                let calls =
                    ReferringCalls { session: call.session, calls: VarArray::new(calls).unwrap_or_default() };
                VarArray::new(vec![calls]).unwrap_or_default()
            }
            Self::Recall { granted_by: None, .. } | Self::NotifyLock { .. } | Self::RecallAny { .. } => {
                VarArray::default()
            }
        }
    }
}

pub(super) fn credential(security: &CallbackSecurity) -> RpcCredential {
    match security {
        CallbackSecurity::None => RpcCredential::None,
        CallbackSecurity::Sys { machine_name, uid, gid } => RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(machine_name),
            uid: *uid,
            gid: *gid,
            groups: AuthSysGids::first_of(&[]),
        }),
    }
}

/// Size of the body of a credential.
pub(super) fn credential_size(credential: &RpcCredential) -> usize {
    let RpcCredential::Sys(sys) = credential else { return 0 };
    let mut encoded = Vec::new();
    sys.encode(&mut encoded);
    encoded.len() - 8
}

/// How a client answered a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallbackResult {
    /// The operation after CB_SEQUENCE has this status.
    Executed(NfsStat4),
    /// CB_SEQUENCE, or the compound, failed with this status.
    NoSlot(NfsStat4),
}

/// Decodes the results of CB_COMPOUND with CB_SEQUENCE, sent by `route`, and `operation`.
pub(super) fn answer(
    results: &[u8],
    session: SessionId,
    route: &CallbackRoute,
    operation: CallbackOperation,
) -> Result<CallbackResult, DecodeError> {
    let decoder = &mut Decoder::new(results);
    let header: CompoundReplyHeader<'_> = decoder.get()?;
    if header.results == 0 {
        return Ok(CallbackResult::NoSlot(match header.status {
            NfsStat4::Ok => NfsStat4::Serverfault,
            status => status,
        }));
    }
    match status_of(CallbackOperation::Sequence, decoder)? {
        NfsStat4::Ok => {}
        status => return Ok(CallbackResult::NoSlot(status)),
    }
    let ok: CbSequenceOk4 = decoder.get()?;
    // A client that executed CB_SEQUENCE only has refused the rest.
    let status = match header.results {
        1 => NfsStat4::Serverfault,
        _ => status_of(operation, decoder)?,
    };
    let is_of_this = ok.session == session && ok.sequence == route.sequence && ok.slot == route.slot;
    Ok(if is_of_this {
        CallbackResult::Executed(status)
    } else {
        CallbackResult::NoSlot(NfsStat4::Serverfault)
    })
}

fn status_of(operation: CallbackOperation, decoder: &mut Decoder<'_>) -> Result<NfsStat4, DecodeError> {
    let answered: CallbackOperation = decoder.get()?;
    let status: NfsStat4 = decoder.get()?;
    let is_other = answered != operation && answered != CallbackOperation::Illegal;
    Ok(if is_other { NfsStat4::Serverfault } else { status })
}
