//! The dentry cache: positive and negative names.
//!
//! Owns the entries, their bounds and the order of their eviction. Positive and negative names have
//! separate bounds and LRU lists, so lookups of random names evict no positive entry. The contents
//! epoch in each entry's label invalidates all names of a directory in O(1); invalid entries are
//! replaced or evicted. `..` is stored with its directory. Policy decides from the label whether a
//! name may be cached or served.
//!
//! [`KernelDentries`] are the objects that a kernel finds by a name in its own cache: in which
//! directory, and until when. [`curt_policy::kernel_cache`] says how long a lifetime is, and
//! [`crate::ops::kernel_names`] what is checked because of it. Invariant: an object has lifetimes
//! in one directory at a time, so that it is known whose permission a caller needs who came through
//! the kernel's cache. Only lifetimes that last take memory.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use arrayvec::ArrayVec;
use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::{
    MonotonicTime, MutationTicket, NameLabel, kernel_cache::with_expiry_delay, names::DentryUpdate,
};
use curt_types::FileKind;
use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::{
    api::InodeId,
    config::Limits,
    inode::{Inode, InodeFlag, InodeState, TypeState},
    uncached_lookups::LastFound,
};

/// Longest name stored in its entry, in bytes: a separate allocation takes at least 32 bytes, and
/// there are as many entries as cached names.
const SHORT_MAX: usize = 22;

/// The bytes of a name.
#[derive(Debug)]
enum NameBytes {
    Short(u8, [u8; SHORT_MAX]),
    Long(Box<[u8]>),
}

/// Entries per chunk of the slab, which grows by chunks, so that growth neither copies nor doubles
/// it.
const SLAB_CHUNK: usize = 4096;

/// A cached name.
#[derive(Clone, Debug)]
pub(crate) struct CachedDentry {
    /// The object that the name refers to; `None`: a negative entry.
    pub(crate) child: Option<Arc<Inode>>,
    /// The state of the directory under which the name was learned.
    pub(crate) label: NameLabel,
}

/// A name in a directory, as a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NameKey {
    directory: InodeId,
    name: Box<[u8]>,
}

impl NameKey {
    pub(crate) fn new(directory: InodeId, name: &[u8]) -> Self {
        Self { directory, name: name.into() }
    }
}

impl InodeState {
    /// The cached target of `..`.
    pub(crate) fn parent(&self) -> Option<CachedDentry> {
        let (parent, label) = self.by_type.directory_if_any()?.parent.as_ref()?;
        Some(CachedDentry { child: Some(parent.upgrade()?), label: *label })
    }
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct NameInDirectory<'a> {
    pub(crate) directory: &'a Arc<Inode>,
    pub(crate) name: &'a [u8],
}

impl<'a> NameInDirectory<'a> {
    pub(crate) const fn new(directory: &'a Arc<Inode>, name: &'a [u8]) -> Self {
        Self { directory, name }
    }

    pub(crate) fn key(&self) -> NameKey {
        NameKey::new(self.directory.id(), self.name)
    }

    /// The object of its cached name.
    pub(crate) fn cached_child(&self, dentries: &DentryCache) -> Option<Arc<Inode>> {
        dentries.find(self.directory.id(), self.name).and_then(|cached| cached.child)
    }
}

/// The object that a name refers to, and the label of its cache entry if it was cached.
#[derive(Debug)]
pub(crate) enum ResolvedName {
    Object(Arc<Inode>, Option<NameLabel>),
    Missing(Option<NameLabel>),
}

/// All names of one mount.
pub(crate) struct DentryCache {
    limits: Limits,
    counters: Arc<ClientCounters>,
    hasher: RandomState,
    table: Mutex<DentryTable>,
    /// Results of lookups that could not be cached.
    last_found: LastFound,
}

#[derive(Debug)]
struct DentryTable {
    index: HashTable<u32>,
    slab: DentrySlab,
    present: LruList,
    missing: LruList,
    /// The negative names of each directory that has any.
    by_directory: HashMap<InodeId, LruList>,
}

