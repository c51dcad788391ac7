//! A kernel looks a name up before it makes it, and fails by itself (EEXIST) if the name is there.
//!
//! So its look-up of a name that is believed to be there may be all that is ever seen of mkdir(2),
//! open(2) with O_EXCL, symlink(2), link(2) or mknod(2), and nothing in it says so. What gives it
//! away: nothing but that one name is looked up in the directory, again and again, and nothing is
//! done with what it leads to: somebody may be trying to make it. The server is asked after a
//! second, and then whenever twice that time has passed.
//!
//! Owns how that is known. Whoever uses the library without a kernel makes a name by asking for
//! just that.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use curt_policy::Moment;

use crate::{
    client::{Client, OpContext},
    dentry_cache::CachedDentry,
    identity::InodeId,
    inode::InodeFacts,
};

/// For how long a name has to be tried before the server is asked for it.
const FIRST_PROBE_AFTER: Duration = Duration::from_secs(1);

/// Which object of a directory is asked for again and again, and no other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateProbe {
    object: InodeId,
    since: Moment,
    /// When the server was last asked for it, or this began.
    last_lookup: Moment,
}

impl CreateProbe {
    fn of(object: InodeId, now: Moment) -> Self {
        Self {
            object,
            since: now,
            last_lookup: now,
        }
    }

    /// Whether the server is to be asked for `object`, which is looked up at `now`.
    fn is_due(&mut self, object: InodeId, now: Moment) -> bool {
        if self.object != object {
            *self = Self::of(object, now);
            return false;
        }
        let is_due = now.since(self.last_lookup) >= self.last_lookup.since(self.since).max(FIRST_PROBE_AFTER);
        if is_due {
            self.last_lookup = now;
        }
        is_due
    }
}

impl Client {
    /// Whoever asks is a kernel: it looks a name up before it makes it.
    pub fn serves_kernel(&self) {
        // Relaxed: who reads the old value answers as if the look-up had come before.
        self.core.serves_kernel.store(true, Relaxed);
    }

    /// Whether whoever asks is a kernel.
    pub(crate) fn serves_a_kernel(&self) -> bool {
        self.core.serves_kernel.load(Relaxed)
    }

    /// Whether what a kept name leads to, which is about to be answered from memory, is to be asked
    /// for since it is all that is asked for in the directory whose `facts` these are, and nothing
    /// is done with it.
    pub(crate) fn is_create_probe(
        &self,
        asked: &OpContext,
        facts: &mut InodeFacts,
        kept: &CachedDentry,
    ) -> bool {
        let Some(inode) = kept.child.as_ref().filter(|_| self.serves_a_kernel()) else {
            return false;
        };
        if kept.label.sent_at >= asked.began {
            return false;
        }
        let is_unused = inode.mark_looked_up();
        let insistence = &mut facts.by_type.directory().create_probe;
        match insistence {
            Some(insistence) if is_unused => insistence.is_due(inode.id(), asked.began),
            Some(_) | None => {
                *insistence = Some(CreateProbe::of(inode.id(), asked.began));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn who_insists_waits_no_longer_than_twice_and_is_given_an_answer_ever_more_rarely() {
        let mut insistence = CreateProbe::of(InodeId(7), at(0));
        let due: Vec<u64> = (0..=640)
            .map(|tenth| tenth * 100)
            .filter(|time| insistence.is_due(InodeId(7), at(*time)))
            .collect();
        assert_eq!(due, [1000, 2000, 4000, 8000, 16000, 32000, 64000]);
    }

    #[test]
    fn another_name_begins_anew() {
        let mut insistence = CreateProbe::of(InodeId(7), at(0));
        assert!(!insistence.is_due(InodeId(8), at(5000)));
        assert!(!insistence.is_due(InodeId(7), at(5500)));
        assert!(!insistence.is_due(InodeId(7), at(6499)));
        assert!(insistence.is_due(InodeId(7), at(6500)));
    }
}
