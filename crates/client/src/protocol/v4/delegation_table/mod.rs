//! The read delegations that this client holds (RFC 8881 section 10.4).
//!
//! A delegation is held, or being returned: then nothing is served by it, and its DELEGRETURN waits
//! or is in flight. It ends when this client is about to change the file, when the server recalls
//! it or wants fewer, when more are held than [`DELEGATIONS_MAX`], and when the server revokes or
//! forgets it. The least recently used ones are returned first, by second chance. One that is not
//! used for long is returned too.
//!
//! A recall can arrive before the reply to the OPEN that granted the delegation (`early_recalls`).
//! A reply that was lost may have granted a delegation too: its caller was interrupted, or the OPEN
//! was executed a second time, and the server reports a delegation once. Once no outstanding reply
//! can contain a delegation that was recalled, it is returned.
//!
//! The end of a delegation is reported before its DELEGRETURN can be sent, with no lock held. This
//! module sends nothing.

mod early_recalls;
mod reclaim_queue;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_policy::delegation::{
    DELEGATIONS_MAX, DelegationOffer, DelegationReply, GrantExpectation, RETURNS_MAX, RecallDecision,
    RecalledDelegation, are_unused_returned, decide_recall, surplus,
};
use curt_proto::nfs4::{NfsStat4, Stateid};
use curt_rpc::auth::RpcCredential;
use curt_types::{Attributes, FileHandle};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

pub(super) use self::reclaim_queue::DelegationToReclaim;
use self::{early_recalls::EarlyRecalls, reclaim_queue::ReclaimQueue};
use super::{
    open_codec::OfferedDelegation,
    open_key::{OpenKey, UNKNOWN_OWNER},
    piggybacked::PiggybackedOperation,
    results::is_revoked,
    session::SessionGeneration,
};
use crate::protocol::{DelegationEnd, DelegationEvents, HeldDelegation, LeaseEnd};

/// The delegations of a client.
#[derive(Default)]
pub(super) struct DelegationTable {
    state: Mutex<Delegations>,
    lease: Arc<LeaseEnd>,
    events: Mutex<Option<Weak<dyn DelegationEvents>>>,
    /// Called when delegations have to be returned without delay.
    must_return: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Delegations {
    is_allowed: bool,
    files: HashMap<FileHandle, DelegationRecord>,
    held: usize,
    /// The delegations that are held, the oldest first; others are skipped.
    order: VecDeque<(FileHandle, [u8; 12])>,
    /// The delegations whose DELEGRETURN waits for a compound.
    to_return: VecDeque<PiggybackedOperation>,
    early_recalls: EarlyRecalls,
    /// The credential of the last OPEN whose reply was lost.
    lost_reply: Option<Arc<RpcCredential>>,
    expectation: GrantExpectation,
    /// The last OPEN that was refused a delegation.
    refused_at: Option<Instant>,
    /// The first session since the server has forgotten them.
    valid_since: SessionGeneration,
    to_reclaim: ReclaimQueue,
    /// When those that were not used were last returned.
    unused_ended: Option<Instant>,
}

#[derive(Debug)]
struct DelegationRecord {
    stateid: Stateid,
    owner: u32,
    credential: Arc<RpcCredential>,
    held: Arc<HeldDelegation>,
    is_returning: bool,
}

/// The most delegations that wait to be returned when another one is granted that is not kept: it
/// is dropped then, and returned when the server recalls it. The server grants without being asked,
/// and delays DELEGRETURN.
const UNKEPT_MAX: usize = DELEGATIONS_MAX;

/// An OPEN in progress that may get a delegation. Dropped when its reply is dealt with.
pub(super) struct OpeningGuard<'a> {
    table: &'a DelegationTable,
    /// Zero: it is not in progress now. Changed by its sender alone.
    number: AtomicU64,
}

impl OpeningGuard<'_> {
    /// The OPEN may have been executed, and its reply is lost.
    pub(super) fn lose_reply(&self, credential: &RpcCredential) {
        self.table.state.lock().lost_reply = Some(Arc::new(credential.clone()));
    }

    /// The server has not executed the OPEN, which is sent again after a pause: no recall waits for
    /// it until then.
    pub(super) fn suspend(&self) {
        self.table.end_opening(self.number.swap(0, Relaxed));
    }

    /// The OPEN is about to be sent again.
    pub(super) fn resume(&self) {
        self.number.store(self.table.next_opening(), Relaxed);
    }
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// An open whose OPEN has offered a delegation, or might have.
pub(super) struct OpenedForDelegation<'a> {
    pub(super) key: &'a OpenKey,
    pub(super) credential: &'a Arc<RpcCredential>,
    pub(super) was_wanted: bool,
    /// The session that has executed it.
    pub(super) generation: SessionGeneration,
    pub(super) is_written_here: bool,
    /// The time of its reply.
    pub(super) now: Instant,
}