#[derive(Debug)]
struct DentrySlot {
    directory: InodeId,
    name: NameBytes,
    child: Option<Arc<Inode>>,
    label: NameLabel,
    age: LruLinks,
    /// Links in the list of the directory's negative names.
    siblings: LruLinks,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// An entry's links in one list.
#[derive(Clone, Copy, Debug)]
struct LruLinks {
    previous: u32,
    next: u32,
}

impl LruLinks {
    const ALONE: Self = Self { previous: NONE, next: NONE };
}

/// A list threaded through the slab, the most recently used entry first. The links of an entry show
/// whether it is in the list.
#[derive(Clone, Copy, Debug)]
struct LruList {
    head: u32,
    tail: u32,
    len: usize,
}

impl LruList {
    const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    /// The least recently used entry.
    fn oldest(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    /// Inserts `index` at the head. `links` returns the links of an entry in this list.
    fn push<S>(&mut self, slab: &mut S, index: u32, links: impl Fn(&mut S, u32) -> &mut LruLinks) {
        *links(slab, index) = LruLinks { previous: NONE, next: self.head };
        if self.head == NONE {
            self.tail = index;
        } else {
            links(slab, self.head).previous = index;
        }
        self.head = index;
        self.len += 1;
    }

    /// Removes `index`.
    fn remove<S>(&mut self, slab: &mut S, index: u32, links: impl Fn(&mut S, u32) -> &mut LruLinks) {
        let LruLinks { previous, next } = std::mem::replace(links(slab, index), LruLinks::ALONE);
        if previous == NONE {
            self.head = next;
        } else {
            links(slab, previous).next = next;
        }
        if next == NONE {
            self.tail = previous;
        } else {
            links(slab, next).previous = previous;
        }
        self.len -= 1;
    }
}
#[derive(Debug, Default)]
struct DentrySlab {
    pieces: Vec<Vec<DentrySlot>>,
    free: Vec<u32>,
}

impl DentrySlab {
    fn slot(&self, index: u32) -> &DentrySlot {
        &self.pieces[index as usize / SLAB_CHUNK][index as usize % SLAB_CHUNK]
    }

    fn slot_mut(&mut self, index: u32) -> &mut DentrySlot {
        &mut self.pieces[index as usize / SLAB_CHUNK][index as usize % SLAB_CHUNK]
    }

    /// Stores `slot`; `None` if there are 2^32 - 1 entries, which no limit permits.
    fn insert(&mut self, slot: DentrySlot) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            *self.slot_mut(index) = slot;
            return Some(index);
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == SLAB_CHUNK) {
            self.pieces.push(Vec::with_capacity(SLAB_CHUNK));
        }
        let before = (self.pieces.len() - 1) * SLAB_CHUNK;
        let piece = self.pieces.last_mut()?;
        let index = u32::try_from(before + piece.len()).ok().filter(|index| *index != NONE)?;
        piece.push(slot);
        Some(index)
    }
}

