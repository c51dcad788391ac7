//! Creating, removing, renaming and linking names. Checks are in the order of the kernel's, so that
//! the error is the same if several apply.

use curt_types::{FileKind, SetAttributes, Timestamp};
use rustix::io::Errno;

use super::MemoryVfs;
use super::content::FileContent;
use super::permission::{EXECUTE, READ, SET_GID, SET_UID, WRITE};
use super::tree::{InodeBody, MemoryInode, MemoryTree, NAMES_MAX};
use crate::caller::FsCred;
use crate::error::Error;
use crate::name::check_new_name;
use crate::result::CreatedNode;
use crate::{CreateMode, ObjectPermit, RemovedKind, verifier};

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct NameIn<'a> {
    pub(super) directory: u64,
    pub(super) name: &'a [u8],
}

impl MemoryVfs {
    pub(super) fn create_file(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        directory: u64,
        name: &[u8],
        mode: CreateMode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> Result<CreatedNode, Error> {
        check_new_name(name)?;
        if let Some(fileid) = search(tree, caller, directory, name)? {
            let permitted = |tree: &MemoryTree| permit(&tree.handle(directory), &tree.handle(fileid));
            return self.take_existing(tree, caller, fileid, mode, permitted);
        }
        permit(&tree.handle(directory), &tree.handle(directory))?;
        let body = InodeBody::Regular { content: FileContent::default(), durable: None };
        let (set, times) = match mode {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (*set, None),
            CreateMode::Exclusive(verifier) => (SetAttributes::with_mode(0), Some(verifier::times(verifier))),
        };
        let mut created = self.make_inode(tree, caller, directory, name, body, &set)?;
        if let Some((mtime, atime)) = times {
            let inode = tree.inode_mut(created.node.attributes.fileid);
            (inode.mtime, inode.atime) = (mtime, atime);
            created.node = tree.node(created.node.attributes.fileid);
        }
        Ok(created)
    }

    fn take_existing(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        fileid: u64,
        mode: CreateMode<'_>,
        permitted: impl FnOnce(&MemoryTree) -> Result<(), Error>,
    ) -> Result<CreatedNode, Error> {
        match mode {
            CreateMode::Guarded(_) => Err(Errno::EXIST.into()),
            CreateMode::Exclusive(verifier) if verifier::is_of(verifier, &tree.attributes(fileid)) => {
                Ok(CreatedNode { node: tree.node(fileid), new: false })
            }
            CreateMode::Exclusive(_) => Err(Errno::EXIST.into()),
            CreateMode::Unchecked(set) => {
                match tree.inode(fileid).kind() {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(Errno::ISDIR.into()),
                    _ => return Err(Errno::EXIST.into()),
                }
                if set.size.is_some() {
                    permitted(tree)?;
                }
                let size = SetAttributes { size: set.size, ..SetAttributes::default() };
                self.set(tree, caller, fileid, &size, None)?;
                Ok(CreatedNode { node: tree.node(fileid), new: false })
            }
        }
    }

    /// Creates an object with one name, which must not exist.
    pub(super) fn make_inode(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        directory: u64,
        name: &[u8],
        body: InodeBody,
        set: &SetAttributes,
    ) -> Result<CreatedNode, Error> {
        check_new_name(name)?;
        if search(tree, caller, directory, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let parent = tree.inode(directory).owned();
        parent.check(caller, WRITE | EXECUTE)?;
        let device = matches!(body, InodeBody::Special(FileKind::CharacterDevice | FileKind::BlockDevice, _));
        if device && !caller.privileged {
            return Err(Errno::PERM.into());
        }
        if tree.inodes.len() as u64 >= self.options.files_max {
            return Err(Errno::NOSPC.into());
        }
        let is_directory = matches!(body, InodeBody::Directory(_));
        // mkdir(2) ignores suid and sgid bits.
        let settable = if is_directory { 0o1777 } else { 0o7777 };
        let (gid, mode) = parent.inherit(caller, set.mode.unwrap_or(0) & settable, is_directory);
        let now = self.stamp();
        let nlink = if is_directory { 2 } else { 1 };
        let inode = MemoryInode {
            body,
            mode,
            nlink,
            uid: caller.uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            created: now,
        };
        let fileid = tree.insert(inode);
        self.add_name(tree, directory, name, fileid)?;
        self.set_rest(tree, caller, fileid, set);
        Ok(CreatedNode { node: tree.node(fileid), new: true })
    }

    /// Sets the remaining attributes: owner (if privileged), group, size and times. Attributes that
    /// the caller may not set remain unchanged, as with other servers.
    fn set_rest(&self, tree: &mut MemoryTree, caller: &FsCred<'_>, fileid: u64, set: &SetAttributes) {
        let uid = set.uid.filter(|_| caller.privileged);
        let size = set.size.filter(|size| *size > 0 && tree.inode(fileid).content().is_ok());
        let rest = SetAttributes { mode: None, uid, size, ..*set };
        let group_stays = SetAttributes { gid: None, ..rest };
        let done = self.set(tree, caller, fileid, &rest, None);
        if done.is_err() {
            let _left_as_made = self.set(tree, caller, fileid, &group_stays, None);
        }
    }

    fn add_name(&self, tree: &mut MemoryTree, directory: u64, name: &[u8], fileid: u64) -> Result<(), Errno> {
        let is_directory = tree.inode(fileid).kind() == FileKind::Directory;
        let changed = self.change_time(tree.inode(directory).ctime);
        let parent = tree.inode_mut(directory);
        parent.directory_mut()?.add(name, fileid);
        parent.nlink += u32::from(is_directory);
        (parent.mtime, parent.ctime) = (changed, changed);
        Ok(())
    }

    /// Removes a name, and returns its object.
    fn take_name(&self, tree: &mut MemoryTree, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        let changed = self.change_time(tree.inode(directory).ctime);
        let parent = tree.inode_mut(directory);
        let fileid = parent.directory_mut()?.remove(name).ok_or(Errno::NOENT)?;
        (parent.mtime, parent.ctime) = (changed, changed);
        let is_directory = tree.inode(fileid).kind() == FileKind::Directory;
        tree.inode_mut(directory).nlink -= u32::from(is_directory);
        Ok(fileid)
    }

    pub(super) fn remove_name(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        directory: u64,
        name: &[u8],
        kind: RemovedKind,
        permit: &mut ObjectPermit<'_>,
    ) -> Result<(), Error> {
        check_new_name(name)?;
        tree.inode(directory).directory()?;
        tree.inode(directory).owned().check(caller, EXECUTE)?;
        let fileid = search(tree, caller, directory, name)?.ok_or(Errno::NOENT)?;
        let victim = tree.inode(fileid);
        tree.inode(directory).owned().check_remove(caller, victim.owned())?;
        check_replaceable(victim, kind == RemovedKind::Directory)?;
        permit(&tree.handle(directory), &tree.handle(fileid))?;
        self.take_name(tree, directory, name)?;
        let changed = self.change_time(tree.inode(fileid).ctime);
        tree.unlink(fileid, changed);
        Ok(())
    }

    pub(super) fn link_name(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        fileid: u64,
        directory: u64,
        name: &[u8],
    ) -> Result<(), Error> {
        check_new_name(name)?;
        if search(tree, caller, directory, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let inode = tree.inode(fileid);
        may_link(caller, inode)?;
        tree.inode(directory).owned().check(caller, WRITE | EXECUTE)?;
        if inode.kind() == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        if inode.nlink == 0 {
            return Err(Error::STALE);
        }
        if inode.nlink >= NAMES_MAX {
            return Err(Errno::MLINK.into());
        }
        self.add_name(tree, directory, name, fileid)?;
        self.touch(tree, fileid);
        tree.inode_mut(fileid).nlink += 1;
        Ok(())
    }

    fn touch(&self, tree: &mut MemoryTree, fileid: u64) -> Timestamp {
        let changed = self.change_time(tree.inode(fileid).ctime);
        tree.inode_mut(fileid).ctime = changed;
        changed
    }

    pub(super) fn rename_name(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        source: NameIn<'_>,
        target: NameIn<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> Result<(), Error> {
        let NameIn { directory: from, name: from_name } = source;
        let NameIn { directory: to, name: to_name } = target;
        check_new_name(from_name)?;
        check_new_name(to_name)?;
        for directory in [from, to] {
            tree.inode(directory).directory()?;
            tree.inode(directory).owned().check(caller, EXECUTE)?;
        }
        let moved = search(tree, caller, from, from_name)?.ok_or(Errno::NOENT)?;
        let replaced = search(tree, caller, to, to_name)?;
        let is_directory = tree.inode(moved).kind() == FileKind::Directory;
        if is_directory && tree.is_within(to, moved) {
            return Err(Errno::INVAL.into());
        }
        if replaced.is_some_and(|replaced| from != to && tree.is_within(from, replaced)) {
            return Err(Errno::NOTEMPTY.into());
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        check_rename(tree, caller, from, moved, to, replaced)?;
        let of_moved = permit(&tree.handle(from), &tree.handle(moved));
        let of_replaced =
            replaced.map_or(Ok(()), |replaced| permit(&tree.handle(to), &tree.handle(replaced)));
        of_moved.and(of_replaced)?;
        if let Some(replaced) = replaced {
            self.take_name(tree, to, to_name)?;
            let changed = self.change_time(tree.inode(replaced).ctime);
            tree.unlink(replaced, changed);
        }
        if from == to {
            let changed = self.change_time(tree.inode(from).ctime);
            let parent = tree.inode_mut(from);
            parent.directory_mut()?.rename(from_name, to_name);
            (parent.mtime, parent.ctime) = (changed, changed);
        } else {
            self.take_name(tree, from, from_name)?;
            self.add_name(tree, to, to_name, moved)?;
            if let Ok(directory) = tree.inode_mut(moved).directory_mut() {
                directory.parent = to;
            }
        }
        self.touch(tree, moved);
        Ok(())
    }
}

/// The object of `name` in a directory that the caller must be allowed to search.
fn search(tree: &MemoryTree, caller: &FsCred<'_>, directory: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
    let inode = tree.inode(directory);
    let names = inode.directory()?;
    inode.owned().check(caller, EXECUTE)?;
    Ok(names.find(name))
}

/// Whether `victim` has the required type, and is empty.
fn check_replaceable(victim: &MemoryInode, directories: bool) -> Result<(), Errno> {
    match (&victim.body, directories) {
        (InodeBody::Directory(names), true) if names.is_empty() => Ok(()),
        (InodeBody::Directory(_), true) => Err(Errno::NOTEMPTY),
        (InodeBody::Directory(_), false) => Err(Errno::ISDIR),
        (_, true) => Err(Errno::NOTDIR),
        (_, false) => Ok(()),
    }
}

fn check_rename(
    tree: &MemoryTree,
    caller: &FsCred<'_>,
    from: u64,
    moved: u64,
    to: u64,
    replaced: Option<u64>,
) -> Result<(), Errno> {
    let object = tree.inode(moved);
    let is_directory = object.kind() == FileKind::Directory;
    tree.inode(from).owned().check_remove(caller, object.owned())?;
    match replaced {
        None => tree.inode(to).owned().check(caller, WRITE | EXECUTE)?,
        Some(replaced) => {
            let victim = tree.inode(replaced);
            tree.inode(to).owned().check_remove(caller, victim.owned())?;
            let empty = check_replaceable(victim, is_directory);
            if empty.is_err_and(|errno| errno != Errno::NOTEMPTY) {
                return empty;
            }
        }
    }
    // Its `..` changes.
    if is_directory && from != to {
        object.owned().check(caller, WRITE)?;
    }
    replaced.map_or(Ok(()), |replaced| check_replaceable(tree.inode(replaced), is_directory))
}

/// The kernel's rule for files of other owners (`fs.protected_hardlinks`): only files that the
/// caller can read and write, and no set-id files.
fn may_link(caller: &FsCred<'_>, inode: &MemoryInode) -> Result<(), Errno> {
    let owned = inode.owned();
    let gives_rights = owned.mode & SET_UID != 0 || owned.mode & (SET_GID | 0o010) == SET_GID | 0o010;
    let safe = inode.kind() == FileKind::Regular && !gives_rights && owned.allows(caller, READ | WRITE);
    if safe { Ok(()) } else { owned.check_owner(caller) }
}
