//! The opens that are closed or narrowed, in compounds of others or of their own.
//!
//! After the server has delayed CLOSE or OPEN_DOWNGRADE of two opens in a row, none is sent for
//! [`DELAYED_PAUSE`]: nothing of a compound is executed behind one. If it delays those of all
//! opens, no more than [`IDLE_MAX`] of them wait. Others are dropped: without CLOSE the server
//! keeps them until this client ends.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_proto::nfs4::{NfsStat4, Stateid};
use curt_rpc::auth::RpcCredential;
use curt_types::FileHandle;

use super::{
    OpenTable, Opens,
    open_state::{Open, OpenValidity},
};
use crate::protocol::v4::{
    open_key::OpenKey,
    piggybacked::{ClosedOpens, PiggybackedKind, PiggybackedOperation, Postponement},
};

/// How long no operation for an open is sent after the server has delayed those of two opens in a
/// row. It ends before these are sent again, so that others are not behind them.
const DELAYED_PAUSE: Duration = Duration::from_millis(50);

/// A server that has delayed this many operations in a row, of more than one open, delays all.
const DELAYED_MAX: u32 = 16;

/// The most opens that wait to be closed, or to be narrowed, by a server that delays that.
pub(super) const IDLE_MAX: usize = 4096;

/// The most idle opens that one compound looks at in vain. Those of other credentials are closed in
/// compounds of their own.
const IDLE_PASSED_MAX: usize = 64;

/// The most states of [`Opens::closed`]: such a CLOSE is rare.
const CLOSED_MAX: usize = 64;

impl Opens {
    /// Whether the open of a piggybacked operation is in the table.
    fn has_state_of(&self, operation: &PiggybackedOperation) -> bool {
        self.opens.get(&operation.key).is_some_and(|open| open.stateid.other == operation.stateid.other)
    }

    /// An OPEN_DOWNGRADE may not have been executed: another is sent, as narrow as the open's users
    /// are then.
    fn narrow_again(&mut self, operation: &PiggybackedOperation, is_needed: impl FnOnce(&Open) -> bool) {
        if let Some(open) = self.opens.get_mut(&operation.key)
            && open.stateid.other == operation.stateid.other
            && is_needed(open)
        {
            (open.may_be_wider, open.postponement) = (true, operation.postponement);
            self.narrow_later(&operation.key);
        }
    }

    /// An open waits to be narrowed. Beyond the bound it stays as wide as it is until it is closed.
    /// `false`: so it does, or waits already.
    pub(super) fn narrow_later(&mut self, key: &OpenKey) -> bool {
        let is_added = self.to_downgrade.len() < IDLE_MAX && !self.to_downgrade.contains(key);
        if is_added {
            self.to_downgrade.push_back(key.clone());
        }
        is_added
    }

    /// Whether an open that is used has accesses that no user has.
    fn is_too_wide(&self, key: &OpenKey) -> bool {
        self.opens.get(key).is_some_and(|open| open.is_used() && open.narrower().is_some())
    }

    /// An operation waits for another compound.
    fn send_later(&mut self, operation: PiggybackedOperation) {
        self.waiting.push_back(operation);
        if self.waiting.len() > IDLE_MAX {
            self.waiting.pop_front();
            self.note_dropped();
        }
    }

    /// While the server delays all operations, the oldest idle opens beyond the bound are dropped.
    fn drop_surplus(&mut self) {
        while self.delayed >= DELAYED_MAX
            && self.idle.len() > IDLE_MAX
            && let Some(key) = self.idle.pop_front()
        {
            if self.opens.get_mut(&key).is_some_and(Open::stays_queued) {
                self.remove(&key);
                self.note_dropped();
            }
        }
    }

    fn note_dropped(&mut self) {
        if !std::mem::replace(&mut self.has_dropped, true) {
            tracing::warn!("the server delays each CLOSE: it keeps opens until the mount ends");
        }
    }

