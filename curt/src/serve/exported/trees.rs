//! The directories that are open to be served. What a reload finds again stays open, with all that
//! clients hold of it; so does everything if the reload fails.

use std::{
    collections::HashMap,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use curt_vfs::{FileCaching, HandleChoice, LocalError, LocalOptions, LocalVfs, MetadataDurability};

/// The open directories, by where they are.
pub(super) struct OpenTrees {
    /// Where the key is kept.
    state: PathBuf,
    /// Where tables of handles are kept.
    tables: PathBuf,
    handles: HandleChoice,
    files: FileCaching,
    /// Those that are served.
    open: HashMap<PathBuf, OpenTree>,
    /// Those that are to be served instead.
    next: HashMap<PathBuf, OpenTree>,
}

#[derive(Clone)]
struct OpenTree {
    vfs: Arc<LocalVfs>,
    metadata: MetadataDurability,
    /// Which directory it was when it was opened: device and inode number.
    directory: (u64, u64),
}

impl OpenTrees {
    /// None yet. The key is kept in `state`, tables of handles in `tables`.
    pub(super) fn new(state: PathBuf, tables: PathBuf, handles: HandleChoice, files: FileCaching) -> Self {
        Self {
            state,
            tables,
            handles,
            files,
            open: HashMap::new(),
            next: HashMap::new(),
        }
    }

    /// Begins to find out what is to be served next. What was begun before and not finished is
    /// forgotten.
    pub(super) fn begin(&mut self) {
        self.next.clear();
    }

    /// What was asked for since the beginning is served now, and nothing else.
    pub(super) fn finish(&mut self) {
        self.open = std::mem::take(&mut self.next);
        for tree in self.open.values() {
            tree.vfs.set_metadata_durability(tree.metadata);
        }
    }

    /// The directory at `path`, which has no symbolic links in it, as it is open or anew. A mount
    /// that is entered from another export is served by the kernel's handles only, unless tables
    /// were asked for.
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
            // Stricter at once, laxer only when nobody is served by the stricter rules any longer.
            if metadata == MetadataDurability::Stable {
                tree.vfs.set_metadata_durability(metadata);
            }
            let tree = OpenTree {
                metadata,
                ..tree.clone()
            };
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
        let tree = OpenTree {
            vfs: Arc::clone(&vfs),
            metadata,
            directory,
        };
        self.next.insert(path.to_owned(), tree);
        Ok(vfs)
    }
}

/// How clients come to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeEntrance {
    /// By its own path.
    ByPath,
    /// From an export that it is mounted in.
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

/// Whether what `directory` stands for is `export`, which is canonical, or lies below it.
fn is_within(directory: &Path, export: &Path) -> bool {
    std::fs::canonicalize(directory).is_ok_and(|directory| directory.starts_with(export))
}

/// The file of an export's handle table: the same for the same directory at the same path, whatever
/// its length. Another directory there has another table, for that of the first is in use until the
/// second is served.
fn table_name(path: &Path, inode: u64) -> String {
    // FNV-1a, 64 bits.
    let bytes = path.as_os_str().as_bytes().iter();
    let hash = bytes
        .chain(&inode.to_be_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
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
