//! Listing a directory by the file system's positions (d_off), with no lock held.
//!
//! The validity of a cookie is that of d_off: ext4, XFS, btrfs and tmpfs (since Linux 6.6) keep an
//! entry's position while others are created and removed; older tmpfs may return a name twice when
//! files are created during a listing.
//!
//! Attributes and handles are obtained by name without opening the object: with one system call if
//! the name is cached (`lookup_cache`), which shows whether it still refers to the same object,
//! otherwise with two. Between these two the name may change to another object; their results show
//! this ([`super::handles::HandleSource::is_same_object`]), with a third call for objects younger
//! than 20 ms. If they do not agree, the object is opened, and both are read from the descriptor:
//! four calls. The directory's parent is cached as well; whether it is still in the tree is checked
//! each time.
//!
//! If the file system's handles do not show this (all but ext4, XFS, btrfs and tmpfs), each object
//! is opened while the directory is changing. Names are then cached only once the directory is
//! known not to have changed from before the first call until after the second.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use curt_types::{Attributes, Timestamp};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use super::data::{reopen, retry};
use super::handles::status_of_name;
use super::lookup_cache::NameSource;
use super::stat::{StatxResult, now, status};
use super::sys::check_access;
use super::{LocalVfs, attributes_of};
use crate::ReaddirDetail;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::result::{VfsDirEntry, VfsNode};

/// Buffer size of getdents64(2).
const BUFFER_BYTES: usize = 32 * 1024;

/// Number of entries between two checks whether the directory is changing.
const LOOK_EVERY: usize = 64;

/// A directory without a change for this time is not changing: many times the step of the kernel's
/// clock, and the time of two system calls.
const QUIET: Duration = Duration::from_millis(100);

/// An entry that is returned together with others.
struct PendingEntry {
    fileid: u64,
    cookie: u64,
    name: Box<[u8]>,
    node: Option<VfsNode>,
}

/// A listing with attributes.
struct ReaddirPlusListing<'a> {
    vfs: &'a LocalVfs,
    directory: &'a NodeHandle,
    attributes: &'a Attributes,
    fd: BorrowedFd<'a>,
    /// Whether handles contain inode numbers; the fields below are for those that do not.
    have_inode_numbers: bool,
    is_quiet: bool,
    /// The time of the directory's last change at the last check.
    changed: Timestamp,
    /// The time just before that check.
    clock: Timestamp,
    /// Number of entries since the last check.
    seen: usize,
    /// Names seen since the last check, if handles do not contain inode numbers.
    observed: Vec<ObservedName>,
    /// Whether these names are worth caching: with a handle table each one has to be recorded
    /// anyway.
    observes: bool,
    pending: Vec<PendingEntry>,
}

/// A name and its object, from two system calls.
struct ObservedName {
    name: Box<[u8]>,
    handle: NodeHandle,
    status: StatxResult,
}

impl LocalVfs {
    /// Whether an object is on the tree's mount, and not a mount point.
    pub(super) fn is_here(&self, found: &Statx) -> bool {
        found.stx_mask & StatxFlags::MNT_ID.bits() != 0 && Some(found.stx_mnt_id) == self.mount
    }

    pub(super) fn list(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        attributes: &Attributes,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        let file = open_directory(fd)?;
        if cookie != 0 {
            seek(&file, cookie)?;
        }
        let mut pass = match wanted {
            ReaddirDetail::Names => None,
            ReaddirDetail::Nodes => Some(ReaddirPlusListing::new(self, fd, directory, attributes)),
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(&file, &mut buffer);
        let mut visited = false;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // The entries so far are valid; the next call will return the error.
                Err(_) if visited => {
                    return pass.map_or(Ok(false), |pass| pass.end(visit).map(|_| false));
                }
                Err(errno) => return Err(errno.into()),
            };
            visited = true;
            let (name, cookie) = (entry.file_name(), entry.next_entry_cookie());
            // The parent of the root is not disclosed.
            let is_above = name == c".." && self.is_root(attributes);
            let fileid = if is_above { attributes.fileid } else { entry.ino() };
            let goes_on = match &mut pass {
                None => {
                    let name = name.to_bytes();
                    let node = None;
                    visit(&VfsDirEntry { fileid, cookie, name, node }).is_continue()
                }
                Some(pass) => pass.add(fileid, cookie, name, visit)?,
            };
            if !goes_on {
                if let Some(pass) = &mut pass {
                    pass.cache_observed();
                }
                return Ok(false);
            }
        }
        pass.map_or(Ok(true), |pass| pass.end(visit))
    }
}

