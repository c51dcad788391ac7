//! Writing and committing data.
//!
//! A file is watched (`unstable`) from before its first unstable write until a commit. When the
//! kernel reports that data did not reach the disk, the loss counter changes while other syncs of
//! the same file still wait: a sync that then succeeds sees the new value, so that no reply hides a
//! loss.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_observe::stages::{self, RequestStage};
use curt_types::{FileKind, Stability};
use parking_lot::MutexGuard;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::LocalVfs;
use super::data::{OFFSET_MAX, OpenAccess, reopen, retry};
use super::file_cache::{DescriptorRequest, PermissionStamp};
use super::open::{OpenDescriptor, OpenFailure};
use super::sys::check_access;
use crate::MayBlock;
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::result::{WccResult, WriteResult};

/// The part of a file that is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncExtent {
    Data,
    Everything,
}

impl SyncExtent {
    /// The system call that makes it durable.
    const fn system_call(self) -> &'static str {
        match self {
            Self::Data => "fdatasync",
            Self::Everything => "fsync",
        }
    }
}

/// Whether write-back errors of a file will be seen.
enum WritebackWatch {
    /// Errors will be noticed; another file may have been evicted.
    Watched(Option<(NodeHandle, Arc<OwnedFd>)>),
    /// Errors will not be noticed.
    Not,
}

