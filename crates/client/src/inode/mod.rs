//! Inodes: the cached state of one object of the server.
//!
//! Owns an inode's attributes and their age, its access cache, its state as a directory, symbolic
//! link or open file, and its data. Invariants: attributes from replies enter through
//! [`Inode::absorb`] or [`Inode::end_mutation`] only, which decide what they invalidate; the lock
//! of the facts is never held across a request or a callback, nor while another inode's is taken;
//! under it only the locks of the data half are taken.

mod access;
mod flags;
mod name_lifetimes;
mod owner;
pub(crate) mod registry;
pub(crate) mod single_flight;
mod tracepoints;
pub(crate) mod type_state;

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
};

use curt_observe::ClientCounter;
use curt_policy::{
    Absorbed, AccessEntry, AttributeReport, AttributeState, CacheOptions, Epoch, Facts, Freshness,
    LockingState, Moment, Mutation,
    attributes::{across_restart, decide_getattr},
    kernel_cache::revokes_names,
};
use curt_types::{Attributes, Device, Fault, FileHandle, FileKind, PreOpState, Timestamp, Wcc};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use self::{registry::InodeRegistry, type_state::TypeState};
use crate::{
    core::MountCore,
    data::{DataError, FileData},
    errno,
    event_fields::{trace_enter, trace_exit},
    identity::InodeId,
};

/// An inode and its cached state.
pub(crate) struct Inode {
    id: InodeId,
    handle: FileHandle,
    registry: Arc<InodeRegistry>,
    facts: Mutex<InodeFacts>,
    data: OnceLock<Box<FileData>>,
    /// Counted lookups; changed only under the lock of their table. The value 2^32 - 1 saturates.
    lookups: AtomicU32,
    /// The flags; outside the facts, where they would take eight bytes. All accesses are relaxed.
    flags: AtomicU8,
}

#[cfg(test)]
thread_local! {
    /// The last inode whose facts this thread has locked, and how often.
    pub(crate) static FACTS_LOCKED: std::cell::Cell<(InodeId, u32)> =
        const { std::cell::Cell::new((InodeId(0), 0)) };
}

/// The times by which attributes are judged for an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpTime {
    /// When the operation began.
    pub(crate) began: Moment,
    pub(crate) now: Moment,
    /// When the server's last restart was detected.
    pub(crate) server_since: Moment,
    /// The server does not respond: cached attributes are used.
    pub(crate) uses_cache: bool,
}

/// The kind of reply that changed the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizeChangeCause {
    /// A reply to a change by this client.
    Wcc,
    /// A reply to a SETATTR of the size.
    Set,
    /// A reply to a request that changes nothing.
    Update,
}

/// The mutable state of an inode.
#[derive(Debug, Default)]
pub(crate) struct InodeFacts {
    pub(crate) state: AttributeState,
    stat_only: Option<StatOnlyAttributes>,
    access_cache: InodeAccessCache,
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
            facts: Mutex::default(),
            data: OnceLock::new(),
            lookups: AtomicU32::new(0),
            flags: AtomicU8::new(0),
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

