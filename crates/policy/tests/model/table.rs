//! The cached state of a name.

use std::hash::Hash;

use curt_policy::{NameLabel, names::DentryUpdate};

#[derive(Clone, Debug, Hash)]
pub(crate) struct Name<T> {
    pub(crate) entry: Option<(T, NameLabel)>,
    /// Counts begins and ends of changes of this client.
    pub(crate) changes: u8,
    /// The client knows that the states of the name's history before this one are past.
    pub(crate) floor: usize,
}

impl<T> Default for Name<T> {
    fn default() -> Self {
        Self { entry: None, changes: 0, floor: 0 }
    }
}

impl<T> Name<T> {
    /// Applies the policy's update for a name that is `now`.
    pub(crate) fn keep(&mut self, now: T, learned: DentryUpdate) {
        match learned {
            DentryUpdate::Positive(label) | DentryUpdate::Negative(label) => self.entry = Some((now, label)),
            DentryUpdate::Forget => self.entry = None,
            DentryUpdate::Unchanged => {}
        }
    }

    /// A change of the name by this client begins or ends: its entry is dropped.
    pub(crate) fn changes(&mut self) {
        self.changes += 1;
        self.entry = None;
    }
}
