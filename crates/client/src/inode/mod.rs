//! Inodes: the cached state of one object of the server.
//!
//! Owns an inode's attributes and their age, its access cache, its state as a directory, symbolic
//! link or open file, and its data. Policy decides how cached rights are used, and how long a
//! lifetime of a name is. Invariants: attributes from replies enter through [`Inode::absorb`] or
//! [`Inode::end_mutation`] only, which decide what they invalidate; the lock of the state is never
//! held across a request or a callback, nor while another inode's is taken. `lib.rs` has the order
//! of the locks.

mod absorb;
mod delegation;
mod owner;
pub(crate) mod registry;
pub(crate) mod rights_reply;
pub(crate) mod single_flight;
pub(crate) mod type_state;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed},
    },
};

use curt_policy::{
    AccessDecision, AccessEntry, AttributeState, CacheOptions, CachingAttributes, Delegation, Epoch,
    Freshness, LockingState, MonotonicTime, MountUsers, ServerClock, UnixCredential,
    access::{self, AccessView, decide_access},
    attributes::{GetattrDecision, across_restart, decide_getattr},
    kernel_cache::{DirectoryView, NameLifetimes, everybody_may_search},
    prefetch::PrefetchBenefit,
};
use curt_types::{Access, Attributes, Device, FileHandle, FileKind, Timestamp};
use once_cell::race::OnceBox;
use parking_lot::{Mutex, MutexGuard};

use self::{
    registry::InodeRegistry,
    type_state::{CachedLinkText, DirectoryState, LocalOpens},
};
use crate::{api::InodeId, caller::InternedCaller, data::FileData, mount_core::MountCore};

/// An inode and its cached state.
pub(crate) struct Inode {
    id: InodeId,
    handle: FileHandle,
    registry: Arc<InodeRegistry>,
    state: Mutex<InodeState>,
    data: OnceBox<FileData>,
    /// Counted lookups; changed only under the lock of their table. The value 2^32 - 1 saturates.
    lookups: AtomicU32,
    /// The flags; outside the state, where they would take eight bytes. All accesses are relaxed.
    flags: AtomicU8,
    /// Its position in the listing that returned it last; the largest value stands for all
    /// positions from there on. Relaxed accesses: a wrong position is detected by the name.
    listed_at: AtomicU16,
}

#[cfg(test)]
thread_local! {
    /// The last inode whose state this thread has locked, and how often.
    pub(crate) static INODE_LOCKS: std::cell::Cell<(InodeId, u32)> =
        const { std::cell::Cell::new((InodeId(0), 0)) };
    /// How often this thread has locked the state of any inode.
    pub(crate) static ALL_INODE_LOCKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The times by which attributes are judged for an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpTime {
    /// When the operation began.
    pub(crate) began: MonotonicTime,
    pub(crate) now: MonotonicTime,
    /// When the server's last restart was detected.
    pub(crate) server_since: MonotonicTime,
    /// The server does not respond: cached attributes are used.
    pub(crate) uses_cache: bool,
}

/// The mutable state of an inode.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    pub(crate) attributes: AttributeState,
    stat_only: Option<StatOnlyAttributes>,
    /// Cached rights, by caller. Allocated at first use: most inodes are only looked up.
    access_cache: Option<Box<InodeAccessCache>>,
    /// The state that depends on its type.
    pub(crate) by_type: TypeState,
    /// The directory in whose listing it was last returned. Weak: a server may return two
    /// directories as entries of each other.
    listed_in: Option<Weak<Inode>>,
}

impl Inode {
    pub(crate) fn new(id: InodeId, handle: FileHandle, registry: Arc<InodeRegistry>) -> Self {
        Self {
            id,
            handle,
            registry,
            state: Mutex::default(),
            data: OnceBox::new(),
            lookups: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            listed_at: AtomicU16::new(0),
        }
    }

