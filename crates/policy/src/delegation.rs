//! Read delegations: when one is wanted, kept, used and given back (RFC 8881 sections 10.2 and
//! 10.4).
//!
//! While a client has a read delegation of a file, the server recalls it before another client
//! changes the file. Attributes, data and the results of ACCESS that are of the time since the
//! grant are valid until the delegation ends ([`crate::attributes::Delegation`]). Before this
//! client changes a file, it returns the delegation. So no delegation has to be reconciled with
//! changes of this client.
//!
//! Must not know stateids, messages, nor how a delegation is stored.

use core::time::Duration;

use crate::options::CacheOptions;

/// The most delegations that a mount keeps. Each costs the server memory, and a kept open.
pub const DELEGATIONS_MAX: usize = 5_000;

/// The most delegations that are being returned while others are asked for: each new one beyond
/// [`DELEGATIONS_MAX`] ends another, and a server may delay the returns.
pub const RETURNS_MAX: usize = 512;

/// How often delegations are returned that were not used since the last time: others' next change
/// should not wait for their recall.
const UNUSED_MAX: Duration = Duration::from_secs(600);

/// The most recalls that are remembered because they may be of delegations in replies that have not
/// arrived.
pub const EARLY_RECALLS_MAX: usize = 64;

/// Consecutive OPENs without a delegation after which none is expected.
const REFUSALS_MAX: u32 = 4;

/// How long none is expected after a refusal. Linux as a server grants none in the grace period of
/// its lock manager, nor of a file for 30 to 60 s after a recall (6.1).
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Everything that decides whether an OPEN asks for a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DelegationConditions {
    /// The mount wants delegations ([`CacheOptions::uses_delegations`]).
    pub is_allowed: bool,
    /// The server can call this client.
    pub can_be_recalled: bool,
    /// The open is for reading alone.
    pub only_reads: bool,
    /// The file is open for writing here.
    pub is_written_here: bool,
    /// Number of delegations that are being returned.
    pub returning: usize,
}

impl DelegationConditions {
    /// Whether a read delegation is asked for.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        self.is_allowed
            && self.can_be_recalled
            && self.only_reads
            && !self.is_written_here
            && self.returning < RETURNS_MAX
    }
}

/// A delegation in the reply to an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DelegationOffer {
    /// The client has asked for the delegation.
    pub was_wanted: bool,
    /// The delegation is for reading.
    pub is_read: bool,
    /// The delegation is being recalled already: by its own flag, or by a recall that came before
    /// the reply.
    pub is_recalled: bool,
    /// The client has another delegation of the file.
    pub has_another: bool,
    /// The file is open for writing here.
    pub is_written_here: bool,
}

impl DelegationOffer {
    /// Whether it is kept; otherwise it is returned.
    #[must_use]
    pub const fn is_kept(self) -> bool {
        self.was_wanted && self.is_read && !self.is_recalled && !self.has_another && !self.is_written_here
    }
}

/// State of the recalled delegation at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecalledDelegation {
    /// Held.
    Held,
    /// Returned; the server may not know yet.
    Returning,
    /// Unknown.
    Unknown {
        /// Replies to OPENs that may have granted it have not arrived.
        is_opening: bool,
        /// The wait for such a reply was given up.
        is_reply_lost: bool,
        /// Number of remembered recalls. A recall is remembered until such replies arrive, or until
        /// its delegation is returned.
        remembered: usize,
    },
}

/// The response to a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum RecallDecision {
    /// The delegation ends now and is returned.
    Return,
    /// The return is already in progress.
    Wait,
    /// The recall is remembered until the replies in question have arrived.
    Remember,
    /// NFS4ERR_DELAY: too many are remembered.
    Delay,
    /// Returned by the stateid in the recall.
    ReturnUnknown,
    /// NFS4ERR_BAD_STATEID.
    Refuse,
}

/// Decides the response to a recall.
pub const fn decide_recall(holding: RecalledDelegation) -> RecallDecision {
    match holding {
        RecalledDelegation::Held => RecallDecision::Return,
        RecalledDelegation::Returning => RecallDecision::Wait,
        RecalledDelegation::Unknown { is_opening: false, is_reply_lost: false, .. } => RecallDecision::Refuse,
        RecalledDelegation::Unknown { is_opening: false, remembered, .. }
            if remembered < EARLY_RECALLS_MAX =>
        {
            RecallDecision::ReturnUnknown
        }
        RecalledDelegation::Unknown { is_opening: true, remembered, .. }
            if remembered < EARLY_RECALLS_MAX =>
        {
            RecallDecision::Remember
        }
        RecalledDelegation::Unknown { .. } => RecallDecision::Delay,
    }
}

/// How many of `held` delegations are given back if `limit` may be kept.
#[must_use]
pub const fn surplus(held: usize, limit: usize) -> usize {
    held.saturating_sub(limit)
}

/// Whether delegations are returned that were not used for this time.
#[must_use]
pub fn are_unused_returned(unused: Duration) -> bool {
    unused >= UNUSED_MAX
}

/// Whether a server is expected to delegate what is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GrantExpectation {
    /// Consecutive refusals.
    refusals: u32,
}

