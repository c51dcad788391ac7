//! The access rights of callers on an inode: the server's ACCESS replies, and the mode bits where
//! they are reliable.
//!
//! Owns the access cache of one inode and its bound. Policy decides how cached rights are used.

use curt_observe::ClientCounter;
use curt_policy::{
    AccessEntry, Moment, UnixCredential,
    access::{self, AccessView},
};
use curt_types::Access;

use super::{Inode, InodeFacts};
use crate::credentials::InternedCaller;

/// Most callers cached per inode; beyond it the oldest entry is dropped.
const ANSWERS_MAX: usize = 32;

/// Entries by the caller's number. Most inodes are used by one caller.
#[derive(Debug, Default)]
pub(super) enum InodeAccessCache {
    #[default]
    None,
    One(u32, AccessEntry),
    Many(Vec<(u32, AccessEntry)>),
}

impl InodeAccessCache {
    pub(super) fn find(&self, identity: u32) -> Option<AccessEntry> {
        match self {
            Self::None => None,
            Self::One(number, entry) => (*number == identity).then_some(*entry),
            Self::Many(many) => many.iter().find(|(number, _)| *number == identity).map(|(_, entry)| *entry),
        }
    }

    /// Caches `entry`; returns whether another entry was dropped.
    pub(super) fn keep(&mut self, identity: u32, entry: AccessEntry) -> bool {
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

impl Inode {
    /// The rights of `identity` as input for policy. `is_foreign`: the data to be served were read
    /// with another caller's credential.
    pub(crate) fn access_view(
        &self,
        facts: &InodeFacts,
        identity: &InternedCaller,
        is_foreign: bool,
        now: Moment,
    ) -> AccessView {
        let bits = match facts.state.facts() {
            Some(known) if !self.bits_are_disputed() && identity.may_use_mode_bits() => {
                access::mode_bits_rights(&known, credential(identity))
            }
            Some(_) | None => None,
        };
        let entry = facts.access_cache.find(identity.number);
        let entry = entry.and_then(|entry| entry.view(facts.state.rights(), now));
        AccessView { local: bits, entry, foreign_data: is_foreign }
    }

    /// Caches an ACCESS reply for `identity`; the attributes in the reply are already applied.
    pub(crate) fn absorb_answer(
        &self,
        identity: &InternedCaller,
        asked: Access,
        granted: Access,
        sent_at: Moment,
    ) {
        let mut facts = self.facts();
        let bits =
            facts.state.facts().and_then(|known| access::mode_bits_rights(&known, credential(identity)));
        let lesson = bits.filter(|_| identity.may_use_mode_bits());
        let lesson = lesson.map(|bits| access::compare(bits, asked, granted));
        match lesson {
            Some(access::ModeBitsComparison::ServerGrantsMore) => self.dispute_bits(),
            Some(access::ModeBitsComparison::ServerGrantsLess) => {
                self.dispute_bits();
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
        facts.note_search_denied(asked.without(granted), self.core.options().users);
        let rights = facts.state.rights();
        let former = facts.access_cache.find(identity.number);
        self.keep_answer(&mut facts, identity, AccessEntry::absorb(former, asked, granted, rights, sent_at));
    }

    /// Caches the rights that a successful request of `identity` proves.
    pub(crate) fn prove(&self, identity: &InternedCaller, rights: Access, sent_at: Moment) {
        let mut facts = self.facts();
        let former = facts.access_cache.find(identity.number);
        let entry = AccessEntry::prove(former, rights, facts.state.rights(), sent_at);
        self.keep_answer(&mut facts, identity, entry);
    }

    /// Drops cached rights after the server has refused `identity` an operation that they allowed.
    pub(crate) fn disprove(&self, identity: &InternedCaller, rights: Access, sent_at: Moment) {
        let mut facts = self.facts();
        self.trace_invalidate(&facts, "access", "the server refused what it allows");
        facts.note_search_denied(rights, self.core.options().users);
        facts.state.dispute_rights();
        let epoch = facts.state.rights();
        self.keep_answer(
            &mut facts,
            identity,
            AccessEntry::absorb(None, rights, Access::NONE, epoch, sent_at),
        );
    }

    fn keep_answer(&self, facts: &mut InodeFacts, identity: &InternedCaller, entry: AccessEntry) {
        if facts.access_cache.keep(identity.number, entry) {
            self.core.count(ClientCounter::AccessEvict);
        }
    }
}

fn credential(identity: &InternedCaller) -> UnixCredential<'_> {
    UnixCredential { uid: identity.uid, gid: identity.gid, groups: &identity.groups }
}

#[cfg(test)]
mod tests {
    use curt_policy::Epoch;

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
