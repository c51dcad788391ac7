//! FUSE request -> client call -> FUSE reply.
//!
//! Owns the numbers of open files, the lifetimes of the kernel's caches and their invalidation; every decision about requests
//! is the client's. Architecture invariants: no lifetime is longer than the client's own knowledge; a change of data that an
//! open finds is notified before the open is answered, with no lock held; access is decided by the client alone, never by
//! the kernel from cached mode bits.

mod changes;
mod convert;
mod filesystem;
mod handles;
mod in_use;
mod interruption;
mod offsets;
mod operations;
mod pending;
mod rechecks;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use curt_client::caller::CallerTable;
use curt_client::{Caller, Client, DataState, Found, InodeId, OpenDirectory, OpenFile, Stat};
use curt_fuse::{Context, Entry, NodeId, Notifier, Opened, open_reply};

pub use changes::Changes;
pub use interruption::Cancel;
pub use rechecks::Rechecks;

use handles::Handles;
use in_use::NamesInUse;
use offsets::Offsets;
use operations::Operations;

/// Answers the kernel's requests by calls of a client.
#[derive(Debug)]
pub struct Bridge {
    client: Arc<Client>,
    callers: CallerTable,
    files: Handles<OpenFile>,
    directories: Handles<Directory>,
    changes: Arc<Changes>,
    notifier: OnceLock<Notifier>,
    in_use: OnceLock<NamesInUse>,
    /// Of all objects, in the kernel's handles: it differs from one mount to the next.
    generation: u32,
    operations: Operations,
}

/// A directory that the kernel has open.
#[derive(Debug)]
struct Directory {
    open: OpenDirectory,
    offsets: Offsets,
}

impl Bridge {
    /// A bridge to this client, whose observer `changes` is.
    #[must_use]
    pub fn new(client: Arc<Client>, callers: CallerTable, changes: Arc<Changes>) -> Self {
        client.serves_kernel();
        Self {
            client,
            callers,
            files: Handles::default(),
            directories: Handles::default(),
            changes,
            notifier: OnceLock::new(),
            in_use: OnceLock::new(),
            generation: random(),
            operations: Operations::default(),
        }
    }

    /// Gives the notifier, which is there only once the session is.
    pub fn set_notifier(&self, notifier: Notifier) {
        // A second session of one bridge does not exist.
        let _ = self.notifier.set(notifier);
    }

    /// Gives the mount's device number, by which its names are found that are in use.
    pub fn set_device(&self, device: (u32, u32)) {
        // It is mounted once.
        let _ = self.in_use.set(NamesInUse::new(device));
    }

    fn found(&self, found: &Found) -> Entry {
        self.changes.hears(found.id, found.attributes.size);
        convert::found(found, self.generation)
    }

    fn stat(&self, node: NodeId, stat: &Stat) -> curt_fuse::Stat {
        self.changes.hears(inode(node), stat.attributes.size);
        convert::stat(stat)
    }

    /// The number of the kernel's requests, by operation.
    #[must_use]
    pub fn operations(&self) -> BTreeMap<String, u64> {
        self.operations.snapshot()
    }

    fn caller(&self, context: &Context<'_, Cancel>) -> Caller {
        self.callers.caller(
            context.tid,
            context.uid,
            context.gid,
            context.interruption().0.clone(),
        )
    }

    /// Keeps an opened file, and tells the kernel of changed data first.
    fn opened(&self, caller: &Caller, node: NodeId, opened: curt_client::Opened) -> Opened {
        let is_untold = self.changes.take(inode(node));
        if is_untold || opened.data == DataState::Changed {
            let drop_copies = || {
                let known = self.client.last_attributes(inode(node));
                if let (Some(notifier), Some(stat)) = (self.notifier.get(), known) {
                    changes::renew(notifier, node, stat.attributes.size);
                }
            };
            self.client
                .drop_copies(caller, &opened.file, is_untold, drop_copies);
        }
        Opened {
            fh: self.files.add(opened.file),
            flags: open_reply::KEEP_CACHE,
        }
    }
}

fn random() -> u32 {
    // Its keys are random.
    let [first, second, third, fourth, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    u32::from_ne_bytes([first, second, third, fourth])
}

fn inode(node: NodeId) -> InodeId {
    InodeId(node.0)
}
