//! What events tell of an inode. Decides and changes nothing.

use curt_trace::{events::Event, probe};

use super::{Inode, InodeFacts};

impl Inode {
    /// Its number for an event, if anybody wants the event. Not to be called where its facts are held.
    pub(crate) fn fileid_for(&self, event: Event) -> u64 {
        let attributes = event.is_wanted().then(|| self.attributes()).flatten();
        attributes.map_or(0, |attributes| attributes.fileid)
    }

    /// Tells that something that is remembered is not believed any longer.
    pub(super) fn tell_invalid(&self, facts: &InodeFacts, cache: &str, reason: &str) {
        probe!(NfsSetCacheInvalid {
            fileid: self
                .attributes_in(facts)
                .map_or(0, |attributes| attributes.fileid),
            cache,
            reason
        });
    }
}
