//! The sequence number of CREATE_SESSION (RFC 8881 section 18.36.4).

use curt_proto::nfs4::SequenceId;

/// The number of the next CREATE_SESSION. A server should count each one that it refuses, but not
/// each server does.
#[derive(Debug, Default)]
pub(in crate::protocol::v4) struct CreateSequence {
    next: SequenceId,
    /// The number if the server has counted none that it has refused.
    uncounted: SequenceId,
    /// The server has refused the number: that of EXCHANGE_ID is used, whatever it is.
    is_misordered: bool,
}

impl CreateSequence {
    pub(in crate::protocol::v4) const fn next(&self) -> SequenceId {
        self.next
    }

    /// The result of EXCHANGE_ID. It is the number of a new record. Of a confirmed one it may be of
    /// no meaning (section 18.35.3); most servers return the next one.
    pub(super) fn exchanged(&mut self, sequence: SequenceId, is_new: bool) {
        if is_new || self.is_misordered || [self.next, self.uncounted].contains(&sequence) {
            self.next = sequence;
        }
        if is_new {
            (self.uncounted, self.is_misordered) = (sequence, false);
        }
    }

    /// CREATE_SESSION was executed.
    pub(super) const fn executed(&mut self) {
        self.next = self.next.next();
        (self.uncounted, self.is_misordered) = (self.next, false);
    }

    /// CREATE_SESSION was refused, for another reason than its number.
    pub(super) const fn refused(&mut self) {
        self.next = self.next.next();
        self.is_misordered = false;
    }

    /// CREATE_SESSION was refused because of its number. That of EXCHANGE_ID is used next, then
    /// that of before the refusals.
    pub(super) const fn misordered(&mut self) {
        if self.is_misordered {
            self.next = self.uncounted;
        }
        self.is_misordered = !self.is_misordered;
    }
}