    fn core(&self) -> &MountCore {
        &self.registry.core
    }

    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// Whether it has counted lookups.
    pub(crate) fn is_held(&self) -> bool {
        self.lookups.load(Relaxed) > 0
    }

    /// Counts one more lookup; returns the new count.
    pub(crate) fn add_lookup(&self) -> u32 {
        let lookups = self.lookups.load(Relaxed).saturating_add(1);
        self.lookups.store(lookups, Relaxed);
        lookups
    }

    /// Subtracts `count` lookups; returns the new count.
    pub(crate) fn remove_lookups(&self, count: u64) -> u32 {
        let lookups = self.lookups.load(Relaxed);
        if lookups == u32::MAX {
            return lookups;
        }
        let left = lookups.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        self.lookups.store(left, Relaxed);
        left
    }

    pub(crate) fn handle(&self) -> &FileHandle {
        &self.handle
    }

    /// Locks its state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, InodeState> {
        #[cfg(test)]
        ALL_INODE_LOCKS.set(ALL_INODE_LOCKS.get() + 1);
        #[cfg(test)]
        if let (id, count) = INODE_LOCKS.get()
            && id == self.id
        {
            INODE_LOCKS.set((id, count + 1));
        }
        self.state.lock()
    }

    /// Its data, created on the first call.
    pub(crate) fn data(&self) -> &FileData {
        self.data.get_or_init(|| Box::new(self.core().data.new_file()))
    }

    /// Its data, if they were created.
    pub(crate) fn data_if_any(&self) -> Option<&FileData> {
        self.data.get()
    }

    /// The last known attributes, however old, with the inode number within the mount and the size
    /// that includes unsent writes.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        let locked = self.lock();
        self.attributes_in(&locked)
    }

    pub(crate) fn attributes_in(&self, locked: &InodeState) -> Option<Attributes> {
        let mut attributes = locked.stat_only.as_ref()?.with(&locked.attributes.newest()?);
        if let Some(data) = self.data_if_any() {
            attributes.size = data.local_size(attributes.size);
        }
        Some(attributes)
    }

    /// The fsid, from the last known attributes.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.lock().fsid()
    }

    /// Whether it has data that are not yet sent to the server.
    pub(crate) fn has_unsent(&self) -> bool {
        self.data_if_any().is_some_and(FileData::has_unsent)
    }
}

impl InodeState {
    /// The freshness of the attributes for an operation.
    pub(crate) fn freshness(&self, time: OpTime, options: &CacheOptions) -> Freshness {
        let delegation = self.locking(time.now).delegation;
        let freshness = self.attributes.freshness_under(delegation, time.began, time.now, options);
        let is_directory = matches!(self.by_type, TypeState::Directory(_));
        let freshness = if is_directory {
            across_restart(freshness, self.attributes.sent_at(), time.server_since)
        } else {
            freshness
        };
        match freshness {
            // Revalidation has already timed out.
            Freshness::Expired | Freshness::Fresh if time.uses_cache => Freshness::Confirmed,
            freshness => freshness,
        }
    }

    /// The locks and the delegation that this client holds at `now`. Locks give no right to cache:
    /// see [`crate::locks`].
    pub(crate) fn locking(&self, now: MonotonicTime) -> LockingState {
        let file = self.by_type.file_if_any().and_then(|file| file.delegation.as_ref());
        let valid = file.filter(|delegation| delegation.held.is_valid(now));
        let delegation = valid.map(|delegation| Delegation { write: false, since: delegation.since });
        LockingState { locked_at: None, delegation }
    }

    /// Whether the attributes may be served to such an operation, provided there are no unsent
    /// data.
    pub(crate) fn can_be_served(&self, time: OpTime, options: &CacheOptions) -> bool {
        let decision = decide_getattr(self.freshness(time, options), false, options);
        decision == GetattrDecision::Serve
    }

