//! A handle table, where the kernel's handles cannot be used. A handle consists of an object's
//! inode number and birth time; a table in a file records the directories and names where the
//! object was seen. To open it, these names are walked from the root, and the result must have the
//! same inode number and birth time.
//!
//! If a local process renames the object, its handle is stale until a client looks it up again. On
//! a file system without birth times, a new object with the same inode number under the old name
//! has the same handle.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use redb::{Builder, Database, MultimapTableDefinition, ReadableDatabase, TableError};
use rustix::fs::{AtFlags, Mode, Statx, StatxFlags};
use rustix::io::Errno;

use super::{BENEATH, PATH};
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};

/// From a handle's bytes to a location: the bytes of a directory's handle and a name.
const PLACES: MultimapTableDefinition<'_, &[u8], &[u8]> = MultimapTableDefinition::new("places");

/// Inode number (8 bytes), birth time (8 and 4).
const HANDLE_BYTES: usize = 20;

/// Maximum depth of a walk.
const DEPTH_MAX: usize = 4096;

/// Where an object was seen.
struct HandleLocation {
    directory: NodeHandle,
    name: Box<[u8]>,
}

pub(super) struct HandleTable {
    database: Database,
}

impl HandleTable {
    pub(super) fn open(file: &Path) -> Result<Self, String> {
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(file);
        let opened = opened.map_err(|error| error.to_string())?;
        let database = Builder::new().create_file(opened).map_err(|error| error.to_string())?;
        Ok(Self { database })
    }

    pub(super) fn handle_of(fd: BorrowedFd<'_>) -> Result<NodeHandle, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        Self::handle_by(&rustix::fs::statx(fd, c"", flags, StatxFlags::INO | StatxFlags::BTIME)?)
    }

