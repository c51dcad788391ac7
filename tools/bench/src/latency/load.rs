//! What is measured: which operation, how many at once, and on which processors.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Bytes of a READ and a WRITE.
pub(super) const BLOCK_BYTES: usize = 4096;
/// The same as their arguments have it.
pub(super) const BLOCK_COUNT: u32 = 4096;
/// Names in the directory that READDIRPLUS lists.
pub(super) const LISTED_NAMES: usize = 100;
/// The most connections of a shape.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// The most operations that are outstanding on one connection.
pub(super) const OUTSTANDING_MAX: usize = 64;

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
#[value(rename_all = "UPPER")]
pub(super) enum LatencyOperation {
    Getattr,
    Access,
    Lookup,
    Read,
    #[serde(rename = "WRITE UNSTABLE")]
    #[value(name = "WRITE UNSTABLE")]
    WriteUnstable,
    #[serde(rename = "WRITE FILE_SYNC")]
    #[value(name = "WRITE FILE_SYNC")]
    WriteFileSync,
    Create,
    Remove,
    ReaddirPlus,
}

impl LatencyOperation {
    /// The procedure's name; of WRITE with how firmly.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it changes something, so that no two replies are alike.
    pub(super) fn changes(self) -> bool {
        matches!(
            self,
            Self::WriteUnstable | Self::WriteFileSync | Self::Create | Self::Remove
        )
    }

    /// How many bytes of data it moves, if it moves any.
    pub(super) fn bytes(self) -> Option<usize> {
        let moves = matches!(self, Self::Read | Self::WriteUnstable | Self::WriteFileSync);
        moves.then_some(BLOCK_BYTES)
    }
}

/// How many operations are under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadShape {
    /// On each connection.
    pub(super) outstanding: usize,
    /// Connections.
    pub(super) connections: usize,
}

/// Those that are measured.
pub(super) const SHAPES: [LoadShape; 4] = [
    LoadShape::new(1, 1),
    LoadShape::new(16, 1),
    LoadShape::new(OUTSTANDING_MAX, 1),
    LoadShape::new(16, CONNECTIONS_MAX),
];

impl LoadShape {
    const fn new(outstanding: usize, connections: usize) -> Self {
        Self {
            outstanding,
            connections,
        }
    }

    /// One operation at a time.
    pub(super) const fn is_single(self) -> bool {
        self.outstanding * self.connections == 1
    }
}

impl fmt::Display for LoadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, self.outstanding)
    }
}

/// Where client and servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Placement {
    /// Wherever the kernel puts them.
    #[serde(rename = "any")]
    Any,
    /// All on one processor: nobody is woken on another, so what is left is work.
    #[serde(rename = "one-cpu")]
    OneCpu,
}

impl Placement {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Any, Self::OneCpu];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_as_they_are_shown() {
        for operation in LatencyOperation::value_variants() {
            let name = operation.name();
            assert_eq!(serde_json::json!(operation), name);
            let told = LatencyOperation::from_str(&name.to_lowercase(), true);
            assert_eq!(told, Ok(*operation));
        }
        assert!(LatencyOperation::from_str("GETATT", true).is_err());
    }
}
