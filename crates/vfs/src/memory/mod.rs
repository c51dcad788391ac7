//! A tree in memory: for tests, demonstrations, and workloads whose files' bytes follow from a formula.
//!
//! It decides permissions as a Linux kernel would from mode bits (no access control lists), gives stable cookies, and keeps
//! ctime strictly increasing per object while its time step is 1 ns, so that no change can hide. Reading does not set
//! atime. One lock guards the whole tree: every operation is one atomic step, and WCC attributes with it.
//! It must not know the system's clock: time comes from a [`TimeSource`].

mod build;
mod content;
mod directory;
mod fault;
mod file;
mod names;
mod permission;
mod set;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustix::io::Errno;

use self::directory::{DOT_COOKIE, DOT_DOT_COOKIE, Directory};
use self::fault::Faults;
use self::tree::{Body, Inode, NAMES_MAX, ROOT, Tree};
use crate::answer::{
    Access, Changed, Created, Entry, Limits, Linked, Node, Outcome, Read, Renamed, Space, Visit, Written,
};
use crate::attributes::{Attributes, FileKind, SetAttributes, Time};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::name::{NAME_BYTES_MAX, check_name};
use crate::time::{SystemClock, TimeSource};
use crate::{CreateMode, Special, Stability, Vfs, Wanted};

pub use self::build::TreeBuilder;
pub use self::content::Formula;
pub use self::fault::FaultPoint;

/// What a tree in memory is like.
pub struct MemoryOptions {
    /// Where the time comes from.
    pub time: Arc<dyn TimeSource>,
    /// The step in which times are kept: 1 ns, or coarser to be like some file systems.
    pub time_step: Duration,
    /// How many bytes can be written in all (`ENOSPC` beyond); bytes by formula take none.
    pub bytes_max: u64,
    /// How many objects there can be (`ENOSPC` beyond).
    pub files_max: u64,
    /// How many bytes certain users can have written (`EDQUOT` beyond, unless the writer is privileged).
    pub quotas: HashMap<u32, u64>,
    /// Part of every handle: a tree with another number, or built otherwise, must not be given the same.
    pub instance: u64,
    /// The root directory's permission bits.
    pub root_mode: u32,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            time: Arc::new(SystemClock),
            time_step: Duration::from_nanos(1),
            bytes_max: 1 << 30,
            files_max: 1 << 20,
            quotas: HashMap::new(),
            instance: 1,
            root_mode: 0o755,
        }
    }
}

/// A tree in memory.
pub struct MemoryVfs {
    tree: RwLock<Tree>,
    options: MemoryOptions,
    read_only: std::sync::atomic::AtomicBool,
    faults: Faults,
}

