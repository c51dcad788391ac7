//! Objects that stay usable by their handles after their last name is removed, because clients have
//! them open.
//!
//! A pinned object has a descriptor (O_PATH) while there is room for it. If there was none when it
//! was pinned, it gets one when its name is removed through the server: a file that another process
//! removes is then lost, as without a pin.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::handle::NodeHandle;

/// Number of shards: as many as threads that contend for locks on machines of today.
const SHARDS: usize = 64;

/// The objects with pins.
pub(super) struct PinnedObjects {
    shards: Box<[PinShard]>,
    hasher: RandomState,
    /// The number of objects. Relaxed: an object is used after it is pinned, and the room may be
    /// exceeded by the number of threads.
    count: AtomicUsize,
    /// Maximum number of objects that are opened when they are pinned.
    room: usize,
}

/// A part of the objects.
type PinShard = Mutex<HashMap<NodeHandle, PinnedObject>>;

struct PinnedObject {
    pins: usize,
    fd: Option<Arc<OwnedFd>>,
}

/// Keeps an object usable until it is dropped.
pub(super) struct ObjectPin {
    objects: Arc<PinnedObjects>,
    handle: NodeHandle,
}

impl PinnedObjects {
    pub(super) fn new(room: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: RandomState::new(), count: AtomicUsize::new(0), room }
    }

    fn shard(&self, handle: &NodeHandle) -> &PinShard {
        // The lowest bits are enough.
        let place = usize::try_from(self.hasher.hash_one(handle) & 0xffff).unwrap_or_default();
        &self.shards[place % SHARDS]
    }

    /// Adds a pin; `open` opens the object if it has no other pin and there is room.
    pub(super) fn pin<E>(
        self: &Arc<Self>,
        handle: &NodeHandle,
        open: impl FnOnce() -> Result<Arc<OwnedFd>, E>,
    ) -> Result<ObjectPin, E> {
        // Opened with no lock held.
        let fd = if self.contains(handle) { None } else { Some(open()?) };
        let mut objects = self.shard(handle).lock();
        let has_room = self.count.load(Ordering::Relaxed) < self.room;
        let object = objects.entry(*handle).or_insert(PinnedObject { pins: 0, fd: None });
        if object.pins == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        object.pins += 1;
        if object.fd.is_none() && has_room {
            object.fd = fd;
        }
        Ok(ObjectPin { objects: Arc::clone(self), handle: *handle })
    }

    /// The descriptor of a pinned object.
    pub(super) fn find(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.shard(handle).lock().get(handle).and_then(|object| object.fd.clone())
    }

    /// Whether an object is pinned.
    pub(super) fn contains(&self, handle: &NodeHandle) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.shard(handle).lock().contains_key(handle)
    }

    /// Keeps the descriptor of an object whose name is about to be removed, if it is pinned.
    pub(super) fn keep(&self, handle: &NodeHandle, fd: &Arc<OwnedFd>) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(object) = self.shard(handle).lock().get_mut(handle)
        {
            object.fd.get_or_insert_with(|| Arc::clone(fd));
        }
    }
}

impl Drop for ObjectPin {
    fn drop(&mut self) {
        let mut objects = self.objects.shard(&self.handle).lock();
        let Some(object) = objects.get_mut(&self.handle) else { return };
        object.pins -= 1;
        if object.pins > 0 {
            return;
        }
        let last = objects.remove(&self.handle);
        self.objects.count.fetch_sub(1, Ordering::Relaxed);
        drop(objects);
        // Closed with no lock held: that may free the blocks of a removed file.
        drop(last);
    }
}