    pub(crate) fn facts(&self) -> MutexGuard<'_, InodeFacts> {
        #[cfg(test)]
        if let (id, count) = FACTS_LOCKED.get()
            && id == self.id
        {
            FACTS_LOCKED.set((id, count + 1));
        }
        self.facts.lock()
    }

    /// Its data, created on the first call.
    pub(crate) fn data(&self) -> &FileData {
        self.data.get_or_init(|| Box::new(self.core().data.new_file()))
    }

    /// Its data, if they were created.
    pub(crate) fn data_if_any(&self) -> Option<&FileData> {
        self.data.get().map(|data| &**data)
    }

    /// Applies attributes from a reply to a request that changed nothing.
    pub(crate) fn absorb(&self, attributes: &Attributes, sent_at: Moment) -> Absorbed {
        let received_at = self.core().now();
        let options = self.core().options();
        self.core().learn_time(attributes.fsid, attributes.ctime, received_at);
        let mut facts = self.facts();
        let before = facts.state.facts();
        let report = AttributeReport { facts: Facts::from(attributes), sent_at, received_at };
        trace_enter!(self.event_fields_in(&facts), NfsRefreshInodeEnter {});
        let absorbed = facts.state.absorb(report, &options);
        self.apply_absorbed(facts, Some(attributes), absorbed, before, SizeChangeCause::Update)
    }

    /// Begins a request that may change the inode; to be called before it is sent. Each call is
    /// paired with one of [`Self::end_mutation`].
    pub(crate) fn begin_mutation(&self) {
        self.facts().state.begin_mutation();
    }

    /// Ends such a request, whatever its result. `wcc` is empty if there was no reply.
    pub(crate) fn end_mutation(&self, wcc: &Wcc, sent_at: Moment) -> Absorbed {
        self.end_change(wcc, sent_at, SizeChangeCause::Wcc)
    }

    /// Ends a request that has set the size for the kernel, which then has the new size itself.
    pub(crate) fn end_resizing(&self, wcc: &Wcc, sent_at: Moment) {
        let _ = self.end_change(wcc, sent_at, SizeChangeCause::Set);
        self.seems_no_larger();
    }

    fn end_change(&self, wcc: &Wcc, sent_at: Moment, cause: SizeChangeCause) -> Absorbed {
        let received_at = self.core().now();
        let options = self.core().options();
        if let Some(after) = &wcc.after {
            let ctime = after.ctime;
            // Only an executed change has a ctime of the server's current time; a refusal returns
            // an older ctime.
            match wcc.before {
                Some(before) if before.stamp() != after.stamp() => {
                    self.core().learn_time_of_change(after.fsid, ctime, sent_at, received_at);
                }
                Some(_) | None => self.core().learn_time(after.fsid, ctime, received_at),
            }
        }
        let mut facts = self.facts();
        let before = facts.state.facts();
        let mutation =
            Mutation { before: wcc.before, after: wcc.after.as_ref().map(Facts::from), sent_at, received_at };
        trace_enter!(self.event_fields_in(&facts), NfsRefreshInodeEnter {});
        let absorbed = facts.state.absorb_mutation(mutation, &options);
        self.apply_absorbed(facts, wcc.after.as_ref(), absorbed, before, cause)
    }

    /// Applies attributes after a change by this client that does not affect the data (LINK). If
    /// size and mtime are unchanged, cached data stay valid.
    pub(crate) fn absorb_attribute_change(&self, after: &Attributes, sent_at: Moment) {
        self.begin_mutation();
        let known = {
            let facts = self.facts();
            facts.stat_only.zip(facts.state.facts())
        };
        let before = known
            .map(|(rest, facts)| rest.with(&facts))
            .filter(|known| known.size == after.size && known.mtime == after.mtime)
            .map(|known| PreOpState::from(&known));
        let _ = self.end_mutation(&Wcc { before, after: Some(*after) }, sent_at);
    }

    /// Carries out policy's decision about the attributes of a reply, and ends the trace of their
    /// processing.
    fn apply_absorbed(
        &self,
        mut facts: MutexGuard<'_, InodeFacts>,
        attributes: Option<&Attributes>,
        absorbed: Absorbed,
        before: Option<Facts>,
        cause: SizeChangeCause,
    ) -> Absorbed {
        match attributes {
            Some(attributes) if absorbed.adopted => {
                facts.stat_only = Some(StatOnlyAttributes::of(attributes))
            }
            Some(_) => self.core().count(ClientCounter::AttrStaleReply),
            None => {}
        }
        let is_newer = attributes.is_none() || absorbed.adopted;
        trace_exit!(
            self.event_fields_in(&facts),
            NfsRefreshInodeExit { error: if is_newer { 0 } else { -Errno::STALE.raw_os_error() } }
        );
        self.trace_size_change(&facts, before.map(|known| known.size), cause);
        let Some(before) = before else {
            return absorbed;
        };
        let after = facts.state.facts();
        let has_shrunk =
            after.is_some_and(|after| after.kind == FileKind::Regular && after.size < before.size);
        if has_shrunk && cause != SizeChangeCause::Set {
            self.shrinks(&mut facts);
        }
        let is_closed = after.is_some_and(|after| revokes_names(&before, &after));
        if absorbed.contents_changed {
            self.invalidate_contents(facts, before.size);
        } else if is_closed {
            drop(facts);
            // The kernel's copy of the directory's attributes has the old mode. The names that it
            // has cached expire by themselves.
            if let Some(observer) = &self.core().observer {
                observer.names_changed(self.id);
            }
        }
        absorbed
    }

    /// Invalidates cached data or names after the contents changed, and notifies the observer.
    /// `size`: the file's previous size at the server.
    fn invalidate_contents(&self, mut facts: MutexGuard<'_, InodeFacts>, size: u64) {
        facts.invalidate_copies();
        self.trace_invalidate(&facts, "data", "it changed at the server");
        let kind = facts.state.facts().map(|known| known.kind);
        let is_directory = kind == Some(FileKind::Directory);
        if is_directory {
            facts.by_type.trace_listing_invalid("it changed at the server");
        } else {
            trace_enter!(self.event_fields_in(&facts), NfsInvalidateMappingEnter {});
        }
        let mut size_before = size;
        if let Some(data) = self.data_if_any() {
            size_before = data.local_size(size);
            if data.pages_since().is_some() {
                self.core().count(ClientCounter::DataInvalidated);
            }
            data.invalidate();
        }
        drop(facts);
        match &self.core().observer {
            Some(observer) if is_directory => observer.names_changed(self.id),
            Some(observer) if kind == Some(FileKind::Symlink) => observer.target_changed(self.id),
            Some(observer) => observer.contents_changed(self.id, Some(size_before)),
            None => {}
        }
        if !is_directory {
            trace_exit!(self.event_fields(), NfsInvalidateMappingExit { error: 0 });
        }
    }

    /// The last known attributes, however old, with the inode number within the mount and the size
    /// that includes unsent writes.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        let facts = self.facts();
        self.attributes_in(&facts)
    }

    pub(crate) fn attributes_in(&self, facts: &InodeFacts) -> Option<Attributes> {
        let mut attributes = facts.stat_only.as_ref()?.with(&facts.state.facts()?);
        attributes.fileid = self.core().numbering.number(attributes.fsid, attributes.fileid);
        if let Some(data) = self.data_if_any() {
            attributes.size = data.local_size(attributes.size);
        }
        Some(attributes)
    }

    /// The fsid, from the last known attributes.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.facts().fsid()
    }

    /// Whether it has data that are not yet sent to the server.
    pub(crate) fn has_unsent(&self) -> bool {
        self.data_if_any().is_some_and(FileData::has_unsent)
    }

    /// Marks the handle as stale; cached names of this inode are no longer served.
    pub(crate) fn mark_stale(&self) {
        let now = self.core().now();
        let mut facts = self.facts();
        self.trace_invalidate(&facts, "names", "its handle is stale");
        self.set_stale();
        facts.state.distrust(now);
        facts.state.dispute_contents();
    }

    /// The errno of a failed request about it; records that the handle is stale if the status says
    /// so.
    pub(crate) fn note_failed_status(&self, status: Fault) -> Errno {
        if matches!(status, Fault::Stale | Fault::Badhandle) {
            self.mark_stale();
        }
        errno::of_fault(status)
    }

    /// The same for a failed operation on its data.
    pub(crate) fn note_data_error(&self, error: DataError) -> Errno {
        match error {
            DataError::Status(status) => self.note_failed_status(status),
            error => errno::of_data(error),
        }
    }

    /// Invalidates the cached attributes, because an event has changed them.
    pub(crate) fn distrust_attributes(&self) {
        let now = self.core().now();
        let mut facts = self.facts();
        self.trace_invalidate(&facts, "attributes", "something changed them");
        facts.state.distrust(now);
    }
}

