//! Looking up and creating names.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_types::{Attributes, FileKind, SetAttributes};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::data::proc_path;
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
use crate::{CreateMode, ObjectPermit, SpecialFile, verifier};

/// Maximum number of retries of a look-up or create while the name changes.
const TRIES_MAX: usize = 16;

/// The permission bits of a new object.
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

/// Whether a look-up may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupWait {
    /// The operation may wait for a disk.
    MayBlock,
    /// Only memory is accessed.
    NoWait,
}

/// The error for an object without a name. The directory is not stale.
fn without_name(error: Error) -> Error {
    match error {
        Error::STALE => Errno::NOENT.into(),
        error => error,
    }
}

impl LocalVfs {
    /// Looks up a name, including `.` and `..`, in a directory that the caller may search.
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
                Ok(VfsNode { handle: *directory, attributes: *attributes })
            }
            b".." => {
                check_access(fd, libc::X_OK)?;
                let parent = self.open_parent(fd, attributes)?;
                let attributes = attributes_of(parent.as_fd())?;
                Ok(VfsNode { handle: self.handles.of(parent.as_fd())?, attributes })
            }
            name => self.find_child(fd, directory, name, LookupWait::MayBlock),
        }
    }

    /// The object of a name other than `.` and `..`, without opening it, as a listing finds it;
    /// `None` if it has to be opened.
    pub(super) fn find_unopened(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Option<VfsNode> {
        if let Some(remembered) = self.lookup_cache.find(NameSource::Lookup, directory, name) {
            return remembered.now(&status(fd, name).ok()?);
        }
        if self.handle_scheme() != HandleScheme::Kernel || !self.handles.have_inode_numbers() {
            return None;
        }
        let (clock, path) = (now(), CString::new(name).ok()?);
        let (handle, found) = self.handles.of_name(fd, &path).ok()?;
        let seen = StatxResult::of(&found);
        let StatxResult { attributes, .. } = seen;
        let is_child = self.is_here(&found) && attributes.fsid == self.root_fsid && attributes.nlink > 0;
        if !is_child || !self.handles.is_same_object(fd, &path, &handle, &seen, clock) {
            return None;
        }
        self.lookup_cache.insert(NameSource::Lookup, directory, name, &handle, &seen, clock);
        Some(VfsNode { handle, attributes })
    }

    /// Looks up a name other than `.` and `..`: the cached object if it is still valid, otherwise
    /// by opening it. `EAGAIN` if this may block.
    pub(super) fn find_child(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        name: &[u8],
        reach: LookupWait,
    ) -> Result<VfsNode, Error> {
        // Access by name does not block while the object is open: its inode is in memory, and so is
        // the path to it.
        let is_in_reach =
            |object: &NodeHandle| reach == LookupWait::MayBlock || self.is_inode_in_memory(object);
        let remembered = self.lookup_cache.find(NameSource::Lookup, directory, name);
        if let Some(remembered) = remembered.filter(|remembered| is_in_reach(remembered.object())) {
            if let Some(node) = remembered.now(&status(fd, name)?) {
                return Ok(node);
            }
            self.lookup_cache.forget(directory, name);
        }
        let (found, seen) = self.open_named(fd, name, reach)?;
        let handle = self.handles.of(found.as_fd())?;
        self.handles.record(&handle, directory, name)?;
        let node = VfsNode { handle, attributes: seen.attributes };
        if seen.attributes.nlink == 0 {
            return Ok(node);
        }
        self.cache_object(&handle, &Arc::new(found));
        // A handle table has to record each name.
        if handle.scheme() == HandleScheme::Kernel {
            self.lookup_cache.insert(NameSource::Lookup, directory, name, &handle, &seen, now());
        }
        Ok(node)
    }

    /// Opens (`O_PATH`) the object of a name. While an object is renamed over the name, the name
    /// refers for a moment to an object without links. The second attempt then returns that object,
    /// as the kernel does, if it does not find another.
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

    /// Creates a regular file, or uses the existing one. If the existing one is replaced before it
    /// can be used (rename over it), this tries again.
    pub(super) fn create_file(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode> {
        for _ in 1..TRIES_MAX {
            let changed = self.create_or_take(caller, directory, name, mode, permit);
            // The directory is not stale.
            let passing = matches!(changed.value, Err(Error::STALE)) && changed.after.is_some();
            if !passing {
                return changed;
            }
        }
        self.create_or_take(caller, directory, name, mode, permit)
    }

    fn create_or_take(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode> {
        let mut made = None;
        let (changed, parent) = self.change(caller, directory, |parent, _| {
            check_new_name(name)?;
            let mut permitted = permit(directory, directory);
            for _ in 0..TRIES_MAX {
                if permitted.is_ok() {
                    match self.create_new(caller, parent, name, mode) {
                        Err(Error::Os(Errno::EXIST)) => {}
                        result => {
                            let (created, file) = result?;
                            made = Some(file);
                            return Ok(created);
                        }
                    }
                }
                match self.open_named(parent, name, LookupWait::MayBlock) {
                    Err(Error::Os(Errno::NOENT)) => std::mem::replace(&mut permitted, Ok(()))?,
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
        // The file before its name: a name refers to an object with its times (an exclusive
        // create's verifier) and its owner.
        let changed = self.settled_object(changed, made.as_ref());
        let changed = self.made_durable(changed, directory, parent);
        match (&changed.value, mode) {
            (
                Ok(CreatedNode { node, new: false }),
                CreateMode::Unchecked(SetAttributes { size: Some(size), .. }),
            ) => {
                // Under the file's own lock, which must not be taken while holding the directory's.
                let permitted = permit(directory, &node.handle);
                let value = permitted.and_then(|()| self.resize(caller, node.handle, *size));
                WccResult { value, ..changed }
            }
            _ => changed,
        }
    }

    /// Makes the new object durable, if it has more than its name: `made`.
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
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let resized = self.set_attributes(caller, &handle, &set, None);
        resized.value?;
        let attributes = resized.after.ok_or(Error::STALE)?;
        Ok(CreatedNode { node: VfsNode { handle, attributes }, new: false })
    }

    fn create_new(
        &self,
        caller: &FsCred<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        how: CreateMode<'_>,
    ) -> Result<(CreatedNode, OwnedFd), Error> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let new = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let (set, times) = match how {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (*set, None),
            CreateMode::Exclusive(verifier) => (SetAttributes::with_mode(0), Some(verifier::times(verifier))),
        };
        let open = |name: &[u8], flags| -> Result<OwnedFd, Error> {
            let open = || rustix::fs::openat(parent, name, flags, mode(&set));
            Ok(self.identity.with_capabilities(setting(caller), open)??)
        };
        // Without its verifier a retry could not be distinguished from another client's create: the
        // file gets its name afterwards, or else none at all. A server that is killed in between
        // leaves nothing.
        let unnamed = times.and_then(|(mtime, atime)| {
            let file = open(b".", flags | OFlags::TMPFILE).ok()?;
            set_both_times(&file, mtime, atime).ok()?;
            let path = proc_path(file.as_fd());
            match rustix::fs::linkat(CWD, path.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => Some(Ok(file)),
                Err(Errno::EXIST) => Some(Err(Errno::EXIST)),
                Err(_) => None,
            }
        });
        let file = match (unnamed, times) {
            (Some(linked), _) => linked?,
            // Not all file systems support files without names. Other errors occur again.
            (None, Some((mtime, atime))) => {
                let file = open(name, new)?;
                if let Err(errno) = set_both_times(&file, mtime, atime) {
                    remove_created(parent, name, &file);
                    return Err(errno.into());
                }
                file
            }
            (None, None) => open(name, new)?,
        };
        if let Err(error) = self.set_rest(caller, file.as_fd(), &set) {
            // A retry would find the file and fail in another way.
            remove_created(parent, name, &file);
            return Err(error);
        }
        let node = self.node(file.as_fd())?;
        Ok((CreatedNode { node, new: true }, file))
    }

    /// Creates an object that is not a regular file.
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
            self.identity.with_capabilities(setting(caller), || make(parent, mode(set)))??;
            let made = self.open_name(parent, name)?;
            let mut node = self.node(made.as_fd()).map_err(without_name)?;
            // A local process has replaced the object: the attributes are not for that one.
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

    /// Sets the remaining attributes: owner (if privileged), group, size and times. An owner or
    /// group that the caller may not set remains unchanged, as with other servers; the attributes
    /// of the result show this. Returns whether there was anything to set.
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
        let rest = SetAttributes { size, gid: set.gid.filter(|gid| *gid != made.gid), ..rest };
        match self.set(caller, fd, &made, &rest) {
            Err(Error::Os(Errno::PERM)) => {
                self.set(caller, fd, &made, &SetAttributes { gid: None, ..rest })?
            }
            result => result?,
        }
        Ok(true)
    }
}

/// Removes the name of a file that was just created, unless a local process has given the name to
/// another one. No system call does both: what replaces the file between the two is removed.
fn remove_created(parent: BorrowedFd<'_>, name: &[u8], file: &OwnedFd) {
    let named = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    if let (Ok(named), Ok(created)) = (named, rustix::fs::fstat(file))
        && (named.st_dev, named.st_ino) == (created.st_dev, created.st_ino)
    {
        let _gone = rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
}

/// Whether a create may use the existing object.
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

    #[test]
    fn a_creation_that_fails_removes_its_own_file_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let parent: OwnedFd = std::fs::File::open(directory.path()).unwrap().into();
        let path = |name: &str| directory.path().join(name);
        let created: OwnedFd = std::fs::File::create(path("file")).unwrap().into();
        std::fs::write(path("other"), "kept").unwrap();
        std::fs::rename(path("other"), path("file")).unwrap();
        remove_created(parent.as_fd(), b"file", &created);
        assert_eq!(std::fs::read(path("file")).unwrap(), b"kept");
        let other: OwnedFd = std::fs::File::open(path("file")).unwrap().into();
        remove_created(parent.as_fd(), b"file", &other);
        assert!(!path("file").exists());
        // By a call that fails: no file system has files of this size.
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let set = SetAttributes { size: Some(u64::MAX), ..SetAttributes::with_mode(0o600) };
        let made = vfs.create(&FsCred::ROOT, &vfs.root(), b"file", CreateMode::Guarded(&set));
        assert!(made.value.is_err() && !path("file").exists());
    }

    // SEMANTICS: rpc-12.
    #[test]
    fn what_is_created_exclusively_has_its_verifier_as_soon_as_it_has_its_name() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
        let name = |number: usize| directory.path().join(number.to_string());
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                (0..500).all(|number| {
                    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
                    let times = loop {
                        if let Ok(metadata) = std::fs::metadata(name(number)) {
                            break metadata.modified().unwrap();
                        }
                        assert!(std::time::Instant::now() < deadline, "{number} was not created");
                    };
                    times < std::time::UNIX_EPOCH + std::time::Duration::from_secs(1)
                })
            });
            for number in 0..500 {
                let made = vfs.create(
                    &FsCred::ROOT,
                    &vfs.root(),
                    number.to_string().as_bytes(),
                    CreateMode::Exclusive([0; 8]),
                );
                assert!(made.value.unwrap().new);
                if watcher.is_finished() {
                    break;
                }
            }
            assert!(watcher.join().unwrap(), "a file had its name before its verifier");
        });
    }

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
        // Other processes' use may prevent the kernel from dropping it: several attempts.
        let comes_true = |happens: &dyn Fn() -> bool| (0..100).any(|_| happens());
        look_up();
        assert!(vfs.lookup_cache.find(NameSource::Lookup, &vfs.root(), b"file").is_some());
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
            // The kernel has it in memory now: it is opened and cached.
            at_hand()
        }));
    }
}
