//! A tree in memory: for tests, demonstrations, and workloads whose files' bytes follow from a
//! formula.
//!
//! It decides permissions like a Linux kernel from mode bits (no access control lists), has stable
//! cookies, and increases the ctime of an object at each change while its time step is 1 ns, so
//! that each change is visible. Reading does not set atime. One lock protects the whole tree: each
//! operation is one atomic step, including its WCC attributes. It does not read the system's clock:
//! time comes from [`MemoryOptions::clock`].

mod build;
mod content;
mod directory;
mod fault;
mod file;
mod names;
mod permission;
mod set;
mod tree;
mod vfs;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use curt_types::Timestamp;
use parking_lot::RwLock;

use self::directory::{DOT_COOKIE, DOT_DOT_COOKIE, MemoryDirectory};
use self::fault::InjectedFaults;
use self::tree::{InodeBody, MemoryInode, MemoryTree, ROOT};
use crate::ReaddirDetail;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::result::{PostOpResult, VfsNode, WccResult};

pub use self::build::MemoryTreeBuilder;
pub use self::content::ContentFormula;
pub use self::fault::FaultPoint;

/// Options of a tree in memory.
pub struct MemoryOptions {
    /// Returns the current time.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The step of times: 1 ns, or longer to simulate some file systems.
    pub time_step: Duration,
    /// Maximum number of written bytes (`ENOSPC` beyond); bytes of a formula do not count.
    pub bytes_max: u64,
    /// Maximum number of objects (`ENOSPC` beyond).
    pub files_max: u64,
    /// Part of each handle: must differ between trees.
    pub instance: u64,
    /// The root directory's permission bits.
    pub root_mode: u32,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(system_time),
            time_step: Duration::from_nanos(1),
            bytes_max: 1 << 30,
            files_max: 1 << 20,
            instance: 1,
            root_mode: 0o755,
        }
    }
}

fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// A tree in memory.
pub struct MemoryVfs {
    tree: Arc<RwLock<MemoryTree>>,
    options: MemoryOptions,
    faults: InjectedFaults,
}

impl MemoryVfs {
    /// An empty tree, whose root belongs to uid 0.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let now = in_steps((options.clock)(), options.time_step);
        let root = MemoryInode {
            body: InodeBody::Directory(MemoryDirectory::new(ROOT)),
            mode: options.root_mode,
            nlink: 2,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            created: now,
        };
        let tree = Arc::new(RwLock::new(MemoryTree::new(options.instance, root)));
        Self { tree, options, faults: InjectedFaults::default() }
    }

    /// The next `times` operations of that kind fail with `error` and have no effect.
    pub fn fail_next(&self, point: FaultPoint, error: Error, times: u32) {
        self.faults.add(point, error, times);
    }

    /// Drops all data that no commit or stable write has made durable, like a power failure.
    pub fn lose_unstable_data(&self) {
        let mut tree = self.tree.write();
        let fileids: Vec<u64> = tree.inodes.keys().copied().collect();
        for fileid in fileids {
            let inode = tree.inode_mut(fileid);
            let before = inode.used();
            if let InodeBody::Regular { content, durable } = &mut inode.body
                && let Some(durable) = durable.take()
            {
                *content = durable;
                let after = content.used();
                tree.charge(before, after);
            }
        }
    }

    /// The time of a change of an object whose ctime was `before`.
    fn change_time(&self, before: Timestamp) -> Timestamp {
        let now = self.stamp();
        if self.options.time_step > Duration::from_nanos(1) || now > before {
            return now;
        }
        Timestamp::from_nanoseconds(before.as_nanoseconds().saturating_add(1))
    }

    /// The current time, in the tree's step.
    fn stamp(&self) -> Timestamp {
        in_steps((self.options.clock)(), self.options.time_step)
    }

    /// Runs a change of the object of `handle`, and returns its attributes before and after.
    fn change<T>(
        &self,
        handle: &NodeHandle,
        point: FaultPoint,
        change: impl FnOnce(&mut MemoryTree, u64) -> Result<T, Error>,
    ) -> WccResult<T> {
        let mut tree = self.tree.write();
        let fileid = match tree.resolve(handle) {
            Ok(fileid) => fileid,
            Err(error) => {
                return WccResult { before: None, after: None, value: Err(error) };
            }
        };
        let before = tree.attributes(fileid);
        let value = self.faults.inject(point).and_then(|()| change(&mut tree, fileid));
        WccResult { before: Some((&before).into()), after: Some(tree.attributes(fileid)), value }
    }

    /// Runs a read-only operation on the object of `handle`.
    fn ask<T>(
        &self,
        handle: &NodeHandle,
        point: Option<FaultPoint>,
        ask: impl FnOnce(&MemoryTree, u64) -> Result<T, Error>,
    ) -> PostOpResult<T> {
        let tree = self.tree.read();
        let fileid = match tree.resolve(handle) {
            Ok(fileid) => fileid,
            Err(error) => {
                return PostOpResult { attributes: None, value: Err(error) };
            }
        };
        let struck = point.map_or(Ok(()), |point| self.faults.inject(point));
        let value = struck.and_then(|()| ask(&tree, fileid));
        PostOpResult { attributes: Some(tree.attributes(fileid)), value }
    }

    /// The entry after `cookie`, if the directory still exists.
    fn entry_after(
        &self,
        directory: u64,
        cookie: u64,
        wanted: ReaddirDetail,
        search: bool,
    ) -> Option<OwnedDirEntry> {
        let tree = self.tree.read();
        let inode = tree.inodes.get(&directory)?;
        let names = inode.directory().ok()?;
        let (cookie, name, fileid) = match cookie {
            0 => (DOT_COOKIE, Arc::from(&b"."[..]), directory),
            DOT_COOKIE => (DOT_DOT_COOKIE, Arc::from(&b".."[..]), names.parent),
            _ => names.after(cookie)?,
        };
        let node = (wanted == ReaddirDetail::Nodes && search).then(|| tree.node(fileid));
        Some(OwnedDirEntry { fileid, cookie, name, node })
    }
}

struct OwnedDirEntry {
    fileid: u64,
    cookie: u64,
    name: Arc<[u8]>,
    node: Option<VfsNode>,
}

/// Keeps an inode until it is dropped.
struct InodePin {
    tree: Arc<RwLock<MemoryTree>>,
    fileid: u64,
}

impl Drop for InodePin {
    fn drop(&mut self) {
        self.tree.write().unpin(self.fileid);
    }
}

/// `time` rounded down to a multiple of `step`.
fn in_steps(time: Timestamp, step: Duration) -> Timestamp {
    let step = i64::try_from(step.as_nanos()).unwrap_or(i64::MAX).max(1);
    let nanoseconds = time.as_nanoseconds();
    Timestamp::from_nanoseconds(nanoseconds - nanoseconds.rem_euclid(step))
}
