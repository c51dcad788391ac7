//! The limits of the state.

use std::time::Duration;

use super::ChannelLimits;

/// The limits of the state of all clients.
#[derive(Clone, Debug)]
pub(crate) struct StateLimits {
    /// The time for which a client keeps its state without a request.
    pub(crate) lease: Duration,
    /// Maximum number of records of clients. One address (for IPv6, one network) may have as many
    /// as are free for others, and as much of each other total.
    pub(crate) clients: usize,
    /// Maximum number of records that no CREATE_SESSION has confirmed. Beyond it the oldest of the
    /// address that has the most is evicted.
    pub(crate) unconfirmed: usize,
    /// Maximum number of sessions of one client.
    pub(crate) sessions_per_client: usize,
    /// Maximum number of opens, lock states and delegations. One whose owner has a long name counts
    /// as several ([`owner_weight`](super::locks::owner_weight)).
    pub(crate) states: usize,
    /// Maximum number of delegations among them.
    pub(crate) delegations: usize,
    /// Maximum memory of all sessions, with their cached replies at the maximum size: it is
    /// reserved when a session is created.
    pub(crate) session_bytes: usize,
    /// The limits of a session's fore channel.
    pub(crate) fore: ChannelLimits,
    /// The limits of a session's backchannel.
    pub(crate) back: ChannelLimits,
}

/// Maximum number of connections that a session's backchannel uses.
pub(super) const BACKCHANNELS_MAX: usize = 16;
/// Maximum length of the name of a client's implementation that is stored, in bytes.
pub(super) const IMPLEMENTATION_MAX: usize = 128;

/// Smallest useful sizes of a channel in bytes: a call of SEQUENCE, or of CB_SEQUENCE and
/// CB_RECALL, with its credential; and its reply. A CB_NOTIFY_LOCK that is larger is not sent.
pub(super) const REQUEST_MIN: u32 = 256;
/// See [`REQUEST_MIN`].
pub(super) const REPLY_MIN: u32 = 128;

impl Default for StateLimits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(90),
            clients: 16_384,
            unconfirmed: 1_024,
            sessions_per_client: 64,
            states: 1 << 19,
            delegations: 1 << 18,
            session_bytes: 256 << 20,
            fore: ChannelLimits {
                request: (1 << 20) + (8 << 10),
                reply: (1 << 20) + (8 << 10),
                cached: 8 << 10,
                operations: 128,
                slots: 64,
            },
            // Linux before 6.18 refuses a session whose replies to callbacks may be smaller than a
            // page, which has up to 64 KiB.
            back: ChannelLimits { request: 4096, reply: 1 << 20, cached: 0, operations: 16, slots: 16 },
        }
    }
}