impl DelegationRecord {
    /// Ends the delegation. The caller returns it after the end is reported.
    fn end(&mut self, file: &FileHandle) -> PiggybackedOperation {
        self.held.end();
        self.is_returning = true;
        let key = OpenKey { file: file.clone(), owner: self.owner };
        PiggybackedOperation::delegreturn(key, self.stateid, Arc::clone(&self.credential))
    }
}

impl Delegations {
    /// Whether a delegation that an OPEN has brought is kept. Takes the recall that came before it.
    fn keeps(&mut self, open: &OpenedForDelegation<'_>, offered: &OfferedDelegation) -> bool {
        let has_early_recall = self.early_recalls.take(offered.stateid);
        let offer = DelegationOffer {
            was_wanted: open.was_wanted && self.is_allowed,
            is_read: offered.is_read,
            is_recalled: offered.is_recalled || has_early_recall,
            has_another: self.files.get(&open.key.file).is_some_and(|former| !former.is_returning),
            is_written_here: open.is_written_here,
        };
        offer.is_kept()
    }

    fn end(&mut self, file: &FileHandle) -> Option<PiggybackedOperation> {
        let delegation = self.files.get_mut(file).filter(|delegation| !delegation.is_returning)?;
        self.held -= 1;
        Some(delegation.end(file))
    }

    /// Ends the least recently used ones until no more than `limit` are held.
    fn end_surplus(&mut self, limit: usize) -> Vec<PiggybackedOperation> {
        let mut ended = Vec::new();
        let mut chances = self.order.len();
        let count = surplus(self.held, limit);
        while ended.len() < count
            && let Some((file, other)) = self.order.pop_front()
        {
            let Some(delegation) = self.files.get(&file) else { continue };
            if delegation.is_returning || delegation.stateid.other != other {
                continue;
            }
            if delegation.held.take_use() && chances > 0 {
                chances -= 1;
                self.order.push_back((file, other));
                continue;
            }
            ended.extend(self.end(&file));
        }
        ended
    }

    /// A delegation that is unknown was recalled. It came with a reply that was lost, or the server
    /// is wrong.
    fn return_unknown(&mut self, file: FileHandle, stateid: Stateid) {
        let is_waiting = |waiting: &PiggybackedOperation| waiting.stateid.other == stateid.other;
        if let Some(credential) = self.lost_reply.clone()
            && !self.to_return.iter().any(is_waiting)
        {
            let key = OpenKey { file, owner: UNKNOWN_OWNER };
            self.to_return.push_back(PiggybackedOperation::delegreturn(key, stateid, credential));
        }
    }

    /// Recalls of unknown delegations that are remembered.
    fn remembered_recalls(&self) -> usize {
        let returned = self.to_return.iter().filter(|waiting| waiting.key.owner == UNKNOWN_OWNER).count();
        self.early_recalls.count() + returned
    }

    /// How many are being returned.
    fn returning(&self) -> usize {
        // Of those that were never held there is no record.
        self.files.len().saturating_sub(self.held).max(self.to_return.len())
    }

    /// Drops what is not held any more from the order, if that is most of it.
    fn tidy_order(&mut self) {
        if self.order.len() <= 2 * self.held + 64 {
            return;
        }
        let files = &self.files;
        self.order.retain(|(file, other)| {
            files.get(file).is_some_and(|found| !found.is_returning && found.stateid.other == *other)
        });
    }
}

impl DelegationTable {
    /// Calls this when delegations have to be returned without delay.
    pub(super) fn set_must_return(&self, must_return: Box<dyn Fn() + Send + Sync>) {
        let _ = self.must_return.set(must_return);
    }

    /// Delegations are reported to `events` from now on, and used if they are allowed.
    pub(super) fn report(&self, events: Weak<dyn DelegationEvents>, origin: Instant) {
        self.lease.begin(origin);
        *self.events.lock() = Some(events);
    }

