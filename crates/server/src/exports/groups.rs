//! `--manage-gids`: a user's groups as this machine knows them, instead of the sixteen that
//! AUTH_SYS can carry.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::current::ExportsTable;
use super::name_service_cache::NameQuery;

/// Which groups a caller has besides its main one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManagedGroups {
    /// Those that its credential says.
    AsSent,
    /// These, from this machine's user database; none if it has no such user.
    Groups(Arc<[u32]>),
    /// They are not known until this question has been answered.
    Unknown(NameQuery),
}

impl ExportsTable {
    /// From now on groups are those that this machine knows.
    pub(crate) fn manage_groups(&self) -> std::io::Result<()> {
        self.names().start()?;
        self.manages_groups.store(true, Ordering::Release);
        self.bump_generation();
        Ok(())
    }

    /// Whether no groups count but those that this machine knows.
    pub(crate) fn manages_groups(&self) -> bool {
        self.manages_groups.load(Ordering::Acquire)
    }

    /// Which groups a user has who was not squashed.
    pub(crate) fn groups_of(&self, uid: u32) -> ManagedGroups {
        if !self.manages_groups() {
            return ManagedGroups::AsSent;
        }
        match self.names().groups(uid) {
            Some(Some(groups)) => ManagedGroups::Groups(groups),
            // As mountd does: who is unknown here has no groups here.
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
