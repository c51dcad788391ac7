//! What replies change in an inode, and the trace events about it.

use curt_observe::{
    ClientCounter,
    events::{Event, handle_hash},
    probe,
};
use curt_policy::{
    Absorbed, AccessEntry, AttributeReport, CachingAttributes, Freshness, MonotonicTime, Mutation, access,
    kernel_cache::revokes_names,
};
use curt_types::{Access, Attributes, ChangeStamp, Fault, FileKind, PreOpState, Wcc};
use parking_lot::MutexGuard;
use rustix::io::Errno;

use super::{
    Inode, InodeFlag, InodeState, StatOnlyAttributes, TypeState, credential, rights_reply::RightsReply,
};
use crate::{
    caller::InternedCaller,
    data::DataError,
    errno,
    event_fields::{InodeEventFields, trace_enter, trace_exit},
};

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

impl Inode {
    /// Marks the handle as stale; cached names of this inode are no longer served.
    pub(crate) fn mark_stale(&self) {
        let now = self.core().now();
        let mut locked = self.lock();
        self.trace_invalidate(&locked, "names", "its handle is stale");
        self.set(InodeFlag::Stale);
        locked.attributes.distrust(now);
        locked.attributes.dispute_contents();
    }

    /// Whether the server keeps it without a name, as NFSv4 servers keep what is open somewhere,
    /// and another client has removed the last name. A request that reached it by a name has to be
    /// sent to the object that has the name now, as after NFS4ERR_STALE.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn check_name(&self) -> Result<(), Errno> {
        let locked = self.lock();
        let was_removed_here =
            locked.by_type.file_if_any().is_some_and(|file| file.was_removed_here && file.is_used());
        let known = self.attributes_in(&locked);
        drop(locked);
        if was_removed_here || !known.is_some_and(|known| known.nlink == 0 && known.change.is_some()) {
            return Ok(());
        }
        self.mark_stale();
        Err(Errno::STALE)
    }

    /// The errno of a failed request about it; records that the handle is stale if the status says
    /// so.
    pub(crate) fn note_failed_status(&self, status: Fault) -> Errno {
        if matches!(status, Fault::Stale | Fault::Badhandle) {
            self.mark_stale();
        }
        errno::of_fault(status)
    }

    /// The errno of a failed operation on its data.
    pub(crate) fn note_data_error(&self, error: DataError) -> Errno {
        match error {
            DataError::Status(status) => self.note_failed_status(status),
            error => errno::of_data(error),
        }
    }

    /// Invalidates the cached attributes, because an event has changed them.
    pub(crate) fn distrust_attributes(&self) {
        let now = self.core().now();
        let mut locked = self.lock();
        self.trace_invalidate(&locked, "attributes", "something changed them");
        locked.attributes.distrust(now);
    }

    /// Caches an ACCESS reply for `identity`; the attributes in the reply are already applied.
    /// Rights of before a known change are not cached.
    pub(crate) fn absorb_answer(
        &self,
        identity: &InternedCaller,
        asked: Access,
        granted: Access,
        reply: RightsReply,
    ) {
        let mut locked = self.lock();
        if reply.is_outdated(&locked.attributes) {
            return;
        }
        let bits = locked
            .attributes
            .newest()
            .and_then(|known| access::mode_bits_rights(&known, credential(identity)));
        let lesson = bits.filter(|_| identity.may_use_mode_bits());
        let lesson = lesson.map(|bits| access::compare(bits, asked, granted));
        match lesson {
            Some(access::ModeBitsComparison::ServerGrantsMore) => {
                self.set(InodeFlag::BitsDisputed);
            }
            Some(access::ModeBitsComparison::ServerGrantsLess) => {
                self.set(InodeFlag::BitsDisputed);
                if identity.distrust_mode_bits() {
                    let (uid, gid) = (identity.uid, identity.gid);
                    tracing::info!(
                        uid,
                        gid,
                        "the server grants fewer rights than the mode bits: ACCESS is sent for this user from now on"
                    );
                }
            }
            Some(access::ModeBitsComparison::Agree) | None => {}
        }
        locked.note_search_denied(asked.without(granted), self.core().options().users);
        let former = locked.access_entry(identity.number);
        self.keep_answer(&mut locked, identity, AccessEntry::absorb(former, asked, granted, reply.sent_at));
    }

    /// Caches the rights that a successful request of `identity` proves, unless they are of before
    /// a known change.
    pub(crate) fn prove(&self, identity: &InternedCaller, rights: Access, reply: RightsReply) {
        let mut locked = self.lock();
        if reply.is_outdated(&locked.attributes) {
            return;
        }
        let former = locked.access_entry(identity.number);
        self.keep_answer(&mut locked, identity, AccessEntry::prove(former, rights, reply.sent_at));
    }

    /// Drops cached rights of all callers after the server has refused `identity` an operation that
    /// they or the mode bits allowed.
    fn disprove(&self, identity: &InternedCaller, rights: Access, sent_at: MonotonicTime) {
        let mut locked = self.lock();
        self.trace_invalidate(&locked, "access", "the server refused what it allows");
        locked.note_search_denied(rights, self.core().options().users);
        locked.access_cache = None;
        self.keep_answer(&mut locked, identity, AccessEntry::absorb(None, rights, Access::NONE, sent_at));
    }

    /// Records that the server refused `identity` an operation that requires `rights`, unless the
    /// refusal is of before a known change.
    pub(crate) fn note_refusal(
        &self,
        identity: &InternedCaller,
        status: Fault,
        rights: Access,
        reply: RightsReply,
    ) {
        let locked = self.lock();
        if status != Fault::Acces || reply.is_outdated(&locked.attributes) {
            return;
        }
        let view = self.access_view(&locked, identity, self.core().now());
        drop(locked);
        let by_server = view.entry.is_some_and(|entry| entry.granted.contains(rights));
        if by_server || view.local.is_some_and(|bits| bits.contains(rights)) {
            self.disprove(identity, rights, reply.sent_at);
        } else {
            self.absorb_answer(identity, rights, Access::NONE, reply);
        }
    }

    fn keep_answer(&self, locked: &mut InodeState, identity: &InternedCaller, entry: AccessEntry) {
        if locked.keep_access_entry(identity.number, entry) {
            self.core().count(ClientCounter::AccessEvict);
        }
    }
}

