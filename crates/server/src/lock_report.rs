//! The locks of clients, for the operator.

use std::collections::HashMap;

use crate::file_handle::FileSystemId;
use crate::service::NfsService;
use crate::state::locks::{HeldLock, LockFile, LockTableCounts};

/// The locks of a server's clients at one moment.
#[derive(Clone, Debug)]
pub struct ServerLockReport {
    /// The numbers of all locks.
    pub counts: LockTableCounts,
    /// The locks, by file: the holders, then the waiters in the order of their turns.
    pub locks: Vec<ClientLock>,
}

/// A lock that a client holds or waits for.
#[derive(Clone, Debug)]
pub struct ClientLock {
    /// An export of the file's file system; none if there is none any more.
    pub export: Option<String>,
    /// The file's inode number; none if it no longer exists.
    pub fileid: Option<u64>,
    /// The lock.
    pub lock: HeldLock,
}

impl NfsService {
    /// The locks of clients, about `rows_max` of them. May wait for a disk.
    #[must_use]
    pub fn client_locks(&self, rows_max: usize) -> ServerLockReport {
        let mut found: Vec<(LockFile, HeldLock)> = Vec::new();
        self.locks.report(&mut |file, lock| {
            found.push((*file, lock));
            found.len() < rows_max
        });
        found.truncate(rows_max);
        let exports = self.exports.current();
        let export = |id: FileSystemId| exports.iter().find(|export| export.file_system == id);
        let mut fileids: HashMap<LockFile, Option<u64>> = HashMap::new();
        let mut fileid = |file: &LockFile| {
            *fileids.entry(*file).or_insert_with(|| {
                let attributes = export(file.file_system)?.vfs.attributes(&file.node);
                Some(attributes.ok()?.fileid)
            })
        };
        let locks = found.into_iter().map(|(file, lock)| ClientLock {
            export: export(file.file_system).map(|export| export.path().escape_ascii().to_string()),
            fileid: fileid(&file),
            lock,
        });
        ServerLockReport { counts: self.locks.counts(), locks: locks.collect() }
    }
}
