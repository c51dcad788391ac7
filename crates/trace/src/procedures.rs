//! How often each NFSv3 procedure was called, for a client or a server.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::shard::Sharded;

/// The 22 procedures of NFSv3 by number (RFC 1813, section 3).
pub const PROCEDURES: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// Calls per procedure.
pub struct ProcedureCounters {
    calls: Sharded,
}

impl Default for ProcedureCounters {
    fn default() -> Self {
        Self {
            calls: Sharded::new(PROCEDURES.len()),
        }
    }
}

impl ProcedureCounters {
    /// Counts one call of procedure `number`; a number beyond the table is not counted.
    pub fn count(&self, number: u32) {
        let index = usize::try_from(number).ok();
        if let Some(index) = index.filter(|index| *index < PROCEDURES.len()) {
            self.calls.add(index, 1);
        }
    }

    /// A copy of all present values.
    #[must_use]
    pub fn snapshot(&self) -> ProcedureCalls {
        let values = self.calls.sums();
        ProcedureCalls(
            PROCEDURES
                .iter()
                .map(|name| (*name).to_owned())
                .zip(values)
                .collect(),
        )
    }
}

impl fmt::Debug for ProcedureCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// Calls per procedure at one moment, by the procedure's name.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcedureCalls(BTreeMap<String, u64>);

impl ProcedureCalls {
    /// Calls of the procedure called `name` (0 for an unknown name).
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All calls together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Name and calls in the order of the procedures' numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        PROCEDURES.iter().map(|name| (*name, self.value(name)))
    }

    /// What was called between `earlier` and this.
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
        f.debug_map()
            .entries(self.iter().filter(|(_, calls)| *calls != 0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_number_and_read_by_name() {
        let procedures = ProcedureCounters::default();
        procedures.count(1);
        procedures.count(21);
        let before = procedures.snapshot();
        procedures.count(1);
        procedures.count(22);
        let difference = procedures.snapshot().since(&before);
        assert_eq!(
            (before.value("GETATTR"), before.value("COMMIT"), before.total()),
            (1, 1, 2)
        );
        assert_eq!((difference.value("GETATTR"), difference.total()), (1, 1));
    }
}
