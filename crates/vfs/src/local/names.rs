//! Finding, making, removing, renaming and linking names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::data::proc_path;
use super::set::{set_both_times, setting};
use super::sys::check_access;
use super::{LocalVfs, attributes_of};
use crate::answer::{Changed, Created, Linked, Node, Renamed, WccBefore};
use crate::attributes::{Attributes, FileKind, SetAttributes};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::name::check_new_name;
use crate::{CreateMode, Special, verifier};

/// How often a create goes round when the name comes and goes under it.
const CREATE_TRIES_MAX: usize = 16;

/// The permission bits that an object is made with.
pub(super) fn mode(set: &SetAttributes) -> Mode {
    Mode::from_raw_mode(set.mode.unwrap_or(0) & 0o7777)
}

pub(super) fn mknod(parent: BorrowedFd<'_>, name: &[u8], special: Special, mode: Mode) -> Result<(), Errno> {
    let (kind, device) = match special {
        Special::CharacterDevice(device) => (FileType::CharacterDevice, device),
        Special::BlockDevice(device) => (FileType::BlockDevice, device),
        Special::Fifo => (FileType::Fifo, crate::Device::default()),
        Special::Socket => (FileType::Socket, crate::Device::default()),
    };
    let device = rustix::fs::makedev(device.major, device.minor);
    rustix::fs::mknodat(parent, name, kind, mode, device)
}

impl LocalVfs {
    /// Finds a name, `.` and `..` too, in a directory that the kernel lets the caller search.
    pub(super) fn find(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        attributes: &Attributes,
        name: &[u8],
    ) -> Result<Node, Error> {
        if attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        match name {
            b"." => {
                check_access(fd, libc::X_OK)?;
                Ok(Node {
                    handle: *directory,
                    attributes: *attributes,
                })
            }
            b".." => {
                check_access(fd, libc::X_OK)?;
                let parent = self.open_parent(fd, attributes)?;
                let attributes = attributes_of(parent.as_fd())?;
                Ok(Node {
                    handle: self.handles.of(parent.as_fd())?,
                    attributes,
                })
            }
            name => {
                let found = Arc::new(self.open_name(fd, name)?);
                let node = self.node(found.as_fd(), directory, name)?;
                self.hold(&node.handle, &found);
                Ok(node)
            }
        }
    }

