//! Lookups that may precede a creation: when a cached positive name is looked up at the server
//! although it is valid.
//!
//! A kernel looks a name up before it creates it, and fails with EEXIST itself if the name exists.
//! So the lookup of a name that is cached as positive may be all that the client sees of mkdir(2),
//! open(2) with O_EXCL, symlink(2), link(2) or mknod(2), and FUSE does not mark such a lookup. Two
//! signs show it:
//! - The kernel asks although its own entry is valid: the name is about to be created exclusively
//!   or to be replaced (LOOKUP_EXCL, LOOKUP_RENAME_TARGET).
//! - The name is the only one that is looked up in its directory, repeatedly, and no other
//!   operation uses its object: a program tries to create it until another client removes it.
//!   LOOKUP is then sent after one second, and again each time the duration has doubled.
//!
//! A user of the library other than a kernel calls the operation itself.

use core::time::Duration;

use crate::time::Moment;

/// How long a name must be looked up repeatedly before LOOKUP is sent.
const FIRST_PROBE_AFTER: Duration = Duration::from_secs(1);

/// The repeated lookups of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreateProbe {
    since: Moment,
    /// When LOOKUP was last sent because of them; initially their beginning.
    last_lookup: Moment,
}

impl CreateProbe {
    /// The first lookup of the name.
    #[must_use]
    pub const fn begun(now: Moment) -> Self {
        Self { since: now, last_lookup: now }
    }

    /// Whether LOOKUP must be sent for one more lookup at `now`.
    #[must_use]
    pub fn is_due(&self, now: Moment) -> bool {
        now.since(self.last_lookup) >= self.last_lookup.since(self.since).max(FIRST_PROBE_AFTER)
    }

    /// Records one more lookup at `now`.
    pub fn note_lookup(&mut self, now: Moment) {
        if self.is_due(now) {
            self.last_lookup = now;
        }
    }
}

/// The signs that a kernel looks a name up in order to create it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreateSigns {
    /// The earlier lookups of the name, if no other name was looked up since and no other operation
    /// has used the object.
    pub repeated: Option<CreateProbe>,
    /// The kernel's own entry of the name was valid when the lookup began.
    pub kernel_has_name: bool,
}

impl CreateSigns {
    /// Whether the lookup that began at `began` is sent to the server.
    #[must_use]
    pub fn ask_for_lookup(&self, began: Moment) -> bool {
        self.kernel_has_name || self.repeated.is_some_and(|probe| probe.is_due(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_repeated_lookup_is_sent_after_a_second_and_at_doubling_intervals() {
        let mut probe = CreateProbe::begun(at(0));
        let mut due = Vec::new();
        for time in (0..=640).map(|tenth| tenth * 100) {
            let signs = CreateSigns { repeated: Some(probe), kernel_has_name: false };
            if signs.ask_for_lookup(at(time)) {
                due.push(time);
            }
            probe.note_lookup(at(time));
        }
        assert_eq!(due, [1000, 2000, 4000, 8000, 16000, 32000, 64000]);
    }

    #[test]
    fn a_lookup_in_spite_of_a_valid_entry_of_the_kernel_is_sent() {
        assert!(CreateSigns { repeated: None, kernel_has_name: true }.ask_for_lookup(at(0)));
        assert!(!CreateSigns::default().ask_for_lookup(at(5000)));
    }
}