impl<'a> ReaddirPlusListing<'a> {
    fn new(
        vfs: &'a LocalVfs,
        fd: BorrowedFd<'a>,
        directory: &'a NodeHandle,
        attributes: &'a Attributes,
    ) -> Self {
        let tell_numbers = vfs.handles.have_inode_numbers();
        Self {
            vfs,
            directory,
            attributes,
            fd,
            have_inode_numbers: tell_numbers,
            is_quiet: !tell_numbers && is_quiet(attributes.ctime),
            changed: attributes.ctime,
            // A time after the check: it is only compared with the age of objects, none of which
            // was read yet.
            clock: now(),
            seen: 0,
            observed: Vec::new(),
            observes: vfs.handle_scheme() == HandleScheme::Kernel,
            pending: Vec::new(),
        }
    }

    /// Adds an entry; returns whether the visitor continues.
    fn add(
        &mut self,
        fileid: u64,
        cookie: u64,
        name: &CStr,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        self.seen += 1;
        if !self.have_inode_numbers && self.seen.is_multiple_of(LOOK_EVERY) {
            self.check_directory_unchanged();
        }
        let node = match self.node_by_name(fileid, name) {
            Some(node) => Some(node),
            None => self.opened(name.to_bytes()).ok(),
        };
        // These are from two system calls: the name may refer to another object now.
        let fileid = node.as_ref().map_or(fileid, |node| node.attributes.fileid);
        let name = name.to_bytes();
        if self.vfs.handles.batch() == 1 {
            let entry = VfsDirEntry { fileid, cookie, name, node };
            return Ok(visit(&entry).is_continue());
        }
        self.pending.push(PendingEntry { fileid, cookie, name: name.into(), node });
        if self.pending.len() < self.vfs.handles.batch() {
            return Ok(true);
        }
        self.flush(visit)
    }

    /// Checks whether the directory is changing. If it has not changed since the last check, the
    /// objects of the names are valid, and are cached.
    fn check_directory_unchanged(&mut self) {
        let clock = now();
        let found = attributes_of(self.fd).map(|now| now.ctime);
        let was_left_alone = self.is_quiet && found == Ok(self.changed);
        let observed = self.observed.drain(..);
        if was_left_alone {
            for ObservedName { name, handle, status } in observed {
                let names = &self.vfs.lookup_cache;
                names.insert(NameSource::Listing, self.directory, &name, &handle, &status, self.clock);
            }
        } else {
            drop(observed);
        }
        self.is_quiet = found.is_ok_and(is_quiet);
        self.changed = found.unwrap_or(self.changed);
        self.clock = clock;
    }

    /// Returns the remaining entries; returns whether the visitor continues.
    fn end(mut self, visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>) -> Result<bool, Error> {
        self.cache_observed();
        self.flush(visit)
    }

    /// Caches the last observed names, if this is safe.
    fn cache_observed(&mut self) {
        if !self.observed.is_empty() {
            self.check_directory_unchanged();
        }
    }