impl MemoryVfs {
    /// An empty tree, whose root belongs to uid 0.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let now = options.time.now();
        let root = Inode {
            body: Body::Directory(Directory::new(ROOT)),
            mode: options.root_mode,
            nlink: 2,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
        };
        let tree = RwLock::new(Tree::new(options.instance, root));
        Self {
            tree,
            options,
            read_only: false.into(),
            faults: Faults::default(),
        }
    }

    /// From now on changes are refused with `EROFS`, or no longer.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only
            .store(read_only, std::sync::atomic::Ordering::Relaxed);
    }

    /// The next `times` operations of that kind fail with `error` and do nothing.
    pub fn fail_next(&self, point: FaultPoint, error: Error, times: u32) {
        self.faults.add(point, error, times);
    }

    /// Takes away all data that no commit or stable write has made durable, as a power cut would.
    pub fn lose_unstable_data(&self) {
        let mut tree = self.tree.write();
        let fileids: Vec<u64> = tree.inodes.keys().copied().collect();
        for fileid in fileids {
            let inode = tree.inode_mut(fileid);
            let (before, uid) = (inode.used(), inode.uid);
            if let Body::Regular { content, durable } = &mut inode.body
                && let Some(durable) = durable.take()
            {
                *content = durable;
                let after = content.used();
                tree.charge(uid, before, after);
            }
        }
    }

    /// The time to note for a change of an object whose ctime was `before`.
    fn change_time(&self, before: Time) -> Time {
        let now = self.stamp();
        if self.options.time_step > Duration::from_nanos(1) || now > before {
            return now;
        }
        match before.nanoseconds {
            999_999_999 => Time {
                seconds: before.seconds + 1,
                nanoseconds: 0,
            },
            nanoseconds => Time {
                seconds: before.seconds,
                nanoseconds: nanoseconds + 1,
            },
        }
    }

    /// The time now, in the tree's step.
    fn stamp(&self) -> Time {
        let now = self.options.time.now();
        let step = self.options.time_step;
        if step >= Duration::from_secs(1) {
            let step = i64::try_from(step.as_secs()).unwrap_or(i64::MAX);
            return Time {
                seconds: now.seconds - now.seconds.rem_euclid(step),
                nanoseconds: 0,
            };
        }
        let step = step.subsec_nanos().max(1);
        Time {
            seconds: now.seconds,
            nanoseconds: now.nanoseconds - now.nanoseconds % step,
        }
    }

    fn check_writable(&self) -> Result<(), Errno> {
        let read_only = self.read_only.load(std::sync::atomic::Ordering::Relaxed);
        if read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Runs a change of the object that `handle` names, between its attributes before and after.
    fn change<T>(
        &self,
        handle: &NodeHandle,
        point: FaultPoint,
        change: impl FnOnce(&mut Tree, u64) -> Result<T, Error>,
    ) -> Changed<T> {
        let mut tree = self.tree.write();
        let fileid = match tree.resolve(handle) {
            Ok(fileid) => fileid,
            Err(error) => {
                return Changed {
                    before: None,
                    after: None,
                    value: Err(error),
                };
            }
        };
        let before = tree.attributes(fileid);
        let value = self.faults.strike(point).and_then(|()| change(&mut tree, fileid));
        Changed {
            before: Some((&before).into()),
            after: Some(tree.attributes(fileid)),
            value,
        }
    }

    /// Runs a question about the object that `handle` names.
    fn ask<T>(
        &self,
        handle: &NodeHandle,
        point: Option<FaultPoint>,
        ask: impl FnOnce(&Tree, u64) -> Result<T, Error>,
    ) -> Outcome<T> {
        let tree = self.tree.read();
        let fileid = match tree.resolve(handle) {
            Ok(fileid) => fileid,
            Err(error) => {
                return Outcome {
                    attributes: None,
                    value: Err(error),
                };
            }
        };
        let struck = point.map_or(Ok(()), |point| self.faults.strike(point));
        let value = struck.and_then(|()| ask(&tree, fileid));
        Outcome {
            attributes: Some(tree.attributes(fileid)),
            value,
        }
    }

    /// The entry after `cookie`, if the directory still exists.
    fn entry_after(&self, directory: u64, cookie: u64, wanted: Wanted, search: bool) -> Option<OwnedEntry> {
        let tree = self.tree.read();
        let inode = tree.inodes.get(&directory)?;
        let names = inode.directory().ok()?;
        let (cookie, name, fileid) = match cookie {
            0 => (DOT_COOKIE, Arc::from(&b"."[..]), directory),
            DOT_COOKIE => (DOT_DOT_COOKIE, Arc::from(&b".."[..]), names.parent),
            _ => names.after(cookie)?,
        };
        let node = (wanted == Wanted::Nodes && search).then(|| tree.node(fileid));
        Some(OwnedEntry {
            fileid,
            cookie,
            name,
            node,
        })
    }
}

struct OwnedEntry {
    fileid: u64,
    cookie: u64,
    name: Arc<[u8]>,
    node: Option<Node>,
}

impl Vfs for MemoryVfs {
    fn root(&self) -> NodeHandle {
        self.tree.read().handle(ROOT)
    }

