//! Creating handles, and opening objects by handle.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use curt_observe::stages::{self, RequestStage};
use curt_types::Timestamp;
use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::credentials::FsIdentity;
use super::data::reopen;
use super::handle_table::HandleTable;
use super::layout::HandleLayout;
use super::lookup_cache::is_settled;
use super::stat::StatxResult;
use super::sys::{KernelHandle, name_to_handle, name_to_handle_of, open_by_handle};
use super::{HandleChoice, LocalError, LocalOptions, stat};
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};

/// Maximum number of retries after ENOMEM.
const NO_MEMORY_TRIES: usize = 100;

/// The source of a tree's handles.
pub(super) enum HandleSource {
    /// By the kernel.
    Kernel(KernelHandleSource),
    /// A handle table.
    Table(HandleTable),
}

/// The kernel's handles of one file system.
pub(super) struct KernelHandleSource {
    /// Identifies the file system.
    mount: OwnedFd,
    /// `None` if the layout is unknown.
    layout: Option<HandleLayout>,
}

impl HandleSource {
    pub(super) fn choose(
        path: &Path,
        root: BorrowedFd<'_>,
        identity: FsIdentity,
        options: &LocalOptions,
    ) -> Result<Self, LocalError> {
        let kernel = match options.handles {
            HandleChoice::Auto | HandleChoice::Kernel => match kernel_handles(root, identity) {
                Ok(kernel) => return Ok(Self::Kernel(kernel)),
                Err(reason) => reason,
            },
            HandleChoice::Table => "not asked for".to_owned(),
        };
        let table = match (&options.table, options.handles) {
            (_, HandleChoice::Kernel) => "a table was not asked for".to_owned(),
            (None, _) => "there is no state directory for a table of handles".to_owned(),
            (Some(file), HandleChoice::Auto | HandleChoice::Table) => match HandleTable::open(file) {
                Ok(table) => return Ok(Self::Table(table)),
                Err(reason) => format!("{}: {reason}", file.display()),
            },
        };
        Err(LocalError::NoHandles { path: path.to_owned(), kernel, table })
    }

    /// The handle of a descriptor's object.
    pub(super) fn of(&self, fd: BorrowedFd<'_>) -> Result<NodeHandle, Errno> {
        match self {
            Self::Kernel(_) => from_kernel(&name_to_handle(fd)?),
            Self::Table(_) => HandleTable::handle_of(fd),
        }
    }