    /// The server has delayed an operation for an open.
    fn note_delayed(&mut self, other: [u8; 12], now: Instant) {
        // One file may be the reason.
        if self.last_delayed.replace(other) != Some(other) {
            self.delayed = self.delayed.saturating_add(1);
        }
        if self.delayed > 1 {
            self.paused_until = Some(now + DELAYED_PAUSE);
        }
    }

    /// The server has not delayed an operation for an open.
    pub(super) const fn note_executed(&mut self) {
        (self.delayed, self.last_delayed) = (0, None);
    }

    pub(super) fn unused_count(&self) -> usize {
        self.waiting.len() + self.to_downgrade.len() + self.idle.len()
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// An open without users waits to be closed, unless a delegation keeps it. Returns whether it
    /// waits.
    pub(super) fn set_idle(&mut self, key: &OpenKey, now: Instant) -> bool {
        let Some(open) = self.opens.get_mut(key) else { return false };
        if open.is_delegated() && !open.writes() {
            return false;
        }
        open.idle_since = Some(now);
        if !std::mem::replace(&mut open.is_queued, true) {
            self.idle.push_back(key.clone());
            self.drop_surplus();
        }
        true
    }

    /// Drops what is used again, or gone, from the queue of idle opens.
    fn tidy_idle(&mut self) {
        let opens = &mut self.opens;
        self.idle.retain(|key| opens.get_mut(key).is_some_and(Open::stays_queued));
    }

    /// Takes operations whose compound was not executed, as long as there are fewer than `most`.
    fn take_waiting(
        &mut self,
        credential: &RpcCredential,
        now: Instant,
        most: usize,
        piggybacked: &mut Vec<PiggybackedOperation>,
    ) {
        let mut passed = 0;
        while piggybacked.len() < most
            && let Some(operation) = self.waiting.get(passed)
        {
            let is_newest = operation.stateid.seqid == 0;
            // Somebody has opened the file again.
            let is_void = is_newest && self.has_state_of(operation);
            if !is_void && !operation.can_be_sent(credential, now) {
                passed += 1;
                continue;
            }
            let Some(operation) = self.waiting.remove(passed) else { break };
            if is_void {
                self.closed.retain(|other| *other != operation.stateid.other);
                continue;
            }
            if is_newest {
                self.closed.truncate(CLOSED_MAX - 1);
                self.closed.push_front(operation.stateid.other);
            }
            piggybacked.push(operation);
        }
    }

    /// Takes operations that narrow opens, as long as there are fewer than `most`.
    fn take_downgrades(
        &mut self,
        credential: &RpcCredential,
        now: Instant,
        most: usize,
        piggybacked: &mut Vec<PiggybackedOperation>,
    ) {
        let mut passed = 0;
        while piggybacked.len() < most
            && let Some(key) = self.to_downgrade.get(passed)
        {
            let open = self.opens.get_mut(key).filter(|open| open.is_used());
            let open = open.filter(|open| open.validity == OpenValidity::Valid);
            let Some((open, narrower)) = open.and_then(|open| open.narrower().map(|kind| (open, kind)))
            else {
                self.to_downgrade.remove(passed);
                continue;
            };
            if *open.credential != *credential || !open.postponement.is_over(now) {
                passed += 1;
                continue;
            }
            piggybacked.push(open.piggybacked(key, narrower));
            // From now on: who opens the file again before the reply needs an OPEN.
            match narrower {
                PiggybackedKind::Downgrade(to) => open.narrowed(to),
                // The users that are left have a delayed open.
                PiggybackedKind::Close | PiggybackedKind::Return => {
                    (open.opened, open.stateid) = (0, Stateid::ANONYMOUS);
                }
            }
            self.to_downgrade.remove(passed);
        }
    }
}

impl OpenTable {
    /// An OPEN was executed for nobody: accesses that no user has are given up.
    pub(in crate::protocol::v4) fn narrow(&self, key: &OpenKey) {
        let opens = &mut *self.0.lock();
        if opens.is_too_wide(key) {
            opens.narrow_later(key);
        }
    }

