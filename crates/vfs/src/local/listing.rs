//! Listing a directory by the file system's own positions (d_off), with no lock held.
//!
//! What a cookie is worth is the file system's: ext4, XFS, btrfs and tmpfs (since Linux 6.6) keep an entry's position while
//! others come and go; older tmpfs may list a name twice when files are made during a pass.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::data::{reopen, retry};
use super::{LocalVfs, attributes_of};
use crate::Wanted;
use crate::answer::{Entry, Node, Visit};
use crate::attributes::Attributes;
use crate::error::Error;
use crate::handle::NodeHandle;

/// What one getdents64 may bring.
const BUFFER_BYTES: usize = 32 * 1024;

/// An entry that waits to be visited together with others.
struct Waiting {
    fileid: u64,
    cookie: u64,
    name: Box<[u8]>,
    node: Option<Node>,
}

/// One listing.
struct Pass<'a> {
    vfs: &'a LocalVfs,
    directory: &'a NodeHandle,
    attributes: &'a Attributes,
    fd: BorrowedFd<'a>,
    wanted: Wanted,
    waiting: Vec<Waiting>,
}

impl LocalVfs {
    pub(super) fn list(
        &self,
        fd: BorrowedFd<'_>,
        (directory, attributes): (&NodeHandle, &Attributes),
        cookie: u64,
        wanted: Wanted,
        visit: &mut dyn FnMut(&Entry<'_>) -> Visit,
    ) -> Result<bool, Error> {
        let file = open_directory(fd)?;
        if cookie != 0 {
            seek(&file, cookie)?;
        }
        let mut pass = Pass {
            vfs: self,
            directory,
            attributes,
            fd,
            wanted,
            waiting: Vec::new(),
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(&file, &mut buffer);
        let mut visited = false;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // What was visited so far is good; going on from there will tell the error.
                Err(_) if visited => return pass.flush(visit).map(|_| false),
                Err(errno) => return Err(errno.into()),
            };
            visited = true;
            pass.add(
                entry.ino(),
                entry.next_entry_cookie(),
                entry.file_name().to_bytes(),
            );
            let whole = pass.waiting.len() >= self.handles.batch() || wanted == Wanted::Names;
            if whole && !pass.flush(visit)? {
                return Ok(false);
            }
        }
        pass.flush(visit)
    }
}

impl Pass<'_> {
    fn add(&mut self, fileid: u64, cookie: u64, name: &[u8]) {
        // What is above the root is nobody's business.
        let above = name == b".." && self.vfs.is_root(self.attributes);
        let fileid = if above { self.attributes.fileid } else { fileid };
        let node = match self.wanted {
            Wanted::Names => None,
            Wanted::Nodes => self.node(name).ok(),
        };
        // They are two readings of one directory: a name may stand for another object by now.
        let fileid = node.as_ref().map_or(fileid, |node| node.attributes.fileid);
        self.waiting.push(Waiting {
            fileid,
            cookie,
            name: name.into(),
            node,
        });
    }

    fn node(&self, name: &[u8]) -> Result<Node, Error> {
        if matches!(name, b"." | b"..") {
            return self.vfs.find(self.fd, self.directory, self.attributes, name);
        }
        let found = self.vfs.open_name(self.fd, name)?;
        let attributes = attributes_of(found.as_fd())?;
        Ok(Node {
            handle: self.vfs.handles.of(found.as_fd())?,
            attributes,
        })
    }

    /// Visits what waits; whether the visitor wants more.
    fn flush(&mut self, visit: &mut dyn FnMut(&Entry<'_>) -> Visit) -> Result<bool, Error> {
        let places = self
            .waiting
            .iter()
            .filter(|entry| !matches!(&*entry.name, b"." | b".."));
        let places = places.filter_map(|entry| {
            entry
                .node
                .as_ref()
                .map(|node| (&node.handle, self.directory, &*entry.name))
        });
        self.vfs.handles.record_all(places)?;
        for Waiting {
            fileid,
            cookie,
            name,
            node,
        } in self.waiting.drain(..)
        {
            if visit(&Entry {
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

fn open_directory(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY)
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
