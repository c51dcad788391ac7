//! A model of the kernel's side of a FUSE mount.
//!
//! It caches no names, attributes for their timeouts, and pages of files while opens keep them
//! valid; it walks paths one component after another. With it a program's system calls reach the
//! client library in the same order and number as through a mount.
//!
//! Simplifications: it never evicts cached state, and its read-ahead window does not grow.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use curt_client::Clock;
use curt_client::{
    Caller, DirEmit, FoundInode, InodeId, LookupResult, OpenDirectory, OpenFile, OpenFlags, PageCacheState,
    Superblock, ops,
};
use curt_types::{Attributes, FileKind};
use rustix::io::Errno;

/// Maximum number of symbolic links in a path walk, as in Linux.
const LINKS_MAX: u32 = 40;
/// Page size in bytes.
const PAGE: u64 = 4096;
/// Page size in bytes, for buffers.
const PAGE_BYTES: usize = 4096;
/// Maximum read-ahead in pages: 128 KiB.
const AHEAD_PAGES_MAX: u64 = 32;

/// Whether a symbolic link as last component of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowLinks {
    /// stat(2), open(2).
    Follow,
    /// lstat(2), readlink(2).
    Keep,
}

/// An open file of a process.
#[derive(Debug)]
pub struct SimulatedFile {
    file: Arc<OpenFile>,
    position: u64,
}

/// The kernel's state of one mount, for one process.
#[derive(Debug)]
pub struct SimulatedKernel<'a> {
    client: &'a Superblock,
    caller: &'a Caller,
    clock: &'a dyn Clock,
    inodes: HashMap<InodeId, SimulatedInode>,
}

#[derive(Debug)]
struct SimulatedInode {
    attributes: Attributes,
    until: Instant,
    pages: BTreeSet<u64>,
    content: HashMap<u64, Box<[u8]>>,
}

impl<'a> SimulatedKernel<'a> {
    /// A kernel with empty caches.
    #[must_use]
    pub fn new(client: &'a Superblock, caller: &'a Caller, clock: &'a dyn Clock) -> Self {
        Self { client, caller, clock, inodes: HashMap::new() }
    }

    /// stat(2) or lstat(2).
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn stat(&mut self, path: &[u8], links: FollowLinks) -> Result<Attributes, Errno> {
        let id = self.walk(path, links)?;
        self.attributes(id)
    }

    /// access(2).
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn access(&mut self, path: &[u8], mask: u32) -> Result<(), Errno> {
        let id = self.walk(path, FollowLinks::Follow)?;
        ops::access(&self.client.op(self.caller), id, mask)
    }

    /// readlink(2).
    ///
    /// # Errors
    /// The errors of the system call; EINVAL if it is not a link.
    pub fn readlink(&mut self, path: &[u8]) -> Result<Box<[u8]>, Errno> {
        let id = self.walk(path, FollowLinks::Keep)?;
        if self.kind(id) != Some(FileKind::Symlink) {
            return Err(Errno::INVAL);
        }
        ops::readlink(&self.client.op(self.caller), id)
    }

