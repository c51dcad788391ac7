//! Inodes: what is known of one object of the server.
//!
//! Owns an object's attributes with their age, the answers about access to it, what is known of it
//! as a directory, link or open file, and its data. Invariants: whatever a reply says of an object
//! comes in through [`Inode::absorb`] or [`Inode::end_mutation`], and there alone is decided what
//! it makes void; the facts' mutex is never held across a request, a callback or another inode's;
//! under it only the data half's own locks are taken.

mod access;
mod flags;
mod owner;
mod registry;
mod single_flight;
pub(crate) mod tracepoints;
mod type_state;

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
};

use curt_observe::ClientCounter;
use curt_policy::{
    Absorbed, AttributeReport, AttributeState, CacheOptions, Epoch, Facts, Freshness, LockingState, Moment,
    Mutation,
    attributes::{across_restart, decide_getattr},
    kernel_cache::revokes_names,
};
use curt_types::{Attributes, Device, FileHandle, FileKind, PreOpState, Timestamp, Wcc};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

pub(crate) use registry::{InodeRegistry, LookedUpInodes};
pub(crate) use single_flight::{InFlightCall, InFlightEnd, PendingRemovals, SingleFlight};
pub(crate) use type_state::{CachedLinkText, CreateProbe, OpenState, SillyName, TypeState};

use crate::{core::MountCore, data::FileData, identity::InodeId};
use access::InodeAccessCache;
use tracepoints::{SizeChangeCause, trace_enter, trace_exit};

/// An object of the server, as far as it is known.
pub(crate) struct Inode {
    id: InodeId,
    handle: FileHandle,
    core: Arc<MountCore>,
    facts: Mutex<InodeFacts>,
    data: OnceLock<Box<FileData>>,
    /// Look-ups that somebody holds; changed only under the lock of the table of those. 2^32 - 1
    /// means that many or more, and stays.
    lookups: AtomicU32,
    /// What there is to say in a bit each; beside the facts, for in them the bits would take eight
    /// bytes. Orders nothing.
    flags: AtomicU8,
}

#[cfg(test)]
thread_local! {
    /// An inode, and how often this thread has locked its facts.
    pub(crate) static FACTS_LOCKED: std::cell::Cell<(InodeId, u32)> =
        const { std::cell::Cell::new((InodeId(0), 0)) };
}

/// When an operation needs attributes, and which it may believe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpTime {
    /// When it began.
    pub(crate) began: Moment,
    pub(crate) now: Moment,
    /// When the server's last restart was noticed.
    pub(crate) server_since: Moment,
    /// The server is silent: cached attributes have to do.
    pub(crate) uses_cache: bool,
}

/// What changes of an inode.
#[derive(Debug, Default)]
pub(crate) struct InodeFacts {
    pub(crate) state: AttributeState,
    stat_only: Option<StatOnlyAttributes>,
    access_cache: InodeAccessCache,
    /// What is known of it by its type.
    pub(crate) by_type: TypeState,
    /// The directory that told of it last. Weak: a server may say that two directories are in each
    /// other.
    listed_in: Option<Weak<Inode>>,
}

impl Inode {
    pub(crate) fn new(id: InodeId, handle: FileHandle, core: Arc<MountCore>) -> Self {
        Self {
            id,
            handle,
            core,
            facts: Mutex::default(),
            data: OnceLock::new(),
            lookups: AtomicU32::new(0),
            flags: AtomicU8::new(0),
        }
    }

    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// Whether somebody holds a look-up of it.
    pub(crate) fn is_held(&self) -> bool {
        self.lookups.load(Relaxed) > 0
    }

    /// One more look-up is held; how many are now.
    pub(crate) fn add_lookup(&self) -> u32 {
        let lookups = self.lookups.load(Relaxed).saturating_add(1);
        self.lookups.store(lookups, Relaxed);
        lookups
    }

    /// So many look-ups were given back; how many are left.
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

    /// Its data, made when first asked for.
    pub(crate) fn data(&self) -> &FileData {
        self.data.get_or_init(|| Box::new(self.core.data.new_file()))
    }

    /// Its data, if any were ever asked for.
    pub(crate) fn data_if_any(&self) -> Option<&FileData> {
        self.data.get().map(|data| &**data)
    }

    /// Takes attributes from a reply to a request that changed nothing.
    pub(crate) fn absorb(&self, attributes: &Attributes, sent_at: Moment) -> Absorbed {
        let received_at = self.core.now();
        let options = self.core.options();
        self.core.learn_time(attributes.fsid, attributes.ctime, received_at);
        let mut facts = self.facts();
        let before = facts.state.facts();
        let report = AttributeReport { facts: Facts::from(attributes), sent_at, received_at };
        trace_enter!(self.event_fields_in(&facts), NfsRefreshInodeEnter {});
        let absorbed = facts.state.absorb(report, &options);
        self.apply_absorbed(facts, Some(attributes), absorbed, before, SizeChangeCause::Update)
    }

    /// A request of ours that may change the object is about to be sent. Each call is answered by
    /// one of [`Self::end_mutation`].
    pub(crate) fn begin_mutation(&self) {
        self.facts().state.begin_mutation();
    }

    /// It ended, however it did. Empty `wcc` if no reply came.
    pub(crate) fn end_mutation(&self, wcc: &Wcc, sent_at: Moment) -> Absorbed {
        self.end_change(wcc, sent_at, SizeChangeCause::Wcc)
    }