    /// Accesses that no user of a file's opens has any more are given up. Returns those of these
    /// opens that wait for that from now on.
    pub(in crate::protocol::v4) fn narrow_all(&self, file: &FileHandle) -> Vec<OpenKey> {
        let opens = &mut *self.0.lock();
        let owners = opens.owners.get(file).cloned().unwrap_or_default();
        let keys = owners.into_iter().map(|owner| OpenKey { file: file.clone(), owner });
        keys.filter(|key| opens.is_too_wide(key) && opens.narrow_later(key)).collect()
    }

    /// The operations that are piggybacked on a compound of this credential, at most this number.
    pub(in crate::protocol::v4) fn take_piggybacked(
        &self,
        credential: &RpcCredential,
        now: Instant,
        closed: ClosedOpens,
        most: usize,
    ) -> Vec<PiggybackedOperation> {
        let opens = &mut *self.0.lock();
        let mut piggybacked = Vec::new();
        if most == 0 || opens.is_paused(now) {
            return piggybacked;
        }
        opens.take_waiting(credential, now, most, &mut piggybacked);
        opens.take_downgrades(credential, now, most, &mut piggybacked);
        if opens.idle.len() <= IDLE_PASSED_MAX {
            opens.tidy_idle();
        }
        let mut passed = 0;
        while piggybacked.len() < most && passed < opens.idle.len().min(IDLE_PASSED_MAX) {
            let Some(key) = opens.idle.get(passed) else { break };
            let stays_queued = |open: &mut &mut Open| open.stays_queued();
            let Some(open) = opens.opens.get_mut(key).take_if(stays_queued) else {
                opens.idle.remove(passed);
                continue;
            };
            if *open.credential != *credential || !open.idle(closed.at(now), opens.idle.len()).is_closed() {
                passed += 1;
                continue;
            }
            // What the server has delayed was an OPEN_DOWNGRADE.
            let postponement = Postponement::default();
            let close = open.piggybacked(key, PiggybackedKind::Close);
            let operation = PiggybackedOperation { postponement, ..close };
            if let Some(key) = opens.idle.remove(passed) {
                opens.remove(&key);
            }
            piggybacked.push(operation);
        }
        piggybacked
    }

    /// The most opens that wait to be closed or narrowed.
    pub(in crate::protocol::v4) fn unused_count(&self) -> usize {
        self.0.lock().unused_count()
    }

    /// The credential of an operation that can be sent now.
    pub(in crate::protocol::v4) fn idle_credential(
        &self,
        now: Instant,
        closed: ClosedOpens,
    ) -> Option<Arc<RpcCredential>> {
        let opens = &mut *self.0.lock();
        if opens.is_paused(now) {
            return None;
        }
        if let Some(operation) = opens.waiting.iter().find(|operation| operation.postponement.is_over(now)) {
            return Some(Arc::clone(&operation.credential));
        }
        let keys = opens.to_downgrade.iter().chain(&opens.idle);
        let mut waiting = keys.filter_map(|key| opens.opens.get(key));
        // A delegated open leaves the queue of idle ones when it is found there.
        let is_waiting = |open: &&Open| match open.is_used() {
            true => {
                open.validity == OpenValidity::Valid
                    && open.narrower().is_some()
                    && open.postponement.is_over(now)
            }
            false => open.idle_since.is_some() && open.idle(closed.at(now), opens.idle.len()).is_closed(),
        };
        waiting.find(is_waiting).map(|open| Arc::clone(&open.credential))
    }

