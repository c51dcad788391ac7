//! The inodes of a tree in memory, and the space that they use.

use std::collections::HashMap;

use curt_types::{Attributes, Device, FileKind, Timestamp};
use rustix::io::Errno;

use super::content::FileContent;
use super::directory::MemoryDirectory;
use super::permission::Ownership;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::result::VfsNode;

/// The fileid of the root directory.
pub(super) const ROOT: u64 = 2;
/// Maximum number of names of a file.
pub(super) const NAMES_MAX: u32 = 65_000;

/// The contents of an inode.
pub(super) enum InodeBody {
    Regular {
        content: FileContent,
        /// The contents after a power failure; `None` if equal to `content`.
        durable: Option<FileContent>,
    },
    Directory(MemoryDirectory),
    Symlink(Box<[u8]>),
    Special(FileKind, Device),
}

/// An object. It is dropped with its last name.
pub(super) struct MemoryInode {
    pub(super) body: InodeBody,
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) created: Timestamp,
}

impl MemoryInode {
    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            InodeBody::Regular { .. } => FileKind::Regular,
            InodeBody::Directory(_) => FileKind::Directory,
            InodeBody::Symlink(_) => FileKind::Symlink,
            InodeBody::Special(kind, _) => *kind,
        }
    }

    pub(super) fn owned(&self) -> Ownership {
        let is_directory = matches!(self.body, InodeBody::Directory(_));
        Ownership { mode: self.mode, uid: self.uid, gid: self.gid, is_directory }
    }

    /// Number of bytes that it uses.
    pub(super) fn used(&self) -> u64 {
        match &self.body {
            InodeBody::Regular { content, .. } => content.used(),
            InodeBody::Directory(_) | InodeBody::Symlink(_) | InodeBody::Special(..) => 0,
        }
    }

    pub(super) fn directory(&self) -> Result<&MemoryDirectory, Errno> {
        match &self.body {
            InodeBody::Directory(directory) => Ok(directory),
            InodeBody::Regular { .. } | InodeBody::Symlink(_) | InodeBody::Special(..) => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut MemoryDirectory, Errno> {
        match &mut self.body {
            InodeBody::Directory(directory) => Ok(directory),
            InodeBody::Regular { .. } | InodeBody::Symlink(_) | InodeBody::Special(..) => Err(Errno::NOTDIR),
        }
    }

    /// The bytes of a regular file; `EISDIR` for a directory, `EINVAL` for other objects.
    pub(super) fn content(&self) -> Result<&FileContent, Errno> {
        match &self.body {
            InodeBody::Regular { content, .. } => Ok(content),
            InodeBody::Directory(_) => Err(Errno::ISDIR),
            InodeBody::Symlink(_) | InodeBody::Special(..) => Err(Errno::INVAL),
        }
    }

    /// As [`MemoryInode::content`], for a change: the durable contents are saved first.
    pub(super) fn content_mut(&mut self) -> Result<&mut FileContent, Errno> {
        match &mut self.body {
            InodeBody::Regular { content, durable } => {
                if durable.is_none() {
                    *durable = Some(content.clone());
                }
                Ok(content)
            }
            InodeBody::Directory(_) => Err(Errno::ISDIR),
            InodeBody::Symlink(_) | InodeBody::Special(..) => Err(Errno::INVAL),
        }
    }

    /// Makes the current contents durable.
    pub(super) fn make_durable(&mut self) {
        if let InodeBody::Regular { durable, .. } = &mut self.body {
            *durable = None;
        }
    }

    fn sizes(&self) -> (u64, u64) {
        match &self.body {
            InodeBody::Regular { content, .. } => (content.size(), content.shown_used()),
            InodeBody::Directory(directory) => {
                let bytes = (directory.len() as u64 + 2) * 20;
                (bytes, bytes.next_multiple_of(512))
            }
            InodeBody::Symlink(target) => (target.len() as u64, 0),
            InodeBody::Special(..) => (0, 0),
        }
    }
}

/// All inodes.
pub(super) struct MemoryTree {
    pub(super) inodes: HashMap<u64, MemoryInode>,
    next: u64,
    /// The number of pins of each inode that has some.
    pins: HashMap<u64, usize>,
    /// Distinguishes this tree's handles from those of others.
    instance: u64,
    /// Used bytes.
    pub(super) used: u64,
}

impl MemoryTree {
    pub(super) fn new(instance: u64, root: MemoryInode) -> Self {
        let inodes = HashMap::from([(ROOT, root)]);
        Self { inodes, next: ROOT + 1, pins: HashMap::new(), instance, used: 0 }
    }

    pub(super) fn handle(&self, fileid: u64) -> NodeHandle {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.instance.to_be_bytes());
        bytes[8..].copy_from_slice(&fileid.to_be_bytes());
        NodeHandle::new(HandleScheme::Memory, 0, &bytes).expect("16 bytes are less than 44")
    }

    /// The fileid of a handle; the inode exists.
    pub(super) fn resolve(&self, handle: &NodeHandle) -> Result<u64, Error> {
        let bytes: [u8; 16] = handle.bytes().try_into().map_err(|_| Error::BadHandle)?;
        if handle.scheme() != HandleScheme::Memory || handle.kind() != 0 {
            return Err(Error::BadHandle);
        }
        let number = u128::from_be_bytes(bytes);
        let fileid = u64::try_from(number & u128::from(u64::MAX)).expect("it was cut to 64 bits");
        let is_known = number >> 64 == u128::from(self.instance) && self.inodes.contains_key(&fileid);
        if is_known { Ok(fileid) } else { Err(Error::STALE) }
    }

    pub(super) fn inode(&self, fileid: u64) -> &MemoryInode {
        self.inodes.get(&fileid).expect("a name or a resolved handle stands for an inode that exists")
    }

    pub(super) fn inode_mut(&mut self, fileid: u64) -> &mut MemoryInode {
        self.inodes.get_mut(&fileid).expect("a name or a resolved handle stands for an inode that exists")
    }

    pub(super) fn attributes(&self, fileid: u64) -> Attributes {
        let inode = self.inode(fileid);
        let (size, used) = inode.sizes();
        Attributes {
            kind: inode.kind(),
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            size,
            used,
            rdev: match inode.body {
                InodeBody::Special(_, device) => device,
                InodeBody::Regular { .. } | InodeBody::Directory(_) | InodeBody::Symlink(_) => {
                    Device::default()
                }
            },
            fsid: self.instance,
            fileid,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            change: None,
        }
    }

    pub(super) fn node(&self, fileid: u64) -> VfsNode {
        VfsNode { handle: self.handle(fileid), attributes: self.attributes(fileid) }
    }

    pub(super) fn insert(&mut self, inode: MemoryInode) -> u64 {
        let fileid = self.next;
        self.next += 1;
        self.inodes.insert(fileid, inode);
        fileid
    }

    /// Removes one name of an inode, and the inode with the last one. `changed` is its new ctime.
    pub(super) fn unlink(&mut self, fileid: u64, changed: Timestamp) {
        let inode = self.inode_mut(fileid);
        inode.ctime = changed;
        inode.nlink = if matches!(inode.body, InodeBody::Directory(_)) { 0 } else { inode.nlink - 1 };
        if inode.nlink == 0 && !self.pins.contains_key(&fileid) {
            self.drop_inode(fileid);
        }
    }

    fn drop_inode(&mut self, fileid: u64) {
        if let Some(inode) = self.inodes.remove(&fileid) {
            self.charge(inode.used(), 0);
        }
    }

    /// Keeps an inode without a name until as many calls of [`Self::unpin`].
    pub(super) fn pin(&mut self, fileid: u64) {
        *self.pins.entry(fileid).or_default() += 1;
    }

    pub(super) fn unpin(&mut self, fileid: u64) {
        let Some(pins) = self.pins.get_mut(&fileid) else { return };
        *pins -= 1;
        if *pins > 0 {
            return;
        }
        self.pins.remove(&fileid);
        if self.inodes.get(&fileid).is_some_and(|inode| inode.nlink == 0) {
            self.drop_inode(fileid);
        }
    }

    /// Records that the usage of an object changed from `before` to `after` bytes.
    pub(super) const fn charge(&mut self, before: u64, after: u64) {
        self.used = self.used - before + after;
    }

    /// Whether `inner` is `outer` or below it.
    pub(super) fn is_within(&self, inner: u64, outer: u64) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            match self.inode(at).directory() {
                Ok(directory) if directory.parent != at => at = directory.parent,
                Ok(_) | Err(_) => return false,
            }
        }
    }
}