impl Inode {
    /// Applies attributes from a reply to a request that changed nothing.
    pub(crate) fn absorb(&self, attributes: &Attributes, sent_at: MonotonicTime) -> Absorbed {
        self.absorb_dated(attributes, |_, _| sent_at).0
    }

    /// Applies attributes of a reply; `date` gets the time of the reply, and returns that of the
    /// attributes.
    pub(super) fn absorb_dated(
        &self,
        attributes: &Attributes,
        date: impl FnOnce(&InodeState, MonotonicTime) -> MonotonicTime,
    ) -> (Absorbed, MonotonicTime) {
        let received_at = self.core().now();
        let options = self.core().options();
        self.core().clocks.learn(attributes.fsid, attributes.ctime, received_at);
        let mut locked = self.lock();
        let sent_at = date(&locked, received_at);
        let before = locked.attributes.newest();
        let report =
            AttributeReport { attributes: CachingAttributes::from(attributes), sent_at, received_at };
        trace_enter!(self.event_fields_in(&locked), NfsRefreshInodeEnter {});
        let absorbed = locked.attributes.absorb(report, &options);
        let applied =
            self.apply_absorbed(locked, Some(attributes), absorbed, before, SizeChangeCause::Update);
        (applied, sent_at)
    }

    /// Begins a request that may change the inode; to be called before it is sent. Each call is
    /// paired with one of [`Self::end_mutation`].
    pub(crate) fn begin_mutation(&self) {
        let mut locked = self.lock();
        locked.attributes.begin_mutation();
        let is_delegated = locked.take_delegation();
        drop(locked);
        if is_delegated {
            self.core().protocol.give_up_delegation(&self.handle);
        }
    }

    /// Ends such a request, whatever its result. `wcc` is empty if there was no reply.
    pub(crate) fn end_mutation(&self, wcc: &Wcc, sent_at: MonotonicTime) -> Absorbed {
        self.end_change(wcc, sent_at, SizeChangeCause::Wcc)
    }

    /// Ends a request that has set the size for the kernel, which then has the new size itself.
    pub(crate) fn end_resizing(&self, wcc: &Wcc, sent_at: MonotonicTime) {
        let _ = self.end_change(wcc, sent_at, SizeChangeCause::Set);
        self.clear(InodeFlag::Shrunk);
    }

