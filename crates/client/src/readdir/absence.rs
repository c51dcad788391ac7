//! Answers lookups of missing names from a directory all of whose names are known.
//!
//! Policy decides when a directory is complete ([`curt_policy::complete`]). This module uses that
//! decision and compares it with the results of LOOKUPs.

use std::sync::Arc;

use curt_observe::{ClientCounter, events::Event, probe};
use curt_policy::{
    NameLabel, complete,
    names::{DentryUpdate, LookupReason},
    prefetch::PrefetchBenefit,
};

use super::cache::DirectoryListing;
use crate::{
    dentry_cache::CachedDentry,
    inode::Inode,
    ops::names::{self, ResolvedName},
    superblock::Superblock,
};

/// Counts a directory that has become complete.
pub(super) fn note_completeness(sb: &Superblock, directory: &Inode, listing: &Arc<DirectoryListing>) -> bool {
    let is_cached = {
        let mut facts = directory.facts();
        let cached = facts.by_type.directory().settled_listing(b"");
        cached.is_some_and(|cached| Arc::ptr_eq(cached, listing))
    };
    let is_complete = is_cached && listing.complete_label().is_some();
    // With `dirfill=off` it is complete, but answers no lookups.
    if is_complete && sb.core.options().fills() {
        sb.count(ClientCounter::DirFillComplete);
        probe!(NfsDirComplete {
            dir: directory.fileid_if_enabled(Event::NfsDirComplete),
            entries: listing.count()
        });
    }
    is_complete
}

/// The negative entry for a name that a complete `directory` does not contain.
pub(crate) fn negative_from_listing(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    let is_off = !sb.core.options().fills() || sb.path_limits.case_insensitive;
    if is_off || complete::may_be_hidden(name) {
        return None;
    }
    let listing = directory.facts().by_type.complete_listing(name).cloned()?;
    // The first search for a name takes long in a large directory: do it without the lock on the
    // facts.
    listing.missing_label(name)?;
    // Repeated under the lock, while no change of this client is being entered: a change that
    // replaces a name removes it first.
    let facts = directory.facts();
    let label = facts.by_type.complete_listing(name)?.missing_label(name)?;
    Some(CachedDentry { child: None, label })
}

/// Caches `name` as a negative entry after a complete directory answered that it is missing.
pub(crate) fn note_negative_from_listing(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    label: NameLabel,
) {
    let _ = names::cache_learned(sb, directory, name, None, DentryUpdate::Negative(label), None);
    // A change of this client may have created the name since the search; this would overwrite its
    // entry.
    let still = negative_from_listing(sb, directory, name).map(|absence| absence.label);
    if still != Some(label) {
        drop(names::uncache_name(sb, directory, name));
    }
    sb.count(ClientCounter::DirFillMissing);
}

/// Compares the result of a LOOKUP of `name` with the listing. A missing name that is not cached
/// does not count. If the name exists although the complete directory does not contain it, the
/// directory does not list all its names, or its clock is too coarse.
pub(crate) fn compare_with_listing(
    sb: &Superblock,
    directory: &Inode,
    name: &[u8],
    why: LookupReason,
    resolved: &ResolvedName,
) {
    let label = match resolved {
        ResolvedName::Object(_, Some(label)) => label,
        ResolvedName::Object(_, None) => return,
        ResolvedName::Missing(_) => {
            if !sb.core.options().keeps_missing_names() {
                directory.facts().by_type.directory().prefetch.own.missed_for_nothing();
                sb.core.learn_prefetch(PrefetchBenefit::missed_for_nothing);
            }
            return;
        }
    };
    let denied = negative_from_listing(sb, directory, name);
    if denied.is_none_or(|absence| absence.label.epoch != label.epoch) {
        return;
    }
    sb.count(ClientCounter::NegFalse);
    let former = {
        let mut facts = directory.facts();
        let state = facts.by_type.directory();
        state.hides_names = why != LookupReason::Racy;
        state.invalidate_listing("it has names that it does not list")
    };
    drop(former);
    if why == LookupReason::Racy {
        sb.core.proven_coarse(directory.fsid().unwrap_or(0));
    }
}