    /// Whether delegations are wanted. Those that are held end otherwise.
    pub(super) fn allow(&self, is_allowed: bool) {
        self.state.lock().is_allowed = is_allowed;
        if !is_allowed {
            self.to_reclaim().clear();
            self.limit(0);
        }
    }

    pub(super) fn is_allowed(&self) -> bool {
        self.state.lock().is_allowed
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.state.lock().held
    }

    /// Whether a file that is opened is expected to be delegated: the server does so, and few
    /// delegations are being returned.
    pub(super) fn is_expected(&self, now: impl FnOnce() -> Instant) -> bool {
        let state = self.state.lock();
        let since_refusal =
            || state.refused_at.map_or(Duration::MAX, |at| now().saturating_duration_since(at));
        state.is_allowed && state.expectation.is_positive(since_refusal) && state.returning() < RETURNS_MAX
    }

    pub(super) const fn lease(&self) -> &Arc<LeaseEnd> {
        &self.lease
    }

    fn report_end(&self, file: &FileHandle, why: DelegationEnd) {
        let events = self.events.lock().as_ref().and_then(Weak::upgrade);
        if let Some(events) = events {
            events.ended(file, why);
        }
    }

    /// Reports what has ended, and has it returned.
    fn give_back(&self, ended: Vec<PiggybackedOperation>, why: DelegationEnd) {
        for returned in ended {
            self.report_end(&returned.key.file, why);
            self.state.lock().to_return.push_back(returned);
        }
    }

    fn return_now(&self) {
        if let Some(must_return) = self.must_return.get() {
            must_return();
        }
    }