    /// Invalidates copies of the data outside this client, and forgets the caller that read the
    /// cached data unless the file is open. A file that was never opened has no copies.
    pub(crate) fn invalidate_copies(&mut self) {
        if let TypeState::File(file) = &mut self.by_type {
            file.copies_invalidated = file.copies_invalidated.wrapping_add(1);
            if file.opens == 0 {
                file.first_user = None;
            }
        }
    }

    /// The size, if the attributes have not expired.
    pub(crate) fn fresh_size(&self, now: MonotonicTime, options: &CacheOptions) -> Option<u64> {
        let delegation = self.locking(now).delegation;
        let freshness = self.attributes.freshness_under(delegation, now, now, options);
        let decision = decide_getattr(freshness, false, options);
        let is_believed = decision == GetattrDecision::Serve;
        self.attributes.newest().filter(|_| is_believed).map(|known| known.size)
    }

    /// The fsid, from the last known attributes.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.stat_only.map(|rest| rest.fsid)
    }

    /// The epoch of the contents, if the cached state is consistent.
    pub(crate) fn contents(&self) -> Option<Epoch> {
        self.attributes.contents()
    }
}

impl Inode {
    /// The rights of `identity` as input for policy, for data that were read with its credential.
    pub(crate) fn access_view(
        &self,
        locked: &InodeState,
        identity: &InternedCaller,
        now: MonotonicTime,
    ) -> AccessView {
        let bits = match locked.attributes.newest() {
            Some(known) if !self.has(InodeFlag::BitsDisputed) && identity.may_use_mode_bits() => {
                access::mode_bits_rights(&known, credential(identity))
            }
            Some(_) | None => None,
        };
        let entry = locked.access_entry(identity.number).map(|entry| entry.view(now));
        AccessView { local: bits, entry, foreign_data: false }
    }

    /// Whether `identity` has the rights `needs`, as far as is known, under one lock.
    pub(crate) fn access_decision(
        &self,
        identity: &InternedCaller,
        time: OpTime,
        needs: Access,
        options: &CacheOptions,
    ) -> AccessDecision {
        let locked = self.lock();
        let view = self.access_view(&locked, identity, time.now);
        decide_access(&view, locked.freshness(time, options), needs, options)
    }
}

fn credential(identity: &InternedCaller) -> UnixCredential<'_> {
    UnixCredential { uid: identity.uid, gid: identity.gid, groups: &identity.groups }
}

impl InodeState {
    /// The lifetimes of its names, as a directory.
    pub(crate) fn name_lifetimes(&self) -> NameLifetimes {
        self.by_type.directory_if_any().map(|directory| directory.name_lifetimes).unwrap_or_default()
    }

    fn search_was_denied(&self) -> bool {
        self.by_type.directory_if_any().is_some_and(|directory| directory.search_was_denied)
    }

    /// The server denied a user these rights. If the mode bits let all users search the directory
    /// and the server did not, the bits are not relied on.
    pub(super) fn note_search_denied(&mut self, denied: Access, users: MountUsers) {
        if denied.contains(Access::LOOKUP) && everybody_may_search(self.attributes.newest(), false, users) {
            self.by_type.directory().search_was_denied = true;
        }
    }
}

impl Inode {
    /// Everything that the lifetimes of a directory's names depend on; `clock` is that of its file
    /// system.
    pub(crate) fn directory_view<'a>(
        &self,
        locked: &'a InodeState,
        clock: &'a ServerClock,
    ) -> DirectoryView<'a> {
        DirectoryView { attributes: &locked.attributes, is_disputed: self.is_search_disputed(locked), clock }
    }

    /// Whether every user whose requests arrive may search it.
    pub(crate) fn everybody_may_search(&self, locked: &InodeState, users: MountUsers) -> bool {
        everybody_may_search(locked.attributes.newest(), self.is_search_disputed(locked), users)
    }

    fn is_search_disputed(&self, locked: &InodeState) -> bool {
        self.has(InodeFlag::BitsDisputed) || locked.search_was_denied()
    }
}

/// A request that a prefetched name has saved, to be recorded outside its directory.
pub(crate) struct SavedRequest {
    parent: Option<Weak<Inode>>,
}

