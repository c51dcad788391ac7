//! The [`Vfs`] of a local tree: each operation resolves its object, sets the caller's credentials,
//! and calls its module.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_types::{Access, Attributes, FileKind, SetAttributes, Stability, Timestamp};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::names::LookupWait;
use super::{FileCacheCounters, LeaseWatcher, LocalVfs, limits, names, stat};
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::kernel_locks::KernelLocks;
use crate::lease::{FileLease, LeaseBroken};
use crate::name::check_name;
use crate::result::{
    CreatedNode, FetchOptions, FetchResult, FileSystemSpace, Limits, LinkResult, PostOpResult, RenameResult,
    VfsDirEntry, VfsNode, WccResult, WriteResult,
};
use crate::{LookupUse, MayBlock, NewNode, NodePin, ObjectPermit, ReaddirDetail, RemovedKind, Vfs};

impl Vfs for LocalVfs {
    fn root(&self) -> NodeHandle {
        self.root_handle
    }

    fn identity(&self) -> u64 {
        limits::file_system_id(self.root.as_fd()).unwrap_or(self.root_fsid)
    }

    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error> {
        self.getattr(node, &*self.resolve(node)?)
    }

    fn created(&self, node: &NodeHandle) -> Result<Option<Timestamp>, Error> {
        Ok(stat::status(self.resolve(node)?.as_fd(), b"")?.birth)
    }