    /// It ended, and had set the size on behalf of whoever keeps copies: a kernel takes the file
    /// for as large by itself.
    pub(crate) fn end_resizing(&self, wcc: &Wcc, sent_at: Moment) {
        let _ = self.end_change(wcc, sent_at, SizeChangeCause::Set);
        self.seems_no_larger();
    }

    fn end_change(&self, wcc: &Wcc, sent_at: Moment, cause: SizeChangeCause) -> Absorbed {
        let received_at = self.core.now();
        let options = self.core.options();
        if let Some(after) = &wcc.after {
            let ctime = after.ctime;
            // Only a change that happened leaves the server's present; a refusal shows an old
            // ctime, which is no later.
            match wcc.before {
                Some(before) if before.stamp() != after.stamp() => {
                    self.core.learn_time_of_change(after.fsid, ctime, sent_at, received_at);
                }
                Some(_) | None => self.core.learn_time(after.fsid, ctime, received_at),
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

    /// A change of ours left these attributes that cannot have touched the data (another link).
    /// Where size and mtime are those that were known, what is cached of the data is still good.
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

    /// Does what the verdict about a reply's attributes demands, and ends what was begun by telling
    /// that they are taken in.
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
            Some(_) => self.core.count(ClientCounter::AttrStaleReply),
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
            // Nobody would check who goes through it by names that somebody has kept.
            if let Some(observer) = &self.core.observer {
                observer.names_changed(self.id);
            }
        }
        absorbed
    }

    /// The contents changed: whoever keeps them, or names, is told. `size`: the server's file had
    /// it before.
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
                self.core.count(ClientCounter::DataInvalidated);
            }
            data.invalidate();
        }
        drop(facts);
        match &self.core.observer {
            Some(observer) if is_directory => observer.names_changed(self.id),
            Some(observer) => observer.contents_changed(self.id, Some(size_before)),
            None => {}
        }
        if !is_directory {
            trace_exit!(self.event_fields(), NfsInvalidateMappingExit { error: 0 });
        }
    }

    /// The attributes that are known, however old, with our own inode number and the size that
    /// programs here must see.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        let facts = self.facts();
        self.attributes_in(&facts)
    }

    pub(crate) fn attributes_in(&self, facts: &InodeFacts) -> Option<Attributes> {
        let mut attributes = facts.stat_only.as_ref()?.with(&facts.state.facts()?);
        attributes.fileid = self.core.numbering.number(attributes.fsid, attributes.fileid);
        if let Some(data) = self.data_if_any() {
            attributes.size = data.local_size(attributes.size);
        }
        Some(attributes)
    }

    /// The server's file system that it is in, by the attributes that are known.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.facts().fsid()
    }

    /// Whether bytes written here are not yet with the server.
    pub(crate) fn has_unsent(&self) -> bool {
        self.data_if_any().is_some_and(FileData::has_unsent)
    }

    /// The server said that the handle leads nowhere: names that lead here are not served any more.
    pub(crate) fn mark_stale(&self) {
        let now = self.core.now();
        let mut facts = self.facts();
        self.trace_invalidate(&facts, "names", "its handle is stale");
        self.set_stale();
        facts.state.distrust(now);
        facts.state.dispute_contents();
    }

    /// Believe no attributes that are known now: something that happened changed them.
    pub(crate) fn distrust_attributes(&self) {
        let now = self.core.now();
        let mut facts = self.facts();
        self.trace_invalidate(&facts, "attributes", "something changed them");
        facts.state.distrust(now);
    }
}

impl InodeFacts {
    /// How good the attributes are for an operation.
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
            // A silent server has been asked for long enough.
            Freshness::Expired | Freshness::Fresh if time.uses_cache => Freshness::Confirmed,
            freshness => freshness,
        }
    }

    /// What this client holds of it at the server. NFSv3 delegates nothing, and its byte-range
    /// locks (NLM) are refused until this client speaks that protocol.
    #[expect(clippy::unused_self, reason = "it is where locks and delegations are kept")]
    pub(crate) fn locking(&self) -> LockingState {
        LockingState::default()
    }

    /// Whether they may be served to such an operation as they are (there being no unsent data).
    pub(crate) fn can_be_served(&self, time: OpTime, options: &CacheOptions) -> bool {
        let decision = decide_getattr(self.freshness(time, options), false, options);
        decision == curt_policy::attributes::GetattrDecision::Serve
    }

    /// Copies that others keep of the data are void, and nobody's data are cached. Who never opened
    /// the file keeps none.
    pub(crate) fn invalidate_copies(&mut self) {
        if let TypeState::File(file) = &mut self.by_type {
            file.copies_invalidated = file.copies_invalidated.wrapping_add(1);
            if file.opens == 0 {
                file.first_user = None;
            }
        }
    }

    /// The size, if the attributes are within their lifetime.
    pub(crate) fn fresh_size(&self, now: Moment, options: &CacheOptions) -> Option<u64> {
        let freshness = self.state.freshness(now, now, options);
        let decision = decide_getattr(freshness, false, options);
        let is_believed = decision == curt_policy::attributes::GetattrDecision::Serve;
        self.state.facts().filter(|_| is_believed).map(|known| known.size)
    }

    /// The server's file system that it is in, by the attributes that are known.
    pub(crate) fn fsid(&self) -> Option<u64> {
        self.stat_only.map(|rest| rest.fsid)
    }

    /// The contents' epoch, if what is known fits together.
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

    /// The attributes of which this and `facts` are parts.
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

impl Drop for Inode {
    fn drop(&mut self) {
        self.core.registry.forget(&self.handle);
        if self.was_forgotten() {
            self.core.registry.end_forgotten(self.id);
        }
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inode").field(&self.id).finish()
    }
}
