//! The states that the server has revoked (RFC 8881 sections 8.5, 18.38 and 18.48): those that it
//! reports, which are to be found, and those that are to be freed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use curt_proto::nfs4::{SequenceStatusFlags, Stateid};

/// The server has revoked states.
pub(super) const REVOKED: u32 = SequenceStatusFlags::EXPIRED_ALL_STATE_REVOKED
    | SequenceStatusFlags::EXPIRED_SOME_STATE_REVOKED
    | SequenceStatusFlags::ADMIN_STATE_REVOKED
    | SequenceStatusFlags::RECALLABLE_STATE_REVOKED;

/// The most revoked states that wait for FREE_STATEID. Of more the server goes on saying that it
/// has revoked some: nothing is served by delegations then.
const FREED_MAX: usize = 1 << 16;

/// The order in which revoked states are freed: an open is not before its locks (RFC 8881 section
/// 18.38.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol::v4) enum FreeOrder {
    Locks,
    Others,
}

/// The revoked states of a client.
#[derive(Debug, Default)]
pub(in crate::protocol::v4) struct RevokedStates {
    /// When states were last tested because the server reports that it has revoked some.
    tested_at: Option<Instant>,
    /// All states are to be tested.
    must_test: bool,
    /// Revoked states that this client has dropped, and the server keeps until it hears of that.
    to_free: BTreeMap<(FreeOrder, [u8; 12]), Stateid>,
}

impl RevokedStates {
    /// Whether all states are to be tested.
    pub(in crate::protocol::v4) const fn must_test(&self) -> bool {
        self.must_test
    }

    /// All states were tested.
    pub(super) const fn tested(&mut self) {
        self.must_test = false;
    }

    /// The revoked states that the server is to be told of, until that is done ([`Self::freed`]).
    pub(in crate::protocol::v4) fn to_free(&self) -> Vec<Stateid> {
        self.to_free.values().copied().collect()
    }

    /// The server has been told of a revoked state.
    pub(in crate::protocol::v4) fn freed(&mut self, stateid: Stateid) {
        for order in [FreeOrder::Locks, FreeOrder::Others] {
            self.to_free.remove(&(order, stateid.other));
        }
    }

    /// The server has revoked a state that this client has dropped. `false`: there are too many.
    pub(super) fn free(&mut self, order: FreeOrder, stateid: Stateid) -> bool {
        let has_room = self.to_free.len() < FREED_MAX;
        if has_room {
            // Whatever its newest sequence number is.
            self.to_free.entry((order, stateid.other)).or_insert(Stateid { seqid: 0, ..stateid });
        }
        has_room
    }

    /// Whether states are to be tested or freed.
    pub(super) fn is_any(&self) -> bool {
        self.must_test || !self.to_free.is_empty()
    }

    /// The server knows no state of this client.
    pub(super) fn forget(&mut self) {
        self.to_free.clear();
        self.must_test = false;
    }

    /// Whether the flags of a reply say that states are to be tested. A server that goes on saying
    /// so is not asked about it each time.
    pub(super) fn judge(&mut self, flags: u32, sent_at: Instant, lease: Duration) -> bool {
        let is_recent = |at: Instant| sent_at.saturating_duration_since(at) < lease / 2;
        let is_news = flags & REVOKED != 0 && !self.tested_at.is_some_and(is_recent);
        if is_news {
            (self.tested_at, self.must_test) = (Some(sent_at), true);
        }
        is_news
    }

    /// The server reports none.
    pub(super) const fn none_reported(&mut self) {
        self.tested_at = None;
    }
}