impl InodeFacts {
    /// The freshness of the attributes for an operation.
    pub(crate) fn freshness(&self, time: OpTime, options: &CacheOptions) -> Freshness {
        let delegation = self.locking().delegation;
        let freshness = self.state.freshness_under(delegation, time.began, time.now, options);
        let is_directory = matches!(self.by_type, TypeState::Directory(_));
        let freshness = if is_directory {
            across_restart(freshness, self.state.sent_at(), time.server_since)
        } else {
            freshness
        };
        match freshness {
            // Revalidation has already timed out.
            Freshness::Expired | Freshness::Fresh if time.uses_cache => Freshness::Confirmed,
            freshness => freshness,
        }
    }

    /// The delegations and locks that this client holds. NFSv3 has no delegations, and its locks
    /// (NLM) give no right to cache: see [`crate::locks`].
    #[expect(clippy::unused_self, reason = "it is where locks and delegations are kept")]
    pub(crate) fn locking(&self) -> LockingState {
        LockingState::default()
    }

    /// Whether the attributes may be served to such an operation, provided there are no unsent
    /// data.
    pub(crate) fn can_be_served(&self, time: OpTime, options: &CacheOptions) -> bool {
        let decision = decide_getattr(self.freshness(time, options), false, options);
        decision == curt_policy::attributes::GetattrDecision::Serve
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
    pub(crate) fn fresh_size(&self, now: Moment, options: &CacheOptions) -> Option<u64> {
        let freshness = self.state.freshness(now, now, options);
        let decision = decide_getattr(freshness, false, options);
        let is_believed = decision == curt_policy::attributes::GetattrDecision::Serve;
        self.state.facts().filter(|_| is_believed).map(|known| known.size)
    }

    /// The fsid, from the last known attributes.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.stat_only.map(|rest| rest.fsid)
    }