    /// Whether the server has delayed operations that are sent again later.
    pub(in crate::protocol::v4) fn has_postponed(&self, now: Instant) -> bool {
        let opens = self.0.lock();
        let mut downgraded = opens.to_downgrade.iter().filter_map(|key| opens.opens.get(key));
        opens.is_paused(now) && opens.unused_count() > 0
            || opens.waiting.iter().any(|operation| !operation.postponement.is_over(now))
            || downgraded.any(|open| !open.postponement.is_over(now))
    }

    /// Records the result of a piggybacked operation. It is queued again after NFS4ERR_OLD_STATEID,
    /// after NFS4ERR_DELAY and NFS4ERR_GRACE with a pause, and once if its result is malformed
    /// (NFS4ERR_BADXDR).
    pub(in crate::protocol::v4) fn piggybacked_done(
        &self,
        operation: &PiggybackedOperation,
        outcome: Result<Stateid, NfsStat4>,
        now: Instant,
    ) {
        match outcome {
            Err(NfsStat4::Delay | NfsStat4::Grace) => {
                self.0.lock().note_delayed(operation.stateid.other, now);
            }
            Ok(_) | Err(_) => self.0.lock().note_executed(),
        }
        match (operation.kind, outcome) {
            (_, Err(NfsStat4::Delay | NfsStat4::Grace)) => {
                let postponement = operation.postponement.longer(now);
                self.put_back(vec![PiggybackedOperation { postponement, ..operation.clone() }]);
            }
            (PiggybackedKind::Downgrade(_), Ok(stateid)) => {
                if let Some(open) = self.0.lock().opens.get_mut(&operation.key)
                    && open.stateid.other == stateid.other
                {
                    open.renew(stateid);
                    open.postponement = Postponement::default();
                }
            }
            // An OPEN was executed after the stateid was taken.
            (PiggybackedKind::Downgrade(_), Err(NfsStat4::OldStateid)) => {
                self.0.lock().narrow_again(operation, |open| open.stateid.seqid != operation.stateid.seqid);
            }
            // An OPEN_DOWNGRADE or an OPEN was executed after the stateid was taken.
            (PiggybackedKind::Close, Err(NfsStat4::OldStateid)) if operation.stateid.seqid != 0 => {
                let opens = &mut *self.0.lock();
                if !opens.has_state_of(operation) {
                    let stateid = Stateid { seqid: 0, ..operation.stateid };
                    opens.send_later(PiggybackedOperation { stateid, ..operation.clone() });
                }
            }
            (PiggybackedKind::Close, Err(NfsStat4::Badxdr)) if !operation.has_failed => {
                self.put_back(vec![PiggybackedOperation { has_failed: true, ..operation.clone() }]);
            }
            // The reply to an OPEN that was executed before it may have arrived meanwhile.
            (PiggybackedKind::Close, Ok(_)) if operation.stateid.seqid == 0 => {
                self.stateid_refused(&operation.key, operation.stateid);
            }
            (PiggybackedKind::Close, Err(_)) if operation.stateid.seqid == 0 => {
                self.0.lock().closed.retain(|other| *other != operation.stateid.other);
            }
            // A server that knows the stateid no more has closed the open already.
            (PiggybackedKind::Close | PiggybackedKind::Return | PiggybackedKind::Downgrade(_), _) => {}
        }
    }

    /// Piggybacked operations whose compound was not executed, or not known to be.
    pub(in crate::protocol::v4) fn put_back(&self, piggybacked: Vec<PiggybackedOperation>) {
        let opens = &mut *self.0.lock();
        for operation in piggybacked {
            if matches!(operation.kind, PiggybackedKind::Downgrade(_)) {
                opens.narrow_again(&operation, |_| true);
            } else {
                opens.send_later(operation);
            }
        }
    }

    /// Piggybacked operations that are to go with the next compound of their credential.
    pub(in crate::protocol::v4) fn put_back_first(&self, piggybacked: Vec<PiggybackedOperation>) {
        let opens = &mut *self.0.lock();
        for operation in piggybacked.into_iter().rev() {
            opens.waiting.push_front(operation);
        }
    }
}
