//! The client's lease (RFC 8881 section 8.3): when it was renewed, and until when delegations are
//! valid.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::protocol::LeaseEnd;

/// The lease that is assumed until the server has returned its own.
pub(super) const LEASE_DEFAULT: Duration = Duration::from_secs(90);

/// The lease of a client.
#[derive(Debug)]
pub(in crate::protocol::v4) struct Lease {
    length: Duration,
    renewed_at: Option<Instant>,
    /// Until when delegations are valid.
    pub(in crate::protocol::v4) end: Arc<LeaseEnd>,
    /// How often replies have made delegations doubtful.
    pub(super) doubts: u64,
}

impl Default for Lease {
    fn default() -> Self {
        Self { length: LEASE_DEFAULT, renewed_at: None, end: Arc::default(), doubts: 0 }
    }
}

impl Lease {
    pub(in crate::protocol::v4) const fn length(&self) -> Duration {
        self.length
    }

    pub(in crate::protocol::v4) fn set_length(&mut self, seconds: u32) {
        // A server without a lease would make the client renew it without pause.
        let length = Duration::from_secs(if seconds == 0 { 1 } else { seconds.into() });
        if length < self.length {
            // Replies have extended it by more.
            self.end.suspend();
        }
        self.length = length;
    }

    /// Whether the lease has not been renewed for this time.
    pub(in crate::protocol::v4) fn is_idle_for(&self, time: Duration, now: Instant) -> bool {
        self.renewed_at.is_none_or(|at| now.saturating_duration_since(at) >= time)
    }

    /// The server has executed SEQUENCE or CREATE_SESSION. A SEQUENCE may reach it long after it is
    /// sent: the lease counts from before.
    pub(super) fn renew(&mut self, sent_at: Instant) {
        self.renewed_at = self.renewed_at.max(Some(sent_at));
    }

    /// A reply says that delegations are lost or cannot be recalled.
    pub(super) fn doubt(&mut self) {
        self.doubts += 1;
        self.end.suspend();
    }

    /// A reply says nothing of that kind: delegations are valid for a lease from when its request
    /// was sent.
    pub(super) fn extend(&self, sent_at: Instant) {
        self.end.extend(sent_at + self.length);
    }
}
