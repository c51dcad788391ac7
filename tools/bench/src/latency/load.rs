//! The load: an operation, the number at once, and the processors.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Size of a READ and a WRITE in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Names in the directory that READDIRPLUS lists.
pub(super) const LISTED_NAMES: usize = 100;
/// Maximum number of connections of a shape.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Maximum number of operations in progress on one connection.
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
    /// The procedure's name; for WRITE with its stability.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::WriteUnstable | Self::WriteFileSync)
    }

    /// Whether it creates or removes a name, a different one in each call.
    pub(super) const fn changes_names(self) -> bool {
        matches!(self, Self::Create | Self::Remove)
    }

    /// The number of bytes of data that it transfers, if any.
    pub(super) fn bytes(self) -> Option<usize> {
        (self == Self::Read || self.writes()).then_some(BLOCK_BYTES)
    }
}

/// The number of operations in progress at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadShape {
    /// On each connection.
    pub(super) outstanding: usize,
    pub(super) connections: usize,
}

/// The measured shapes.
pub(super) const SHAPES: [LoadShape; 4] = [
    LoadShape::new(1, 1),
    LoadShape::new(16, 1),
    LoadShape::new(OUTSTANDING_MAX, 1),
    LoadShape::new(16, CONNECTIONS_MAX),
];

impl LoadShape {
    const fn new(outstanding: usize, connections: usize) -> Self {
        Self { outstanding, connections }
    }

    /// Operations in progress on all connections.
    pub(super) const fn at_once(self) -> usize {
        self.outstanding * self.connections
    }
}

impl fmt::Display for LoadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, self.outstanding)
    }
}

/// The processors of client and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    /// The kernel places them.
    Any,
    /// All on one processor: without wake-ups across processors, only work is measured.
    OneCpu,
}

/// The processors that this program may use, and one of them.
pub(super) struct ProcessorSets {
    all: CpuSet,
    one: CpuSet,
}

impl ProcessorSets {
    pub(super) fn allowed() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
        let mut one = CpuSet::new();
        one.set(first.context("no processor is allowed")?);
        Ok(Self { all, one })
    }

    /// Moves this thread and all threads of these processes there; later threads inherit it.
    pub(super) fn place(&self, placement: Placement, pids: &[u32]) -> Result<()> {
        let set = match placement {
            Placement::Any => &self.all,
            Placement::OneCpu => &self.one,
        };
        sched_setaffinity(None, set).context("this program cannot choose its processor")?;
        for pid in pids {
            // Twice, because a thread that was not moved yet may have started another one.
            for _ in 0..2 {
                place_threads(*pid, set).with_context(|| format!("the processors of process {pid}"))?;
            }
        }
        Ok(())
    }

    /// Lets this thread and a server begin a sample on the same processor. With [`Placement::Any`]
    /// the kernel may move them from there. Otherwise a server would keep its random initial
    /// placement, which alone makes a difference of a factor of three.
    pub(super) fn begin(&self, placement: Placement, pid: Option<u32>) -> Result<()> {
        if let (Placement::Any, Some(pid)) = (placement, pid) {
            self.place(Placement::OneCpu, &[pid])?;
            self.place(Placement::Any, &[pid])?;
        }
        Ok(())
    }
}

fn place_threads(pid: u32, set: &CpuSet) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
        match sched_setaffinity(Pid::from_raw(thread), set) {
            // The thread has ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_parsed_as_they_are_printed() {
        for operation in LatencyOperation::value_variants() {
            let name = operation.name();
            assert_eq!(serde_json::json!(operation), name);
            let told = LatencyOperation::from_str(&name.to_lowercase(), true);
            assert_eq!(told, Ok(*operation));
        }
        assert!(LatencyOperation::from_str("GETATT", true).is_err());
    }
}
