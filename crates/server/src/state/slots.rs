//! Slots: each request of a session is executed once (RFC 8881 section 2.10.6).
//!
//! Invariants: a slot executes one request at a time; a repetition with the same contents gets the
//! same reply, one with another fingerprint an error; no other request reads or changes the reply.

use std::{hash::BuildHasher as _, sync::Arc, sync::atomic::Ordering, time::Duration};

use curt_proto::nfs4::{SequenceId, SessionId, SlotId};
use parking_lot::Mutex;

use super::{Client, GrantingCall, Principal, ServerState, Session, StateFault};

/// The bytes at either end of a large request that its fingerprint covers.
pub(super) const FINGERPRINT_END: usize = 4096;
/// The number and the size of the samples between the ends, at equal distances.
pub(super) const SAMPLES: usize = 8;
pub(super) const SAMPLE: usize = 1024;

/// The arguments of SEQUENCE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceRequest {
    /// The session.
    pub(crate) session: SessionId,
    /// The slot.
    pub(crate) slot: SlotId,
    /// The sequence id of the request.
    pub(crate) sequence: SequenceId,
    /// The highest slot that the client uses.
    pub(crate) highest_slot: SlotId,
    /// `sa_cachethis`.
    pub(crate) is_cached: bool,
    /// Number of operations of the compound.
    pub(crate) operations: u32,
    /// Size of the request in bytes, with its RPC header.
    pub(crate) size: usize,
    /// Size in bytes of the smallest reply: the results of SEQUENCE, and of a next operation that
    /// fails.
    pub(crate) reply_min: usize,
    /// See [`ServerState::fingerprint`].
    pub(crate) fingerprint: u64,
}

/// The results of SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceGrant {
    /// The session.
    pub(crate) session: SessionId,
    /// The sequence id of the request.
    pub(crate) sequence: SequenceId,
    /// The slot.
    pub(crate) slot: SlotId,
    /// The highest slot that the server accepts.
    pub(crate) highest_slot: SlotId,
    /// The highest slot that the client should use.
    pub(crate) target_highest_slot: SlotId,
    /// `SEQ4_STATUS_*`.
    pub(crate) status_flags: u32,
}

/// The outcome of SEQUENCE.
pub(crate) enum Sequenced {
    /// The request is new and to be executed.
    Execute(SlotInUse),
    /// The request was executed before: this is its reply.
    Replay(Vec<u8>),
    /// The request was executed before, and its reply is not cached. The reply is SEQUENCE's result
    /// and, if the compound has a second operation, `NFS4ERR_RETRY_UNCACHED_REP` for that one.
    Uncached(SequenceGrant),
}

/// One slot of a session.
#[derive(Default)]
pub(super) struct Slot(Mutex<SlotContents>);

#[derive(Default)]
struct SlotContents {
    /// The sequence id of the last request.
    sequence: SequenceId,
    /// The fingerprint of the last request.
    fingerprint: u64,
    /// None before the first request.
    state: Option<SlotState>,
    /// The reply, if the state is `Cached`. The memory is used again.
    reply: Vec<u8>,
}

/// The state of a slot's last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The request is being executed.
    InProgress,
    /// Its reply is cached.
    Cached,
    /// Its reply is not cached.
    Uncached,
}

/// A slot's decision on a request.
enum SlotDecision {
    Execute,
    Replay(Vec<u8>),
    Uncached,
}

impl Slot {
    fn begin(&self, asked: &SequenceRequest) -> Result<SlotDecision, StateFault> {
        let mut slot = self.0.lock();
        if asked.sequence == slot.sequence.next() && slot.state != Some(SlotState::InProgress) {
            slot.sequence = asked.sequence;
            slot.fingerprint = asked.fingerprint;
            slot.state = Some(SlotState::InProgress);
            return Ok(SlotDecision::Execute);
        }
        let last = slot.state.filter(|_| asked.sequence == slot.sequence);
        match last.ok_or(StateFault::Misordered)? {
            // Also for another request: a client that has abandoned a request sends SEQUENCE alone
            // to learn whether it has ended.
            SlotState::InProgress => Err(StateFault::Delay),
            _ if asked.fingerprint != slot.fingerprint => Err(StateFault::FalseRetry),
            SlotState::Cached => Ok(SlotDecision::Replay(slot.reply.clone())),
            SlotState::Uncached => Ok(SlotDecision::Uncached),
        }
    }

    fn finish(&self, reply: Option<&[u8]>) {
        let mut slot = self.0.lock();
        slot.reply.clear();
        slot.state = Some(match reply {
            Some(reply) => {
                slot.reply.extend_from_slice(reply);
                SlotState::Cached
            }
            None => SlotState::Uncached,
        });
    }
}

#[cfg(test)]
impl Slot {
    /// Sets the sequence id of the last request.
    pub(super) fn set_sequence(&self, sequence: SequenceId) {
        self.0.lock().sequence = sequence;
    }
}

/// A slot whose request is executed. Dropped without [`Self::finish`], its reply is not cached.
pub(crate) struct SlotInUse {
    session: Arc<Session>,
    grant: SequenceGrant,
    is_cached: bool,
    is_finished: bool,
}

