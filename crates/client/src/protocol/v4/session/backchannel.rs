//! The connections that are bound to the session for the server's calls (RFC 8881 sections 2.10.3
//! and 18.34).

use std::time::{Duration, Instant};

use curt_proto::nfs4::{CreateSessionFlags, SequenceStatusFlags};

/// The server cannot call this client: it has no connection for that, or the session has to be
/// replaced ([`FAULTY`]).
pub(super) const UNBOUND: u32 =
    SequenceStatusFlags::CB_PATH_DOWN | SequenceStatusFlags::CB_PATH_DOWN_SESSION | FAULTY;

/// The backchannel cannot be repaired: another session has to replace this one (section 18.46.3).
const FAULTY: u32 = SequenceStatusFlags::BACKCHANNEL_FAULT;

/// The backchannel of a session.
#[derive(Debug, Default)]
pub(in crate::protocol::v4) struct Backchannel {
    /// The server has accepted it.
    is_accepted: bool,
    /// The server has no connection for its calls.
    pub(super) is_unbound: bool,
    /// How often a connection was bound.
    pub(super) bindings: u64,
    /// When a connection was bound last because another was lost, and how many had been replaced by
    /// then.
    bound_at: Option<Instant>,
    pub(in crate::protocol::v4) bound_replacements: u64,
    /// When it was last found to be [`FAULTY`].
    faulty_at: Option<Instant>,
}

impl Backchannel {
    /// Whether the server can call this client, as far as is known.
    pub(in crate::protocol::v4) const fn is_usable(&self) -> bool {
        self.is_accepted && !self.is_unbound
    }

    /// A connection is bound for the server's calls. So the session has a backchannel, also if the
    /// server has refused one in CREATE_SESSION.
    pub(in crate::protocol::v4) const fn bound(&mut self) {
        self.bindings += 1;
        (self.is_unbound, self.is_accepted) = (false, true);
    }

    /// CREATE_SESSION was answered, with these flags.
    pub(super) const fn created(&mut self, flags: CreateSessionFlags) {
        self.bound_at = None;
        self.bound();
        self.is_accepted = flags.0 & CreateSessionFlags::CONN_BACK_CHAN != 0;
    }

    /// Whether a connection is to be bound again now: at once if another was replaced since the
    /// last time (the server may not have noticed the loss), otherwise if the server has none, once
    /// in a lease.
    pub(super) fn must_bind(&mut self, now: Instant, replacements: u64, lease: Duration) -> bool {
        let is_later = |at: Instant| now.saturating_duration_since(at) >= lease;
        let is_replaced = self.bound_replacements != replacements;
        self.bound_replacements = replacements;
        let is_due = is_replaced && self.is_accepted
            || self.is_unbound && (is_replaced || self.bound_at.is_none_or(is_later));
        if is_due {
            self.bound_at = Some(now);
        }
        is_due
    }

    /// Whether a reply to a request that was sent at `sent_at` says that the session has to be
    /// replaced. A server that goes on saying so gets another session once in a lease.
    pub(super) fn is_newly_faulty(&mut self, flags: u32, sent_at: Instant, lease: Duration) -> bool {
        let is_recent = |at: Instant| sent_at.saturating_duration_since(at) < lease;
        let is_news = flags & FAULTY != 0 && !self.faulty_at.is_some_and(is_recent);
        if is_news {
            self.faulty_at = Some(sent_at);
        }
        is_news
    }

    /// Judges the connection by the flags of a reply. A reply to a request that was sent before the
    /// last one was bound, when there were `bindings`, says nothing new, nor does one that may be
    /// older than another.
    pub(super) const fn judge(&mut self, flags: u32, bindings: u64, is_newest: bool) {
        if flags & UNBOUND == 0 {
            self.is_unbound &= !is_newest;
        } else if bindings == self.bindings {
            self.is_unbound = true;
        }
    }
}