impl InodeState {
    /// Records in this directory a request about a child: listings with attributes are useful.
    pub(crate) fn note_stat(&mut self) {
        if let TypeState::Directory(directory) = &mut self.by_type {
            directory.names_since_stat = 0;
        }
    }

    /// Records in this directory that a prefetched name of it was used; `None` if its names did not
    /// come from a fill.
    pub(crate) fn note_saved(&mut self) -> Option<SavedRequest> {
        let directory = self.by_type.directory();
        directory.prefetch.own.has_filled().then(|| {
            directory.prefetch.own.saved();
            SavedRequest { parent: directory.parent.as_ref().map(|(parent, _)| Weak::clone(parent)) }
        })
    }
}

impl SavedRequest {
    /// Records it in the parent directory and for the mount. Called with no inode locked.
    pub(crate) fn note_elsewhere(self, core: &MountCore) {
        if let Some(parent) =
            self.parent.and_then(|parent| parent.upgrade()).filter(|inode| inode.is_directory())
        {
            parent.lock().by_type.directory().prefetch.below.saved();
        }
        core.learn_prefetch(PrefetchBenefit::saved);
    }
}

/// A flag of an inode. All accesses are relaxed.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum InodeFlag {
    /// Its name was prefetched with another name, was not cached before, and has not been used
    /// since: the first use saves a request.
    Primed = 1,
    /// The inode was used since its attributes were last fetched together with those of siblings.
    UsedSinceRefresh = 2,
    /// The server reported the handle as stale.
    Stale = 4,
    /// The server's decision differed from the mode bits: they no longer decide about access to
    /// this inode.
    BitsDisputed = 8,
    /// The inode was looked up, and no other operation has used it since.
    LookedUp = 16,
    /// Its size has decreased, and it is not certain that the kernel knows the smaller size.
    Shrunk = 32,
    /// All its lookups were returned once, and the registry has its ID.
    Forgotten = 64,
    /// A name in it has been returned to a caller since its lookups were last counted from 0.
    ReturnedNames = 128,
}

impl Inode {
    /// Whether it has a flag.
    pub(crate) fn has(&self, flag: InodeFlag) -> bool {
        self.flags.load(Relaxed) & flag as u8 != 0
    }

    /// Sets a flag; returns whether it was set before.
    pub(crate) fn set(&self, flag: InodeFlag) -> bool {
        self.has(flag) || self.flags.fetch_or(flag as u8, Relaxed) & flag as u8 != 0
    }

    /// Clears a flag; returns whether it was set before.
    pub(crate) fn clear(&self, flag: InodeFlag) -> bool {
        self.has(flag) && self.flags.fetch_and(!(flag as u8), Relaxed) & flag as u8 != 0
    }
}

impl Inode {
    /// Records a use: an operation requested the inode or was answered from the cache.
    pub(crate) fn note_use(&self) {
        let home = self.unused_in();
        if !self.set(InodeFlag::UsedSinceRefresh)
            && let Some(home) = home
        {
            home.lock().by_type.directory().prefetch.used();
        }
        self.clear(InodeFlag::Primed);
    }

    /// The directory that counts the next use of the inode: the one in whose listing it was last
    /// returned, unless it has been used since its attributes were fetched with those of siblings.
    pub(crate) fn unused_in(&self) -> Option<Arc<Self>> {
        if self.has(InodeFlag::UsedSinceRefresh) { None } else { self.listed_in() }
    }

