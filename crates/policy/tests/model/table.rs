//! What a client keeps of a name, whatever is told of it.

use std::hash::Hash;

use curt_policy::{NameLabel, names::DentryUpdate};

#[derive(Clone, Debug, Hash)]
pub(crate) struct Name<T> {
    pub(crate) entry: Option<(T, NameLabel)>,
    /// Counts beginnings and ends of changes of ours.
    pub(crate) changes: u8,
    /// The states of the name's history before this one this client knows to be past.
    pub(crate) floor: usize,
}

impl<T> Default for Name<T> {
    fn default() -> Self {
        Self { entry: None, changes: 0, floor: 0 }
    }
}

impl<T> Name<T> {
    /// Does what the policy says about a name that is `now`.
    pub(crate) fn keep(&mut self, now: T, learned: DentryUpdate) {
        match learned {
            DentryUpdate::Positive(label) | DentryUpdate::Negative(label) => self.entry = Some((now, label)),
            DentryUpdate::Forget => self.entry = None,
            DentryUpdate::Unchanged => {}
        }
    }

    /// A change of ours of it begins, or ends: nothing is known of it.
    pub(crate) fn changes(&mut self) {
        self.changes += 1;
        self.entry = None;
    }
}
