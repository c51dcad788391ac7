//! Trace events about an inode. Changes no state.

use curt_observe::{
    events::{Event, handle_hash},
    probe,
};
use curt_policy::Freshness;
use curt_types::{ChangeStamp, FileKind};

use super::{Inode, InodeFacts, SizeChangeCause, type_state::TypeState};
use crate::event_fields::{InodeEventFields, trace_exit};

/// Cached data are invalid (Linux: NFS_INO_INVALID_DATA).
const INVALID_DATA: u32 = 1 << 1;
/// Attributes are unknown, or have expired (Linux: NFS_INO_INVALID_CHANGE).
const INVALID_CHANGE: u32 = 1 << 8;
/// The handle is stale (Linux: NFS_INO_STALE).
const STALE: u32 = 1;
/// It was removed and exists until its last close (Linux: NFS_INO_PRESERVE_UNLINKED).
const PRESERVE_UNLINKED: u32 = 1 << 4;

impl Inode {
    /// Its inode number for an event, 0 if the event is disabled. Must not be called while its
    /// facts are locked.
    pub(crate) fn fileid_if_enabled(&self, event: Event) -> u64 {
        let attributes = event.is_wanted().then(|| self.attributes()).flatten();
        attributes.map_or(0, |attributes| attributes.fileid)
    }

    /// The fields of events about it. Must not be called while its facts are locked.
    pub(crate) fn event_fields(&self) -> InodeEventFields {
        self.event_fields_in(&self.facts())
    }

    /// The same, from locked facts.
    pub(super) fn event_fields_in(&self, facts: &InodeFacts) -> InodeEventFields {
        let subject = InodeEventFields {
            fhandle: handle_hash(self.handle.as_bytes()),
            cache_validity: self.cache_validity(facts),
            nfsi_flags: self.flags(facts),
            ..InodeEventFields::default()
        };
        match self.attributes_in(facts) {
            None => subject,
            Some(attributes) => InodeEventFields {
                dev: attributes.fsid,
                fileid: attributes.fileid,
                object_type: object_type(attributes.kind),
                version: version(facts),
                size: attributes.size,
                ..subject
            },
        }
    }

    fn cache_validity(&self, facts: &InodeFacts) -> u32 {
        let now = self.core().now();
        let attributes = facts.state.freshness(now, now, &self.core().options());
        let copies = facts.by_type.file_if_any();
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

    fn flags(&self, facts: &InodeFacts) -> u32 {
        let is_removed = matches!(&facts.by_type, TypeState::File(file) if file.silly.is_some());
        let mut bits = 0;
        if self.is_stale() {
            bits |= STALE;
        }
        if is_removed {
            bits |= PRESERVE_UNLINKED;
        }
        bits
    }

    /// Emits the event that cached data or attributes are invalidated.
    pub(super) fn trace_invalidate(&self, facts: &InodeFacts, cache: &str, reason: &str) {
        trace_exit!(self.event_fields_in(facts), NfsSetCacheInvalid { cache, reason });
    }

    /// Emits the event that a reply changed the size.
    pub(super) fn trace_size_change(&self, facts: &InodeFacts, before: Option<u64>, cause: SizeChangeCause) {
        let Some(cur_size) = before else { return };
        let Some(new_size) = facts.state.facts().map(|known| known.size) else {
            return;
        };
        if cur_size == new_size {
            return;
        }
        match cause {
            SizeChangeCause::Wcc | SizeChangeCause::Set => {
                probe!(let subject = self.event_fields_in(facts); NfsSizeWcc {
                    fileid: subject.fileid,
                    cur_size,
                    new_size,
                    dev: subject.dev,
                    fhandle: subject.fhandle,
                    version: subject.version,
                })
            }
            SizeChangeCause::Update => probe!(let subject = self.event_fields_in(facts); NfsSizeUpdate {
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
fn version(facts: &InodeFacts) -> u64 {
    match facts.state.facts().map(|known| known.stamp) {
        Some(ChangeStamp::Times { ctime, .. }) => {
            let seconds = ctime.seconds().cast_unsigned();
            (seconds << 30).wrapping_add(u64::from(ctime.nanoseconds()))
        }
        Some(ChangeStamp::Change(change)) => change,
        None => 0,
    }
}
