//! Recalls that arrive before the replies to the OPENs that granted the delegations.
//!
//! While such replies are outstanding, each recall of an unknown delegation is remembered.
//! Referring triples (RFC 8881 section 2.10.6.3) are not relied on, since a slot is free before its
//! reply is processed.

use std::collections::BTreeSet;

use curt_proto::nfs4::Stateid;
use curt_types::FileHandle;

/// The OPENs in progress that may get a delegation, and the recalls that may be of one of these.
#[derive(Debug, Default)]
pub(super) struct EarlyRecalls {
    /// The OPENs, by number.
    opening: BTreeSet<u64>,
    last_opening: u64,
    recalls: Vec<EarlyRecall>,
}

/// The recall of an unknown delegation.
#[derive(Debug)]
pub(super) struct EarlyRecall {
    pub(super) file: FileHandle,
    pub(super) stateid: Stateid,
    /// The last OPEN that may get the delegation.
    last: u64,
}

impl EarlyRecalls {
    /// An OPEN that may get a delegation is about to be sent. Returns its number.
    pub(super) fn begin_opening(&mut self) -> u64 {
        self.last_opening += 1;
        self.opening.insert(self.last_opening);
        self.last_opening
    }

    /// The reply to an OPEN was dealt with, or there is none. Returns the recalls of delegations
    /// that no outstanding reply can contain.
    pub(super) fn end_opening(&mut self, number: u64) -> Vec<EarlyRecall> {
        self.opening.remove(&number);
        let first = self.opening.first().copied().unwrap_or(u64::MAX);
        self.recalls.extract_if(.., |recall| recall.last < first).collect()
    }

    pub(super) fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    pub(super) fn remember(&mut self, file: &FileHandle, stateid: Stateid) {
        self.recalls.retain(|recall| recall.stateid.other != stateid.other);
        self.recalls.push(EarlyRecall { file: file.clone(), stateid, last: self.last_opening });
    }

    /// Takes the recall of a delegation that an OPEN has brought. Returns whether there was one.
    pub(super) fn take(&mut self, stateid: Stateid) -> bool {
        let early = self.recalls.iter().position(|recall| recall.stateid.other == stateid.other);
        early.map(|early| self.recalls.swap_remove(early)).is_some()
    }

    /// How many are remembered.
    pub(super) const fn count(&self) -> usize {
        self.recalls.len()
    }

    /// The server has forgotten the delegations.
    pub(super) fn forget(&mut self) {
        self.recalls.clear();
    }
}
