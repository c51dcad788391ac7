//! The sizes that a session allows (RFC 8881 section 18.36.3, `ca_maxrequestsize` and others).

use curt_proto::nfs4::ChannelAttributes;

/// Bytes of a compound beside the data of a READ or WRITE that a session's sizes include: headers,
/// a credential, a handle, piggybacked operations and two sets of attributes.
const OVERHEAD: u32 = 2048;

fn data_max(message_max: u32) -> u32 {
    message_max.saturating_sub(OVERHEAD).clamp(1024, 1 << 20)
}

/// The sizes that a session allows.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol::v4) struct SessionLimits {
    request_max: u32,
    pub(in crate::protocol::v4) response_max: u32,
    /// The longest reply that the server keeps.
    response_kept_max: u32,
    /// The most operations of a compound.
    pub(in crate::protocol::v4) operations_max: u32,
}

impl From<&ChannelAttributes> for SessionLimits {
    fn from(channel: &ChannelAttributes) -> Self {
        Self {
            request_max: channel.request_max,
            response_max: channel.response_max,
            response_kept_max: channel.response_cached_max,
            operations_max: channel.operations_max,
        }
    }
}

impl SessionLimits {
    /// The most data that a READ may ask for.
    pub(in crate::protocol::v4) fn read_max(&self) -> u32 {
        data_max(self.response_max)
    }

    /// The most data of a WRITE.
    pub(in crate::protocol::v4) fn write_max(&self) -> u32 {
        data_max(self.request_max)
    }

    /// The most bytes of the operations of a compound that has no data.
    pub(in crate::protocol::v4) fn operations_bytes_max(&self) -> usize {
        usize::try_from(self.request_max.saturating_sub(OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// The most bytes of the results of a compound that has no data.
    pub(in crate::protocol::v4) fn results_bytes_max(&self) -> usize {
        usize::try_from(self.response_max.saturating_sub(OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// Whether the server keeps a reply of this size.
    pub(super) const fn is_kept(&self, bytes: u32) -> bool {
        bytes <= self.response_kept_max
    }
}