    /// The parent directory, if known. Its state is locked after those of this inode are released,
    /// because a server may return a directory as its own parent, or a file as `..`.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        let parent = self.lock().by_type.directory_if_any()?.parent.as_ref()?.0.upgrade()?;
        parent.is_directory().then_some(parent)
    }

    fn is_directory(&self) -> bool {
        let kind = self.lock().attributes.newest().map(|known| known.kind);
        kind == Some(FileKind::Directory)
    }

    /// Records that its attributes were fetched with those of others in the directory `home`.
    /// Returns whether it had been used since the previous such fetch.
    pub(crate) fn mark_refreshed_in(&self, home: &Arc<Self>, place: u32) -> bool {
        self.clear(InodeFlag::Stale);
        let mut locked = self.lock();
        self.listed_at.store(u16::try_from(place).unwrap_or(u16::MAX), Relaxed);
        let is_known = locked.listed_in.as_ref().is_some_and(|known| known.as_ptr() == Arc::as_ptr(home));
        let former = if is_known { None } else { locked.listed_in.replace(Arc::downgrade(home)) };
        drop(locked);
        drop(former);
        self.clear(InodeFlag::UsedSinceRefresh)
    }

    /// Records that the size has decreased, so that the kernel's size and copies may be invalid.
    pub(crate) fn shrinks(&self, locked: &mut InodeState) {
        // The invalidation is counted even if the file was never opened: earlier replies reported
        // its size.
        let _ = locked.by_type.file();
        locked.invalidate_copies();
        self.set(InodeFlag::Shrunk);
    }

    /// Records that a SETATTR of the size failed for the kernel, which then keeps its old size.
    pub(crate) fn may_seem_larger_again(&self) {
        self.shrinks(&mut self.lock());
    }

    /// The directory in whose listing it was last returned.
    pub(crate) fn listed_in(&self) -> Option<Arc<Self>> {
        self.lock().listed_in.as_ref()?.upgrade()
    }

    /// The directory in whose listing it was last returned, with its place there.
    pub(crate) fn listed_at(&self) -> Option<(Arc<Self>, u32)> {
        self.listed_in().map(|home| (home, self.listed_at.load(Relaxed).into()))
    }

    /// Clears that directory, because the inode was moved or removed.
    pub(crate) fn clear_listed_in(&self) {
        let former = self.lock().listed_in.take();
        drop(former);
    }
}

/// The state that depends on the type.
#[derive(Debug, Default)]
pub(crate) enum TypeState {
    #[default]
    Nothing,
    Directory(Box<DirectoryState>),
    Link(Box<CachedLinkText>),
    File(Box<LocalOpens>),
}

impl TypeState {
    pub(crate) fn directory(&mut self) -> &mut DirectoryState {
        if !matches!(self, Self::Directory(_)) {
            *self = Self::Directory(Box::default());
        }
        match self {
            Self::Directory(directory) => directory,
            Self::Nothing | Self::Link(_) | Self::File(_) => unreachable!("it was just made a directory"),
        }
    }

    pub(crate) fn file(&mut self) -> &mut LocalOpens {
        if !matches!(self, Self::File(_)) {
            *self = Self::File(Box::default());
        }
        match self {
            Self::File(file) => file,
            Self::Nothing | Self::Link(_) | Self::Directory(_) => unreachable!("it was just made a file"),
        }
    }

    /// The state of a directory, if it has any.
    pub(crate) fn directory_if_any(&self) -> Option<&DirectoryState> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Nothing | Self::Link(_) | Self::File(_) => None,
        }
    }

    /// The open state, if the inode ever had one.
    pub(crate) fn file_if_any(&self) -> Option<&LocalOpens> {
        match self {
            Self::File(file) => Some(file),
            Self::Nothing | Self::Link(_) | Self::Directory(_) => None,
        }
    }
}

