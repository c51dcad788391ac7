//! The lifetimes that a kernel was granted for names of one directory, and what they depend on.
//!
//! Owns storage only: [`curt_policy::kernel_cache`] says how long a lifetime is, and
//! [`crate::ops::kernel_names`] what has to wait for its end.

use curt_policy::{
    MountUsers, ServerClock,
    kernel_cache::{DirectoryView, NameLifetimes, everybody_may_search},
};
use curt_types::Access;

use super::{Inode, InodeFacts, TypeState};

impl InodeFacts {
    /// The lifetimes of its names, as a directory.
    pub(crate) fn name_lifetimes(&self) -> NameLifetimes {
        match &self.by_type {
            TypeState::Directory(kept) => kept.name_lifetimes,
            TypeState::Nothing | TypeState::Link(_) | TypeState::File(_) => NameLifetimes::default(),
        }
    }

    fn search_was_denied(&self) -> bool {
        matches!(&self.by_type, TypeState::Directory(kept) if kept.search_was_denied)
    }

    /// The server denied somebody these rights. If one is to search a directory that everybody may
    /// search by its mode bits, they are not to be relied on.
    pub(super) fn note_search_denied(&mut self, denied: Access, users: MountUsers) {
        if denied.contains(Access::LOOKUP) && everybody_may_search(self.state.facts(), false, users) {
            self.by_type.directory().search_was_denied = true;
        }
    }
}

impl Inode {
    /// What lifetimes of its names depend on, as a directory; `clock` is that of its file system.
    pub(crate) fn directory_view<'a>(
        &self,
        facts: &'a InodeFacts,
        clock: &'a ServerClock,
    ) -> DirectoryView<'a> {
        DirectoryView { attributes: &facts.state, is_disputed: self.is_search_disputed(facts), clock }
    }

    /// Whether everybody whose requests arrive may search it.
    pub(crate) fn everybody_may_search(&self, facts: &InodeFacts, users: MountUsers) -> bool {
        everybody_may_search(facts.state.facts(), self.is_search_disputed(facts), users)
    }

    fn is_search_disputed(&self, facts: &InodeFacts) -> bool {
        self.bits_are_disputed() || facts.search_was_denied()
    }
}
