//! The access rights of callers on an inode: the server's ACCESS replies, and the mode bits where
//! they are reliable.
//!
//! Owns the access cache of one inode and its bound. Policy decides how cached rights are used.

use curt_observe::ClientCounter;
use curt_policy::{
    AccessEntry, Moment, UnixCredential,
    access::{self, AccessView},
};
use curt_types::{Access, Fault};

use super::{Inode, InodeFacts};
use crate::credentials::InternedCaller;

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
        facts.note_search_denied(asked.without(granted), self.core().options().users);
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
        facts.note_search_denied(rights, self.core().options().users);
        facts.state.dispute_rights();
        let epoch = facts.state.rights();
        self.keep_answer(
            &mut facts,
            identity,
            AccessEntry::absorb(None, rights, Access::NONE, epoch, sent_at),
        );
    }

    /// Records that the server refused `identity` an operation that requires `rights`.
    pub(crate) fn note_refusal(
        &self,
        identity: &InternedCaller,
        status: Fault,
        rights: Access,
        sent_at: Moment,
    ) {
        if status != Fault::Acces {
            return;
        }
        let view = self.access_view(&self.facts(), identity, false, self.core().now());
        let by_server = view.entry.is_some_and(|entry| entry.granted.contains(rights));
        if by_server || view.local.is_some_and(|bits| bits.contains(rights)) {
            self.disprove(identity, rights, sent_at);
        } else {
            self.absorb_answer(identity, rights, Access::NONE, sent_at);
        }
    }

    fn keep_answer(&self, facts: &mut InodeFacts, identity: &InternedCaller, entry: AccessEntry) {
        if facts.access_cache.keep(identity.number, entry) {
            self.core().count(ClientCounter::AccessEvict);
        }
    }
}

fn credential(identity: &InternedCaller) -> UnixCredential<'_> {
    UnixCredential { uid: identity.uid, gid: identity.gid, groups: &identity.groups }
}
