//! How a local tree is to be served, and why it may not be.

use std::path::PathBuf;

use rustix::io::Errno;

/// Who makes the handles of a local tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleChoice {
    /// The kernel where it can, else a table of our own.
    #[default]
    Auto,
    /// The kernel alone: refused where it cannot.
    Kernel,
    /// The table, wherever.
    Table,
}

/// When a change of names or attributes is on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataDurability {
    /// Before it is answered, as RFC 1813 §4.8 wants it (`sync` in exports(5)).
    #[default]
    Stable,
    /// When the file system gets to it (`async`).
    Eventual,
}

/// How a local tree is served.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// Who makes handles.
    pub handles: HandleChoice,
    /// The file of the handle table, should it be needed; without one there is none.
    pub table: Option<PathBuf>,
    /// When changes are stable.
    pub metadata: MetadataDurability,
    /// Whether objects that were used lately are held open under their handles.
    pub opath_caching: OPathCaching,
    /// Whether files stay open for I/O between requests.
    pub file_caching: FileCaching,
}

/// Whether files stay open for I/O between requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCaching {
    /// For up to two seconds after their last use, those open to write for half a second, as
    /// descriptors allow.
    #[default]
    On,
    /// Each READ and WRITE opens its file anew.
    Off,
}

/// Whether objects that were used lately are held open (`O_PATH`) under their handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OPathCaching {
    /// For up to two seconds after their last use, as many as a quarter of the process's
    /// descriptors, and 4,096, allow.
    #[default]
    On,
    /// Not at all: each request finds its object anew.
    Off,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// It cannot be opened.
    #[error("{path}: {source}", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: Errno,
    },
    /// /proc/self/fd does not work: without it no object can be opened that was found by handle.
    #[error("/proc is not mounted, or hidden from this process: {0}")]
    NoProc(Errno),
    /// Neither the kernel nor a table gives handles.
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