    fn end_change(&self, wcc: &Wcc, sent_at: MonotonicTime, cause: SizeChangeCause) -> Absorbed {
        let received_at = self.core().now();
        let options = self.core().options();
        if let Some(after) = &wcc.after {
            let ctime = after.ctime;
            // Only an executed change has a ctime of the server's current time; a refusal returns
            // an older ctime.
            match wcc.before {
                Some(before) if before.stamp() != after.stamp() => {
                    self.core().clocks.learn_from_change(after.fsid, ctime, sent_at, received_at);
                }
                Some(_) | None => self.core().clocks.learn(after.fsid, ctime, received_at),
            }
        }
        let mut locked = self.lock();
        let before = locked.attributes.newest();
        let mutation = Mutation {
            before: wcc.before,
            after: wcc.after.as_ref().map(CachingAttributes::from),
            sent_at,
            received_at,
        };
        trace_enter!(self.event_fields_in(&locked), NfsRefreshInodeEnter {});
        let absorbed = locked.attributes.absorb_mutation(mutation, &options);
        self.apply_absorbed(locked, wcc.after.as_ref(), absorbed, before, cause)
    }

    /// Applies attributes after a change by this client that does not affect the data (LINK). If
    /// size and mtime are unchanged, cached data stay valid.
    pub(crate) fn absorb_attribute_change(&self, after: &Attributes, sent_at: MonotonicTime) {
        self.begin_mutation();
        let known = {
            let locked = self.lock();
            locked.stat_only.zip(locked.attributes.newest())
        };
        let before = known
            .map(|(rest, known)| rest.with(&known))
            .filter(|known| known.size == after.size && known.mtime == after.mtime)
            .map(|known| PreOpState::from(&known));
        let _ = self.end_mutation(&Wcc { before, after: Some(*after) }, sent_at);
    }