    /// The epoch of the contents, if the cached state is consistent.
    pub(crate) fn contents(&self) -> Option<Epoch> {
        self.state.contents()
    }
}

/// The attributes that no decision depends on.
#[derive(Clone, Copy, Debug)]
struct StatOnlyAttributes {
    nlink: u32,
    rdev: Device,
    used: u64,
    fsid: u64,
    fileid: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl StatOnlyAttributes {
    fn of(attributes: &Attributes) -> Self {
        let Attributes { nlink, used, rdev, fsid, fileid, atime, mtime, ctime, .. } = *attributes;
        Self { nlink, rdev, used, fsid, fileid, atime, mtime, ctime }
    }

    /// The complete attributes from this part and `facts`.
    fn with(&self, facts: &Facts) -> Attributes {
        Attributes {
            kind: facts.kind,
            mode: facts.mode,
            nlink: self.nlink,
            uid: facts.uid,
            gid: facts.gid,
            size: facts.size,
            used: self.used,
            rdev: self.rdev,
            fsid: self.fsid,
            fileid: self.fileid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: facts.stamp.change(),
        }
    }
}

/// Most callers cached per inode; beyond it the oldest entry is dropped.
const ANSWERS_MAX: usize = 32;

/// Entries by the caller's number. Most inodes are used by one caller.
#[derive(Debug, Default)]
enum InodeAccessCache {
    #[default]
    None,
    One(u32, AccessEntry),
    Many(Vec<(u32, AccessEntry)>),
}

impl InodeAccessCache {
    fn find(&self, identity: u32) -> Option<AccessEntry> {
        match self {
            Self::None => None,
            Self::One(number, entry) => (*number == identity).then_some(*entry),
            Self::Many(many) => many.iter().find(|(number, _)| *number == identity).map(|(_, entry)| *entry),
        }
    }

    /// Caches `entry`; returns whether another entry was dropped.
    fn keep(&mut self, identity: u32, entry: AccessEntry) -> bool {
        match self {
            Self::None => *self = Self::One(identity, entry),
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

impl Drop for Inode {
    fn drop(&mut self) {
        self.registry.forget(&self.handle);
        if self.was_forgotten() {
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
        AccessEntry::absorb(None, Access::ALL, Access::from_bits(bits), Epoch::default(), Moment::default())
    }

    #[test]
    fn each_identity_has_its_own_entry_and_the_oldest_is_dropped_at_the_bound() {
        let mut answers = InodeAccessCache::default();
        for identity in 0..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            let evicted = answers.keep(identity, entry(identity % 32));
            assert_eq!(evicted, identity as usize == ANSWERS_MAX);
        }
        assert_eq!(answers.find(0), None);
        for identity in 1..=u32::try_from(ANSWERS_MAX).expect("a small number") {
            assert_eq!(answers.find(identity), Some(entry(identity % 32)));
        }
        assert!(!answers.keep(5, entry(0)));
        assert_eq!(answers.find(5), Some(entry(0)));
    }
}
