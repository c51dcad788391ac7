//! The names of a directory in the dentry cache.
//!
//! Owns the only way in which a name gets into the dentry cache, and stores `..` with its
//! directory. Policy decides whether a name may be cached or served.

use std::sync::Arc;

use curt_observe::ClientCounter;
use curt_policy::{Moment, MutationTicket, NameLabel, names::DentryUpdate};
use curt_types::FileKind;

use crate::{
    dentry_cache::CachedDentry,
    identity::NameKey,
    inode::{Inode, InodeFacts, type_state::TypeState},
    superblock::Superblock,
};

impl InodeFacts {
    /// The cached target of `..`.
    pub(crate) fn parent(&self) -> Option<CachedDentry> {
        let TypeState::Directory(directory) = &self.by_type else {
            return None;
        };
        let (parent, label) = directory.parent.as_ref()?;
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
    pub(crate) fn cached_child(&self, sb: &Superblock) -> Option<Arc<Inode>> {
        sb.dentries.find(self.directory.id(), self.name).and_then(|cached| cached.child)
    }
}

/// The object that a name refers to, and the label of its cache entry if it was cached.
#[derive(Debug)]
pub(crate) enum ResolvedName {
    Object(Arc<Inode>, Option<NameLabel>),
    Missing(Option<NameLabel>),
}

/// The cached entry of `name`, unless the server has reported its object's handle as stale.
pub(crate) fn cached_dentry(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    if name == b".." {
        return directory.facts().parent();
    }
    cached_name(sb, directory, name)
}

/// The same for a name other than `..`.
pub(crate) fn cached_name(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    let cached = sb.dentries.find(directory.id(), name)?;
    if cached.child.as_ref().is_some_and(|child| child.is_stale()) {
        // The handle is stale; the name may refer to another object by now.
        sb.count(ClientCounter::StaleRetry);
        sb.dentries.forget(directory.id(), name);
        return None;
    }
    Some(cached)
}

/// Applies policy's decision about a name that was learned.
pub(crate) fn cache_learned(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    child: Option<&Arc<Inode>>,
    learned: DentryUpdate,
    ticket: Option<MutationTicket>,
) -> Option<NameLabel> {
    let (label, former) = cache_name(sb, directory, name, child, learned, ticket);
    drop(former);
    label
}

/// The same; also returns the previous entry. With `ticket`, the name comes from a reply that was
/// judged before: it is not cached if a change of this client began since. A change drops its name
/// when it begins and when it ends, and the epoch of the label outlives it.
pub(crate) fn cache_name(
    sb: &Superblock,
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
                sb.last_found.note(directory.id(), name, child);
            }
            return (None, uncache_name(sb, directory, name));
        }
        DentryUpdate::Unchanged => return (None, None),
    };
    if name == b".." {
        directory.facts().by_type.directory().parent = child.map(|parent| (Arc::downgrade(parent), label));
        return (Some(label), None);
    }
    if let Some(child) = child {
        learn_parent(sb, directory, child, label.sent_at);
    }
    let cached = CachedDentry { child: child.map(Arc::clone), label };
    let mut evicted = Vec::new();
    // Under the directory's lock: a change that begins afterwards drops the entry.
    let facts = directory.facts();
    if ticket.is_some_and(|ticket| !facts.state.is_undisturbed(ticket)) {
        return (None, None);
    }
    let former = sb.dentries.keep(directory.id(), name, cached, &mut evicted);
    drop(facts);
    drop(evicted);
    (Some(label), former)
}

/// The object of the last cached result for `name`, however old. It must not be served, only used
/// to choose what to request.
pub(crate) fn last_object(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
    let cached = sb.dentries.find(directory.id(), name).and_then(|cached| cached.child);
    cached.or_else(|| sb.last_found.find(directory.id(), name))
}

/// Drops the cached entry of `name`.
pub(crate) fn uncache_name(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    if name == b".." {
        if let TypeState::Directory(state) = &mut directory.facts().by_type {
            state.parent = None;
        }
        return None;
    }
    sb.dentries.forget(directory.id(), name)
}

/// Caches `directory` as the `..` of a directory that was found in it.
fn learn_parent(sb: &Superblock, directory: &Arc<Inode>, child: &Arc<Inode>, sent_at: Moment) {
    if Arc::ptr_eq(directory, child) || Arc::ptr_eq(child, &sb.root) {
        return;
    }
    let mut facts = child.facts();
    let is_directory = facts.state.facts().is_some_and(|known| known.kind == FileKind::Directory);
    if let (true, Some(epoch)) = (is_directory, facts.contents()) {
        let label = NameLabel { epoch, sent_at };
        facts.by_type.directory().parent = Some((Arc::downgrade(directory), label));
    }
}

/// Handles a negative entry that was wrong although the directory's timestamps are unchanged: the
/// server's timestamps are coarser than assumed.
pub(crate) fn note_false_negative(
    sb: &Superblock,
    directory: &Inode,
    former: Option<&CachedDentry>,
    label: Option<NameLabel>,
) {
    let was_missing = former.filter(|cached| cached.child.is_none()).map(|cached| cached.label.epoch);
    if was_missing.is_some() && was_missing == label.map(|label| label.epoch) {
        sb.count(ClientCounter::NegFalse);
        sb.core.proven_coarse(directory.fsid().unwrap_or(0));
    }
}