    /// An OPEN that asks for a delegation is about to be sent.
    pub(super) fn begin_opening(&self) -> OpeningGuard<'_> {
        OpeningGuard { table: self, number: AtomicU64::new(self.next_opening()) }
    }

    fn next_opening(&self) -> u64 {
        self.state.lock().early_recalls.begin_opening()
    }

    /// The reply to an OPEN was dealt with, or there is none.
    fn end_opening(&self, number: u64) {
        let mut state = self.state.lock();
        let unclaimed = state.early_recalls.end_opening(number);
        let must_return = state.lost_reply.is_some() && !unclaimed.is_empty();
        for recall in unclaimed {
            state.return_unknown(recall.file, recall.stateid);
        }
        drop(state);
        if must_return {
            self.return_now();
        }
    }

    /// An OPEN was executed. Returns the delegation if it is kept. Another is returned.
    pub(super) fn opened(
        &self,
        open: &OpenedForDelegation<'_>,
        offered: Option<OfferedDelegation>,
        outcome: DelegationReply,
    ) -> Option<Arc<HeldDelegation>> {
        let file = &open.key.file;
        let mut state = self.state.lock();
        // A reply of before the server has forgotten its delegations is about nothing any more.
        if open.generation < state.valid_since {
            return None;
        }
        if open.was_wanted {
            state.expectation.opened(outcome);
            if outcome == DelegationReply::Refused {
                state.refused_at = Some(open.now);
            }
        }
        let offered = offered?;
        let other = offered.stateid.other;
        if let Some(former) = state.files.get_mut(file).filter(|former| former.stateid.other == other) {
            if former.is_returning {
                // Its DELEGRETURN is on its way.
                return None;
            }
            former.stateid = offered.stateid;
            if !offered.is_recalled {
                return Some(Arc::clone(&former.held));
            }
            let ended = state.end(file);
            drop(state);
            self.give_back(ended.into_iter().collect(), DelegationEnd::Recalled);
            self.return_now();
            return None;
        }
        if !state.keeps(open, &offered) {
            if state.to_return.len() >= UNKEPT_MAX {
                // It is returned by the stateid in its recall.
                state.lost_reply = Some(Arc::clone(open.credential));
                return None;
            }
            let (key, credential) = (open.key.clone(), Arc::clone(open.credential));
            state.to_return.push_back(PiggybackedOperation::delegreturn(key, offered.stateid, credential));
            drop(state);
            self.return_now();
            return None;
        }
        let held = HeldDelegation::new(&self.lease);
        let delegation = DelegationRecord {
            stateid: offered.stateid,
            owner: open.key.owner,
            credential: Arc::clone(open.credential),
            held: Arc::clone(&held),
            is_returning: false,
        };
        state.files.insert(file.clone(), delegation);
        state.held += 1;
        state.order.push_back((file.clone(), other));
        state.tidy_order();
        let ended = state.end_surplus(DELEGATIONS_MAX);
        drop(state);
        let events = self.events.lock().as_ref().and_then(Weak::upgrade);
        if let Some(events) = events {
            events.granted(file, &held);
        }
        self.give_back(ended, DelegationEnd::Returned);
        Some(held)
    }

    /// Gives the delegation of a file back: this client is about to change it.
    pub(super) fn give_up(&self, file: &FileHandle) {
        let ended = self.state.lock().end(file);
        if let Some(returned) = ended {
            self.report_end(file, DelegationEnd::Returned);
            // The compound of the change also has the DELEGRETURN.
            self.state.lock().to_return.push_front(returned);
        }
    }

    /// Keeps no more than `limit` delegations.
    pub(super) fn limit(&self, limit: usize) {
        let ended = self.state.lock().end_surplus(limit);
        if !ended.is_empty() {
            self.give_back(ended, DelegationEnd::Returned);
            self.return_now();
        }
    }

    /// Returns those that were not used for long. Called now and then.
    pub(super) fn end_unused(&self, now: Instant) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let last = *state.unused_ended.get_or_insert(now);
        if !are_unused_returned(now.saturating_duration_since(last)) {
            return;
        }
        state.unused_ended = Some(now);
        let unused = state.files.iter().filter(|(_, delegation)| !delegation.held.take_use());
        let unused: Vec<_> = unused.map(|(file, _)| file.clone()).collect();
        let ended: Vec<_> = unused.iter().filter_map(|file| state.end(file)).collect();
        drop(guard);
        if !ended.is_empty() {
            self.give_back(ended, DelegationEnd::Returned);
            self.return_now();
        }
    }

    /// CB_RECALL.
    pub(super) fn recall(&self, file: &FileHandle, stateid: Stateid) -> NfsStat4 {
        let mut state = self.state.lock();
        let known = state.files.get(file).filter(|known| known.stateid.other == stateid.other);
        let holding = match known {
            Some(known) if known.is_returning => RecalledDelegation::Returning,
            Some(_) => RecalledDelegation::Held,
            None => RecalledDelegation::Unknown {
                is_opening: state.early_recalls.is_opening(),
                is_reply_lost: state.lost_reply.is_some(),
                remembered: state.remembered_recalls(),
            },
        };
        match decide_recall(holding) {
            RecallDecision::Return => {
                let ended = state.end(file);
                drop(state);
                self.give_back(ended.into_iter().collect(), DelegationEnd::Recalled);
                self.return_now();
                NfsStat4::Ok
            }
            RecallDecision::Wait => {
                drop(state);
                self.return_now();
                NfsStat4::Ok
            }
            RecallDecision::Remember => {
                state.early_recalls.remember(file, stateid);
                NfsStat4::Ok
            }
            RecallDecision::Delay => NfsStat4::Delay,
            RecallDecision::ReturnUnknown => {
                state.return_unknown(file.clone(), stateid);
                drop(state);
                self.return_now();
                NfsStat4::Ok
            }
            RecallDecision::Refuse => NfsStat4::BadStateid,
        }
    }

    /// Takes delegations that are to be returned with this credential, at most this number.
    pub(super) fn take_returns(
        &self,
        credential: &RpcCredential,
        now: Instant,
        most: usize,
    ) -> Vec<PiggybackedOperation> {
        let state = &mut *self.state.lock();
        let mut taken = Vec::new();
        for _ in 0..state.to_return.len() {
            let Some(waiting) = state.to_return.pop_front() else { break };
            if taken.len() < most && waiting.can_be_sent(credential, now) {
                taken.push(waiting);
            } else {
                state.to_return.push_back(waiting);
            }
        }
        taken
    }

    /// How many wait to be returned.
    pub(super) fn returns_count(&self) -> usize {
        self.state.lock().to_return.len()
    }

    /// How many are being returned.
    pub(super) fn returning(&self) -> usize {
        self.state.lock().returning()
    }

    /// The credential of a delegation that can be returned now.
    pub(super) fn return_credential(&self, now: Instant) -> Option<Arc<RpcCredential>> {
        let state = self.state.lock();
        let waiting = state.to_return.iter().find(|waiting| waiting.postponement.is_over(now));
        waiting.map(|waiting| Arc::clone(&waiting.credential))
    }

    /// After which time the next delegation can be returned; `None`: none waits.
    pub(super) fn next_return(&self, now: Instant) -> Option<Duration> {
        self.state.lock().to_return.iter().map(|waiting| waiting.postponement.left(now)).min()
    }

    /// DELEGRETURNs that were not executed, or are not known to be.
    pub(super) fn put_back(&self, returns: Vec<PiggybackedOperation>) {
        self.state.lock().to_return.extend(returns);
    }

    /// A DELEGRETURN was answered.
    pub(super) fn returned(
        &self,
        operation: &PiggybackedOperation,
        outcome: Result<(), NfsStat4>,
        now: Instant,
    ) {
        match outcome {
            Err(NfsStat4::Delay | NfsStat4::Grace) => {
                let postponement = operation.postponement.longer(now);
                self.put_back(vec![PiggybackedOperation { postponement, ..operation.clone() }]);
            }
            // The server has refused another's credential.
            Err(status)
                if !operation.has_failed
                    && !is_revoked(status)
                    && !matches!(status, NfsStat4::BadStateid | NfsStat4::StaleStateid) =>
            {
                self.put_back(vec![PiggybackedOperation { has_failed: true, ..operation.clone() }]);
            }
            Ok(()) | Err(_) => self.forget(&operation.key.file, operation.stateid),
        }
    }

    fn forget(&self, file: &FileHandle, stateid: Stateid) {
        let state = &mut *self.state.lock();
        if state
            .files
            .get(file)
            .is_some_and(|known| known.is_returning && known.stateid.other == stateid.other)
        {
            state.files.remove(file);
        }
    }

    /// All delegations that the server should know of.
    pub(super) fn all(&self) -> Vec<(OpenKey, Stateid)> {
        let state = self.state.lock();
        let key = |file: &FileHandle, owner| OpenKey { file: file.clone(), owner };
        state.files.iter().map(|(file, known)| (key(file, known.owner), known.stateid)).collect()
    }

    /// The server has revoked a delegation.
    pub(super) fn lose(&self, file: &FileHandle, stateid: Stateid) {
        let mut state = self.state.lock();
        if state.files.get(file).is_none_or(|known| known.stateid.other != stateid.other) {
            return;
        }
        let was_held = state.end(file).is_some();
        state.files.remove(file);
        state.to_return.retain(|waiting| waiting.stateid.other != stateid.other);
        drop(state);
        if was_held {
            self.report_end(file, DelegationEnd::Lost);
        }
    }

    /// The server knows none of them any more. Those that were held can be reclaimed in the session
    /// `next` or a later one; until then nothing is served by them.
    pub(super) fn forgotten_by_server(&self, next: SessionGeneration) {
        self.lease.suspend();
        let mut state = self.state.lock();
        let lost = state.end_surplus(0);
        let reclaimed = lost.iter().map(|ended| DelegationToReclaim {
            key: ended.key.clone(),
            credential: Arc::clone(&ended.credential),
        });
        if state.is_allowed {
            state.to_reclaim.add(reclaimed);
        }
        state.files.clear();
        state.order.clear();
        state.to_return.clear();
        state.early_recalls.forget();
        state.lost_reply = None;
        state.expectation = GrantExpectation::default();
        state.valid_since = next;
        drop(state);
        for ended in lost {
            self.report_end(&ended.key.file, DelegationEnd::Lost);
        }
    }

    /// The delegations that are to be reclaimed. While the result exists, the table is locked.
    pub(super) fn to_reclaim(&self) -> MappedMutexGuard<'_, ReclaimQueue> {
        MutexGuard::map(self.state.lock(), |state| &mut state.to_reclaim)
    }

    /// Reports the attributes of a file whose delegation was reclaimed, read behind that.
    pub(super) fn report_confirmed(
        &self,
        file: &FileHandle,
        delegation: &Arc<HeldDelegation>,
        attributes: &Attributes,
        sent_at: Instant,
    ) {
        let events = self.events.lock().as_ref().and_then(Weak::upgrade);
        if let Some(events) = events {
            events.confirmed(file, delegation, attributes, sent_at);
        }
    }
}

impl std::fmt::Debug for DelegationTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DelegationTable").field("held", &self.state.lock().held).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