    /// The object by name; `None` if it has to be opened: the directory is changing, the object is
    /// not that of the directory's entry, or another file system is mounted there.
    fn node_by_name(&mut self, fileid: u64, name: &CStr) -> Option<VfsNode> {
        if name == c"." || name == c".." && self.vfs.is_root(self.attributes) {
            check_access(self.fd, libc::X_OK).ok()?;
            return Some(VfsNode { handle: *self.directory, attributes: *self.attributes });
        }
        if let Some(node) = self.cached_node(name) {
            let is_good = name != c".." || self.vfs.has_above(self.fd, &node.attributes);
            return is_good.then_some(node);
        }
        let handles = &self.vfs.handles;
        if name == c".." || !self.have_inode_numbers && !self.is_quiet {
            return None;
        }
        let (handle, found) = handles.of_name(self.fd, name).ok()?;
        let status = StatxResult::of(&found);
        let attributes = status.attributes;
        let is_child =
            self.vfs.is_here(&found) && attributes.fsid == self.attributes.fsid && attributes.nlink > 0;
        if self.have_inode_numbers {
            if !is_child || !handles.is_same_object(self.fd, name, &handle, &status, self.clock) {
                return None;
            }
            self.note(name.to_bytes(), &handle, &status);
            return Some(VfsNode { handle, attributes });
        }
        // The next entries are likely the same: the file system has two kinds of inode numbers, or
        // the names are changing.
        self.is_quiet = is_child && attributes.fileid == fileid;
        if !self.is_quiet {
            return None;
        }
        if self.observes {
            let name = name.to_bytes().into();
            self.observed.push(ObservedName { name, handle, status });
        }
        Some(VfsNode { handle, attributes })
    }

    /// The cached object of a name, if the name still refers to it: by one system call, even if the
    /// directory is changing.
    fn cached_node(&self, name: &CStr) -> Option<VfsNode> {
        let remembered = self.vfs.lookup_cache.find(NameSource::Listing, self.directory, name.to_bytes())?;
        let found = status_of_name(self.fd, name).ok()?;
        let status = StatxResult::of(&found);
        if !self.vfs.is_here(&found) || status.attributes.nlink == 0 {
            return None;
        }
        Some(VfsNode { handle: remembered.handle(&status)?, attributes: status.attributes })
    }

    /// The object, by opening it.
    fn opened(&self, name: &[u8]) -> Result<VfsNode, Error> {
        let found = if name == b".." {
            check_access(self.fd, libc::X_OK)?;
            self.vfs.open_parent(self.fd, self.attributes)?
        } else {
            self.vfs.open_name(self.fd, name)?
        };
        let status = status(found.as_fd(), b"")?;
        if status.attributes.nlink == 0 {
            return Err(Error::STALE);
        }
        let handle = self.vfs.handles.of(found.as_fd())?;
        self.note(name, &handle, &status);
        Ok(VfsNode { handle, attributes: status.attributes })
    }

    /// Caches the object of a name, whose handle and status belong together.
    fn note(&self, name: &[u8], handle: &NodeHandle, status: &StatxResult) {
        if self.observes {
            let names = &self.vfs.lookup_cache;
            names.insert(NameSource::Listing, self.directory, name, handle, status, self.clock);
        }
    }

    /// Returns the pending entries; returns whether the visitor continues.
    fn flush(&mut self, visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>) -> Result<bool, Error> {
        let places = self.pending.iter().filter(|entry| !matches!(&*entry.name, b"." | b".."));
        let places = places
            .filter_map(|entry| entry.node.as_ref().map(|node| (&node.handle, self.directory, &*entry.name)));
        self.vfs.handles.record_all(places)?;
        for PendingEntry { fileid, cookie, name, node } in self.pending.drain(..) {
            if visit(&VfsDirEntry { fileid, cookie, name: &name, node }).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a directory whose last change was at `changed` is not changing.
fn is_quiet(changed: Timestamp) -> bool {
    let seconds = u64::try_from(changed.seconds()).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, changed.nanoseconds());
    // A time in the future proves nothing.
    SystemTime::now().duration_since(changed).is_ok_and(|age| age > QUIET)
}

fn open_directory(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match retry(|| rustix::fs::openat(fd, c".", flags | OFlags::CLOEXEC, Mode::empty())) {
        // Opening by name needs search permission, which the caller of READDIR need not have;
        // opening by /proc takes twice as long.
        Err(Errno::ACCESS) => reopen(fd, flags),
        opened => opened,
    }
}

/// Moves to the position of a cookie.
fn seek(directory: &OwnedFd, cookie: u64) -> Result<(), Error> {
    // Positions are signed in the kernel.
    if i64::try_from(cookie).is_err() {
        return Err(Error::BadCookie);
    }
    match retry(|| rustix::fs::seek(directory, SeekFrom::Start(cookie))) {
        Ok(_) => Ok(()),
        Err(Errno::INVAL) => Err(Error::BadCookie),
        Err(errno) => Err(errno.into()),
    }
}