impl NameBytes {
    fn new(name: &[u8]) -> Self {
        match u8::try_from(name.len()) {
            Ok(length) if name.len() <= SHORT_MAX => {
                let mut bytes = [0; SHORT_MAX];
                bytes[..name.len()].copy_from_slice(name);
                Self::Short(length, bytes)
            }
            Ok(_) | Err(_) => Self::Long(name.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

fn age(slab: &mut DentrySlab, index: u32) -> &mut LruLinks {
    &mut slab.slot_mut(index).age
}

fn siblings(slab: &mut DentrySlab, index: u32) -> &mut LruLinks {
    &mut slab.slot_mut(index).siblings
}

impl DentryCache {
    pub(crate) fn new(limits: Limits, counters: Arc<ClientCounters>) -> Self {
        let table = DentryTable {
            index: HashTable::new(),
            slab: DentrySlab::default(),
            present: LruList::EMPTY,
            missing: LruList::EMPTY,
            by_directory: HashMap::new(),
        };
        Self {
            limits,
            counters,
            hasher: RandomState::new(),
            table: Mutex::new(table),
            last_found: LastFound::default(),
        }
    }

    fn hash(&self, directory: InodeId, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// The cached entry of `name` in `directory`, which becomes the most recently used.
    pub(crate) fn find(&self, directory: InodeId, name: &[u8]) -> Option<CachedDentry> {
        let hash = self.hash(directory, name);
        let table = &mut *self.table.lock();
        let index = table.find(hash, directory, name)?;
        table.touch(index);
        let slot = table.slab.slot(index);
        Some(CachedDentry { child: slot.child.clone(), label: slot.label })
    }

    /// Whether an entry of `name` in `directory` with this label is cached that leads to `child` or
    /// is negative. Takes no reference, whose drop could take locks.
    pub(crate) fn has(
        &self,
        directory: InodeId,
        name: &[u8],
        child: Option<&Arc<Inode>>,
        label: NameLabel,
    ) -> bool {
        let hash = self.hash(directory, name);
        let table = self.table.lock();
        let Some(index) = table.find(hash, directory, name) else { return false };
        let slot = table.slab.slot(index);
        slot.label.epoch == label.epoch && slot.child.as_ref().map(Arc::as_ptr) == child.map(Arc::as_ptr)
    }

    /// Caches an entry of `name` in `directory`; returns the previous one, and adds evicted ones to
    /// `evicted`. The caller drops them without a lock, because the drop of an inode takes locks.
    pub(crate) fn keep(
        &self,
        directory: InodeId,
        name: &[u8],
        dentry: CachedDentry,
        evicted: &mut Vec<CachedDentry>,
    ) -> Option<CachedDentry> {
        let missing = dentry.child.is_none();
        let hash = self.hash(directory, name);
        let mut table = self.table.lock();
        let index = table.find(hash, directory, name);
        let former = index.and_then(|index| table.remove(hash, index));
        table.insert(hash, directory, name, dentry, |hash_of| {
            self.hash(hash_of.directory, hash_of.name.as_bytes())
        });
        while let Some(index) = table.over(&self.limits, directory) {
            let slot = table.slab.slot(index);
            let (hash, missing) = (self.hash(slot.directory, slot.name.as_bytes()), slot.is_missing());
            evicted.extend(table.remove(hash, index));
            self.counters.count(if missing { ClientCounter::NegEvict } else { ClientCounter::PosEvict });
        }
        drop(table);
        if missing {
            self.counters.count(ClientCounter::NegStore);
        }
        former
    }

    /// Drops the entry of `name` in `directory` from the cache; returns it.
    pub(crate) fn forget(&self, directory: InodeId, name: &[u8]) -> Option<CachedDentry> {
        let hash = self.hash(directory, name);
        let mut table = self.table.lock();
        let index = table.find(hash, directory, name)?;
        table.remove(hash, index)
    }

    /// A directory and the name in it that refers to `child`; `None` if no such name is cached. For
    /// log lines only, because it scans all names.
    pub(crate) fn origin(&self, child: InodeId) -> Option<(InodeId, Vec<u8>)> {
        let table = self.table.lock();
        table.index.iter().find_map(|index| {
            let slot = table.slab.slot(*index);
            let leads = slot.child.as_ref().is_some_and(|inode| inode.id() == child);
            leads.then(|| (slot.directory, slot.name.as_bytes().to_vec()))
        })
    }

    /// The numbers of positive and of negative names.
    pub(crate) fn len(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.present.len, table.missing.len)
    }
}

impl DentryCache {
    /// The cached entry of `name`, unless the server has reported its object's handle as stale.
    pub(crate) fn cached_dentry(&self, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
        if name == b".." {
            return directory.lock().parent();
        }
        self.cached_name(directory, name)
    }

    /// The cached entry of a name other than `..`.
    pub(crate) fn cached_name(&self, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
        let cached = self.find(directory.id(), name)?;
        if cached.child.as_ref().is_some_and(|child| child.has(InodeFlag::Stale)) {
            // The handle is stale; the name may refer to another object by now.
            self.counters.count(ClientCounter::StaleRetry);
            self.forget(directory.id(), name);
            return None;
        }
        Some(cached)
    }

    /// The object of the last cached result for `name`, however old. It must not be served, only
    /// used to choose what to request.
    pub(crate) fn last_object(&self, directory: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        let cached = self.find(directory.id(), name).and_then(|cached| cached.child);
        cached.or_else(|| self.last_found.find(directory.id(), name))
    }

    /// Applies policy's decision about a name that was learned.
    pub(crate) fn cache_learned(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        child: Option<&Arc<Inode>>,
        learned: DentryUpdate,
        ticket: Option<MutationTicket>,
    ) -> Option<NameLabel> {
        let (label, former) = self.cache_name(directory, name, child, learned, ticket);
        drop(former);
        label
    }

    /// As [`Self::cache_learned`]; also returns the previous entry. With `ticket`, the name comes
    /// from a reply that was judged before: it is not cached if a change of this client began
    /// since. A change drops its name when it begins and when it ends, and the epoch of the label
    /// outlives it.
    pub(crate) fn cache_name(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        child: Option<&Arc<Inode>>,
        learned: DentryUpdate,
        ticket: Option<MutationTicket>,
    ) -> (Option<NameLabel>, Option<CachedDentry>) {
        let label = match learned {
            DentryUpdate::Positive(label) | DentryUpdate::Negative(label) => label,
            DentryUpdate::Forget => {
                if let Some(child) = child {
                    self.last_found.note(directory.id(), name, child);
                }
                return (None, self.uncache_name(directory, name));
            }
            DentryUpdate::Unchanged => return (None, None),
        };
        if name == b".." {
            directory.lock().by_type.directory().parent = child.map(|parent| (Arc::downgrade(parent), label));
            return (Some(label), None);
        }
        if let Some(child) = child {
            learn_parent(directory, child, label.sent_at);
        }
        let cached = CachedDentry { child: child.map(Arc::clone), label };
        let mut evicted = Vec::new();
        // Under the directory's lock: a change that begins afterwards drops the entry.
        let locked = directory.lock();
        if ticket.is_some_and(|ticket| !locked.attributes.is_undisturbed(ticket)) {
            return (None, None);
        }
        let former = self.keep(directory.id(), name, cached, &mut evicted);
        drop(locked);
        drop(evicted);
        (Some(label), former)
    }

    /// Caches a name that a complete listing does not contain, under the lock of its directory.
    /// Returns the entries that this has replaced and evicted, which are dropped without the lock.
    pub(crate) fn keep_missing(&self, name: NameInDirectory<'_>, label: NameLabel) -> Vec<CachedDentry> {
        let mut dropped = Vec::new();
        let missing = CachedDentry { child: None, label };
        let former = self.keep(name.directory.id(), name.name, missing, &mut dropped);
        dropped.extend(former);
        dropped
    }

    /// Drops the cached entry of `name`.
    pub(crate) fn uncache_name(&self, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
        if name == b".." {
            if let TypeState::Directory(state) = &mut directory.lock().by_type {
                state.parent = None;
            }
            return None;
        }
        self.forget(directory.id(), name)
    }
}

/// Caches `directory` as the `..` of a directory that was found in it.
fn learn_parent(directory: &Arc<Inode>, child: &Arc<Inode>, sent_at: MonotonicTime) {
    if Arc::ptr_eq(directory, child) || child.id() == InodeId::ROOT {
        return;
    }
    let mut locked = child.lock();
    let is_directory = locked.attributes.newest().is_some_and(|known| known.kind == FileKind::Directory);
    if let (true, Some(epoch)) = (is_directory, locked.contents()) {
        let label = NameLabel { epoch, sent_at };
        locked.by_type.directory().parent = Some((Arc::downgrade(directory), label));
    }
}

impl DentrySlot {
    fn is_missing(&self) -> bool {
        self.child.is_none()
    }
}

impl DentryTable {
    fn find(&self, hash: u64, directory: InodeId, name: &[u8]) -> Option<u32> {
        let is_it = |index: &u32| {
            let slot = self.slab.slot(*index);
            slot.directory == directory && slot.name.as_bytes() == name
        };
        self.index.find(hash, is_it).copied()
    }

    fn touch(&mut self, index: u32) {
        let slot = self.slab.slot(index);
        let (missing, directory) = (slot.is_missing(), slot.directory);
        let list = if missing { &mut self.missing } else { &mut self.present };
        list.remove(&mut self.slab, index, age);
        list.push(&mut self.slab, index, age);
        if missing && let Some(list) = self.by_directory.get_mut(&directory) {
            list.remove(&mut self.slab, index, siblings);
            list.push(&mut self.slab, index, siblings);
        }
    }

    fn insert(
        &mut self,
        hash: u64,
        directory: InodeId,
        name: &[u8],
        dentry: CachedDentry,
        rehash: impl Fn(&DentrySlot) -> u64,
    ) {
        let CachedDentry { child, label } = dentry;
        let missing = child.is_none();
        let slot = DentrySlot {
            directory,
            name: NameBytes::new(name),
            child,
            label,
            age: LruLinks::ALONE,
            siblings: LruLinks::ALONE,
        };
        let Some(index) = self.slab.insert(slot) else {
            return;
        };
        let slab = &self.slab;
        self.index.insert_unique(hash, index, |index| rehash(slab.slot(*index)));
        if missing {
            self.missing.push(&mut self.slab, index, age);
            let list = self.by_directory.entry(directory).or_insert(LruList::EMPTY);
            list.push(&mut self.slab, index, siblings);
        } else {
            self.present.push(&mut self.slab, index, age);
        }
    }

    /// Removes an entry; returns its contents.
    fn remove(&mut self, hash: u64, index: u32) -> Option<CachedDentry> {
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        let slot = self.slab.slot(index);
        let (missing, directory) = (slot.is_missing(), slot.directory);
        if missing {
            self.missing.remove(&mut self.slab, index, age);
            if let Some(list) = self.by_directory.get_mut(&directory) {
                list.remove(&mut self.slab, index, siblings);
                if list.len == 0 {
                    self.by_directory.remove(&directory);
                }
            }
        } else {
            self.present.remove(&mut self.slab, index, age);
        }
        self.slab.free.push(index);
        let slot = self.slab.slot_mut(index);
        slot.name = NameBytes::new(b"");
        Some(CachedDentry { child: slot.child.take(), label: slot.label })
    }

    /// The entry to evict, if a bound is exceeded.
    fn over(&self, limits: &Limits, directory: InodeId) -> Option<u32> {
        if self.present.len > limits.names {
            return self.present.oldest();
        }
        if self.missing.len > limits.missing_names {
            return self.missing.oldest();
        }
        let of_directory = self.by_directory.get(&directory)?;
        if of_directory.len > limits.missing_names_per_directory { of_directory.oldest() } else { None }
    }
}

/// Room that an empty table keeps for what comes, in entries.
const CAPACITY_KEPT: usize = 16_384;

/// How long after a lifetime was granted a request can arrive that the kernel sent without knowing
/// of it: other threads were looking the name up at the same time.
const RECEIVED_AFTER: Duration = Duration::from_millis(10);

/// Maximum number of further directories that are remembered for an object with several names.
const OTHERS_MAX: usize = 4;

/// Maximum number of directories of a [`CachedPath`].
pub(crate) const CACHED_PATH_MAX: usize = 32;

/// The directories through which the kernel may have walked to an object without asking, as far as
/// there is one way only.
pub(crate) struct CachedPath {
    /// From the object upwards: each is the only directory in which the kernel may have found the
    /// one before.
    pub(crate) directories: ArrayVec<Arc<Inode>, CACHED_PATH_MAX>,
    /// Whether none is above the last of them.
    pub(crate) is_whole: bool,
}

/// The objects that a kernel finds without asking.
#[derive(Debug, Default)]
pub(crate) struct KernelDentries(Mutex<Generations>);

/// Entries go to the newer table when they are granted; the older one is dropped as a whole when
/// all of its entries have expired.
#[derive(Debug, Default)]
struct Generations {
    newer: LifetimeTable,
    older: LifetimeTable,
}

#[derive(Debug, Default)]
struct LifetimeTable {
    by_object: HashMap<InodeId, KernelDentry>,
    /// When the last of its lifetimes ends.
    end: Option<MonotonicTime>,
}

#[derive(Clone, Debug)]
struct KernelDentry {
    /// When its lifetime was granted; a lifetime that follows another one immediately continues it.
    begin: MonotonicTime,
    end: MonotonicTime,
    directory: Weak<Inode>,
    /// Other directories in which LOOKUP found the object meanwhile: callers may have passed any of
    /// them.
    others: Box<[Weak<Inode>]>,
}

impl KernelDentry {
    fn is_in(&self, directory: &Arc<Inode>) -> bool {
        std::ptr::eq(self.directory.as_ptr(), Arc::as_ptr(directory))
    }

    fn may_be_kept(&self, now: MonotonicTime) -> bool {
        with_expiry_delay(Some(self.end)) > Some(now)
    }

    /// Adds a directory in which the object was found; replaces the oldest if there are too many.
    fn with(mut self, directory: Weak<Inode>) -> Self {
        let mut known = std::iter::once(&self.directory).chain(&self.others);
        if !known.any(|known| known.ptr_eq(&directory)) {
            let mut others = self.others.into_vec();
            if others.len() == OTHERS_MAX {
                others.remove(0);
            }
            others.push(directory);
            self.others = others.into_boxed_slice();
        }
        self
    }
}

impl Generations {
    fn find(&self, object: InodeId) -> Option<&KernelDentry> {
        self.newer.by_object.get(&object).or_else(|| self.older.by_object.get(&object))
    }

    fn keep(&mut self, object: InodeId, dentry: KernelDentry, now: MonotonicTime) {
        if self.older.end.is_none_or(|end| with_expiry_delay(Some(end)) <= Some(now)) {
            std::mem::swap(&mut self.newer, &mut self.older);
            self.newer.end = None;
            self.newer.by_object.clear();
            self.newer.by_object.shrink_to(CAPACITY_KEPT);
        }
        self.newer.end = self.newer.end.max(Some(dentry.end));
        self.newer.by_object.insert(object, dentry);
    }
}

impl KernelDentries {
    /// A name in `directory` that leads to `object` may be kept until `end`. Returns whether it may
    /// be: not while one in another directory is.
    pub(crate) fn grant(
        &self,
        object: InodeId,
        directory: &Arc<Inode>,
        now: MonotonicTime,
        end: MonotonicTime,
    ) -> bool {
        let mut kept = self.0.lock();
        let former = kept.find(object).filter(|former| former.may_be_kept(now)).cloned();
        let dentry = match former {
            Some(former) if former.is_in(directory) => {
                let begin = if former.end > now { former.begin } else { now };
                KernelDentry { begin, end: end.max(former.end), ..former }
            }
            Some(former) => {
                kept.keep(object, former.with(Arc::downgrade(directory)), now);
                return false;
            }
            None => {
                let directory = Arc::downgrade(directory);
                KernelDentry { begin: now, end, directory, others: Box::default() }
            }
        };
        kept.keep(object, dentry, now);
        true
    }

    /// LOOKUP has found `object` in `directory`.
    pub(crate) fn note_found(&self, object: InodeId, directory: &Arc<Inode>, now: MonotonicTime) {
        let mut kept = self.0.lock();
        if let Some(dentry) = kept.find(object).filter(|dentry| dentry.may_be_kept(now)).cloned() {
            kept.keep(object, dentry.with(Arc::downgrade(directory)), now);
        }
    }

    /// The path to `object`, found under one lock and without an allocation.
    pub(crate) fn path_of(&self, mut object: InodeId, now: MonotonicTime) -> CachedPath {
        let mut directories = ArrayVec::new();
        let kept = self.0.lock();
        let is_whole = loop {
            let Some(dentry) = kept.find(object).filter(|dentry| dentry.may_be_kept(now)) else {
                break true;
            };
            if !dentry.others.is_empty() || directories.is_full() {
                break false;
            }
            let Some(directory) = dentry.directory.upgrade() else {
                break true;
            };
            object = directory.id();
            directories.push(directory);
        };
        CachedPath { directories, is_whole }
    }

    /// The directories in which the kernel may have found `object` without asking, the likeliest
    /// last; none if its callers need not be checked.
    pub(crate) fn directories_of(&self, object: InodeId, now: MonotonicTime) -> Vec<Arc<Inode>> {
        let kept = self.0.lock();
        let dentry = kept.find(object).filter(|dentry| dentry.may_be_kept(now));
        let directories =
            dentry.into_iter().flat_map(|dentry| dentry.others.iter().chain([&dentry.directory]));
        directories.filter_map(Weak::upgrade).collect()
    }

    /// Whether the lifetime of its name in `directory` lasted at `moment`, and the kernel knew of
    /// it. A look-up of the name at that moment was sent in spite of it.
    pub(crate) fn lasted(&self, object: InodeId, directory: &Arc<Inode>, moment: MonotonicTime) -> bool {
        let kept = self.0.lock();
        kept.find(object).is_some_and(|dentry| {
            dentry.is_in(directory) && dentry.begin.plus(RECEIVED_AFTER) <= moment && moment < dentry.end
        })
    }

    /// When the lifetime of the name that leads to `object` ends, or has ended.
    pub(crate) fn end_of(&self, object: InodeId) -> Option<MonotonicTime> {
        self.0.lock().find(object).map(|dentry| dentry.end)
    }

    /// The kernel has moved a name that leads to `object` from one directory to another. If the
    /// object has several names, others may remain where it was.
    pub(crate) fn rename(
        &self,
        object: InodeId,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        has_links: bool,
        now: MonotonicTime,
    ) {
        let mut kept = self.0.lock();
        let Some(dentry) = kept.find(object).filter(|dentry| dentry.may_be_kept(now)).cloned() else {
            return;
        };
        let moved = if dentry.is_in(from) && !has_links {
            KernelDentry { directory: Arc::downgrade(to), ..dentry }
        } else {
            dentry.with(Arc::downgrade(to))
        };
        kept.keep(object, moved, now);
    }
}

#[cfg(test)]
mod tests;
