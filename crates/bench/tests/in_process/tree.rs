//! A workload's tree in memory: the bytes follow from the paths and take no memory.

use std::sync::Arc;

use curt_bench::content::ContentPattern;
use curt_bench::tree::{TreeEntryKind, WorkloadTree};
use curt_types::Timestamp;
use curt_vfs::{ContentFormula, MemoryOptions, MemoryTreeBuilder, MemoryVfs};

/// The bytes of a workload's files.
struct WorkloadContent;

impl ContentFormula for WorkloadContent {
    fn fill(&self, path: &[u8], offset: u64, buffer: &mut [u8]) {
        ContentPattern::of(path).fill(offset, buffer);
    }
}

/// The tree as a file system in memory, whose entries all have the time `time` and are readable by
/// all users.
///
/// # Errors
/// The errors of the file system, if the options leave too little space.
pub(super) fn memory(
    tree: &WorkloadTree,
    options: MemoryOptions,
    time: Timestamp,
) -> Result<MemoryVfs, rustix::io::Errno> {
    let mut builder = MemoryTreeBuilder::new(options, Arc::new(WorkloadContent), time);
    for entry in tree.entries() {
        let path = entry.path.as_bytes();
        match &entry.kind {
            TreeEntryKind::Directory => builder.directory(path)?,
            TreeEntryKind::File { size } => builder.file(path, *size)?,
            TreeEntryKind::Link { target } => builder.symlink(path, target.as_bytes())?,
        }
    }
    Ok(builder.build())
}