/// The server's reply to an OPEN that asked for a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DelegationReply {
    /// There is one.
    Granted,
    /// There is none for a reason that may concern this file alone (WND4_CONTENTION).
    Contended,
    /// There is none.
    Refused,
}

impl GrantExpectation {
    /// Records an OPEN.
    pub const fn opened(&mut self, outcome: DelegationReply) {
        match outcome {
            DelegationReply::Granted => self.refusals = 0,
            DelegationReply::Contended => {}
            DelegationReply::Refused => self.refusals = self.refusals.saturating_add(1),
        }
    }

    /// Whether a delegation is expected of the next OPEN. `since_refusal`: the time since the last
    /// refusal. An open of a file whose data are known is sent only if one is expected: without an
    /// end of the refusals, no open of such files would ever find out that there are grants again.
    pub fn is_positive(self, since_refusal: impl FnOnce() -> Duration) -> bool {
        self.refusals < REFUSALS_MAX || since_refusal() >= REFUSED_FOR
    }
}

impl CacheOptions {
    /// Whether delegations are used: not if attributes must never be served without a request.
    #[must_use]
    pub const fn uses_delegations(&self) -> bool {
        self.delegations && self.attribute_cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delegation_is_wanted_by_readers_of_files_that_nobody_here_writes() {
        let all = DelegationConditions {
            is_allowed: true,
            can_be_recalled: true,
            only_reads: true,
            is_written_here: false,
            returning: RETURNS_MAX - 1,
        };
        assert!(all.is_wanted());
        for lacking in [
            DelegationConditions { is_allowed: false, ..all },
            DelegationConditions { can_be_recalled: false, ..all },
            DelegationConditions { only_reads: false, ..all },
            DelegationConditions { is_written_here: true, ..all },
            DelegationConditions { returning: RETURNS_MAX, ..all },
        ] {
            assert!(!lacking.is_wanted(), "{lacking:?}");
        }
    }

    #[test]
    fn only_a_wanted_read_delegation_without_a_recall_is_kept() {
        let good = DelegationOffer {
            was_wanted: true,
            is_read: true,
            is_recalled: false,
            has_another: false,
            is_written_here: false,
        };
        assert!(good.is_kept());
        for bad in [
            DelegationOffer { was_wanted: false, ..good },
            DelegationOffer { is_read: false, ..good },
            DelegationOffer { is_recalled: true, ..good },
            DelegationOffer { has_another: true, ..good },
            DelegationOffer { is_written_here: true, ..good },
        ] {
            assert!(!bad.is_kept(), "{bad:?}");
        }
    }

    #[test]
    fn delegations_are_kept_unused_for_ten_minutes() {
        assert!(!are_unused_returned(Duration::from_millis(599_999)));
        assert!(are_unused_returned(Duration::from_secs(600)));
    }

    #[test]
    fn a_recall_is_remembered_only_while_a_reply_may_bring_its_delegation() {
        let is_reply_lost = false;
        let unknown =
            |is_opening, remembered| RecalledDelegation::Unknown { is_opening, is_reply_lost, remembered };
        assert_eq!(decide_recall(RecalledDelegation::Held), RecallDecision::Return);
        assert_eq!(decide_recall(RecalledDelegation::Returning), RecallDecision::Wait);
        assert_eq!(decide_recall(unknown(false, 0)), RecallDecision::Refuse);
        assert_eq!(decide_recall(unknown(true, EARLY_RECALLS_MAX - 1)), RecallDecision::Remember);
        assert_eq!(decide_recall(unknown(true, EARLY_RECALLS_MAX)), RecallDecision::Delay);
        let lost = RecalledDelegation::Unknown { is_opening: false, is_reply_lost: true, remembered: 0 };
        assert_eq!(decide_recall(lost), RecallDecision::ReturnUnknown);
        let remembered = EARLY_RECALLS_MAX;
        let lost = RecalledDelegation::Unknown { is_opening: false, is_reply_lost: true, remembered };
        assert_eq!(decide_recall(lost), RecallDecision::Delay);
    }

    #[test]
    fn what_exceeds_a_limit_is_given_back() {
        assert_eq!(surplus(DELEGATIONS_MAX, DELEGATIONS_MAX), 0);
        assert_eq!(surplus(DELEGATIONS_MAX + 1, DELEGATIONS_MAX), 1);
        assert_eq!(surplus(3, 0), 3);
    }

    #[test]
    fn a_server_that_grants_none_is_expected_to_go_on_so_for_a_while_or_until_it_grants_one() {
        let mut expectation = GrantExpectation::default();
        let is_positive = |expectation: GrantExpectation, since| expectation.is_positive(|| since);
        for _ in 0..REFUSALS_MAX {
            assert!(is_positive(expectation, Duration::ZERO));
            expectation.opened(DelegationReply::Contended);
            expectation.opened(DelegationReply::Refused);
        }
        assert!(!is_positive(expectation, REFUSED_FOR - Duration::from_millis(1)));
        assert!(is_positive(expectation, REFUSED_FOR));
        expectation.opened(DelegationReply::Refused);
        assert!(!is_positive(expectation, Duration::ZERO));
        expectation.opened(DelegationReply::Granted);
        assert!(is_positive(expectation, Duration::ZERO));
    }
}
