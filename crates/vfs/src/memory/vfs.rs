//! The [`Vfs`] of a tree in memory: each operation is one step under the tree's lock.

use std::ops::ControlFlow;
use std::sync::Arc;

use curt_types::{Access, Attributes, SetAttributes, Stability, Timestamp, Wcc};
use rustix::io::Errno;

use super::directory::MemoryDirectory;
use super::names::NameIn;
use super::tree::{InodeBody, MemoryInode, MemoryTree, NAMES_MAX, ROOT};
use super::{FaultPoint, InodePin, MemoryVfs, OwnedDirEntry, file, permission};
use crate::result::{
    CreatedNode, FetchOptions, FetchResult, FileSystemSpace, Limits, LinkResult, PostOpResult, ReadResult,
    RenameResult, VfsDirEntry, VfsNode, WccResult, WriteResult,
};

use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::name::{NAME_BYTES_MAX, check_name};
use crate::{MayBlock, NewNode, NodePin, ObjectPermit, ReaddirDetail, RemovedKind, Vfs};

impl Vfs for MemoryVfs {
    fn root(&self) -> NodeHandle {
        self.tree.read().handle(ROOT)
    }

    fn identity(&self) -> u64 {
        self.options.instance
    }

    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error> {
        let tree = self.tree.read();
        self.faults.inject(FaultPoint::Attributes)?;
        Ok(tree.attributes(tree.resolve(node)?))
    }

    fn created(&self, node: &NodeHandle) -> Result<Option<Timestamp>, Error> {
        let tree = self.tree.read();
        let fileid = tree.resolve(node)?;
        Ok(Some(tree.inode(fileid).created))
    }