    fn identity(&self) -> u64 {
        self.options.instance
    }

    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error> {
        let tree = self.tree.read();
        self.faults.strike(FaultPoint::Attributes)?;
        Ok(tree.attributes(tree.resolve(node)?))
    }

    fn set_attributes(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Time>,
    ) -> Changed<()> {
        self.change(node, FaultPoint::Change, |tree, fileid| {
            self.set(tree, caller, fileid, set, guard)
        })
    }

    fn lookup(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Outcome<Node> {
        self.ask(directory, Some(FaultPoint::Lookup), |tree, fileid| {
            check_name(name)?;
            let inode = tree.inode(fileid);
            let names = inode.directory()?;
            inode.owned().check(caller, permission::EXECUTE)?;
            let found = match name {
                b"." => Some(fileid),
                b".." => Some(names.parent),
                name => names.find(name),
            };
            Ok(tree.node(found.ok_or(Errno::NOENT)?))
        })
    }

    fn access(&self, caller: &Caller<'_>, node: &NodeHandle, asked: Access) -> Outcome<Access> {
        self.ask(node, None, |tree, fileid| {
            Ok(asked.and(self.granted(caller, tree.inode(fileid))))
        })
    }

    fn read_link(&self, _caller: &Caller<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> Outcome<()> {
        self.ask(node, None, |tree, fileid| match &tree.inode(fileid).body {
            Body::Symlink(text) => {
                target.extend_from_slice(text);
                Ok(())
            }
            Body::Regular { .. } | Body::Directory(_) | Body::Special(..) => Err(Errno::INVAL.into()),
        })
    }

    fn read(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        data: &mut Vec<u8>,
    ) -> Outcome<Read> {
        self.ask(node, Some(FaultPoint::Read), |tree, fileid| {
            let inode = tree.inode(fileid);
            let content = inode.content()?;
            inode.owned().check_read(caller)?;
            let count = content.read(offset, count, data);
            Ok(Read {
                count,
                end: offset.saturating_add(u64::from(count)) >= content.size(),
            })
        })
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Changed<Written> {
        self.change(node, FaultPoint::Write, |tree, fileid| {
            self.write_data(tree, caller, fileid, offset, data, stability)
        })
    }

    fn commit(&self, caller: &Caller<'_>, node: &NodeHandle, _offset: u64, _count: u32) -> Changed<()> {
        self.change(node, FaultPoint::Commit, |tree, fileid| {
            let inode = tree.inode_mut(fileid);
            inode.content()?;
            inode.owned().check_write(caller)?;
            inode.make_durable();
            Ok(())
        })
    }

    fn create(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> Changed<Created> {
        self.change(directory, FaultPoint::Change, |tree, fileid| {
            self.create_file(tree, caller, fileid, name, mode)
        })
    }

    fn make_directory(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            self.make(
                tree,
                caller,
                parent,
                name,
                Body::Directory(Directory::new(parent)),
                set,
            )
        })
    }

    fn make_symlink(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        target: &[u8],
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            if target.is_empty() || target.contains(&0) {
                return Err(Errno::INVAL.into());
            }
            let set = SetAttributes {
                mode: Some(0o777),
                ..*set
            };
            self.make(tree, caller, parent, name, Body::Symlink(target.into()), &set)
        })
    }

