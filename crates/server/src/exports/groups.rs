//! `--manage-gids`: a user's groups from the user database of this machine, instead of the sixteen
//! that AUTH_SYS can carry.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::name_service_cache::NameQuery;
use super::reload::ExportsTable;

/// The supplementary groups of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManagedGroups {
    /// The groups of its credential.
    AsSent,
    /// The groups in this machine's user database; none if it does not contain the user.
    Groups(Arc<[u32]>),
    /// Unknown until this query has been answered.
    Unknown(NameQuery),
}

impl ExportsTable {
    /// Uses the groups of this machine's user database from now on.
    pub(crate) fn manage_groups(&self) -> std::io::Result<()> {
        self.names().start()?;
        self.manages_groups.store(true, Ordering::Release);
        self.bump_generation();
        Ok(())
    }

    /// Whether groups come from this machine's user database.
    pub(crate) fn manages_groups(&self) -> bool {
        self.manages_groups.load(Ordering::Acquire)
    }

    /// The groups of a user who is not squashed.
    pub(crate) fn groups_of(&self, uid: u32) -> ManagedGroups {
        if !self.manages_groups() {
            return ManagedGroups::AsSent;
        }
        match self.names().groups(uid) {
            Some(Some(groups)) => ManagedGroups::Groups(groups),
            // As mountd: an unknown user has no groups.
            Some(None) => ManagedGroups::Groups(Arc::from([])),
            None => ManagedGroups::Unknown(NameQuery::Groups(uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::time::{Duration, Instant};

    use curt_rpc::clock::TimeSource;

    use super::*;
    use crate::exports::name_service_cache::tests_service::Scripted;

    #[test]
    fn groups_are_the_machines_only_once_it_manages_them() {
        let many: Vec<u32> = (100..140).collect();
        let service = Scripted::default().user(7, &many);
        let table = ExportsTable::new(Box::new(service), TimeSource::System);
        assert_eq!(table.groups_of(7), ManagedGroups::AsSent);
        let before = table.generation();
        table.manage_groups().unwrap();
        assert_ne!(table.generation(), before, "what was decided before is decided anew");
        let soon = Instant::now() + Duration::from_secs(60);
        let settled = |uid| loop {
            match table.groups_of(uid) {
                ManagedGroups::Unknown(question) => assert!(table.names().wait(&question, soon)),
                known => return known,
            }
        };
        assert_eq!(settled(7), ManagedGroups::Groups(many.into()));
        assert_eq!(settled(8), ManagedGroups::Groups(Arc::from([])), "nobody here knows 8");
    }
}
