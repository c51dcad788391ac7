//! A reply that shows rights on an object. Must not depend on inodes: listings hold such replies.

use curt_policy::{AttributeState, CachingAttributes, MonotonicTime};
use curt_types::Attributes;

/// The reply that shows rights on an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RightsReply {
    pub(crate) sent_at: MonotonicTime,
    /// The object's attributes in the reply.
    pub(crate) attributes: Option<CachingAttributes>,
}

impl RightsReply {
    pub(crate) fn new(sent_at: MonotonicTime, attributes: Option<&Attributes>) -> Self {
        Self { sent_at, attributes: attributes.map(CachingAttributes::from) }
    }

    /// Whether its rights are not those of the known mode and owner: another reply has shown a
    /// later change of them.
    pub(super) fn is_outdated(&self, known: &AttributeState) -> bool {
        let known = known.newest();
        known.zip(self.attributes).is_some_and(|(known, reported)| known.rights_differ(&reported))
    }
}
