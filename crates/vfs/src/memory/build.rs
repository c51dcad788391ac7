//! Trees of tens of thousands of files, without a request for each.

use std::sync::Arc;

use curt_types::{FileKind, Timestamp};
use rustix::io::Errno;

use super::content::{ContentFormula, FileContent};
use super::directory::MemoryDirectory;
use super::tree::{InodeBody, MemoryInode, MemoryTree, ROOT};
use super::{MemoryOptions, MemoryVfs};

/// Builds a tree before it is served. Paths are relative to the root, without a leading `/`;
/// missing directories are created. The same calls with the same options result in the same
/// handles.
pub struct MemoryTreeBuilder {
    vfs: MemoryVfs,
    formula: Arc<dyn ContentFormula>,
    time: Timestamp,
    owner: (u32, u32),
    directory_mode: u32,
    file_mode: u32,
}

impl MemoryTreeBuilder {
    /// A tree whose files get their bytes from `formula`, and all times `time`.
    #[must_use]
    pub fn new(options: MemoryOptions, formula: Arc<dyn ContentFormula>, time: Timestamp) -> Self {
        let vfs = MemoryVfs::new(options);
        set_times(vfs.tree.write().inode_mut(ROOT), time);
        Self { vfs, formula, time, owner: (0, 0), directory_mode: 0o755, file_mode: 0o644 }
    }

    /// Sets the owner of objects that are added later.
    pub fn owner(&mut self, uid: u32, gid: u32) -> &mut Self {
        self.owner = (uid, gid);
        self
    }

    /// Sets the permission bits of objects that are added later.
    pub fn modes(&mut self, directory: u32, file: u32) -> &mut Self {
        (self.directory_mode, self.file_mode) = (directory & 0o7777, file & 0o7777);
        self
    }

    /// Adds a directory, unless it exists.
    pub fn directory(&mut self, path: &[u8]) -> Result<(), Errno> {
        let mut tree = self.vfs.tree.write();
        self.reach(&mut tree, path).map(|_| ())
    }

    /// Adds a file of `size` bytes.
    pub fn file(&mut self, path: &[u8], size: u64) -> Result<(), Errno> {
        let content = FileContent::from_formula(Arc::clone(&self.formula), path, size);
        self.add(path, InodeBody::Regular { content, durable: None }, self.file_mode)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        self.add(path, InodeBody::Symlink(target.into()), 0o777)
    }

    /// Returns the tree.
    #[must_use]
    pub fn build(self) -> MemoryVfs {
        self.vfs
    }

    fn add(&self, path: &[u8], body: InodeBody, mode: u32) -> Result<(), Errno> {
        let mut tree = self.vfs.tree.write();
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        let directory = self.reach(&mut tree, parent)?;
        crate::name::check_new_name(name)?;
        if tree.inode(directory).directory()?.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        let fileid = tree.insert(self.inode(body, mode));
        tree.inode_mut(directory).directory_mut()?.add(name, fileid);
        Ok(())
    }

    fn reach(&self, tree: &mut MemoryTree, path: &[u8]) -> Result<u64, Errno> {
        let mut at = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            crate::name::check_new_name(name)?;
            at = match tree.inode(at).directory()?.find(name) {
                Some(found) => found,
                None => {
                    let made = tree.insert(
                        self.inode(InodeBody::Directory(MemoryDirectory::new(at)), self.directory_mode),
                    );
                    let parent = tree.inode_mut(at);
                    parent.directory_mut()?.add(name, made);
                    parent.nlink += 1;
                    made
                }
            };
        }
        if tree.inode(at).kind() == FileKind::Directory { Ok(at) } else { Err(Errno::NOTDIR) }
    }

    fn inode(&self, body: InodeBody, mode: u32) -> MemoryInode {
        let nlink = if matches!(body, InodeBody::Directory(_)) { 2 } else { 1 };
        let (uid, gid) = self.owner;
        MemoryInode {
            body,
            mode,
            nlink,
            uid,
            gid,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            created: self.time,
        }
    }
}

fn set_times(inode: &mut MemoryInode, time: Timestamp) {
    (inode.atime, inode.mtime, inode.ctime) = (time, time, time);
}
