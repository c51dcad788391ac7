//! LOCKs that reclaim after a restart of the server (RFC 8881 section 8.4.2).

use curt_policy::locks::LockRanges;
use curt_proto::nfs4::{CompoundEncoder, LockType4, Nfs4Operation, NfsStat4, Stateid};
use curt_rpc::client::{CallError, Interrupt};
use curt_types::ByteRange;

use super::{RECOVERY_PAUSE, RecoveryError, StepError};
use crate::protocol::{
    RpcCaller,
    v4::{
        NfsV4,
        lock::{access_for, lock_request, wire_type},
        lock_states::{LockStateRef, LocksToReclaim},
        open_table::UsableOpen,
    },
};

impl NfsV4 {
    /// Reclaims the locks, after the opens.
    pub(super) fn reclaim_locks(&self, interrupt: &Interrupt) -> Result<(), StepError> {
        for locks in self.locks.to_reclaim() {
            let lost = self.reclaim_ranges(&locks, interrupt)?;
            let file = &locks.state.open.file;
            if let (Some(events), Some(owner)) = (self.locks.events(), self.locks.user(&locks.state)) {
                for (range, _) in locks.ranges.iter() {
                    if lost.overlapping(range).next().is_none() {
                        events.reclaimed(file, range);
                    }
                }
                for (range, _) in lost.iter() {
                    events.lost(file, owner, range);
                }
            }
            self.locks.reclaim_ended(&locks.state, &lost);
            self.tidy_locks(file);
        }
        Ok(())
    }

    /// Reclaims the locks of one state; returns those that are lost.
    fn reclaim_ranges(&self, locks: &LocksToReclaim, interrupt: &Interrupt) -> Result<LockRanges, StepError> {
        let mut state = locks.state.clone();
        let caller = RpcCaller { credential: &state.credential.clone(), interrupt };
        let mut lost = LockRanges::default();
        for (range, lock_type) in locks.ranges.iter() {
            loop {
                if !matches!(self.opens.usable(&state.open, access_for(lock_type)), UsableOpen::Stateid(_)) {
                    lost.set(range, Some(lock_type));
                    break;
                }
                let kind = wire_type(lock_type, false);
                let locked = match self.send_reclaim(caller, &state, kind, range) {
                    Err(StepError::Failed(RecoveryError::Call(CallError::Malformed(_)))) => {
                        Err(NfsStat4::Badxdr)
                    }
                    locked => locked?,
                };
                match locked {
                    Ok(stateid) => {
                        self.locks.reclaimed(&state, stateid);
                        state = self.locks.current_state(&state);
                    }
                    Err(NfsStat4::Delay) => {
                        self.pause(RECOVERY_PAUSE, interrupt)?;
                        continue;
                    }
                    Err(status) => {
                        tracing::info!(%status, "a lock cannot be reclaimed");
                        lost.set(range, Some(lock_type));
                    }
                }
                break;
            }
        }
        Ok(lost)
    }

    /// Sends a LOCK that reclaims.
    fn send_reclaim(
        &self,
        caller: RpcCaller<'_>,
        state: &LockStateRef,
        kind: LockType4,
        range: ByteRange,
    ) -> Result<Result<Stateid, NfsStat4>, StepError> {
        let append = |operations: &mut CompoundEncoder<'_>, open_stateid: Stateid| {
            self.push_lock(operations, open_stateid, state, kind, range, true);
        };
        // Nothing else may wait for a part of recovery.
        let reply = self.send_in_recovery(&lock_request(caller, state, kind, &append))?;
        Ok(self.result_of(&reply, Nfs4Operation::Lock)?)
    }
}