    fn make_special(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        special: Special,
        set: &SetAttributes,
    ) -> Changed<Created> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            let (kind, device) = match special {
                Special::CharacterDevice(device) => (FileKind::CharacterDevice, device),
                Special::BlockDevice(device) => (FileKind::BlockDevice, device),
                Special::Fifo => (FileKind::Fifo, crate::Device::default()),
                Special::Socket => (FileKind::Socket, crate::Device::default()),
            };
            self.make(tree, caller, parent, name, Body::Special(kind, device), set)
        })
    }

    fn remove(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Changed<()> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            self.remove_name(tree, caller, parent, name, false)
        })
    }

    fn remove_directory(&self, caller: &Caller<'_>, directory: &NodeHandle, name: &[u8]) -> Changed<()> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            self.remove_name(tree, caller, parent, name, true)
        })
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
    ) -> Renamed {
        let mut tree = self.tree.write();
        let directories = (tree.resolve(from), tree.resolve(to));
        let attributes = |tree: &Tree, of: &Result<u64, Error>| of.ok().map(|fileid| tree.attributes(fileid));
        let (from_before, to_before) = (
            attributes(&tree, &directories.0),
            attributes(&tree, &directories.1),
        );
        let value = match directories {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(from), Ok(to)) => self
                .faults
                .strike(FaultPoint::Change)
                .and_then(|()| self.rename_name(&mut tree, caller, (from, from_name), (to, to_name))),
        };
        Renamed {
            from: (
                from_before.as_ref().map(Into::into),
                attributes(&tree, &directories.0),
            ),
            to: (
                to_before.as_ref().map(Into::into),
                attributes(&tree, &directories.1),
            ),
            value,
        }
    }

    fn link(&self, caller: &Caller<'_>, node: &NodeHandle, directory: &NodeHandle, name: &[u8]) -> Linked {
        let directory = self.change(directory, FaultPoint::Change, |tree, parent| {
            let fileid = tree.resolve(node)?;
            self.link_name(tree, caller, fileid, parent, name)
        });
        let tree = self.tree.read();
        Linked {
            node: tree.resolve(node).ok().map(|fileid| tree.attributes(fileid)),
            directory,
        }
    }

    fn read_directory(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: Wanted,
        visit: &mut dyn FnMut(&Entry<'_>) -> Visit,
    ) -> Outcome<bool> {
        let start = self.ask(directory, Some(FaultPoint::ReadDirectory), |tree, fileid| {
            let inode = tree.inode(fileid);
            let names = inode.directory()?;
            inode.owned().check(caller, permission::READ)?;
            if !names.knows(cookie) {
                return Err(Error::BadCookie);
            }
            Ok((fileid, inode.owned().allows(caller, permission::EXECUTE)))
        });
        let (fileid, search) = match start.value {
            Ok(start) => start,
            Err(error) => {
                return Outcome {
                    attributes: start.attributes,
                    value: Err(error),
                };
            }
        };
        let mut at = cookie;
        let ended = loop {
            let Some(OwnedEntry {
                fileid,
                cookie,
                name,
                node,
            }) = self.entry_after(fileid, at, wanted, search)
            else {
                break true;
            };
            if visit(&Entry {
                fileid,
                cookie,
                name: &name,
                node,
            }) == Visit::Stop
            {
                break false;
            }
            at = cookie;
        };
        Outcome {
            attributes: start.attributes,
            value: Ok(ended),
        }
    }

    fn space(&self, node: &NodeHandle) -> Outcome<Space> {
        self.ask(node, None, |tree, _| {
            let bytes_free = self.options.bytes_max.saturating_sub(tree.used);
            let files_free = self.options.files_max.saturating_sub(tree.inodes.len() as u64);
            Ok(Space {
                bytes_total: self.options.bytes_max,
                bytes_free,
                bytes_available: bytes_free,
                files_total: self.options.files_max,
                files_free,
                files_available: files_free,
            })
        })
    }

    fn limits(&self, node: &NodeHandle) -> Outcome<Limits> {
        self.ask(node, None, |_, _| {
            Ok(Limits {
                file_size_max: file::SIZE_MAX,
                time_step: self.options.time_step,
                names_max: NAMES_MAX,
                name_bytes_max: u32::try_from(NAME_BYTES_MAX).expect("255 is a u32"),
                links: true,
                symlinks: true,
                case_insensitive: false,
                case_preserving: true,
            })
        })
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.faults.strike(FaultPoint::Commit)?;
        let mut tree = self.tree.write();
        tree.inodes.values_mut().for_each(Inode::make_durable);
        Ok(())
    }
}
