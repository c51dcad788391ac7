//! COMMIT, and the write verifier by which a restart of the server is noticed.
//!
//! Bytes are held until a COMMIT sent after their WRITE reply returns the verifier of that reply;
//! otherwise they are sent again (RFC 1813 section 3.3.21). After a change of the verifier, all
//! bytes written until then are sent and committed before any of them is reported as durable,
//! because the overwrite of lost bytes may exist only in memory here.

use std::sync::Arc;

use curt_observe::{ClientCounter, probe, scope};
use curt_rpc::client::CallError;
use curt_types::WriteVerifier;

use super::{
    errors::DataError,
    file::FileState,
    owner::{DataOwner, event_status},
    plane::DataPlane,
    segments::SegmentState,
};
use crate::protocol::{OpenCaller, OpenContext};

impl FileState {
    /// Records the write verifier of a reply.
    pub(super) fn note_verifier(&mut self, verifier: WriteVerifier) {
        if self.verifier.is_some_and(|known| known != verifier) {
            self.restarts += 1;
        }
        self.verifier = Some(verifier);
    }
}

impl DataPlane {
    /// Commits the replies up to `covers`, which makes the writes up to `fulfils` durable.
    pub(super) fn commit(
        &self,
        owner: &Arc<dyn DataOwner>,
        covers: u64,
        fulfils: u64,
        writer: &Arc<OpenContext>,
    ) {
        let caller = OpenCaller { open: writer, interrupt: &self.stop };
        let _about = scope::for_object(owner.number());
        probe!(let subject = owner.event_fields(); NfsInitiateCommit {
            fileid: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        let result = match self.protocol.commit(caller, owner.handle()) {
            Ok(answer) => {
                owner.absorb_read(answer.attributes.after.as_ref(), answer.sent_at);
                answer.outcome.map_err(DataError::Status)
            }
            Err(error) => Err(DataError::Call(error)),
        };
        probe!(let subject = owner.event_fields(); NfsCommitDone {
            fileid: subject.fileid,
            error: event_status(&result),
            verifier: result.as_ref().map_or(0, |verifier| u64::from_be_bytes(verifier.0)),
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        match result {
            Ok(verifier) => self.committed(owner, covers, fulfils, verifier),
            Err(error) => self.commit_failed(owner, covers, fulfils, error),
        }
        owner.data().core.notify_all();
    }

    fn committed(&self, owner: &Arc<dyn DataOwner>, covers: u64, fulfils: u64, verifier: WriteVerifier) {
        let number = self.bounds.cache.next_number();
        let mut lost = 0;
        let mut state = owner.data().lock();
        state.committing = false;
        state.committed = state.committed.max(covers);
        state.note_verifier(verifier);
        let unsent = state.segments.unsent();
        let clean = state.segments.set_states(0..u64::MAX, |present| match present {
            SegmentState::Unstable(_, theirs, answer) if *answer <= covers && *theirs == verifier => {
                Some(SegmentState::clean(number))
            }
            SegmentState::Unstable(origin, _, answer) if *answer <= covers => {
                Some(SegmentState::Dirty(origin.clone()))
            }
            SegmentState::Clean { .. }
            | SegmentState::Dirty(_)
            | SegmentState::InFlight(..)
            | SegmentState::Unstable(..) => None,
        });
        clean.iter().for_each(|range| state.invalidate_fetches(range));
        if state.restarts == state.restarts_settled {
            state.durable_through = state.durable_through.max(fulfils);
        } else {
            lost = state.segments.unsent() - unsent;
            state.restarts_settled = state.restarts;
            let all = state.writes;
            state.targets.send_through = all;
            state.targets.commit_through = all;
        }
        drop(state);
        owner.note_verifier(verifier);
        self.admit(owner, clean, number);
        if lost > 0 {
            self.counters.add(ClientCounter::WriteResent, lost);
            tracing::info!(file = owner.label(), bytes = lost, "the server has restarted: sending again");
        }
    }

    fn commit_failed(&self, owner: &Arc<dyn DataOwner>, covers: u64, fulfils: u64, error: DataError) {
        let mut state = owner.data().lock();
        state.committing = false;
        if error == DataError::Call(CallError::Interrupted) {
            return;
        }
        state.committed = state.committed.max(covers);
        state.durable_through = state.durable_through.max(fulfils);
        let all = 0..u64::MAX;
        state.segments.cut_if(
            all.clone(),
            |present| matches!(present, SegmentState::Unstable(_, _, answer) if *answer <= covers),
        );
        state.invalidate_fetches(&all);
        state.errors.record(error);
        drop(state);
        tracing::warn!(file = owner.label(), %error, "written bytes may be lost: the server could not commit them");
    }
}
