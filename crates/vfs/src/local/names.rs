//! Looking up and creating names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_types::{Attributes, FileKind, SetAttributes};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::lookup_cache::NameSource;
use super::set::{set_both_times, setting};
use super::stat::{StatxResult, now, status};
use super::sys::check_access;
use super::{LocalVfs, attributes_of};
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::name::check_new_name;
use crate::result::{CreatedNode, VfsNode, WccResult};
use crate::{CreateMode, SpecialFile, verifier};

/// How often a look-up or a create goes round when the name comes and goes under it.
const TRIES_MAX: usize = 16;

/// The permission bits that an object is made with.
pub(super) fn mode(set: &SetAttributes) -> Mode {
    Mode::from_raw_mode(set.mode.unwrap_or(0) & 0o7777)
}

pub(super) fn mknod(
    parent: BorrowedFd<'_>,
    name: &[u8],
    special: SpecialFile,
    mode: Mode,
) -> Result<(), Errno> {
    let kind = match special {
        SpecialFile::CharacterDevice(_) => FileType::CharacterDevice,
        SpecialFile::BlockDevice(_) => FileType::BlockDevice,
        SpecialFile::Fifo => FileType::Fifo,
        SpecialFile::Socket => FileType::Socket,
    };
    let device = special.device();
    let device = rustix::fs::makedev(device.major, device.minor);
    rustix::fs::mknodat(parent, name, kind, mode, device)
}

/// How far a name may be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupWait {
    /// A disk may be waited for.
    MayBlock,
    /// Only what is in memory.
    NoWait,
}

/// The error for an object that has lost its name. It is not the directory that is stale.
fn without_name(error: Error) -> Error {
    match error {
        Error::STALE => Errno::NOENT.into(),
        error => error,
    }
}

impl LocalVfs {
    /// Finds a name, `.` and `..` too, in a directory that the kernel lets the caller search.
    pub(super) fn find(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        attributes: &Attributes,
        name: &[u8],
    ) -> Result<VfsNode, Error> {
        if attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        match name {
            b"." => {
                check_access(fd, libc::X_OK)?;
                Ok(VfsNode {
                    handle: *directory,
                    attributes: *attributes,
                })
            }
            b".." => {
                check_access(fd, libc::X_OK)?;
                let parent = self.open_parent(fd, attributes)?;
                let attributes = attributes_of(parent.as_fd())?;
                Ok(VfsNode {
                    handle: self.handles.of(parent.as_fd())?,
                    attributes,
                })
            }
            name => self.find_child(fd, directory, name, LookupWait::MayBlock),
        }
    }

    /// Finds a name that is not `.` or `..`: where it led lately if it still does, else by opening
    /// it. `EAGAIN` for what is out of reach.
    pub(super) fn find_child(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        name: &[u8],
        reach: LookupWait,
    ) -> Result<VfsNode, Error> {
        // A look by name waits for nothing while the object is held: its inode is in memory, and so
        // is the way to it.
        let is_in_reach =
            |object: &NodeHandle| reach == LookupWait::MayBlock || self.is_inode_in_memory(object);
        let remembered = self.lookup_cache.find(NameSource::Lookup, directory, name);
        if let Some(remembered) = remembered.filter(|remembered| is_in_reach(remembered.object())) {
            let now = status(fd, name)?;
            if let Some(handle) = remembered.handle(&now) {
                return Ok(VfsNode {
                    handle,
                    attributes: now.attributes,
                });
            }
            self.lookup_cache.forget(directory, name);
        }
        let (found, seen) = self.open_named(fd, name, reach)?;
        let handle = self.handles.of(found.as_fd())?;
        self.handles.record(&handle, directory, name)?;
        let node = VfsNode {
            handle,
            attributes: seen.attributes,
        };
        if seen.attributes.nlink == 0 {
            return Ok(node);
        }
        self.cache_object(&handle, &Arc::new(found));
        // What a table knows has to be recorded each time.
        if handle.scheme() == HandleScheme::Kernel {
            self.lookup_cache
                .insert(NameSource::Lookup, directory, name, &handle, &seen, now());
        }
        Ok(node)
    }

