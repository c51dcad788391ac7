//! What is measured: which operation, how many at once, and on which processors.

use std::fmt;
use std::str::FromStr;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum LatencyOperation {
    Getattr,
    Access,
    Lookup,
    Read,
    #[serde(rename = "WRITE UNSTABLE")]
    WriteUnstable,
    #[serde(rename = "WRITE FILE_SYNC")]
    WriteFileSync,
    Create,
    Remove,
    ReaddirPlus,
}

impl LatencyOperation {
    /// The procedure's name; of WRITE with how firmly.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Getattr => "GETATTR",
            Self::Access => "ACCESS",
            Self::Lookup => "LOOKUP",
            Self::Read => "READ",
            Self::WriteUnstable => "WRITE UNSTABLE",
            Self::WriteFileSync => "WRITE FILE_SYNC",
            Self::Create => "CREATE",
            Self::Remove => "REMOVE",
            Self::ReaddirPlus => "READDIRPLUS",
        }
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

    /// All of them, in the order in which they are shown.
    const ALL: [Self; 9] = [
        Self::Getattr,
        Self::Access,
        Self::Lookup,
        Self::Read,
        Self::WriteUnstable,
        Self::WriteFileSync,
        Self::Create,
        Self::Remove,
        Self::ReaddirPlus,
    ];
}

impl FromStr for LatencyOperation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|operation| operation.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
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

impl FromStr for LoadShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('x').and_then(|(connections, outstanding)| {
            Some((connections.parse().ok()?, outstanding.parse().ok()?))
        });
        let shape = numbers.map(|(connections, outstanding)| Self::new(outstanding, connections));
        shape
            .filter(|shape| SHAPES.contains(shape))
            .ok_or_else(|| "expected 1x1, 1x16, 1x64 or 16x16".to_owned())
    }
}

impl fmt::Display for LoadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, self.outstanding)
    }
}

/// Where client and servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
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
    fn operations_and_shapes_are_told_as_they_are_shown() {
        for operation in LatencyOperation::ALL {
            assert_eq!(operation.name().to_lowercase().parse(), Ok(operation));
        }
        assert!("GETATT".parse::<LatencyOperation>().is_err());
        let shapes = ["1x1", "1x16", "1x64", "16x16"].map(str::parse::<LoadShape>);
        assert_eq!(shapes, SHAPES.map(Ok));
        for wrong in ["2x1", "16", "x16", "16x1"] {
            assert!(wrong.parse::<LoadShape>().is_err(), "{wrong}");
        }
    }
}