    pub(super) fn create_file(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> Changed<Created> {
        let changed = self.change_durably(caller, directory, |parent, _| {
            check_new_name(name)?;
            for _ in 0..CREATE_TRIES_MAX {
                match self.create_new(caller, parent, directory, name, mode) {
                    Err(Error::Os(Errno::EXIST)) => {}
                    result => return result,
                }
                match self.open_name(parent, name) {
                    Err(Errno::NOENT) => {}
                    Ok(found) => {
                        let node = self.node(found.as_fd(), directory, name)?;
                        check_taking(&node.attributes, mode)?;
                        return Ok(Created { node, new: false });
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(Errno::EXIST.into())
        });
        match (&changed.value, mode) {
            (
                Ok(Created { node, new: false }),
                CreateMode::Unchecked(SetAttributes { size: Some(size), .. }),
            ) => {
                // Under the file's own lock, which must not be waited for while holding the directory's.
                let value = self.resize(caller, node.handle, *size);
                Changed { value, ..changed }
            }
            _ => changed,
        }
    }

    fn resize(&self, caller: &Caller<'_>, handle: NodeHandle, size: u64) -> Result<Created, Error> {
        use crate::Vfs;
        let set = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        let resized = self.set_attributes(caller, &handle, &set, None);
        resized.value?;
        let attributes = resized.after.ok_or(Error::STALE)?;
        Ok(Created {
            node: Node { handle, attributes },
            new: false,
        })
    }

    fn create_new(
        &self,
        caller: &Caller<'_>,
        parent: BorrowedFd<'_>,
        directory: &NodeHandle,
        name: &[u8],
        how: CreateMode<'_>,
    ) -> Result<Created, Error> {
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
        let file = self.identity.with(setting(caller), open)??;
        if let Some((mtime, atime)) = times
            && let Err(errno) = set_both_times(&file, mtime, atime)
        {
            // Without its verifier a retry could not be told from another client's create.
            let _gone = rustix::fs::unlinkat(parent, name, AtFlags::empty());
            return Err(errno.into());
        }
        self.set_rest(caller, file.as_fd(), &set)?;
        let node = self.node(file.as_fd(), directory, name)?;
        Ok(Created { node, new: true })
    }

    /// Makes anything but a regular file.
    pub(super) fn make(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        set: &SetAttributes,
        make: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Changed<Created> {
        self.change_durably(caller, directory, |parent, _| {
            check_new_name(name)?;
            self.identity.with(setting(caller), || make(parent))??;
            let made = self.open_name(parent, name)?;
            self.set_rest(caller, made.as_fd(), set)?;
            let node = self.node(made.as_fd(), directory, name)?;
            Ok(Created { node, new: true })
        })
    }

    /// Sets what making did not: owner (for the privileged), group, size and times. An owner or group that the caller may
    /// not set stays as it is, as with other servers; the answer's attributes say so.
    fn set_rest(&self, caller: &Caller<'_>, fd: BorrowedFd<'_>, set: &SetAttributes) -> Result<(), Error> {
        let rest = SetAttributes {
            mode: None,
            uid: set.uid.filter(|uid| caller.privileged && *uid != caller.uid),
            size: set.size.filter(|size| *size > 0),
            ..*set
        };
        if rest == SetAttributes::default() {
            return Ok(());
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
        self.settle(fd, made.kind)
    }

    pub(super) fn remove_name(
        &self,
        caller: &Caller<'_>,
        directory: &NodeHandle,
        name: &[u8],
        flags: AtFlags,
    ) -> Changed<()> {
        let mut victim = None;
        let changed = self.change_durably(caller, directory, |parent, _| {
            check_new_name(name)?;
            // Held open, so that the blocks of a large file are not freed under the lock.
            victim = self.open_name(parent, name).ok();
            Ok(rustix::fs::unlinkat(parent, name, flags)?)
        });
        if let (Some(victim), Ok(())) = (victim, &changed.value) {
            self.name_is_gone(victim.as_fd(), directory, name);
        }
        changed
    }

    /// Lets go of what was kept for an object that had this name.
    fn name_is_gone(&self, victim: BorrowedFd<'_>, directory: &NodeHandle, name: &[u8]) {
        if let Ok(handle) = self.handles.of(victim) {
            self.handles.forget(&handle, directory, name);
            if attributes_of(victim).is_err() {
                self.held.release(&handle);
                drop(self.unstable.take(&handle));
            }
        }
    }

    pub(super) fn link_name(
        &self,
        caller: &Caller<'_>,
        node: &NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Linked {
        let object = self.resolve(node);
        let changed = self.change_durably(caller, directory, |parent, _| {
            check_new_name(name)?;
            let object = object.as_ref().map_err(|error| *error)?;
            attributes_of(object.as_fd())?;
            // By way of /proc: AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH. It is the object itself that is linked.
            let path = proc_path(object.as_fd());
            rustix::fs::linkat(CWD, path.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW)?;
            Ok(self.handles.record(node, directory, name)?)
        });
        let attributes = object.ok().and_then(|object| attributes_of(object.as_fd()).ok());
        Linked {
            node: attributes,
            directory: changed,
        }
    }

    pub(super) fn rename_name(
        &self,
        caller: &Caller<'_>,
        (from, from_name): (&NodeHandle, &[u8]),
        (to, to_name): (&NodeHandle, &[u8]),
    ) -> Renamed {
        let (source, target) = (self.resolve(from), self.resolve(to));
        let assumed = self.identity.assume(caller).map_err(Error::from);
        let held = self.locks.hold_both(from, to);
        let before = [&source, &target].map(known);
        let value = match (&source, &target) {
            (Err(error), _) | (_, Err(error)) => Err(*error),
            (Ok(source), Ok(target)) => assumed.and_then(|()| {
                check_new_name(from_name)?;
                check_new_name(to_name)?;
                let moved = self.open_name(source.as_fd(), from_name);
                let replaced = self.open_name(target.as_fd(), to_name).ok();
                // Whatever failed above, the kernel says it again, and what comes first for it.
                rustix::fs::renameat(source, from_name, target, to_name)?;
                let moved = moved.or_else(|_| self.open_name(target.as_fd(), to_name))?;
                Ok((moved, replaced))
            }),
        };
        let after = [&source, &target].map(known);
        drop(held);
        let value = value.and_then(|(moved, replaced)| {
            self.name_has_moved(&moved, replaced.as_ref(), (from, from_name), (to, to_name))?;
            for directory in [&source, &target].into_iter().flatten() {
                self.settle(directory.as_fd(), FileKind::Directory)?;
            }
            Ok(())
        });
        let wcc = |before: Option<Attributes>| before.as_ref().map(WccBefore::from);
        let [from_before, to_before] = before;
        let [from_after, to_after] = after;
        Renamed {
            from: (wcc(from_before), from_after),
            to: (wcc(to_before), to_after),
            value,
        }
    }

    fn name_has_moved(
        &self,
        moved: &OwnedFd,
        replaced: Option<&OwnedFd>,
        (from, from_name): (&NodeHandle, &[u8]),
        (to, to_name): (&NodeHandle, &[u8]),
    ) -> Result<(), Error> {
        if let Some(replaced) = replaced {
            self.name_is_gone(replaced.as_fd(), to, to_name);
        }
        let handle = self.handles.of(moved.as_fd())?;
        self.handles.record(&handle, to, to_name)?;
        // Two names of one file stay both.
        if rename_happened(moved, replaced) {
            self.handles.forget(&handle, from, from_name);
        }
        Ok(())
    }
}

fn rename_happened(moved: &OwnedFd, replaced: Option<&OwnedFd>) -> bool {
    let fileid = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|status| status.st_ino).ok();
    replaced.is_none_or(|replaced| fileid(replaced) != fileid(moved))
}

fn known(directory: &Result<Arc<OwnedFd>, Error>) -> Option<Attributes> {
    directory
        .as_ref()
        .ok()
        .and_then(|fd| attributes_of(fd.as_fd()).ok())
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
