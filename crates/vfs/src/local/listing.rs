//! Listing a directory by the file system's own positions (d_off), with no lock held.
//!
//! What a cookie is worth is the file system's: ext4, XFS, btrfs and tmpfs (since Linux 6.6) keep
//! an entry's position while others come and go; older tmpfs may list a name twice when files are
//! made during a pass.
//!
//! Attributes and handles are had by name and without opening anything: where a name is remembered
//! (`children`) in one system call, which tells whether it leads to the same object still, else in
//! two. These are two readings of a name that may come to lead elsewhere between them; what was
//! read tells whether it did ([`super::handles::Handles::is_same_object`]), at the cost of a third
//! call for objects that are younger than 20 ms. What did not agree is opened, and both are read
//! from that: four calls. The directory's parent is remembered as well; whether it lies in the tree
//! still is looked at anew.
//!
//! Where the file system's handles do not tell that (it is none of ext4, XFS, btrfs and tmpfs),
//! each object is opened while the directory is being changed. Names are remembered there once it
//! is known that the directory was left alone from before the first of both readings until after
//! the second.

use std::ffi::CStr;
use std::mem::MaybeUninit;
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
use crate::result::{VfsDirEntry, VfsNode, Visit};

/// What one getdents64 may bring.
const BUFFER_BYTES: usize = 32 * 1024;

/// After so many entries it is looked whether the directory is being changed.
const LOOK_EVERY: usize = 64;

/// A directory that did not change for so long is not being changed: many times the step of the
/// kernel's clock, and the time that two readings of one name take.
const QUIET: Duration = Duration::from_millis(100);

/// An entry that waits to be visited together with others.
struct PendingEntry {
    fileid: u64,
    cookie: u64,
    name: Box<[u8]>,
    node: Option<VfsNode>,
}

/// One listing with attributes.
struct ReaddirPlusListing<'a> {
    vfs: &'a LocalVfs,
    directory: &'a NodeHandle,
    attributes: &'a Attributes,
    fd: BorrowedFd<'a>,
    /// Whether handles tell of which object they are; what is below is for those that do not.
    have_inode_numbers: bool,
    is_quiet: bool,
    /// When it had changed at the last look.
    changed: Timestamp,
    /// The time just before that look.
    clock: Timestamp,
    /// Entries since it was looked whether it is.
    seen: usize,
    /// What was learnt of names since the last look, where handles do not tell of which object they
    /// are.
    observed: Vec<ObservedName>,
    /// Whether that is of any use: what a table knows has to be recorded each time.
    observes: bool,
    pending: Vec<PendingEntry>,
}

/// Where a name led, by two readings.
struct ObservedName {
    name: Box<[u8]>,
    handle: NodeHandle,
    status: StatxResult,
}

impl LocalVfs {
    pub(super) fn list(
        &self,
        fd: BorrowedFd<'_>,
        directory: &NodeHandle,
        attributes: &Attributes,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> Visit,
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
                // What was visited so far is good; going on from there will tell the error.
                Err(_) if visited => {
                    return pass.map_or(Ok(false), |pass| pass.end(visit).map(|_| false));
                }
                Err(errno) => return Err(errno.into()),
            };
            visited = true;
            let (name, cookie) = (entry.file_name(), entry.next_entry_cookie());
            // What is above the root is nobody's business.
            let is_above = name == c".." && self.is_root(attributes);
            let fileid = if is_above { attributes.fileid } else { entry.ino() };
            let goes_on = match &mut pass {
                None => {
                    let name = name.to_bytes();
                    let node = None;
                    visit(&VfsDirEntry {
                        fileid,
                        cookie,
                        name,
                        node,
                    }) == Visit::Continue
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
            // Of a moment after the look: only how old an object was by then is asked of it, and
            // none of them was looked at yet.
            clock: now(),
            seen: 0,
            observed: Vec::new(),
            observes: vfs.handle_scheme() == HandleScheme::Kernel,
            pending: Vec::new(),
        }
    }

    /// Takes an entry; whether the visitor wants more.
    fn add(
        &mut self,
        fileid: u64,
        cookie: u64,
        name: &CStr,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> Visit,
    ) -> Result<bool, Error> {
        self.seen += 1;
        if !self.have_inode_numbers && self.seen.is_multiple_of(LOOK_EVERY) {
            self.check_directory_unchanged();
        }
        let node = match self.node_by_name(fileid, name) {
            Some(node) => Some(node),
            None => self.opened(name.to_bytes()).ok(),
        };
        // They are two readings of one directory: a name may stand for another object by now.
        let fileid = node.as_ref().map_or(fileid, |node| node.attributes.fileid);
        let name = name.to_bytes();
        if self.vfs.handles.batch() == 1 {
            let entry = VfsDirEntry {
                fileid,
                cookie,
                name,
                node,
            };
            return Ok(visit(&entry) == Visit::Continue);
        }
        self.pending.push(PendingEntry {
            fileid,
            cookie,
            name: name.into(),
            node,
        });
        if self.pending.len() < self.vfs.handles.batch() {
            return Ok(true);
        }
        self.flush(visit)
    }

