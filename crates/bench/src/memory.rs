//! A workload's tree in memory, for servers in one process: the bytes follow from the paths and
//! take no memory.

use std::sync::Arc;

use curt_types::Timestamp;
use curt_vfs::{ContentFormula, MemoryOptions, MemoryTreeBuilder, MemoryVfs};

use crate::content::PathContent;
use crate::tree::{TreeEntryKind, WorkloadTree};

impl ContentFormula for PathContent {
    fn fill(&self, path: &[u8], offset: u64, buffer: &mut [u8]) {
        Self::fill(*self, path, offset, buffer);
    }
}

/// The tree as a file system in memory, whose entries all have the time `time` and are readable by
/// all users.
///
/// # Errors
/// Those of the file system, if the options leave too little space.
pub fn memory(
    tree: &WorkloadTree,
    options: MemoryOptions,
    time: Timestamp,
) -> Result<MemoryVfs, rustix::io::Errno> {
    let mut builder = MemoryTreeBuilder::new(options, Arc::new(PathContent), time);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn the_page_tree_fits_into_memory() {
        memory(&Workload::Page.tree(), MemoryOptions::default(), Timestamp::new(1, 0)).unwrap();
    }
}