    /// The handle of the object with this status, which must include inode number and birth time.
    pub(super) fn handle_by(status: &Statx) -> Result<NodeHandle, Errno> {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&status.stx_ino.to_be_bytes());
        if status.stx_mask & StatxFlags::BTIME.bits() != 0 {
            bytes[8..16].copy_from_slice(&status.stx_btime.tv_sec.to_be_bytes());
            bytes[16..].copy_from_slice(&status.stx_btime.tv_nsec.to_be_bytes());
        }
        NodeHandle::new(HandleScheme::Table, 0, &bytes).ok_or(Errno::OVERFLOW)
    }

    /// Opens (O_PATH) the object of a handle.
    pub(super) fn find(
        &self,
        root: BorrowedFd<'_>,
        root_handle: &NodeHandle,
        handle: &NodeHandle,
    ) -> Result<OwnedFd, Error> {
        if handle.bytes().len() != HANDLE_BYTES {
            return Err(Error::BadHandle);
        }
        self.walk(root, root_handle, handle, DEPTH_MAX)
    }

    fn walk(
        &self,
        root: BorrowedFd<'_>,
        root_handle: &NodeHandle,
        handle: &NodeHandle,
        depth: usize,
    ) -> Result<OwnedFd, Error> {
        if handle == root_handle {
            return Ok(rustix::io::fcntl_dupfd_cloexec(root, 0)?);
        }
        let depth = depth.checked_sub(1).ok_or(Error::STALE)?;
        for HandleLocation { directory, name } in self.places(handle).map_err(|error| failed(&error))? {
            let Ok(parent) = self.walk(root, root_handle, &directory, depth) else {
                continue;
            };
            match rustix::fs::openat2(&parent, &*name, PATH, Mode::empty(), BENEATH) {
                Ok(found) if Self::handle_of(found.as_fd()) == Ok(*handle) => return Ok(found),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV) => {
                    self.forget(handle, &directory, &name)
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Error::STALE)
    }

    fn places(&self, handle: &NodeHandle) -> Result<Vec<HandleLocation>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let table = match transaction.open_multimap_table(PLACES) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut places = Vec::new();
        for place in table.get(handle.bytes())? {
            let place = place?;
            if let Some((directory, name)) = place.value().split_at_checked(HANDLE_BYTES)
                && let Some(directory) = NodeHandle::new(HandleScheme::Table, 0, directory)
            {
                places.push(HandleLocation { directory, name: name.into() });
            }
        }
        Ok(places)
    }

    /// Records locations; new ones are on stable storage when this returns.
    pub(super) fn record<'a>(
        &self,
        places: impl Iterator<Item = (&'a NodeHandle, &'a NodeHandle, &'a [u8])>,
    ) -> Result<(), Errno> {
        let mut new = Vec::new();
        for (handle, directory, name) in places {
            let recorded = self.places(handle).map_err(|error| failed(&error))?;
            if !recorded.iter().any(|place| place.directory == *directory && *place.name == *name) {
                new.push((*handle, place_bytes(directory, name)));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        self.insert(&new).map_err(|error| failed(&error))
    }

    fn insert(&self, new: &[(NodeHandle, Vec<u8>)]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_multimap_table(PLACES)?;
            for (handle, place) in new {
                table.insert(handle.bytes(), &**place)?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Removes a location. A failure is harmless, because results are verified.
    pub(super) fn forget(&self, handle: &NodeHandle, directory: &NodeHandle, name: &[u8]) {
        if let Err(error) = self.remove(handle, &place_bytes(directory, name)) {
            tracing::warn!(%error, "cannot remove an entry from the handle table");
        }
    }

    fn remove(&self, handle: &NodeHandle, place: &[u8]) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(redb::Durability::None)?;
        transaction.open_multimap_table(PLACES)?.remove(handle.bytes(), place)?;
        Ok(transaction.commit()?)
    }
}

fn place_bytes(directory: &NodeHandle, name: &[u8]) -> Vec<u8> {
    [directory.bytes(), name].concat()
}

/// Logs the details, and returns an errno for the caller.
fn failed(error: &redb::Error) -> Errno {
    tracing::error!(%error, "cannot use the handle table");
    Errno::IO
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    use super::super::handles::HandleSource;
    use crate::{CreateMode, FsCred, HandleChoice, LocalOptions, LocalVfs, NewNode, SetAttributes, Vfs};

    /// Polls `condition` for a limited time; returns whether it became true.
    fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// The disk of a table is slow, or another thread is writing.
    #[test]
    fn waiting_for_the_table_does_not_block_the_directory() {
        let top = tempfile::tempdir().unwrap();
        let tree = top.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let options = LocalOptions {
            handles: HandleChoice::Table,
            table: Some(top.path().join("table.redb")),
            ..LocalOptions::default()
        };
        let vfs = &LocalVfs::open(&tree, &options).unwrap();
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let (caller, root) = (&FsCred::new(uid.as_raw(), gid.as_raw(), &[]), &vfs.root());
        let set = &SetAttributes::default();
        let create = |name: &[u8]| vfs.create(caller, root, name, CreateMode::Guarded(set)).value;
        let recorded = create(b"known").unwrap().node.handle;
        create(b"old").unwrap();
        let HandleSource::Table(table) = &vfs.handles else {
            panic!("handles are by table");
        };
        let changes: [(&str, &(dyn Fn() -> bool + Sync)); 4] = [
            ("made", &|| create(b"made").is_ok()),
            ("directory", &|| {
                let made = vfs.make(caller, root, b"directory", NewNode::Directory(set));
                made.value.is_ok()
            }),
            ("linked", &|| vfs.link(caller, &recorded, root, b"linked").directory.value.is_ok()),
            ("new", &|| vfs.rename(caller, root, b"old", root, b"new").value.is_ok()),
        ];
        for (name, change) in changes {
            let writer = table.database.begin_write().unwrap();
            thread::scope(|scope| {
                let changing = scope.spawn(change);
                let is_made = comes_true(|| tree.join(name).exists());
                let is_free = comes_true(|| vfs.locks.try_hold(root).is_some());
                let waits = !changing.is_finished();
                // First of all: otherwise no thread continues.
                drop(writer);
                assert!(changing.join().unwrap(), "{name}");
                assert!(is_made && is_free && waits, "{name}: {is_made} {is_free} {waits}");
            });
        }
    }
}
