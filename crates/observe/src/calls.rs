//! Numbers of calls of each operation, for a client or a server.

use std::collections::BTreeMap;
use std::fmt;

use curt_proto::Operation;
use curt_proto::nlm4::NlmProcedure;
use curt_proto::nsm::NsmProcedure;
use serde::{Deserialize, Serialize};

use crate::shard::Sharded;

/// Calls per operation.
pub struct CallCounters {
    calls: Sharded,
}

impl Default for CallCounters {
    fn default() -> Self {
        Self { calls: Sharded::new(Operation::COUNT) }
    }
}

impl CallCounters {
    /// Counts one call.
    #[inline]
    pub fn count(&self, operation: Operation) {
        self.calls.add(operation.index(), 1);
    }

    /// A copy of all current values of NFS: of the operations of NFSv4, of those that were called.
    #[must_use]
    pub fn snapshot(&self) -> CallCounts {
        let calls = |operation: Operation| (operation, self.calls.sum(operation.index()));
        let of_4 = Operation::nfs4().map(calls).filter(|(_, calls)| *calls != 0);
        Operation::nfs().map(calls).chain(of_4).collect()
    }

    /// Calls of NLM and NSM that occurred, by the [keys](Operation::key) of their operations.
    #[must_use]
    pub fn lock_calls(&self) -> BTreeMap<String, u64> {
        let operations = NlmProcedure::ALL.map(Operation::Nlm).into_iter();
        let operations = operations.chain(NsmProcedure::ALL.map(Operation::Nsm));
        let counts =
            operations.map(|operation| (operation.key().into_owned(), self.calls.sum(operation.index())));
        counts.filter(|(_, calls)| *calls > 0).collect()
    }
}

impl fmt::Debug for CallCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Calls per operation of NFS at one time. In JSON an operation has its [key](Operation::key).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts(#[serde(with = "crate::operation_map")] BTreeMap<Operation, u64>);

impl CallCounts {
    /// Calls of an operation.
    #[must_use]
    pub fn value(&self, operation: impl Into<Operation>) -> u64 {
        self.0.get(&operation.into()).copied().unwrap_or(0)
    }

    /// Calls of some operations: those that mean the same in different versions.
    #[must_use]
    pub fn of_all(&self, is_meant: fn(Operation) -> bool) -> u64 {
        self.0.iter().filter(|(operation, _)| is_meant(**operation)).map(|(_, calls)| calls).sum()
    }

    /// All calls together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Each operation of NFSv3, and those of NFSv4 that were called, with their calls, in the order
    /// of [`Operation::index`].
    pub fn iter(&self) -> impl Iterator<Item = (Operation, u64)> + '_ {
        let of_4 = Operation::nfs4().filter(|operation| self.0.contains_key(operation));
        Operation::nfs().chain(of_4).map(|operation| (operation, self.value(operation)))
    }

    /// The difference between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(operation, now)| (*operation, now.saturating_sub(earlier.value(*operation))))
                .collect(),
        )
    }
}

impl<O: Into<Operation>> FromIterator<(O, u64)> for CallCounts {
    fn from_iter<I: IntoIterator<Item = (O, u64)>>(calls: I) -> Self {
        Self(calls.into_iter().map(|(operation, calls)| (operation.into(), calls)).collect())
    }
}

impl fmt::Debug for CallCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, calls)| *calls != 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use curt_proto::{mount3::MountProcedure, nfs3::NfsProcedure};

    use super::*;

    #[test]
    fn calls_are_counted_by_operation() {
        let calls = CallCounters::default();
        calls.count(Operation::Nfs3(NfsProcedure::Getattr));
        calls.count(Operation::Nfs3(NfsProcedure::Commit));
        let before = calls.snapshot();
        calls.count(Operation::Nfs3(NfsProcedure::Getattr));
        calls.count(Operation::Mount(MountProcedure::Mount));
        calls.count(Operation::Nlm(NlmProcedure::Lock));
        assert_eq!(calls.lock_calls(), [("NLM.LOCK".to_owned(), 1)].into());
        let difference = calls.snapshot().since(&before);
        let of =
            |counts: &CallCounts| [NfsProcedure::Getattr, NfsProcedure::Commit].map(|one| counts.value(one));
        assert_eq!((of(&before), before.total()), ([1, 1], 2));
        assert_eq!((of(&difference), difference.total()), ([1, 0], 1));
    }

    #[test]
    fn json_has_the_names_of_version_3_and_skips_operations_of_later_releases() {
        let counts: CallCounts = [(NfsProcedure::Read, 7), (NfsProcedure::Getattr, 2)].into_iter().collect();
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"GETATTR":2,"READ":7}"#);
        let newer = r#"{"GETATTR":2,"READ":7,"NFSv5.READ":9}"#;
        assert_eq!(serde_json::from_str::<CallCounts>(newer).unwrap(), counts);
    }
}