impl LocalVfs {
    /// Writes data at an offset.
    pub(super) fn write_data(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult> {
        let lock = self.locks.hold(handle);
        let opened = self.open_file(DescriptorRequest::new(caller, handle, OpenAccess::Write));
        self.write_opened(handle, lock, opened, offset, data, stability)
    }

    /// As [`LocalVfs::write_data`] of unstable data; `None` if it might have to wait for a disk, or
    /// for another change of the same file that does.
    pub(super) fn write_data_nowait(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        offset: u64,
        data: &[u8],
    ) -> Option<WccResult<WriteResult>> {
        let lock = match self.write_latency.may_block {
            // It is never held for long.
            MayBlock::Never => self.locks.hold(handle),
            MayBlock::Always => return None,
            MayBlock::Data if self.write_latency.writes_are_slow() || !self.is_inode_in_memory(handle) => {
                return None;
            }
            // An evicted file would have to be synced.
            MayBlock::Data if !self.open_caches.unstable_files.has_room(handle) => return None,
            MayBlock::Data => self.locks.try_hold(handle)?,
        };
        let opened = self.open_file_nowait(DescriptorRequest::new(caller, handle, OpenAccess::Write))?;
        Some(self.write_opened(handle, lock, opened, offset, data, Stability::Unstable))
    }

    /// Writes to an open file, whose lock `lock` is released after the write.
    fn write_opened(
        &self,
        handle: &NodeHandle,
        lock: MutexGuard<'_, ()>,
        opened: Result<OpenDescriptor, OpenFailure>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult> {
        let OpenDescriptor { file, attributes: before } = match opened {
            Ok(opened) => opened,
            Err(OpenFailure { attributes, error }) => {
                return WccResult {
                    before: attributes.as_ref().map(Into::into),
                    after: attributes,
                    value: Err(error),
                };
            }
        };
        let watch = match stability {
            Stability::Unstable => self.watch(handle, file.as_fd()),
            Stability::DataSync | Stability::FileSync => WritebackWatch::Not,
        };
        let losses = self.losses.of(handle);
        let begun = self.write_latency.write_begins();
        let written = write_all(file.as_fd(), offset, data);
        self.write_latency.write_ended(begun);
        let after = self.attributes_of_node(handle, file.as_fd()).ok();
        if let Some(after) = &after {
            file.update_after_own_write(PermissionStamp::of(&before), after);
        }
        drop(lock);
        let extent = match (stability, watch) {
            (Stability::Unstable, WritebackWatch::Watched(None)) => None,
            (Stability::Unstable, WritebackWatch::Watched(Some((fallen, fd)))) => {
                // An error does not fail this write: writers of the evicted file see the loss
                // counter.
                let _reported = self.sync(&fallen, fd.as_fd(), SyncExtent::Everything);
                None
            }
            // A file that cannot be watched is made durable now.
            (Stability::Unstable, WritebackWatch::Not) | (Stability::FileSync, _) => {
                Some(SyncExtent::Everything)
            }
            (Stability::DataSync, _) => Some(SyncExtent::Data),
        };
        let value = written.map_err(Error::Os).and_then(|count| {
            if let Some(extent) = extent {
                self.sync_written(handle, file.as_fd(), extent, losses)?;
            }
            let count = u32::try_from(count).map_err(|_| Errno::INVAL)?;
            Ok(WriteResult { count, stability })
        });
        WccResult { before: Some((&before).into()), after, value }
    }

    /// Watches a file that is about to be written. Called under its lock.
    fn watch(&self, handle: &NodeHandle, file: BorrowedFd<'_>) -> WritebackWatch {
        if self.open_caches.unstable_files.is_watched(handle) {
            return WritebackWatch::Watched(None);
        }
        match self.open_to_sync(file) {
            Ok(watched) => {
                WritebackWatch::Watched(self.open_caches.unstable_files.watch(handle, Arc::new(watched)))
            }
            Err(_) => WritebackWatch::Not,
        }
    }

    pub(super) fn commit_data(&self, caller: &FsCred<'_>, handle: &NodeHandle) -> WccResult<()> {
        let (changed, fd) = self.change(caller, handle, |fd, before| {
            match before.kind {
                FileKind::Regular if caller.uid == before.uid => {}
                FileKind::Regular => check_access(fd, libc::W_OK)?,
                FileKind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            // Under the file's lock: later writes make it dirty again.
            Ok(self.open_caches.unstable_files.begin_sync(handle))
        });
        let WccResult { before, after, value } = changed;
        let value = value.and_then(|watched| {
            // A descriptor opened before the write-back gets errors even if they were reported to
            // others.
            let file = match (watched, fd) {
                (Some(watched), _) => watched,
                (None, Some(fd)) => Arc::new(self.open_to_sync(fd.as_fd())?),
                (None, None) => return Err(Error::STALE),
            };
            let synced = self.sync(handle, file.as_fd(), SyncExtent::Everything);
            // Watched files may be closed some time from now.
            self.sweeper.wake();
            synced
        });
        WccResult { before, after, value }
    }

    /// As [`LocalVfs::sync`], for a stable write, whose data the client will not send again;
    /// `losses` is the file's loss counter before the write. The descriptor is shared: if the
    /// kernel reported the loss of these data to another user of it, it would not report it here.
    /// So this fails after any loss of this file.
    fn sync_written(
        &self,
        handle: &NodeHandle,
        file: BorrowedFd<'_>,
        extent: SyncExtent,
        losses: u64,
    ) -> Result<(), Error> {
        self.sync(handle, file, extent)?;
        // Other losses were counted under the lock of the sync above.
        if self.losses.of(handle) == losses { Ok(()) } else { Err(Error::Lost(Errno::IO)) }
    }

    /// Syncs a file by a descriptor. [`Error::Lost`] if that fails: the kernel reports to a
    /// descriptor once that data did not reach the disk. Only one sync of a file runs at a time, so
    /// that the second finds the recorded loss that was reported to the first.
    fn sync(&self, handle: &NodeHandle, file: BorrowedFd<'_>, extent: SyncExtent) -> Result<(), Error> {
        let _stage = stages::enter(RequestStage::FileSystem, extent.system_call());
        let _held = self.syncing.hold(handle);
        let sync = || match extent {
            SyncExtent::Data => rustix::fs::fdatasync(file),
            SyncExtent::Everything => rustix::fs::fsync(file),
        };
        retry(sync).map_err(|errno| self.lost(Some(handle), errno))
    }

    /// As [`LocalVfs::sync`], for the whole file.
    pub(super) fn sync_file(&self, handle: &NodeHandle, file: BorrowedFd<'_>) -> Result<(), Error> {
        self.sync(handle, file, SyncExtent::Everything)
    }

    /// Records that data written to a file, or to an unknown file, may be lost, before any other
    /// sync returns successfully.
    pub(super) fn lost(&self, file: Option<&NodeHandle>, errno: Errno) -> Error {
        self.losses.count(file);
        tracing::error!(%errno, "written data may be lost: clients will send uncommitted data again");
        Error::Lost(errno)
    }

    /// Opens a regular file to sync it. It is opened for reading for each caller: while a
    /// descriptor is open for writing, the file cannot be executed.
    fn open_to_sync(&self, fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let open = || reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK);
        Ok(self.identity.with_capabilities(CapabilitySet::DAC_OVERRIDE, open)??)
    }
}

/// Writes as much as there is room for; an error only if nothing was written.
fn write_all(file: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    if offset.checked_add(data.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
        return Err(Errno::FBIG);
    }
    let _stage = stages::enter(RequestStage::FileSystem, "pwrite");
    let mut written = 0;
    while written < data.len() {
        match rustix::io::pwrite(file, &data[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(now) => written += now,
            Err(Errno::INTR) => {}
            Err(_) if written > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
    use std::time::{Duration, Instant};

    use curt_observe::Operation;
    use curt_observe::stages::StageTimes;

    use super::*;
    use crate::{CreateMode, LocalOptions, NewNode, SetAttributes, Vfs};

    /// A tree on a disk with a file that was just looked up; `None` without a disk or if this is
    /// not root.
    fn on_disk() -> Option<(tempfile::TempDir, LocalVfs, NodeHandle)> {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).ok()?;
        if vfs.may_block() != MayBlock::Data || vfs.only_user().is_some() {
            return None;
        }
        let (root, set) = (vfs.root(), SetAttributes::with_mode(0o666));
        let made = vfs.create(&FsCred::ROOT, &root, b"file", CreateMode::Guarded(&set));
        made.value.unwrap();
        let found = vfs.lookup(&FsCred::ROOT, &root, b"file").value.unwrap();
        Some((directory, vfs, found.handle))
    }

    /// The call graph of a request that does this.
    fn shown(work: impl Fn()) -> Vec<String> {
        let write = Operation::nfs_named("WRITE").unwrap();
        let times = StageTimes::default();
        let graph = std::thread::scope(|scope| {
            let asks = scope.spawn(|| times.next_graph(write, Duration::from_secs(60)));
            while !asks.is_finished() {
                stages::begin(&times);
                stages::set_operation(write);
                work();
                stages::finish(&times, || ());
            }
            asks.join().unwrap()
        });
        graph.unwrap().spans.into_iter().map(|span| span.name).collect()
    }

    #[test]
    fn making_something_durable_is_a_stage() {
        let Some((_directory, vfs, file)) = on_disk() else {
            return;
        };
        let write = |stability| {
            let written = vfs.write(&FsCred::ROOT, &file, 0, b"data", stability);
            written.value.unwrap();
        };
        let set = SetAttributes::with_mode(0o666);
        let rename = |from: &[u8], to: &[u8]| {
            let (root, caller) = (vfs.root(), FsCred::ROOT);
            vfs.rename(&caller, &root, from, &root, to).value.unwrap();
        };
        let link = vfs.make(&FsCred::ROOT, &vfs.root(), b"link", NewNode::Symlink(b"target", &set));
        let link = link.value.unwrap().node.handle;
        let own = SetAttributes { uid: Some(0), ..SetAttributes::default() };
        let works: [(&str, &dyn Fn()); 4] = [
            ("fsync", &|| write(Stability::FileSync)),
            ("fdatasync", &|| write(Stability::DataSync)),
            ("fsync", &|| {
                rename(b"file", b"other");
                rename(b"other", b"file");
            }),
            ("syncfs", &|| {
                vfs.set_attributes(&FsCred::ROOT, &link, &own, None).value.unwrap();
            }),
        ];
        for (stage, work) in works {
            let shown = shown(work);
            assert!(shown.iter().any(|name| name == stage), "{stage}: {shown:?}");
        }
    }

    #[test]
    fn a_write_at_hand_does_not_wait_for_another_change_of_the_file() {
        let Some((_directory, vfs, file)) = on_disk() else {
            return;
        };
        let write = || vfs.write_nowait(&FsCred::ROOT, &file, 0, b"data");
        let lock = vfs.locks.hold(&file);
        assert!(write().is_none());
        drop(lock);
        assert_eq!(written_at_hand(&vfs, &file), Ok(4));
    }

    #[test]
    fn a_write_at_hand_makes_no_other_file_durable_to_have_room() {
        let Some((_directory, vfs, file)) = on_disk() else {
            return;
        };
        let fd = vfs.open_to_sync(vfs.resolve(&file).unwrap().as_fd()).unwrap();
        let fd = Arc::new(fd);
        let other = |number: u32| NodeHandle::new(file.scheme(), 1, &number.to_be_bytes()).unwrap();
        // Until all have evicted others.
        let mut number = 0;
        while vfs.open_caches.unstable_files.has_room(&file) {
            let _fallen = vfs.open_caches.unstable_files.watch(&other(number), Arc::clone(&fd));
            number += 1;
        }
        assert!(vfs.write_nowait(&FsCred::ROOT, &file, 0, b"data").is_none());
        assert!(vfs.write(&FsCred::ROOT, &file, 0, b"data", Stability::Unstable).value.is_ok());
        assert_eq!(written_at_hand(&vfs, &file), Ok(4));
    }

    /// Writes once the disk is not busy with the file, and some time after a slow write.
    fn written_at_hand(vfs: &LocalVfs, file: &NodeHandle) -> Result<u32, Error> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(changed) = vfs.write_nowait(&FsCred::ROOT, file, 0, b"data") {
                return changed.value.map(|written| written.count);
            }
            assert!(Instant::now() < end, "no write is at hand");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
