//! The reservation of a thread that opens a file for which others may wait.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::FileCache;
use super::permission_stamp::{OpenLocalFile, PermissionStamp, SharedPermissionStamp};
use super::shard::{CachedDescriptor, DescriptorState};
use crate::handle::NodeHandle;

/// Held by the one thread that opens a file with an access mode and caller. If it is dropped
/// without a file, another thread tries.
pub(in crate::local) struct OpenReservation<'a> {
    cache: &'a FileCache,
    hash: u64,
    handle: NodeHandle,
    /// `None`: the file is not cached.
    number: Option<u64>,
}

impl<'a> OpenReservation<'a> {
    pub(super) const fn new(cache: &'a FileCache, hash: u64, handle: NodeHandle, number: u64) -> Self {
        Self { cache, hash, handle, number: Some(number) }
    }

    pub(super) const fn uncached(cache: &'a FileCache, hash: u64, handle: NodeHandle) -> Self {
        Self { cache, hash, handle, number: None }
    }

    /// Adds the file, which had `stamp` before it was opened. The second value is whether it is the
    /// first cached one.
    pub(in crate::local) fn opened(
        mut self,
        fd: OwnedFd,
        stamp: PermissionStamp,
    ) -> (Arc<OpenLocalFile>, bool) {
        let number = self.number.filter(|_| self.cache.may_keep(fd.as_raw_fd()));
        let Some(number) = number else {
            self.cache.part(self.hash).shard.lock().counters.uncached += 1;
            let shared = Arc::new(SharedPermissionStamp::new(stamp));
            return (Arc::new(OpenLocalFile::new(fd, shared, stamp)), false);
        };
        let mut shard = self.cache.part(self.hash).shard.lock();
        let shard_ref = &mut *shard;
        let slot = shard_ref.file(self.hash, &self.handle).and_then(|file| {
            let shared = file.shared.get_or_insert_with(|| Arc::new(SharedPermissionStamp::new(stamp)));
            let shared = Arc::clone(shared);
            let slot = file
                .slots
                .iter_mut()
                .find(|slot| matches!(slot.state, DescriptorState::Opening(waiting) if waiting == number))?;
            Some((shared, slot))
        });
        // It was released meanwhile: only the thread that opened it uses it.
        let Some((shared, slot)) = slot else {
            shard_ref.counters.uncached += 1;
            drop(shard);
            let shared = Arc::new(SharedPermissionStamp::new(stamp));
            return (Arc::new(OpenLocalFile::new(fd, shared, stamp)), false);
        };
        let file = Arc::new(OpenLocalFile::new(fd, shared, stamp));
        slot.state = DescriptorState::Open(CachedDescriptor {
            file: Arc::clone(&file),
            used: true,
            idle: 0,
            since: Instant::now(),
        });
        shard_ref.counters.allocations += 1;
        drop(shard);
        self.number = None;
        self.cache.part(self.hash).opened.notify_all();
        // Relaxed: see its declaration.
        let first = self.cache.count.fetch_add(1, Ordering::Relaxed) == 0;
        (file, first)
    }
}

impl Drop for OpenReservation<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else {
            return;
        };
        let part = self.cache.part(self.hash);
        let mut shard = part.shard.lock();
        if let Some(file) = shard.file(self.hash, &self.handle) {
            file.slots
                .retain(|slot| !matches!(slot.state, DescriptorState::Opening(waiting) if waiting == number));
            if file.slots.is_empty() {
                shard.take(self.hash, &self.handle);
            }
        }
        drop(shard);
        part.opened.notify_all();
    }
}