    /// Opens (`O_PATH`) what a name leads to. While something is renamed over the name, it leads
    /// for a moment to an object that has no link any more: whoever looks then is told of that
    /// object, as by the kernel, if looking again finds no other.
    fn open_named(
        &self,
        fd: BorrowedFd<'_>,
        name: &[u8],
        reach: LookupWait,
    ) -> Result<(OwnedFd, StatxResult), Error> {
        let mut tries = 0..TRIES_MAX;
        loop {
            let opened = match reach {
                LookupWait::MayBlock => self.open_name(fd, name),
                LookupWait::NoWait => self.open_known_name(fd, name),
            }?;
            let seen = status(opened.as_fd(), b"")?;
            if seen.attributes.nlink > 0 || tries.next().is_none() {
                return Ok((opened, seen));
            }
        }
    }

    /// Makes a regular file, or takes the one that is there. What was there and is gone before it
    /// could be taken (something was renamed over it) does not count.
    pub(super) fn create_file(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> WccResult<CreatedNode> {
        for _ in 1..TRIES_MAX {
            let changed = self.create_or_take(caller, directory, name, mode);
            // It is not the directory that is stale.
            let passing = matches!(changed.value, Err(Error::STALE)) && changed.after.is_some();
            if !passing {
                return changed;
            }
        }
        self.create_or_take(caller, directory, name, mode)
    }

    fn create_or_take(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> WccResult<CreatedNode> {
        let mut made = None;
        let (changed, parent) = self.change(caller, directory, |parent, _| {
            check_new_name(name)?;
            for _ in 0..TRIES_MAX {
                match self.create_new(caller, parent, name, mode) {
                    Err(Error::Os(Errno::EXIST)) => {}
                    result => {
                        let (created, file) = result?;
                        made = Some(file);
                        return Ok(created);
                    }
                }
                match self.open_named(parent, name, LookupWait::MayBlock) {
                    Err(Error::Os(Errno::NOENT)) => {}
                    Ok((found, StatxResult { attributes, .. })) => {
                        check_taking(&attributes, mode)?;
                        let handle = self.handles.of(found.as_fd())?;
                        let node = VfsNode { handle, attributes };
                        return Ok(CreatedNode { node, new: false });
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(Errno::EXIST.into())
        });
        let changed = self.recorded(changed, |created| created.node.handle, directory, name);
        // The file before its name: what a name leads to has its times (an exclusive create's
        // verifier) and its owner.
        let changed = self.settled_object(changed, made.as_ref());
        let changed = self.made_durable(changed, directory, parent);
        match (&changed.value, mode) {
            (
                Ok(CreatedNode { node, new: false }),
                CreateMode::Unchecked(SetAttributes { size: Some(size), .. }),
            ) => {
                // Under the file's own lock, which must not be waited for while holding the
                // directory's.
                let value = self.resize(caller, node.handle, *size);
                WccResult { value, ..changed }
            }
            _ => changed,
        }
    }

    /// Makes durable what was made, where there is anything beyond its name: `made`.
    fn settled_object(
        &self,
        mut changed: WccResult<CreatedNode>,
        made: Option<&OwnedFd>,
    ) -> WccResult<CreatedNode> {
        if let (Some(made), Ok(created)) = (made, &changed.value) {
            let VfsNode { handle, attributes } = &created.node;
            if let Err(error) = self.make_durable(handle, made.as_fd(), attributes.kind) {
                changed.value = Err(error);
            }
        }
        changed
    }

    fn resize(&self, caller: &FsCred<'_>, handle: NodeHandle, size: u64) -> Result<CreatedNode, Error> {
        use crate::Vfs;
        let set = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        let resized = self.set_attributes(caller, &handle, &set, None);
        resized.value?;
        let attributes = resized.after.ok_or(Error::STALE)?;
        Ok(CreatedNode {
            node: VfsNode { handle, attributes },
            new: false,
        })
    }

    fn create_new(
        &self,
        caller: &FsCred<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        how: CreateMode<'_>,
    ) -> Result<(CreatedNode, OwnedFd), Error> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let (set, times) = match how {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (*set, None),
            CreateMode::Exclusive(verifier) => (SetAttributes::with_mode(0), Some(verifier::times(verifier))),
        };
        let open = || rustix::fs::openat(parent, name, flags, mode(&set));
        let file = self.identity.with_capabilities(setting(caller), open)??;
        if let Some((mtime, atime)) = times
            && let Err(errno) = set_both_times(&file, mtime, atime)
        {
            // Without its verifier a retry could not be told from another client's create.
            let _gone = rustix::fs::unlinkat(parent, name, AtFlags::empty());
            return Err(errno.into());
        }
        self.set_rest(caller, file.as_fd(), &set)?;
        let node = self.node(file.as_fd())?;
        Ok((CreatedNode { node, new: true }, file))
    }

    /// Makes anything but a regular file.
    pub(super) fn make_node(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        kind: FileKind,
        set: &SetAttributes,
        make: &dyn Fn(BorrowedFd<'_>, Mode) -> Result<(), Errno>,
    ) -> WccResult<CreatedNode> {
        let mut set_later = None;
        let (changed, parent) = self.change(caller, directory, |parent, _| {
            check_new_name(name)?;
            self.identity
                .with_capabilities(setting(caller), || make(parent, mode(set)))??;
            let made = self.open_name(parent, name)?;
            let mut node = self.node(made.as_fd()).map_err(without_name)?;
            // Somebody on this machine has put something else there: what is to be set is not for
            // that.
            if node.attributes.kind != kind {
                return Err(Errno::NOENT.into());
            }
            if self.set_rest(caller, made.as_fd(), set)? {
                node.attributes = attributes_of(made.as_fd()).map_err(without_name)?;
                set_later = Some(made);
            }
            Ok(CreatedNode { node, new: true })
        });
        let changed = self.recorded(changed, |created| created.node.handle, directory, name);
        let changed = self.settled_object(changed, set_later.as_ref());
        self.made_durable(changed, directory, parent)
    }

    /// Sets what making did not: owner (for the privileged), group, size and times. An owner or
    /// group that the caller may not set stays as it is, as with other servers; the answer's
    /// attributes say so. Whether there was anything to set.
    fn set_rest(&self, caller: &FsCred<'_>, fd: BorrowedFd<'_>, set: &SetAttributes) -> Result<bool, Error> {
        let rest = SetAttributes {
            mode: None,
            uid: set.uid.filter(|uid| caller.privileged && *uid != caller.uid),
            size: set.size.filter(|size| *size > 0),
            ..*set
        };
        if rest == SetAttributes::default() {
            return Ok(false);
        }
        let made = attributes_of(fd)?;
        let size = rest.size.filter(|_| made.kind == FileKind::Regular);
        let rest = SetAttributes {
            size,
            gid: set.gid.filter(|gid| *gid != made.gid),
            ..rest
        };
        match self.set(caller, fd, &made, &rest) {
            Err(Error::Os(Errno::PERM)) => {
                self.set(caller, fd, &made, &SetAttributes { gid: None, ..rest })?
            }
            result => result?,
        }
        Ok(true)
    }
}

/// Whether a create may take what exists.
fn check_taking(attributes: &Attributes, mode: CreateMode<'_>) -> Result<(), Errno> {
    match mode {
        CreateMode::Guarded(_) => Err(Errno::EXIST),
        CreateMode::Exclusive(verifier) if verifier::is_of(verifier, attributes) => Ok(()),
        CreateMode::Exclusive(_) => Err(Errno::EXIST),
        CreateMode::Unchecked(_) => match attributes.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::EXIST),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
    use super::*;
    use crate::{LocalOptions, MayBlock, Vfs};

    /// That a name is remembered does not mean that its inode is in memory.
    #[test]
    fn a_remembered_name_that_the_kernel_has_forgotten_is_not_at_hand() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        if vfs.may_block() != MayBlock::Data || vfs.only_user().is_some() {
            return;
        }
        let at_hand = || vfs.lookup_nowait(&FsCred::ROOT, &vfs.root(), b"file").is_some();
        let look_up = || vfs.lookup(&FsCred::ROOT, &vfs.root(), b"file").value.unwrap();
        // The kernel forgets for others, too, who have it do so: some tries.
        let comes_true = |happens: &dyn Fn() -> bool| (0..100).any(|_| happens());
        look_up();
        assert!(
            vfs.lookup_cache
                .find(NameSource::Lookup, &vfs.root(), b"file")
                .is_some()
        );
        assert!(comes_true(&|| {
            look_up();
            at_hand()
        }));
        assert!(comes_true(&|| {
            vfs.open_caches.opath_cache.release_all();
            std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            !at_hand()
        }));
        assert!(comes_true(&|| {
            look_up();
            vfs.open_caches.opath_cache.release_all();
            // The kernel has it now: it is opened, and held.
            at_hand()
        }));
    }
}