    /// The handle and status of `name` in a directory (of a symbolic link itself), without opening
    /// it. These are two system calls, the handle's first: the name may refer to another object by
    /// the second ([`HandleSource::is_same_object`]). `EAGAIN`: something was mounted or unmounted
    /// there in between.
    pub(super) fn of_name(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(NodeHandle, Statx), Errno> {
        match self {
            Self::Kernel(_) => {
                let handle = name_to_handle_of(directory, name)?;
                let status = status_of_name(directory, name)?;
                let tells_mount = status.stx_mask & StatxFlags::MNT_ID.bits() != 0;
                if tells_mount && status.stx_mnt_id != handle.mount {
                    return Err(Errno::AGAIN);
                }
                Ok((from_kernel(&handle)?, status))
            }
            Self::Table(_) => {
                let status = status_of_name(directory, name)?;
                Ok((HandleTable::handle_by(&status)?, status))
            }
        }
    }

    /// Whether [`HandleSource::is_same_object`] can decide.
    pub(super) fn have_inode_numbers(&self) -> bool {
        match self {
            Self::Kernel(kernel) => kernel.layout.is_some(),
            Self::Table(_) => true,
        }
    }

    /// Whether the handle and the status from [`HandleSource::of_name`], obtained no earlier than
    /// `clock`, belong to one object on the directory's file system, even if the name changed
    /// meanwhile. `false` if this is unknown.
    ///
    /// They must have the same inode number. Then they belong to one object unless the handle's
    /// object was removed and its number given to a new object before the second call. The new
    /// object would have been created since. So an object that is older is the handle's, and so is
    /// that of a name that still refers to the handle's object afterwards.
    /// still leads to the handle's object after both.
    pub(super) fn is_same_object(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        handle: &NodeHandle,
        status: &StatxResult,
        clock: Timestamp,
    ) -> bool {
        match self {
            Self::Kernel(kernel) => {
                let number = kernel.layout.and_then(|layout| layout.number(handle));
                number == Some(status.attributes.fileid)
                    && (status.birth.is_some_and(|birth| is_settled(birth, clock))
                        || self.handle_of_name(directory, name).as_ref() == Ok(handle))
            }
            // Both are from one system call.
            Self::Table(_) => true,
        }
    }

    /// The handle of `name` in a directory (of a symbolic link itself), without opening it.
    pub(super) fn handle_of_name(&self, directory: BorrowedFd<'_>, name: &CStr) -> Result<NodeHandle, Errno> {
        match self {
            Self::Kernel(_) => from_kernel(&name_to_handle_of(directory, name)?),
            Self::Table(_) => HandleTable::handle_by(&status_of_name(directory, name)?),
        }
    }

    /// Records the location of a handle's object. Once this returns, the object can also be opened
    /// after a restart.
    pub(super) fn record(
        &self,
        handle: &NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.record_all(std::iter::once((handle, directory, name)))
    }

    /// As [`HandleSource::record`] for many handles, at hardly more cost than for one.
    pub(super) fn record_all<'a>(
        &self,
        places: impl Iterator<Item = (&'a NodeHandle, &'a NodeHandle, &'a [u8])>,
    ) -> Result<(), Errno> {
        match self {
            Self::Kernel(_) => Ok(()),
            Self::Table(table) => table.record(places),
        }
    }

    /// Removes the location of a handle's object.
    pub(super) fn forget(&self, handle: &NodeHandle, directory: &NodeHandle, name: &[u8]) {
        if let Self::Table(table) = self {
            table.forget(handle, directory, name);
        }
    }

    /// Useful number of locations to record together.
    pub(super) fn batch(&self) -> usize {
        match self {
            Self::Kernel(_) => 1,
            Self::Table(_) => 128,
        }
    }

    /// Opens (O_PATH) the object of a handle, independent of the caller's permissions.
    pub(super) fn open(
        &self,
        identity: FsIdentity,
        root: BorrowedFd<'_>,
        root_handle: &NodeHandle,
        handle: &NodeHandle,
    ) -> Result<OwnedFd, Error> {
        match self {
            Self::Kernel(KernelHandleSource { mount, .. }) => {
                if handle.scheme() != HandleScheme::Kernel {
                    return Err(Error::BadHandle);
                }
                let open = || open_settled(mount.as_fd(), handle);
                match identity.with_capabilities(CapabilitySet::DAC_READ_SEARCH, open)? {
                    // No file system of this kernel creates such a handle.
                    Err(Errno::INVAL) => Err(Error::BadHandle),
                    result => Ok(result?),
                }
            }
            Self::Table(table) => {
                if handle.scheme() != HandleScheme::Table || handle.kind() != 0 {
                    return Err(Error::BadHandle);
                }
                let search = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
                identity.with_capabilities(search, || table.find(root, root_handle, handle))?
            }
        }
    }
}

/// The result of statx(2) for `name` in a directory (of a symbolic link itself).
pub(super) fn status_of_name(directory: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let _stage = stages::enter(RequestStage::FileSystem, "statx");
    rustix::fs::statx(directory, name, flags, wanted)
}

fn from_kernel(handle: &KernelHandle) -> Result<NodeHandle, Errno> {
    let bytes = &handle.bytes[..handle.length];
    NodeHandle::new(HandleScheme::Kernel, handle.kind, bytes).ok_or(Errno::OVERFLOW)
}

/// Opens by handle, with retries: Linux returns ENOMEM for the handle of a removed object whose
/// inode number is just being given to a new one (seen on ext4, Linux 6.18).
fn open_settled(mount: BorrowedFd<'_>, handle: &NodeHandle) -> Result<OwnedFd, Errno> {
    for _ in 0..NO_MEMORY_TRIES {
        match open_by_handle(mount, handle.kind(), handle.bytes()) {
            Err(Errno::NOMEM) => std::thread::yield_now(),
            result => return result,
        }
    }
    Err(Errno::NOMEM)
}

/// Whether the kernel's handles work, tested with the root; if not, why.
fn kernel_handles(root: BorrowedFd<'_>, identity: FsIdentity) -> Result<KernelHandleSource, String> {
    let handle = name_to_handle(root).map_err(|errno| match errno {
        Errno::OPNOTSUPP => "the file system has none".to_owned(),
        Errno::OVERFLOW => "those of the file system are longer than 44 bytes".to_owned(),
        errno => errno.to_string(),
    })?;
    let mount = reopen(root, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| errno.to_string())?;
    let bytes = &handle.bytes[..handle.length];
    let open = || open_by_handle(mount.as_fd(), handle.kind, bytes);
    let again = identity.with_capabilities(CapabilitySet::DAC_READ_SEARCH, open).and_then(|opened| opened);
    let again = again.map_err(|errno| match errno {
        Errno::PERM => "opening them needs CAP_DAC_READ_SEARCH".to_owned(),
        errno => format!("opening one fails: {errno}"),
    })?;
    let identity_of = |fd: BorrowedFd<'_>| {
        rustix::fs::fstat(fd).map(|status| stat::attributes(&status)).map(|found| (found.fsid, found.fileid))
    };
    match (identity_of(root), identity_of(again.as_fd())) {
        (Ok(one), Ok(other)) if one == other => {
            let handle = from_kernel(&handle).map_err(|errno| errno.to_string())?;
            let layout = HandleLayout::of(root, &handle, one.1);
            Ok(KernelHandleSource { mount, layout })
        }
        _ => Err("one of them opens something else".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs;

    use super::super::LocalVfs;
    use super::super::stat::now;
    use super::*;

    /// A name that changes its object between the two system calls.
    struct MonotonicTime {
        beside: tempfile::TempDir,
        vfs: LocalVfs,
        directory: OwnedFd,
        clock: Timestamp,
    }

    impl MonotonicTime {
        /// `None` without permission to open by handle.
        fn new() -> Option<Self> {
            let beside = tempfile::tempdir().unwrap();
            let vfs = LocalVfs::open(beside.path(), &LocalOptions::default()).ok()?;
            assert!(vfs.handles.have_inode_numbers(), "of ext4, XFS, btrfs and tmpfs");
            let directory = fs::File::open(beside.path()).unwrap().into();
            let clock = now();
            Some(Self { beside, vfs, directory, clock })
        }

        fn make(&self, name: &str) {
            fs::write(self.beside.path().join(name), "").unwrap();
        }

        /// Waits until the object is old enough, and continues then.
        fn age(&mut self) {
            let made = self.status(c"name").birth.unwrap();
            while !is_settled(made, self.clock) {
                std::thread::yield_now();
                self.clock = now();
            }
        }

        fn handle(&self) -> NodeHandle {
            self.vfs.handles.handle_of_name(self.directory.as_fd(), c"name").unwrap()
        }

        fn status(&self, name: &CStr) -> StatxResult {
            StatxResult::of(&status_of_name(self.directory.as_fd(), name).unwrap())
        }

        fn is_one(&self, handle: &NodeHandle, status: &StatxResult) -> bool {
            self.vfs.handles.is_same_object(self.directory.as_fd(), c"name", handle, status, self.clock)
        }
    }

    #[test]
    fn a_handle_and_a_status_of_two_objects_are_never_combined() {
        let Some(mut moment) = MonotonicTime::new() else { return };
        moment.make("name");
        let young = moment.handle();
        assert!(moment.is_one(&young, &moment.status(c"name")), "it leads there still");
        // Both are old, so their age proves nothing.
        moment.make("other");
        fs::rename(moment.beside.path().join("name"), moment.beside.path().join("kept")).unwrap();
        fs::rename(moment.beside.path().join("other"), moment.beside.path().join("name")).unwrap();
        moment.age();
        let (old, status) = (moment.handle(), moment.status(c"name"));
        assert!(moment.is_one(&old, &status));
        assert!(!moment.is_one(&young, &status), "another took its place");
        fs::remove_file(moment.beside.path().join("name")).unwrap();
        assert!(moment.is_one(&old, &status), "it was the name's then, and old enough to be known");
    }

    #[test]
    fn an_object_with_a_reused_inode_number_is_not_the_removed_object() {
        let Some(moment) = MonotonicTime::new() else { return };
        let mut reused = 0;
        for _ in 0..50 {
            moment.make("name");
            let (handle, before) = (moment.handle(), moment.status(c"name"));
            fs::remove_file(moment.beside.path().join("name")).unwrap();
            moment.make("name");
            let status = moment.status(c"name");
            assert!(!moment.is_one(&handle, &status), "{before:?} {status:?}");
            reused += u32::from(before.attributes.fileid == status.attributes.fileid);
        }
        println!("{reused} of 50 had the number of the one before");
    }
}