impl SlotInUse {
    /// The session.
    pub(crate) const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The session's client.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.session.client
    }

    /// The results of SEQUENCE.
    pub(crate) const fn grant(&self) -> &SequenceGrant {
        &self.grant
    }

    /// The request, for callbacks that refer to it.
    pub(crate) const fn call(&self) -> GrantingCall {
        let SequenceGrant { session, slot, sequence, .. } = self.grant;
        GrantingCall { session, slot, sequence }
    }

    /// Maximum size of the reply in bytes, if the client wants it cached. A longer one gets
    /// `NFS4ERR_REP_TOO_BIG_TO_CACHE`.
    pub(crate) fn cached_max(&self) -> Option<usize> {
        self.is_cached.then(|| usize::try_from(self.session.fore.cached).unwrap_or(usize::MAX))
    }

    /// Ends the request with its reply: the results of the compound.
    pub(crate) fn finish(mut self, reply: &[u8]) {
        let is_kept = self.cached_max().is_some_and(|max| reply.len() <= max);
        self.end(is_kept.then_some(reply));
    }

    fn end(&mut self, reply: Option<&[u8]>) {
        if let Some(slot) = self.session.slot(self.grant.slot) {
            slot.finish(reply);
        }
        self.is_finished = true;
        self.session.active.fetch_sub(1, Ordering::Relaxed);
        self.session.client.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SlotInUse {
    fn drop(&mut self) {
        if !self.is_finished {
            self.end(None);
        }
    }
}

impl ServerState {
    /// The hash of a request and its principal. It distinguishes a repetition from another request
    /// with its sequence id (RFC 8881 section 2.10.6.1.3.1, which requires no check of all bytes).
    ///
    /// Of a large request it covers the length, both ends, where the operations are, and samples of
    /// the data of a WRITE between them. The limit: a client that reuses the sequence id of a WRITE
    /// for another one that differs only in between gets the reply of the first, and its data are
    /// not written. The protocol forbids that; old Linux clients did so after an interrupted call.
    pub(crate) fn fingerprint(&self, principal: Principal, contents: &[u8]) -> u64 {
        let length = contents.len();
        if length <= 2 * FINGERPRINT_END + SAMPLES * SAMPLE {
            return self.fingerprints.hash_one((principal, contents));
        }
        let distance = (length - 2 * FINGERPRINT_END) / SAMPLES;
        let samples: [&[u8]; SAMPLES] = std::array::from_fn(|number| {
            let begin = FINGERPRINT_END + number * distance + (distance - SAMPLE) / 2;
            &contents[begin..begin + SAMPLE]
        });
        let (first, last) = (&contents[..FINGERPRINT_END], &contents[length - FINGERPRINT_END..]);
        self.fingerprints.hash_one((principal, length, first, samples, last))
    }

    /// Whether a request is the last of its slot, so that its reply may not have arrived.
    pub(crate) fn is_last_call(&self, call: &GrantingCall) -> bool {
        let session = self.sessions.find(&call.session);
        let slot = session.as_ref().and_then(|session| session.slot(call.slot));
        slot.is_some_and(|slot| slot.0.lock().sequence == call.sequence)
    }

    /// SEQUENCE.
    pub(crate) fn sequence(&self, asked: &SequenceRequest, now: Duration) -> Result<Sequenced, StateFault> {
        let session = self.sessions.find(&asked.session).ok_or(StateFault::BadSession)?;
        let slot = session.slot(asked.slot).ok_or(StateFault::BadSlot)?;
        let highest_slot = session.highest_slot();
        if asked.highest_slot > highest_slot {
            return Err(StateFault::BadHighSlot);
        }
        if asked.operations > session.fore.operations {
            return Err(StateFault::TooManyOperations);
        }
        if asked.size > usize::try_from(session.fore.request).unwrap_or(usize::MAX) {
            return Err(StateFault::RequestTooBig);
        }
        // Before the slot is used: SEQUENCE has failed then.
        let exceeds = |max: u32| asked.reply_min > usize::try_from(max).unwrap_or(usize::MAX);
        if exceeds(session.fore.reply) {
            return Err(StateFault::ReplyTooBig);
        }
        if asked.is_cached && exceeds(session.fore.cached) {
            return Err(StateFault::TooBigToCache);
        }
        let decision = slot.begin(asked)?;
        let client = &session.client;
        client.renew(now);
        let grant = SequenceGrant {
            session: asked.session,
            sequence: asked.sequence,
            slot: asked.slot,
            highest_slot,
            target_highest_slot: highest_slot,
            status_flags: session.status_flags.load(Ordering::Relaxed)
                | client.status_flags.load(Ordering::Relaxed),
        };
        Ok(match decision {
            SlotDecision::Execute => {
                session.active.fetch_add(1, Ordering::Relaxed);
                client.active.fetch_add(1, Ordering::Relaxed);
                let is_cached = asked.is_cached;
                Sequenced::Execute(SlotInUse { session, grant, is_cached, is_finished: false })
            }
            SlotDecision::Replay(reply) => Sequenced::Replay(reply),
            SlotDecision::Uncached => Sequenced::Uncached(grant),
        })
    }
}
