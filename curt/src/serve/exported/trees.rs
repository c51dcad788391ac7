//! The open directories of exports. A directory that is exported again after a reload stays open,
//! so that handles and cached files remain valid; so do all if the reload fails.

use std::{
    collections::HashMap,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use curt_vfs::{FileCaching, HandleChoice, LocalError, LocalOptions, LocalVfs, MetadataDurability};

/// The open directories, by path.
pub(super) struct OpenTrees {
    /// The directory of the key.
    state: PathBuf,
    /// The directory of the handle tables.
    tables: PathBuf,
    handles: HandleChoice,
    files: FileCaching,
    /// Directories that are served.
    open: HashMap<PathBuf, OpenTree>,
    /// Directories to be served next.
    next: HashMap<PathBuf, OpenTree>,
}

#[derive(Clone)]
struct OpenTree {
    vfs: Arc<LocalVfs>,
    metadata: MetadataDurability,
    /// Device and inode number of the directory when it was opened.
    directory: (u64, u64),
}

impl OpenTrees {
    /// No directory yet. The key is in `state`, handle tables are in `tables`.
    pub(super) fn new(state: PathBuf, tables: PathBuf, handles: HandleChoice, files: FileCaching) -> Self {
        Self { state, tables, handles, files, open: HashMap::new(), next: HashMap::new() }
    }

    /// Begins a new set of directories. An unfinished set is dropped.
    pub(super) fn begin(&mut self) {
        self.next.clear();
    }

    /// Replaces the served directories by the new set.
    pub(super) fn finish(&mut self) {
        self.open = std::mem::take(&mut self.next);
        for tree in self.open.values() {
            tree.vfs.set_metadata_durability(tree.metadata);
        }
    }

    /// The directory at `path`, which has no symbolic links; it is opened unless it is open
    /// already. A mount entered from another export is served with the kernel's handles only,
    /// unless tables were requested.
    pub(super) fn tree(
        &mut self,
        path: &Path,
        metadata: MetadataDurability,
        entered: TreeEntrance,
    ) -> Result<Arc<LocalVfs>, OpenTreeError> {
        let status = std::fs::metadata(path)?;
        if !status.is_dir() {
            return Err(OpenTreeError::NoDirectory);
        }
        let directory = (status.dev(), status.ino());
        if let Some(tree) = self.open.get(path).filter(|tree| tree.directory == directory) {
            // Stricter durability applies at once, weaker only when no export needs the stricter
            // one.
            if metadata == MetadataDurability::Stable {
                tree.vfs.set_metadata_durability(metadata);
            }
            let tree = OpenTree { metadata, ..tree.clone() };
            let vfs = Arc::clone(&tree.vfs);
            self.next.insert(path.to_owned(), tree);
            return Ok(vfs);
        }
        let handles = match (self.handles, entered) {
            (HandleChoice::Auto, TreeEntrance::FromAbove) => HandleChoice::Kernel,
            (handles, _) => handles,
        };
        let options = LocalOptions {
            handles,
            table: Some(self.tables.join(table_name(path, status.ino()))),
            metadata,
            file_caching: self.files,
            ..LocalOptions::default()
        };
        let vfs = Arc::new(LocalVfs::open(path, &options)?);
        if is_within(&self.state, path) {
            tracing::warn!(
                "clients can reach {} by way of {}: who may read the key there can make handles of any file of that \
                 file system; keep it elsewhere with --state DIR",
                self.state.display(),
                path.display()
            );
        }
        let tree = OpenTree { vfs: Arc::clone(&vfs), metadata, directory };
        self.next.insert(path.to_owned(), tree);
        Ok(vfs)
    }
}

/// How clients reach a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeEntrance {
    /// By its own path.
    ByPath,
    /// From an export in which it is mounted.
    FromAbove,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenTreeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a directory")]
    NoDirectory,
    #[error("{0}")]
    Local(#[from] LocalError),
}

/// Whether `directory` resolves to `export`, which is canonical, or is below it.
fn is_within(directory: &Path, export: &Path) -> bool {
    std::fs::canonicalize(directory).is_ok_and(|directory| directory.starts_with(export))
}

/// The file of an export's handle table: the same for the same directory at the same path, with a
/// fixed length. Another directory at that path has another table, because the first one is in use
/// until the second is served.
fn table_name(path: &Path, inode: u64) -> String {
    // FNV-1a, 64 bits.
    let bytes = path.as_os_str().as_bytes().iter();
    let hash = bytes.chain(&inode.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("handles-{hash:016x}.redb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_below_the_export_is_noticed_whatever_it_is_called() {
        let is_within = |directory: &str, export: &str| is_within(Path::new(directory), Path::new(export));
        assert!(is_within("/proc/self/fd", "/proc"));
        assert!(is_within("/proc/../proc/self", "/"));
        assert!(is_within("/proc", "/proc"));
        assert!(!is_within("/proc", "/proc/self"));
        assert!(!is_within("/proc/../dev", "/proc"));
        assert!(!is_within("/dev", "/de"));
    }
}
