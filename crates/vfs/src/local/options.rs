//! Options of a local tree, and errors of opening it.

use std::path::PathBuf;

use rustix::io::Errno;

/// The source of a tree's handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleChoice {
    /// The kernel if possible, otherwise a table.
    #[default]
    Auto,
    /// Only the kernel: an error if this is not possible.
    Kernel,
    /// Always the table.
    Table,
}

/// When a change of names or attributes is on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataDurability {
    /// Before the reply, as required by RFC 1813 section 4.8 (`sync` in exports(5)).
    #[default]
    Stable,
    /// When the file system writes it (`async`).
    Eventual,
}

/// Options of a local tree.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// The source of handles.
    pub handles: HandleChoice,
    /// The file of the handle table, if one is needed; without it there is no table.
    pub table: Option<PathBuf>,
    /// When changes are stable.
    pub metadata: MetadataDurability,
    /// Whether recently used objects stay open with `O_PATH`.
    pub opath_caching: OPathCaching,
    /// Whether files stay open for I/O between requests.
    pub file_caching: FileCaching,
}

/// Whether files stay open for I/O between requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCaching {
    /// For up to two seconds after their last use, half a second if open for writing, as far as
    /// descriptors permit.
    #[default]
    On,
    /// Each READ and WRITE opens its file.
    Off,
}

/// Whether recently used objects stay open with `O_PATH`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OPathCaching {
    /// For up to two seconds after their last use; at most a quarter of the process's descriptors,
    /// and 4,096.
    #[default]
    On,
    /// No: each request opens its object.
    Off,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The directory cannot be opened.
    #[error("{path}: {source}", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// /proc/self/fd does not work: it is needed to open objects found by handle.
    #[error("/proc is not mounted, or hidden from this process: {0}")]
    NoProc(Errno),
    /// Neither the kernel nor a table provides handles.
    #[error("{path}: no file handles: {kernel}; {table}", path = path.display())]
    NoHandles {
        /// The directory.
        path: PathBuf,
        /// Why the kernel's cannot be used.
        kernel: String,
        /// Why there is no table.
        table: String,
    },
}