    /// Looks whether the directory is being changed. If it was left alone since the last look,
    /// which led to each name's object holds, and is remembered.
    fn check_directory_unchanged(&mut self) {
        let clock = now();
        let found = attributes_of(self.fd).map(|now| now.ctime);
        let was_left_alone = self.is_quiet && found == Ok(self.changed);
        let learnt = self.observed.drain(..);
        if was_left_alone {
            for ObservedName { name, handle, status } in learnt {
                let names = &self.vfs.lookup_cache;
                names.insert(
                    NameSource::Listing,
                    self.directory,
                    &name,
                    &handle,
                    &status,
                    self.clock,
                );
            }
        } else {
            drop(learnt);
        }
        self.is_quiet = found.is_ok_and(is_quiet);
        self.changed = found.unwrap_or(self.changed);
        self.clock = clock;
    }

    /// Visits what waits still; whether the visitor wants more.
    fn end(mut self, visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> Visit) -> Result<bool, Error> {
        self.cache_observed();
        self.flush(visit)
    }

    /// Remembers what was learnt last, if that is safe.
    fn cache_observed(&mut self) {
        if !self.observed.is_empty() {
            self.check_directory_unchanged();
        }
    }

    /// The object by looking at its name; `None` if it is to be opened: names are being changed, it
    /// is not the one that the directory's entry is of, or something else is mounted there.
    fn node_by_name(&mut self, fileid: u64, name: &CStr) -> Option<VfsNode> {
        if name == c"." || name == c".." && self.vfs.is_root(self.attributes) {
            check_access(self.fd, libc::X_OK).ok()?;
            return Some(VfsNode {
                handle: *self.directory,
                attributes: *self.attributes,
            });
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
            self.is_here(&found) && attributes.fsid == self.attributes.fsid && attributes.nlink > 0;
        if self.have_inode_numbers {
            if !is_child || !handles.is_same_object(self.fd, name, &handle, &status, self.clock) {
                return None;
            }
            self.note(name.to_bytes(), &handle, &status);
            return Some(VfsNode { handle, attributes });
        }
        // So it is with those that follow: file systems that number objects in two ways, or names
        // that are being changed.
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

    /// The object that a name is remembered to lead to, if it does: by a single reading, whatever
    /// happens to the directory.
    fn cached_node(&self, name: &CStr) -> Option<VfsNode> {
        let remembered = self
            .vfs
            .lookup_cache
            .find(NameSource::Listing, self.directory, name.to_bytes())?;
        let found = status_of_name(self.fd, name).ok()?;
        let status = StatxResult::of(&found);
        if !self.is_here(&found) || status.attributes.nlink == 0 {
            return None;
        }
        Some(VfsNode {
            handle: remembered.handle(&status)?,
            attributes: status.attributes,
        })
    }

    /// Whether what was found is mounted as the directory is, and nothing else on it.
    fn is_here(&self, found: &Statx) -> bool {
        found.stx_mask & StatxFlags::MNT_ID.bits() != 0 && Some(found.stx_mnt_id) == self.vfs.mount
    }

    /// The object, opened.
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
        Ok(VfsNode {
            handle,
            attributes: status.attributes,
        })
    }

    /// Remembers where a name led, whose handle and status are of one object.
    fn note(&self, name: &[u8], handle: &NodeHandle, status: &StatxResult) {
        if self.observes {
            let names = &self.vfs.lookup_cache;
            names.insert(
                NameSource::Listing,
                self.directory,
                name,
                handle,
                status,
                self.clock,
            );
        }
    }

    /// Visits what waits; whether the visitor wants more.
    fn flush(&mut self, visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> Visit) -> Result<bool, Error> {
        let places = self
            .pending
            .iter()
            .filter(|entry| !matches!(&*entry.name, b"." | b".."));
        let places = places.filter_map(|entry| {
            entry
                .node
                .as_ref()
                .map(|node| (&node.handle, self.directory, &*entry.name))
        });
        self.vfs.handles.record_all(places)?;
        for PendingEntry {
            fileid,
            cookie,
            name,
            node,
        } in self.pending.drain(..)
        {
            if visit(&VfsDirEntry {
                fileid,
                cookie,
                name: &name,
                node,
            }) == Visit::Stop
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a directory that changed then has been left alone since.
fn is_quiet(changed: Timestamp) -> bool {
    let seconds = u64::try_from(changed.seconds()).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, changed.nanoseconds());
    // A time that is yet to come says nothing.
    SystemTime::now()
        .duration_since(changed)
        .is_ok_and(|age| age > QUIET)
}

fn open_directory(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match retry(|| rustix::fs::openat(fd, c".", flags | OFlags::CLOEXEC, Mode::empty())) {
        // That needs the right to search it, which who lists it need not have; the way by /proc
        // takes twice as long.
        Err(Errno::ACCESS) => reopen(fd, flags),
        opened => opened,
    }
}

/// Goes to where an entry's cookie says that the next one is.
fn seek(directory: &OwnedFd, cookie: u64) -> Result<(), Error> {
    // Positions are signed for the kernel.
    if i64::try_from(cookie).is_err() {
        return Err(Error::BadCookie);
    }
    match retry(|| rustix::fs::seek(directory, SeekFrom::Start(cookie))) {
        Ok(_) => Ok(()),
        Err(Errno::INVAL) => Err(Error::BadCookie),
        Err(errno) => Err(errno.into()),
    }
}
