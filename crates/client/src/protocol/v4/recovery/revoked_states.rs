//! TEST_STATEID and FREE_STATEID (RFC 8881 sections 18.48 and 18.38): which states the server has
//! revoked, and which revoked ones it need not keep any longer.

use std::collections::HashSet;

use curt_proto::nfs4::{
    CompoundEncoder, FreeStateidArgs4, Nfs4Operation, NfsStat4, Stateid, TestStateidArgs4, TestStateidOk4,
};
use curt_types::FileHandle;
use curt_xdr::VarArray;

use super::{StepError, StepProgress, reclaim::is_of_compound, session_setup::OPERATIONS_MAX};
use crate::protocol::{
    RpcCaller,
    v4::{
        NfsV4,
        compound::request::CompoundRequest,
        open_key::OpenKey,
        results::{is_revoked, outcome},
        session::{FreeOrder, RecoveryStep},
    },
};

/// Stateids of one TEST_STATEID.
const TESTS_MAX: usize = 128;

/// The most FREE_STATEIDs of one compound: the smallest requests and replies have room for these. A
/// session may allow fewer operations.
const FREES_MAX: u32 = OPERATIONS_MAX - 1;

/// The state that a stateid stands for.
#[derive(Debug)]
enum HeldState {
    Open(OpenKey),
    Delegation(OpenKey),
    Lock(FileHandle),
}

impl NfsV4 {
    /// Frees the revoked states that are dropped already, and tests which others the server has
    /// revoked.
    pub(super) fn test_states(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        self.free_dropped_states(caller)?;
        if !self.session.lock().revoked.must_test() {
            self.session.lock().satisfied(RecoveryStep::TestStates);
            return Ok(StepProgress::Done);
        }
        // Sequence numbers are zero, which stands for the newest state (section 8.2.2): replies
        // that replace stateids are in flight.
        let newest = |stateid: &Stateid| Stateid { seqid: 0, ..*stateid };
        let locks = self.locks.stateids().into_iter().map(|(file, stateid)| (HeldState::Lock(file), stateid));
        let opens = self.opens.held().into_iter().map(|(key, stateid)| (HeldState::Open(key), stateid));
        let delegations = self.delegations.all().into_iter();
        let delegations = delegations.map(|(key, stateid)| (HeldState::Delegation(key), stateid));
        let all: Vec<_> = locks.chain(opens).chain(delegations).collect();
        for held in all.chunks(TESTS_MAX) {
            let stateids = held.iter().map(|(_, stateid)| newest(stateid)).collect();
            let arguments = TestStateidArgs4 { stateids: VarArray::new(stateids).unwrap_or_default() };
            let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| operations.push(&arguments);
            let request = CompoundRequest::idempotent(caller, Nfs4Operation::TestStateid, &append);
            let reply = self.send_in_recovery(&request)?;
            let mut results = self.decoded(reply.results())?;
            let tested = self.decoded(outcome(results.next::<TestStateidOk4>(Nfs4Operation::TestStateid)))?;
            let Ok(tested) = tested else { break };
            // A server may not accept zero: one that knows a newer state has not revoked it.
            let is_revoked = |status: &NfsStat4| !matches!(status, NfsStat4::Ok | NfsStat4::OldStateid);
            let revoked = held.iter().zip(tested.statuses.iter()).filter(|(_, status)| is_revoked(status));
            let revoked: Vec<_> = revoked.collect();
            let stateids: Vec<_> = revoked.iter().map(|((_, stateid), _)| newest(stateid)).collect();
            self.free_states(caller, &stateids, |index, freed| {
                let ((state, stateid), status) = revoked[index];
                match state {
                    HeldState::Open(key) => {
                        let has_locks = self.doubt_open(key, *stateid, *status);
                        if has_locks && freed == NfsStat4::LocksHeld {
                            self.session.free(FreeOrder::Others, *stateid);
                        }
                    }
                    HeldState::Delegation(key) => {
                        self.delegations.lose(&key.file, *stateid);
                        self.opens.undelegated(key, self.rpc.now());
                    }
                    HeldState::Lock(file) => drop(self.lose_lock_state(file, *stateid)),
                }
            })?;
        }
        if self.opens.unused_count() > 0 {
            // A delegation that is lost has kept some.
            self.close_soon();
        }
        self.session.lock().satisfied(RecoveryStep::TestStates);
        Ok(StepProgress::Done)
    }

    /// Frees the revoked states that are dropped already.
    fn free_dropped_states(&self, caller: RpcCaller<'_>) -> Result<(), StepError> {
        let mut held = HashSet::new();
        loop {
            let states = self.session.lock().revoked.to_free();
            let mut has_freed = false;
            self.free_states(caller, &states, |index, status| match status {
                // It is freed after its locks, which are among these or are not known here.
                NfsStat4::LocksHeld if held.insert(states[index].other) => {}
                _ => {
                    self.session.lock().revoked.freed(states[index]);
                    has_freed = true;
                }
            })?;
            // Others may be revoked meanwhile.
            let left = self.session.lock().revoked.to_free();
            if !has_freed && left.iter().all(|stateid| held.contains(&stateid.other)) {
                left.iter().for_each(|stateid| self.session.lock().revoked.freed(*stateid));
                return Ok(());
            }
        }
    }

    /// Acknowledges revoked states to the server, many in one compound. `freed` gets the index and
    /// the status of each.
    fn free_states(
        &self,
        caller: RpcCaller<'_>,
        stateids: &[Stateid],
        mut freed: impl FnMut(usize, NfsStat4),
    ) -> Result<(), StepError> {
        let mut done = 0;
        while done < stateids.len() {
            let most = self.session.lock().limits.operations_max.saturating_sub(1).clamp(1, FREES_MAX);
            let batch = stateids[done..].iter().zip(0..most).map(|(stateid, _)| *stateid);
            let batch: Vec<_> = batch.map(|stateid| FreeStateidArgs4 { stateid }).collect();
            let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
                batch.iter().for_each(|arguments| operations.push(arguments));
            };
            let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::FreeStateid, 0, &append);
            let operations = u32::try_from(1 + batch.len()).unwrap_or(u32::MAX);
            let reply = self.send_in_recovery(&CompoundRequest { operations, ..request })?;
            let mut results = self.decoded(reply.results())?;
            for position in 0..batch.len() {
                // A malformed result is not asked for again.
                let result = self.decoded(outcome(results.next::<()>(Nfs4Operation::FreeStateid)));
                let status = result.map_or(NfsStat4::Badxdr, |result| result.err().unwrap_or(NfsStat4::Ok));
                // Those behind it were not executed. If it asks for time it is sent again, first.
                if position > 0 && is_of_compound(status) {
                    break;
                }
                freed(done, status);
                done += 1;
                if status != NfsStat4::Ok {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A state that this client is about to drop was refused with this status.
    pub(in crate::protocol::v4) fn free_revoked(&self, stateid: Stateid, status: NfsStat4) {
        if is_revoked(status) {
            self.session.free(FreeOrder::Others, stateid);
        }
    }

    /// The server refuses this stateid of an open with this status: what was locked through it is
    /// lost. Returns whether lock states are to be freed.
    pub(in crate::protocol::v4) fn doubt_open(
        &self,
        key: &OpenKey,
        stateid: Stateid,
        status: NfsStat4,
    ) -> bool {
        self.opens.stateid_refused(key, stateid) && self.lose_locks_of(key, status)
    }
}
