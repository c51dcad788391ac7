//! Numbers of calls of each operation, for a client or a server.

use std::collections::BTreeMap;
use std::fmt;

use curt_proto::Operation;
use serde::{Deserialize, Serialize};

use crate::shard::Sharded;

/// Calls per operation.
pub struct ProcedureCounters {
    calls: Sharded,
}

impl Default for ProcedureCounters {
    fn default() -> Self {
        Self { calls: Sharded::new(Operation::COUNT) }
    }
}

impl ProcedureCounters {
    /// Counts one call.
    pub fn count(&self, operation: Operation) {
        self.calls.add(operation.index(), 1);
    }

    /// A copy of all current values of NFS.
    #[must_use]
    pub fn snapshot(&self) -> ProcedureCalls {
        let calls = |operation: Operation| (operation.name().to_owned(), self.calls.sum(operation.index()));
        Operation::nfs().map(calls).collect()
    }
}

impl fmt::Debug for ProcedureCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Calls per operation of NFS at one time, by the operation's name.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcedureCalls(BTreeMap<String, u64>);

impl ProcedureCalls {
    /// Calls of the operation `name` (0 for an unknown name).
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All calls together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Name and calls in the order of [`Operation::nfs`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Operation::nfs().map(|operation| (operation.name(), self.value(operation.name())))
    }

    /// The difference between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(name, now)| (name.clone(), now.saturating_sub(earlier.value(name))))
                .collect(),
        )
    }
}

impl FromIterator<(String, u64)> for ProcedureCalls {
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(calls: I) -> Self {
        Self(calls.into_iter().collect())
    }
}

impl fmt::Debug for ProcedureCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, calls)| *calls != 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use curt_proto::{mount3::MountProcedure, nfs3::NfsProcedure};

    use super::*;

    #[test]
    fn calls_are_counted_by_operation_and_read_by_name() {
        let procedures = ProcedureCounters::default();
        procedures.count(Operation::Nfs3(NfsProcedure::Getattr));
        procedures.count(Operation::Nfs3(NfsProcedure::Commit));
        let before = procedures.snapshot();
        procedures.count(Operation::Nfs3(NfsProcedure::Getattr));
        procedures.count(Operation::Mount(MountProcedure::Mount));
        let difference = procedures.snapshot().since(&before);
        assert_eq!((before.value("GETATTR"), before.value("COMMIT"), before.total()), (1, 1, 2));
        assert_eq!((difference.value("GETATTR"), difference.total()), (1, 1));
    }
}
