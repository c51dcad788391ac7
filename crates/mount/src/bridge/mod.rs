//! FUSE request -> client call -> FUSE reply.
//!
//! The bridge owns the numbers of open files, the timeouts of the kernel's caches and their
//! invalidation; the client makes every decision about requests. Invariants: no timeout is longer
//! than that of the client's own cache entry; a change of data that an open detects is notified
//! before the reply to the open, with no lock held; the client alone decides access, never the
//! kernel from cached mode bits.

mod convert;
mod cookie_offsets;
mod filesystem;
mod fuse_fh;
mod invalidation;
mod revalidation;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use curt_client::caller::CallerTable;
use curt_client::{
    ChangeObserver as _, FoundInode, InodeId, InodeStat, Op, OpenDirectory, OpenFile, PageCacheState,
    Superblock, ops,
};
use curt_fuse::{EntryOut, FuseContext, Interruption, NodeId, Notifier, OpenOut, open_reply};
use curt_rpc::client::Interrupt;
use curt_types::FileKind;

pub use invalidation::InvalidationQueue;
pub use revalidation::OpenFileRevalidation;

use cookie_offsets::CookieOffsets;
use fuse_fh::FuseFhTable;

use crate::kernel_quirks::names_in_use::NamesInUse;

/// Answers the kernel's requests by calls to a client.
#[derive(Debug)]
pub struct Bridge {
    client: Arc<Superblock>,
    callers: CallerTable,
    files: FuseFhTable<OpenFile>,
    directories: FuseFhTable<FuseOpenDirectory>,
    changes: Arc<InvalidationQueue>,
    notifier: OnceLock<Notifier>,
    in_use: OnceLock<NamesInUse>,
    /// The kernel decides fcntl(2) locks.
    has_local_locks: AtomicBool,
    /// The generation of all objects in the kernel's handles: it differs between mounts.
    generation: u32,
    operations: FuseOpcodeCounts,
}

/// A directory that the kernel has open.
#[derive(Debug)]
struct FuseOpenDirectory {
    open: OpenDirectory,
    offsets: CookieOffsets,
}

impl Bridge {
    /// A bridge to this client, with the client's observer `changes`.
    #[must_use]
    pub fn new(client: Arc<Superblock>, callers: CallerTable, changes: Arc<InvalidationQueue>) -> Self {
        client.serves_kernel();
        Self {
            client,
            callers,
            files: FuseFhTable::default(),
            directories: FuseFhTable::default(),
            changes,
            notifier: OnceLock::new(),
            in_use: OnceLock::new(),
            has_local_locks: AtomicBool::new(false),
            generation: random(),
            operations: FuseOpcodeCounts::default(),
        }
    }

    /// Sets the notifier, which exists only after the session.
    pub fn set_notifier(&self, notifier: Notifier) {
        // A bridge has one session.
        let _ = self.notifier.set(notifier);
    }

    /// Sets the mount's device number, which is needed to find names in use.
    pub fn set_device(&self, device: (u32, u32)) {
        // It is mounted once.
        let _ = self.in_use.set(NamesInUse::new(device));
    }

    /// The kernel decides fcntl(2) locks: no close(2) has to release any here.
    pub fn set_local_locks(&self) {
        self.has_local_locks.store(true, Ordering::Relaxed);
    }

    /// The lifetime of the name has begun: nothing may wait until the reply is sent.
    fn found(&self, found: &FoundInode) -> EntryOut {
        if found.attributes.kind != FileKind::Symlink {
            self.changes.note_replied_size(found.id, found.attributes.size);
        }
        convert::found(found, self.generation)
    }

    fn stat(&self, node: NodeId, stat: &InodeStat) -> curt_fuse::AttrOut {
        if stat.attributes.kind == FileKind::Symlink {
            self.changes.await_target_dropped(inode(node));
        } else {
            self.changes.note_replied_size(inode(node), stat.attributes.size);
        }
        convert::stat(stat)
    }

    /// The counts of the kernel's requests, by operation.
    #[must_use]
    pub fn operations(&self) -> BTreeMap<String, u64> {
        self.operations.snapshot()
    }

    /// The operation for a request. It begins with its only reading of the clock.
    fn op(&self, context: &FuseContext<'_, FuseInterrupt>) -> Op<'_> {
        let now = self.callers.now();
        let interrupt = context.interruption().0.clone();
        let caller = self.callers.caller(context.tid, context.uid, context.gid, interrupt, now);
        self.client.op_since(&caller, now)
    }

    /// Adds an opened file, and notifies the kernel of changed data first.
    fn opened(&self, op: &Op<'_>, node: NodeId, opened: curt_client::OpenResult) -> OpenOut {
        let is_untold = self.changes.take_pending(inode(node));
        if is_untold || opened.data == PageCacheState::Changed {
            let drop_copies = || {
                let known = self.client.last_attributes(inode(node));
                if let (Some(notifier), Some(stat)) = (self.notifier.get(), known) {
                    invalidation::renew(notifier, node, stat.attributes.size);
                }
            };
            ops::drop_copies(op, &opened.file, is_untold, drop_copies);
        }
        // Without unwritten data and locks there is nothing to flush.
        let is_flushed = opened.file.flags().write || !self.has_local_locks.load(Ordering::Relaxed);
        let flush = if is_flushed { 0 } else { open_reply::NOFLUSH };
        OpenOut { fh: self.files.add(opened.file), flags: open_reply::KEEP_CACHE | flush }
    }
}

macro_rules! operations {
    ($($name:ident $text:literal;)+) => {
        /// An operation of FUSE.
        #[derive(Debug, Clone, Copy)]
        enum FuseOpcode {
            $($name,)+
        }

        const NAMES: &[&str] = &[$($text),+];
    };
}

operations! {
    Lookup "LOOKUP"; Forget "FORGET"; Getattr "GETATTR"; Setattr "SETATTR"; Readlink "READLINK"; Symlink "SYMLINK";
    Mknod "MKNOD"; Mkdir "MKDIR"; Unlink "UNLINK"; Rmdir "RMDIR"; Rename "RENAME"; Link "LINK"; Open "OPEN";
    Create "CREATE"; Read "READ"; Write "WRITE"; Statfs "STATFS"; Flush "FLUSH"; Release "RELEASE"; Fsync "FSYNC";
    Opendir "OPENDIR"; Readdir "READDIR"; Readdirplus "READDIRPLUS"; Releasedir "RELEASEDIR"; Access "ACCESS";
    Getlk "GETLK"; Setlk "SETLK"; Setlkw "SETLKW";
}

/// Counts of the kernel's requests, by operation.
#[derive(Debug, Default)]
struct FuseOpcodeCounts([AtomicU64; NAMES.len()]);

impl FuseOpcodeCounts {
    fn count(&self, operation: FuseOpcode) {
        self.0[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All counts, by name.
    fn snapshot(&self) -> BTreeMap<String, u64> {
        let numbers = self.0.iter().map(|number| number.load(Ordering::Relaxed));
        NAMES.iter().map(|name| (*name).to_owned()).zip(numbers).collect()
    }
}

/// An interrupt of the client that a FUSE session can raise.
#[derive(Debug, Clone)]
pub struct FuseInterrupt(Interrupt);

impl Default for FuseInterrupt {
    fn default() -> Self {
        Self(Interrupt::new())
    }
}

impl Interruption for FuseInterrupt {
    fn raise(&self) {
        self.0.raise();
    }

    fn is_raised(&self) -> bool {
        self.0.is_raised()
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