    fn set_attributes(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> WccResult<()> {
        let changed = self.change_durably(caller, node, |fd, before| {
            if guard.is_some_and(|guard| guard != before.ctime) {
                return Err(Error::NotSync);
            }
            self.set(caller, fd, before, set)
        });
        // Whatever the result is: a part may have been done.
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
        if rights {
            self.open_caches.file_cache.release(node);
        }
        changed
    }

    fn open_kernel_locks(&self, node: &NodeHandle) -> Result<Box<dyn KernelLocks>, Error> {
        self.open_locks(node)
    }

    fn lease(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        watcher: &LeaseWatcher,
        broken: LeaseBroken,
    ) -> Result<Option<Box<dyn FileLease>>, Error> {
        self.take_lease(caller, node, watcher, broken).map(Some)
    }

    fn lookup(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> PostOpResult<VfsNode> {
        self.ask(caller, directory, |fd, attributes| {
            check_name(name)?;
            self.find(fd, directory, attributes, name)
        })
    }

    fn lookup_nowait(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Option<PostOpResult<VfsNode>> {
        match self.write_latency.may_block {
            // The table's file may be on a disk, even if the tree is not.
            _ if self.handle_scheme() == HandleScheme::Table => None,
            MayBlock::Never => Some(self.lookup(caller, directory, name)),
            MayBlock::Always => None,
            MayBlock::Data if name == b".." || !self.is_inode_in_memory(directory) => None,
            MayBlock::Data => {
                let found = self.ask(caller, directory, |fd, attributes| {
                    check_name(name)?;
                    if attributes.kind != FileKind::Directory || name == b"." {
                        return self.find(fd, directory, attributes, name);
                    }
                    self.find_child(fd, directory, name, LookupWait::NoWait)
                });
                let unknown = matches!(found.value, Err(Error::Os(Errno::AGAIN)));
                (!unknown).then_some(found)
            }
        }
    }

    fn lookup_child(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        wanted: LookupUse,
        is_directory: bool,
    ) -> Option<PostOpResult<VfsNode>> {
        let reach = match (wanted, self.write_latency.may_block) {
            (LookupUse::Name, _) => LookupWait::MayBlock,
            // As for `lookup_nowait`.
            _ if self.handle_scheme() == HandleScheme::Table => return None,
            (_, MayBlock::Never) => LookupWait::MayBlock,
            (_, MayBlock::Data) if self.is_inode_in_memory(directory) => LookupWait::NoWait,
            (_, MayBlock::Data | MayBlock::Always) => return None,
        };
        let failed = |error| Some(PostOpResult { attributes: None, value: Err(error) });
        let fd = match self.resolve(directory) {
            Ok(fd) => fd,
            Err(error) => return failed(error),
        };
        let find = || {
            check_name(name)?;
            self.identity.switch_to(caller)?;
            let unopened = match wanted {
                LookupUse::Name => self.find_unopened(fd.as_fd(), directory, name),
                LookupUse::Object => None,
            };
            unopened.map_or_else(|| self.find_child(fd.as_fd(), directory, name, reach), Ok)
        };
        match find() {
            Err(Error::Os(Errno::AGAIN)) => None,
            // A removed directory has no names, and only directories have any.
            Err(error) if !is_directory => match self.getattr(directory, &fd) {
                Ok(attributes) => Some(PostOpResult { attributes: Some(attributes), value: Err(error) }),
                Err(error) => failed(error),
            },
            value => Some(PostOpResult { attributes: None, value }),
        }
    }

    fn access(&self, caller: &FsCred<'_>, node: &NodeHandle, asked: Access) -> PostOpResult<Access> {
        let found = self.resolve(node).and_then(|fd| Ok((self.getattr(node, &fd)?, fd)));
        let (attributes, fd) = match found {
            Ok(found) => found,
            Err(error) => {
                return PostOpResult { attributes: None, value: Err(error) };
            }
        };
        let cached = self.access_checks.find(caller, node, &attributes, asked);
        let value = match cached {
            Some(granted) => Ok(granted),
            None => self.identity.switch_to(caller).map_err(Error::from).map(|()| {
                let granted = limits::granted(fd.as_fd(), &attributes, asked);
                self.access_checks.insert(caller, node, &attributes, asked, granted, stat::now());
                granted
            }),
        };
        PostOpResult { attributes: Some(attributes), value }
    }

    fn is_in_memory(&self, node: &NodeHandle) -> bool {
        self.is_inode_in_memory(node)
    }

    fn read_link(&self, caller: &FsCred<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> PostOpResult<()> {
        self.ask(caller, node, |fd, attributes| {
            if attributes.kind != FileKind::Symlink {
                return Err(Errno::INVAL.into());
            }
            target.extend_from_slice(rustix::fs::readlinkat(fd, c"", Vec::new())?.as_bytes());
            Ok(())
        })
    }

    fn fetch(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>> {
        self.fetch_data(caller, node, offset, count, how, data)
    }

    fn may_block(&self) -> MayBlock {
        match (self.write_latency.may_block, self.handle_scheme()) {
            // New objects must be recorded in the table, whose file is on a disk.
            (MayBlock::Never, HandleScheme::Table) => MayBlock::Data,
            (waits, _) => waits,
        }
    }

    fn losses(&self) -> u64 {
        self.losses.of_tree()
    }

    fn release_all(&self) {
        self.open_caches.release_all();
        self.lookup_cache.forget_all();
        self.access_checks.forget_all();
    }

    fn file_cache(&self) -> Option<FileCacheCounters> {
        Some(self.open_caches.file_cache.counters())
    }

    fn pin(&self, node: &NodeHandle) -> Result<NodePin, Error> {
        let pin = self.open_caches.pins.pin(node, || self.resolve(node))?;
        Ok(Arc::new(pin))
    }

    fn write(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult> {
        self.write_data(caller, node, offset, data, stability)
    }

    fn write_nowait(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
    ) -> Option<WccResult<WriteResult>> {
        self.write_data_nowait(caller, node, offset, data)
    }

    fn commit(&self, caller: &FsCred<'_>, node: &NodeHandle, _offset: u64, _count: u32) -> WccResult<()> {
        self.commit_data(caller, node)
    }

    fn make_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode> {
        let node = |kind, make: &dyn Fn(BorrowedFd<'_>, Mode) -> Result<(), Errno>| {
            self.make_node(caller, directory, name, kind, &object.set(), make)
        };
        match object {
            NewNode::File(mode) => self.create_file(caller, directory, name, mode, permit),
            NewNode::Directory(_) => {
                node(FileKind::Directory, &|parent, mode| rustix::fs::mkdirat(parent, name, mode))
            }
            NewNode::Symlink(target, _) => node(FileKind::Symlink, &|parent, _| {
                if target.is_empty() || target.contains(&0) {
                    return Err(Errno::INVAL);
                }
                rustix::fs::symlinkat(target, parent, name)
            }),
            NewNode::Special(special, _) => {
                node(special.kind(), &|parent, mode| names::mknod(parent, name, special, mode))
            }
        }
    }

    fn remove_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        kind: RemovedKind,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<()> {
        let flags = match kind {
            RemovedKind::Directory => AtFlags::REMOVEDIR,
            RemovedKind::Other => AtFlags::empty(),
        };
        self.remove_name(caller, directory, name, flags, permit)
    }

    fn rename_permitted(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
        permit: &mut ObjectPermit<'_>,
    ) -> RenameResult {
        self.rename_name(caller, from, from_name, to, to_name, permit)
    }

    fn link(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> LinkResult {
        self.link_name(caller, node, directory, name)
    }

    fn read_directory(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> PostOpResult<bool> {
        self.ask(caller, directory, |fd, attributes| {
            self.list(fd, directory, attributes, cookie, wanted, visit)
        })
    }

    fn space(&self, node: &NodeHandle) -> PostOpResult<FileSystemSpace> {
        let space = |fd: Arc<OwnedFd>| {
            let attributes = self.getattr(node, &fd)?;
            Ok((attributes, limits::space(fd.as_fd())?))
        };
        split(self.resolve(node).and_then(space))
    }

    fn limits(&self, node: &NodeHandle) -> PostOpResult<Limits> {
        let limits = |fd: Arc<OwnedFd>| {
            let attributes = self.getattr(node, &fd)?;
            Ok((attributes, limits::limits(fd.as_fd())?))
        };
        split(self.resolve(node).and_then(limits))
    }

    fn sync_all(&self) -> Result<(), Error> {
        let synced = self.sync_file_system();
        if synced.is_ok() {
            self.open_caches.unstable_files.forget_all();
        }
        synced
    }
}

fn split<T>(result: Result<(Attributes, T), Error>) -> PostOpResult<T> {
    match result {
        Ok((attributes, value)) => PostOpResult { attributes: Some(attributes), value: Ok(value) },
        Err(error) => PostOpResult { attributes: None, value: Err(error) },
    }
}