/// The attributes that no decision depends on.
#[derive(Clone, Copy, Debug)]
struct StatOnlyAttributes {
    nlink: u32,
    /// Packed as the kernel has it, with 12 bits of major and 20 of minor.
    rdev: u32,
    used: u64,
    fsid: u64,
    /// The inode number within the mount.
    fileid: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl StatOnlyAttributes {
    fn of(attributes: &Attributes, fileid: u64) -> Self {
        let Attributes { nlink, used, rdev, fsid, atime, mtime, ctime, .. } = *attributes;
        Self { nlink, rdev: rdev.packed(), used, fsid, fileid, atime, mtime, ctime }
    }

    /// The complete attributes from this part and `known`.
    fn with(&self, locked: &CachingAttributes) -> Attributes {
        Attributes {
            kind: locked.kind,
            mode: locked.mode,
            nlink: self.nlink,
            uid: locked.uid,
            gid: locked.gid,
            size: locked.size,
            used: self.used,
            rdev: Device::unpack(self.rdev),
            fsid: self.fsid,
            fileid: self.fileid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: locked.stamp.change(),
        }
    }
}

/// Most callers cached per inode; beyond it the oldest entry is dropped.
const ANSWERS_MAX: usize = 32;

/// Entries by the caller's number. Most inodes are used by one caller.
#[derive(Debug)]
enum InodeAccessCache {
    One(u32, AccessEntry),
    Many(Vec<(u32, AccessEntry)>),
}

impl InodeAccessCache {
    fn find(&self, identity: u32) -> Option<AccessEntry> {
        match self {
            Self::One(number, entry) => (*number == identity).then_some(*entry),
            Self::Many(many) => many.iter().find(|(number, _)| *number == identity).map(|(_, entry)| *entry),
        }
    }

    /// Caches `entry`; returns whether another entry was dropped.
    fn keep(&mut self, identity: u32, entry: AccessEntry) -> bool {
        match self {
            Self::One(number, old) if *number == identity => *old = entry,
            Self::One(number, old) => *self = Self::Many(vec![(*number, *old), (identity, entry)]),
            Self::Many(many) => {
                if let Some((_, old)) = many.iter_mut().find(|(number, _)| *number == identity) {
                    *old = entry;
                    return false;
                }
                let is_full = many.len() >= ANSWERS_MAX;
                if is_full {
                    many.remove(0);
                }
                many.push((identity, entry));
                return is_full;
            }
        }
        false
    }
}

impl InodeState {
    fn access_entry(&self, identity: u32) -> Option<AccessEntry> {
        self.access_cache.as_ref()?.find(identity)
    }

    /// Caches `entry`; returns whether another entry was dropped.
    fn keep_access_entry(&mut self, identity: u32, entry: AccessEntry) -> bool {
        if let Some(cache) = &mut self.access_cache {
            return cache.keep(identity, entry);
        }
        self.access_cache = Some(Box::new(InodeAccessCache::One(identity, entry)));
        false
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        // Without the inode nothing is served by it.
        if self.state.get_mut().take_delegation() {
            self.core().protocol.give_up_delegation(&self.handle);
        }
        self.registry.forget(&self.handle);
        if self.has(InodeFlag::Forgotten) {
            self.registry.end_forgotten(self.id);
        }
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inode").field(&self.id).finish()
    }
}

#[cfg(test)]
mod tests {
    use curt_types::Access;

    use super::*;

    fn entry(bits: u32) -> AccessEntry {
        AccessEntry::absorb(None, Access::ALL, Access::from_bits(bits), MonotonicTime::default())
    }

    /// Together with the two counts of its `Arc` and the allocator's word, the allocation has 304
    /// bytes, a multiple of 16 as glibc makes them: a field more takes 16 bytes for each name.
    #[test]
    fn an_inode_takes_272_bytes() {
        assert_eq!(size_of::<Inode>(), 272);
    }

    #[test]
    fn each_identity_has_its_own_entry_and_the_oldest_is_dropped_at_the_bound() {
        let mut state = InodeState::default();
        for identity in 0..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            let evicted = state.keep_access_entry(identity, entry(identity % 32));
            assert_eq!(evicted, identity as usize == ANSWERS_MAX);
        }
        assert_eq!(state.access_entry(0), None);
        for identity in 1..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            assert_eq!(state.access_entry(identity), Some(entry(identity % 32)));
        }
        assert!(!state.keep_access_entry(5, entry(0)));
        assert_eq!(state.access_entry(5), Some(entry(0)));
    }
}
