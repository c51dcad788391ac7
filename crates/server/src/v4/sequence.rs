//! SEQUENCE (RFC 8881 section 18.46).

use curt_proto::nfs4::{
    Nfs4Operation, NfsStat4, ResultHeader, SequenceArgs4, SequenceOk4, SequenceStatusFlags, TAG_MAX,
};
use curt_rpc::auth::OpaqueAuth;
use curt_xdr::{Decoder, Encode, put_opaque};

use super::compound::{FAILED_RESULT, end_failed};
use super::operation_outcome::{OpFailure, decoded};
use super::{Compound, Outcome};
use crate::state::{Principal, SequenceGrant, SequenceRequest, Sequenced, SlotInUse};

impl<'r> Compound<'r, '_> {
    /// The slot of an operation in a session.
    pub(super) fn slot(&self) -> Result<&SlotInUse, OpFailure> {
        self.slot.as_ref().ok_or(OpFailure::Status(NfsStat4::OpNotInSession))
    }

    /// The caller.
    pub(super) const fn principal(&self) -> Principal {
        match self.request.credential {
            OpaqueAuth::Sys(sys) => Principal::Uid(sys.uid),
            OpaqueAuth::None | OpaqueAuth::Other { .. } => Principal::Anonymous,
        }
    }

    /// The tag of the request.
    fn tag(&self) -> &'r [u8] {
        Decoder::new(self.arguments).opaque(TAG_MAX).unwrap_or_default()
    }
}

/// Size of a call's header without the body of its credential: six words, and the flavors and
/// lengths of credential and verifier, whose body is empty for AUTH_NONE and AUTH_SYS.
const CALL_HEADER: usize = 40;
/// Size of the body of SEQUENCE's result.
const RESULT: usize = 36;

pub(super) fn sequence<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: SequenceArgs4 = decoded(arguments)?;
    let service = compound.request.service;
    if let Some(slot) = compound.kept_slot.take() {
        result(slot.grant()).encode(reply);
        compound.request.client = Some(slot.client().id);
        compound.slot = Some(slot);
        return Ok(());
    }
    let tag = compound.tag();
    // Clients may change the tag of a repetition, and Linux sends the highest slot that it uses
    // then (6.18): what is compared begins behind it, with whether the reply is kept.
    let contents = &compound.arguments[compound.arguments.len() - arguments.remaining().len() - 4..];
    let request = SequenceRequest {
        session: asked.session,
        slot: asked.slot,
        sequence: asked.sequence,
        highest_slot: asked.highest_slot,
        is_cached: asked.cache_this,
        operations: compound.operations,
        size: CALL_HEADER + credential_size(compound.request.credential) + compound.arguments.len(),
        reply_min: compound.used(reply) + RESULT + if compound.operations > 1 { FAILED_RESULT } else { 0 },
        fingerprint: service.held.fingerprint(compound.principal(), contents),
    };
    match service.held.sequence(&request, service.uptime())? {
        Sequenced::Execute(slot) => {
            result(slot.grant()).encode(reply);
            compound.associate(&asked.session);
            compound.request.client = Some(slot.client().id);
            compound.slot = Some(slot);
        }
        Sequenced::Replay(replayed) => compound.replayed = Some(replayed),
        Sequenced::Uncached(grant) if compound.operations == 1 => result(&grant).encode(reply),
        Sequenced::Uncached(grant) => {
            let next = arguments.clone().u32().ok().and_then(Nfs4Operation::from_number);
            compound.replayed = Some(uncached(tag, &grant, next.unwrap_or(Nfs4Operation::Illegal)));
        }
    }
    Ok(())
}

/// The results of a compound whose reply is not cached: its second operation `next` fails.
fn uncached(tag: &[u8], grant: &SequenceGrant, next: Nfs4Operation) -> Vec<u8> {
    let mut results = Vec::new();
    NfsStat4::RetryUncachedRep.encode(&mut results);
    put_opaque(&mut results, tag);
    2_u32.encode(&mut results);
    ResultHeader { operation: Nfs4Operation::Sequence, status: NfsStat4::Ok }.encode(&mut results);
    result(grant).encode(&mut results);
    let at = results.len();
    ResultHeader { operation: next, status: NfsStat4::Ok }.encode(&mut results);
    end_failed(next, NfsStat4::RetryUncachedRep.into(), at, &mut results);
    results
}

const fn result(grant: &SequenceGrant) -> SequenceOk4 {
    SequenceOk4 {
        session: grant.session,
        sequence: grant.sequence,
        slot: grant.slot,
        highest_slot: grant.highest_slot,
        target_highest_slot: grant.target_highest_slot,
        status_flags: SequenceStatusFlags(grant.status_flags),
    }
}

/// Size of the body of a credential.
fn credential_size(credential: &OpaqueAuth<'_>) -> usize {
    match credential {
        OpaqueAuth::None => 0,
        OpaqueAuth::Sys(sys) => 20 + sys.machine_name.len().next_multiple_of(4) + 4 * sys.groups.len(),
        OpaqueAuth::Other { body, .. } => body.len().next_multiple_of(4),
    }
}