    fn set_attributes(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> WccResult<()> {
        self.change(node, FaultPoint::Change, |tree, fileid| self.set(tree, caller, fileid, set, guard))
    }

    fn lookup(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> PostOpResult<VfsNode> {
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

    fn access(&self, caller: &FsCred<'_>, node: &NodeHandle, asked: Access) -> PostOpResult<Access> {
        self.ask(node, None, |tree, fileid| Ok(asked.common(self.granted(caller, tree.inode(fileid)))))
    }

    fn read_link(&self, _caller: &FsCred<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> PostOpResult<()> {
        self.ask(node, None, |tree, fileid| match &tree.inode(fileid).body {
            InodeBody::Symlink(text) => {
                target.extend_from_slice(text);
                Ok(())
            }
            InodeBody::Regular { .. } | InodeBody::Directory(_) | InodeBody::Special(..) => {
                Err(Errno::INVAL.into())
            }
        })
    }

    fn fetch(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        _how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>> {
        Some(self.ask(node, Some(FaultPoint::Read), |tree, fileid| {
            let inode = tree.inode(fileid);
            let content = inode.content()?;
            inode.owned().check_read(caller)?;
            let count = content.read(offset, count, data);
            let eof = offset.saturating_add(u64::from(count)) >= content.size();
            Ok(FetchResult::Copied(ReadResult { count, eof }))
        }))
    }

    fn may_block(&self) -> MayBlock {
        MayBlock::Never
    }

    fn losses(&self) -> u64 {
        self.faults.losses()
    }

    fn pin(&self, node: &NodeHandle) -> Result<NodePin, Error> {
        let mut tree = self.tree.write();
        let fileid = tree.resolve(node)?;
        tree.pin(fileid);
        Ok(Arc::new(InodePin { tree: Arc::clone(&self.tree), fileid }))
    }

    fn write(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult> {
        self.change(node, FaultPoint::Write, |tree, fileid| {
            self.write_data(tree, caller, fileid, offset, data, stability)
        })
    }

    fn commit(&self, caller: &FsCred<'_>, node: &NodeHandle, _offset: u64, _count: u32) -> WccResult<()> {
        self.change(node, FaultPoint::Commit, |tree, fileid| {
            let inode = tree.inode_mut(fileid);
            inode.content()?;
            inode.owned().check_write(caller)?;
            inode.make_durable();
            Ok(())
        })
    }

    fn make_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            let mut set = object.set();
            let body = match object {
                NewNode::File(mode) => return self.create_file(tree, caller, parent, name, mode, permit),
                NewNode::Directory(_) => InodeBody::Directory(MemoryDirectory::new(parent)),
                NewNode::Symlink(target, _) => {
                    if target.is_empty() || target.contains(&0) {
                        return Err(Errno::INVAL.into());
                    }
                    set.mode = Some(0o777);
                    InodeBody::Symlink(target.into())
                }
                NewNode::Special(special, _) => InodeBody::Special(special.kind(), special.device()),
            };
            self.make_inode(tree, caller, parent, name, body, &set)
        })
    }

    fn remove_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        kind: RemovedKind,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<()> {
        self.change(directory, FaultPoint::Change, |tree, parent| {
            self.remove_name(tree, caller, parent, name, kind, permit)
        })
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
        let mut tree = self.tree.write();
        let directories = (tree.resolve(from), tree.resolve(to));
        let attributes =
            |tree: &MemoryTree, of: &Result<u64, Error>| of.ok().map(|fileid| tree.attributes(fileid));
        let before = [attributes(&tree, &directories.0), attributes(&tree, &directories.1)];
        let value = match directories {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(from), Ok(to)) => self.faults.inject(FaultPoint::Change).and_then(|()| {
                let source = NameIn { directory: from, name: from_name };
                let target = NameIn { directory: to, name: to_name };
                self.rename_name(&mut tree, caller, source, target, permit)
            }),
        };
        let wcc = |before: &Option<Attributes>, directory| Wcc {
            before: before.as_ref().map(Into::into),
            after: attributes(&tree, directory),
        };
        RenameResult { from: wcc(&before[0], &directories.0), to: wcc(&before[1], &directories.1), value }
    }

    fn link(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> LinkResult {
        let directory = self.change(directory, FaultPoint::Change, |tree, parent| {
            let fileid = tree.resolve(node)?;
            self.link_name(tree, caller, fileid, parent, name)
        });
        let tree = self.tree.read();
        LinkResult { node: tree.resolve(node).ok().map(|fileid| tree.attributes(fileid)), directory }
    }

    fn read_directory(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> PostOpResult<bool> {
        let start = self.ask(directory, Some(FaultPoint::ReadDirectory), |tree, fileid| {
            let inode = tree.inode(fileid);
            let names = inode.directory()?;
            inode.owned().check(caller, permission::READ)?;
            if !names.is_valid_cookie(cookie) {
                return Err(Error::BadCookie);
            }
            Ok((fileid, inode.owned().allows(caller, permission::EXECUTE)))
        });
        let (fileid, search) = match start.value {
            Ok(start) => start,
            Err(error) => {
                return PostOpResult { attributes: start.attributes, value: Err(error) };
            }
        };
        let mut at = cookie;
        let ended = loop {
            let Some(OwnedDirEntry { fileid, cookie, name, node }) =
                self.entry_after(fileid, at, wanted, search)
            else {
                break true;
            };
            if visit(&VfsDirEntry { fileid, cookie, name: &name, node }).is_break() {
                break false;
            }
            at = cookie;
        };
        PostOpResult { attributes: start.attributes, value: Ok(ended) }
    }

    fn space(&self, node: &NodeHandle) -> PostOpResult<FileSystemSpace> {
        self.ask(node, None, |tree, _| {
            let bytes_free = self.options.bytes_max.saturating_sub(tree.used);
            let files_free = self.options.files_max.saturating_sub(tree.inodes.len() as u64);
            Ok(FileSystemSpace {
                bytes_total: self.options.bytes_max,
                bytes_free,
                bytes_available: bytes_free,
                files_total: self.options.files_max,
                files_free,
                files_available: files_free,
            })
        })
    }

    fn limits(&self, node: &NodeHandle) -> PostOpResult<Limits> {
        self.ask(node, None, |_, _| {
            Ok(Limits {
                file_size_max: file::SIZE_MAX,
                time_delta: self.options.time_step,
                link_max: NAMES_MAX,
                name_max: u32::try_from(NAME_BYTES_MAX).expect("255 is a u32"),
                links: true,
                symlinks: true,
                case_insensitive: false,
                case_preserving: true,
            })
        })
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.faults.inject(FaultPoint::Commit)?;
        let mut tree = self.tree.write();
        tree.inodes.values_mut().for_each(MemoryInode::make_durable);
        Ok(())
    }
}
