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

use std::time::Duration;

use curt_policy::Moment;

use crate::identity::InodeId;

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
    pub(crate) fn of(object: InodeId, now: Moment) -> Self {
        Self {
            object,
            since: now,
            last_lookup: now,
        }
    }

    /// Whether the server is to be asked for `object`, which is looked up at `now`.
    pub(crate) fn is_due(&mut self, object: InodeId, now: Moment) -> bool {
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