    /// open(2) of a file for reading. Drops the cached pages unless the open keeps them.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn open(&mut self, path: &[u8]) -> Result<SimulatedFile, Errno> {
        let id = self.walk(path, FollowLinks::Follow)?;
        let opened = ops::open(&self.client.op(self.caller), id, OpenFlags::reading())?;
        if opened.data == PageCacheState::Changed
            && let Some(inode) = self.inodes.get_mut(&id)
        {
            inode.pages.clear();
            inode.content.clear();
            inode.until = self.clock.now();
            ops::copies_dropped(&opened.file);
        }
        Ok(SimulatedFile { file: opened.file, position: 0 })
    }

    /// open(2) of a directory.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn open_directory(&mut self, path: &[u8]) -> Result<OpenDirectory, Errno> {
        let id = self.walk(path, FollowLinks::Follow)?;
        if self.kind(id) != Some(FileKind::Directory) {
            return Err(Errno::NOTDIR);
        }
        ops::opendir(&self.client.op(self.caller), id)
    }

    /// All names of an open directory except `.` and `..`, read as by getdents(2).
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn list(&mut self, directory: &OpenDirectory) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let before = cookie;
            let (now, known) = (self.clock.now(), &mut self.inodes);
            ops::readdir(&self.client.op(self.caller), directory, cookie, true, &mut |entry| {
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push(entry.name.to_vec());
                }
                if let Some(found) = &entry.found {
                    remember(known, now, found);
                }
                DirEmit::Taken
            })?;
            if cookie == before {
                return Ok(names);
            }
        }
    }

    /// read(2) at the file's position, from cached pages where possible.
    ///
    /// # Errors
    /// The errors of the system call.
    pub fn read(&mut self, file: &mut SimulatedFile, count: usize) -> Result<Vec<u8>, Errno> {
        let id = file.file.id();
        let size = self.inodes.get(&id).map_or(0, |inode| inode.attributes.size);
        let end = size.min(file.position + count as u64);
        let mut bytes = Vec::new();
        while file.position < end {
            let page = file.position / PAGE;
            if !self.inodes[&id].pages.contains(&page) {
                self.fill(file, page, end.div_ceil(PAGE) - page, size)?;
            }
            let cached_page = &self.inodes[&id].content[&page];
            let from = usize::try_from(file.position % PAGE).expect("less than a page");
            let to =
                usize::try_from((end - page * PAGE).min(cached_page.len() as u64)).expect("at most a page");
            if to <= from {
                break;
            }
            bytes.extend_from_slice(&cached_page[from..to]);
            file.position += (to - from) as u64;
        }
        Ok(bytes)
    }

    /// Reads `wanted` pages from `page` on, and more ahead of them.
    fn fill(&mut self, file: &SimulatedFile, page: u64, wanted: u64, size: u64) -> Result<(), Errno> {
        let pages = ahead(wanted).min(size.div_ceil(PAGE) - page);
        let count = usize::try_from(pages * PAGE).expect("a few pages");
        let bytes = ops::read(&self.client.op(self.caller), &file.file, page * PAGE, count)?;
        let inode = self.inodes.get_mut(&file.file.id()).ok_or(Errno::STALE)?;
        let mut bytes = bytes.to_vec();
        bytes.truncate(count);
        for (page, content) in (page..).zip(bytes.chunks(PAGE_BYTES)) {
            inode.pages.insert(page);
            inode.content.insert(page, content.into());
        }
        Ok(())
    }

    /// open(2) with O_CREAT and O_EXCL, one write(2) of `bytes`, close(2).
    ///
    /// # Errors
    /// The errors of the system calls.
    pub fn create(&mut self, path: &[u8], bytes: &[u8]) -> Result<(), Errno> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = slash.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        let directory = self.walk(parent, FollowLinks::Follow)?;
        match self.look_up(directory, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let flags = OpenFlags { write: true, exclusive: true, ..OpenFlags::default() };
        let (found, opened) = ops::create(&self.client.op(self.caller), directory, name, 0o644, flags)?;
        let now = self.clock.now();
        remember(&mut self.inodes, now, &found);
        let written = ops::write(&self.client.op(self.caller), &opened.file, 0, bytes);
        ops::close(&self.client.op(self.caller), &opened.file)?;
        written.map(|_| ())
    }

    /// close(2).
    pub fn close(&mut self, file: &SimulatedFile) {
        // An error of close(2) concerns written data; there are none.
        let _ = ops::flush(&self.client.op(self.caller), &file.file);
        ops::release(self.client, &file.file);
    }

    fn attributes(&mut self, id: InodeId) -> Result<Attributes, Errno> {
        let now = self.clock.now();
        if let Some(inode) = self.inodes.get(&id)
            && inode.until > now
        {
            return Ok(inode.attributes);
        }
        let stat = ops::getattr(&self.client.op(self.caller), id)?;
        let now = self.clock.now();
        keep(&mut self.inodes, id, stat.attributes, now + stat.valid);
        Ok(stat.attributes)
    }

    fn kind(&self, id: InodeId) -> Option<FileKind> {
        self.inodes.get(&id).map(|inode| inode.attributes.kind)
    }

    fn walk(&mut self, path: &[u8], links: FollowLinks) -> Result<InodeId, Errno> {
        let mut at = vec![self.client.root()];
        self.walk_from(&mut at, path, links, LINKS_MAX)?;
        at.pop().ok_or(Errno::NOENT)
    }

    /// Walks a path from the last element of `at`, which has the objects from the root.
    fn walk_from(
        &mut self,
        at: &mut Vec<InodeId>,
        path: &[u8],
        links: FollowLinks,
        depth: u32,
    ) -> Result<(), Errno> {
        let components: Vec<_> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        for (number, name) in components.iter().enumerate() {
            let directory = *at.last().ok_or(Errno::NOENT)?;
            if directory != self.client.root() && self.kind(directory) != Some(FileKind::Directory) {
                return Err(Errno::NOTDIR);
            }
            match *name {
                b"." => continue,
                b".." => {
                    if at.len() > 1 {
                        at.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let id = self.look_up(directory, name)?;
            let is_last = number + 1 == components.len();
            if self.kind(id) == Some(FileKind::Symlink) && (!is_last || links == FollowLinks::Follow) {
                let target = ops::readlink(&self.client.op(self.caller), id)?;
                let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
                if target.first() == Some(&b'/') {
                    return Err(Errno::NOENT);
                }
                self.walk_from(at, &target, FollowLinks::Follow, depth)?;
            } else {
                at.push(id);
            }
        }
        Ok(())
    }

    fn look_up(&mut self, directory: InodeId, name: &[u8]) -> Result<InodeId, Errno> {
        match ops::lookup(&self.client.op(self.caller), directory, name)? {
            LookupResult::Positive(found) => {
                remember(&mut self.inodes, self.clock.now(), &found);
                Ok(found.id)
            }
            LookupResult::Negative { .. } => Err(Errno::NOENT),
        }
    }
}

fn remember(inodes: &mut HashMap<InodeId, SimulatedInode>, now: Instant, found: &FoundInode) {
    keep(inodes, found.id, found.attributes, now + found.attributes_valid);
}

fn keep(inodes: &mut HashMap<InodeId, SimulatedInode>, id: InodeId, attributes: Attributes, until: Instant) {
    let inode = inodes.entry(id).or_insert_with(|| SimulatedInode {
        attributes,
        until,
        pages: BTreeSet::new(),
        content: HashMap::new(),
    });
    if inode.attributes.size != attributes.size {
        inode.pages.clear();
        inode.content.clear();
    }
    (inode.attributes, inode.until) = (attributes, until);
}

/// The size of Linux's first read-ahead window for a request of this many pages.
fn ahead(wanted: u64) -> u64 {
    let rounded = wanted.next_power_of_two();
    if rounded <= AHEAD_PAGES_MAX / 32 {
        rounded * 4
    } else if rounded <= AHEAD_PAGES_MAX / 4 {
        rounded * 2
    } else {
        AHEAD_PAGES_MAX.max(wanted)
    }
}