    /// Carries out policy's decision about the attributes of a reply, and ends the trace of their
    /// processing.
    fn apply_absorbed(
        &self,
        mut locked: MutexGuard<'_, InodeState>,
        attributes: Option<&Attributes>,
        absorbed: Absorbed,
        before: Option<CachingAttributes>,
        cause: SizeChangeCause,
    ) -> Absorbed {
        if absorbed.rights_changed {
            locked.access_cache = None;
        }
        match attributes {
            Some(attributes) if absorbed.adopted => {
                let fileid = self.core().numbering.number(attributes.fsid, attributes.fileid);
                locked.stat_only = Some(StatOnlyAttributes::of(attributes, fileid));
            }
            Some(_) => self.core().count(ClientCounter::AttrStaleReply),
            None => {}
        }
        let is_newer = attributes.is_none() || absorbed.adopted;
        trace_exit!(
            self.event_fields_in(&locked),
            NfsRefreshInodeExit { error: if is_newer { 0 } else { -Errno::STALE.raw_os_error() } }
        );
        self.trace_size_change(&locked, before.map(|known| known.size), cause);
        let Some(before) = before else {
            return absorbed;
        };
        let after = locked.attributes.newest();
        let has_shrunk =
            after.is_some_and(|after| after.kind == FileKind::Regular && after.size < before.size);
        if let (true, Some(after), Some(data)) = (has_shrunk, after, self.data_if_any()) {
            data.note_shrunk(after.size);
        }
        if has_shrunk && cause != SizeChangeCause::Set {
            self.shrinks(&mut locked);
        }
        let is_closed = after.is_some_and(|after| revokes_names(&before, &after));
        if absorbed.contents_changed {
            self.invalidate_contents(locked, before.size);
        } else if is_closed {
            drop(locked);
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
    fn invalidate_contents(&self, mut locked: MutexGuard<'_, InodeState>, size: u64) {
        locked.invalidate_copies();
        self.trace_invalidate(&locked, "data", "it changed at the server");
        let kind = locked.attributes.newest().map(|known| known.kind);
        let is_directory = kind == Some(FileKind::Directory);
        if is_directory {
            locked.by_type.trace_listing_invalid("it changed at the server");
        } else {
            trace_enter!(self.event_fields_in(&locked), NfsInvalidateMappingEnter {});
        }
        let mut size_before = size;
        if let Some(data) = self.data_if_any() {
            size_before = data.local_size(size);
            if data.pages_since().is_some() {
                self.core().count(ClientCounter::DataInvalidated);
            }
            data.invalidate();
        }
        drop(locked);
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
}

/// Cached data are invalid (Linux: NFS_INO_INVALID_DATA).
const INVALID_DATA: u32 = 1 << 1;
/// Attributes are unknown, or have expired (Linux: NFS_INO_INVALID_CHANGE).
const INVALID_CHANGE: u32 = 1 << 8;
/// The handle is stale (Linux: NFS_INO_STALE).
const STALE: u32 = 1;
/// The file was removed and exists until its last close (Linux: NFS_INO_PRESERVE_UNLINKED).
const PRESERVE_UNLINKED: u32 = 1 << 4;

impl Inode {
    /// Its inode number for an event, 0 if the event is disabled. Must not be called while its
    /// state is locked.
    pub(crate) fn fileid_if_enabled(&self, event: Event) -> u64 {
        if event.is_wanted() { self.event_fileid() } else { 0 }
    }

    /// Its inode number for an event that is enabled. Must not be called while its state is
    /// locked.
    pub(crate) fn event_fileid(&self) -> u64 {
        self.attributes().map_or(0, |attributes| attributes.fileid)
    }

    /// The fields of events about it. Must not be called while its state is locked.
    pub(crate) fn event_fields(&self) -> InodeEventFields {
        self.event_fields_in(&self.lock())
    }

    /// The fields of an event, from the locked state.
    pub(super) fn event_fields_in(&self, locked: &InodeState) -> InodeEventFields {
        let subject = InodeEventFields {
            fhandle: handle_hash(self.handle.as_bytes()),
            cache_validity: self.cache_validity(locked),
            nfsi_flags: self.flags(locked),
            ..InodeEventFields::default()
        };
        match self.attributes_in(locked) {
            None => subject,
            Some(attributes) => InodeEventFields {
                dev: attributes.fsid,
                fileid: attributes.fileid,
                object_type: object_type(attributes.kind),
                version: version(locked),
                size: attributes.size,
                ..subject
            },
        }
    }

    fn cache_validity(&self, locked: &InodeState) -> u32 {
        let now = self.core().now();
        let attributes = locked.attributes.freshness(now, now, &self.core().options());
        let copies = locked.by_type.file_if_any();
        let has_invalid_data = copies.is_some_and(|file| file.copies_invalidated != file.copies_dropped);
        let mut bits = 0;
        if matches!(attributes, Freshness::Expired | Freshness::Unknown) {
            bits |= INVALID_CHANGE;
        }
        if has_invalid_data {
            bits |= INVALID_DATA;
        }
        bits
    }

    fn flags(&self, locked: &InodeState) -> u32 {
        let is_removed = matches!(&locked.by_type, TypeState::File(file) if file.silly.is_some());
        let mut bits = 0;
        if self.has(InodeFlag::Stale) {
            bits |= STALE;
        }
        if is_removed {
            bits |= PRESERVE_UNLINKED;
        }
        bits
    }

    /// Emits the event that cached data or attributes are invalidated.
    pub(super) fn trace_invalidate(&self, locked: &InodeState, cache: &str, reason: &str) {
        trace_exit!(self.event_fields_in(locked), NfsSetCacheInvalid { cache, reason });
    }

    /// Emits the event that a reply changed the size.
    fn trace_size_change(&self, locked: &InodeState, before: Option<u64>, cause: SizeChangeCause) {
        let Some(cur_size) = before else { return };
        let Some(new_size) = locked.attributes.newest().map(|known| known.size) else {
            return;
        };
        if cur_size == new_size {
            return;
        }
        match cause {
            SizeChangeCause::Wcc | SizeChangeCause::Set => {
                probe!(let subject = self.event_fields_in(locked); NfsSizeWcc {
                    fileid: subject.fileid,
                    cur_size,
                    new_size,
                    dev: subject.dev,
                    fhandle: subject.fhandle,
                    version: subject.version,
                })
            }
            SizeChangeCause::Update => probe!(let subject = self.event_fields_in(locked); NfsSizeUpdate {
                fileid: subject.fileid,
                cur_size,
                new_size,
                dev: subject.dev,
                fhandle: subject.fhandle,
                version: subject.version,
            }),
        }
    }
}

/// The type in the encoding of the upper bits of a mode (inode(7)).
fn object_type(kind: FileKind) -> u8 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharacterDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// The change attribute, which Linux derives from the ctime as well if the server has none.
fn version(locked: &InodeState) -> u64 {
    match locked.attributes.newest().map(|known| known.stamp) {
        Some(ChangeStamp::Times { ctime, .. }) => {
            let seconds = ctime.seconds().cast_unsigned();
            (seconds << 30).wrapping_add(u64::from(ctime.nanoseconds()))
        }
        Some(ChangeStamp::Change(change)) => change,
        None => 0,
    }
}
