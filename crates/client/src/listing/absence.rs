//! Answering that a name is missing, from a directory all of whose names are known.
//!
//! Policy decides when a directory is complete ([`curt_policy::complete`]); here that is used, and
//! checked against what LOOKUPs find.

use std::sync::Arc;

use curt_policy::{
    NameLabel, complete,
    fill::MountFillRecord,
    names::{DentryUpdate as Said, LookupReason},
};
use curt_trace::{ClientCounter, events::Event, probe};

use super::{directory_listing::DirectoryListing, fill::FillOutcome};
use crate::{
    dentry_cache::CachedDentry,
    inode::Inode,
    ops::names::{self, ResolvedName},
    superblock::Superblock,
};

/// Counts a directory that is complete by now.
pub(super) fn note_completeness(
    sb: &Superblock,
    directory: &Inode,
    sequence: &Arc<DirectoryListing>,
) -> bool {
    let mut facts = directory.facts();
    let listing = facts.by_type.directory().settled_listing(b"");
    let is_kept = listing.is_some_and(|listing| Arc::ptr_eq(listing, sequence));
    drop(facts);
    let is_complete = is_kept && sequence.complete_label().is_some();
    // Otherwise it is known, and answers for nothing.
    if is_complete && sb.core.options().fills() {
        sb.count(ClientCounter::DirFillComplete);
        probe!(NfsDirComplete {
            dir: directory.fileid_if_enabled(Event::NfsDirComplete),
            entries: sequence.count()
        });
    }
    is_complete
}

/// A name that `directory` does not have, all of whose names are known.
pub(crate) fn negative_from_listing(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    if !sb.core.options().fills() || sb.path_limits.case_insensitive {
        return None;
    }
    if complete::may_be_hidden(name) {
        return None;
    }
    let listing = directory.facts().by_type.complete_listing(name).cloned()?;
    // Finding a name the first time takes a while in a large directory: not while others want
    // the facts.
    listing.missing_label(name)?;
    // Once more, with no change of ours being entered meanwhile: one that replaces a name takes
    // it out first.
    let facts = directory.facts();
    let listing = facts.by_type.complete_listing(name)?;
    let label = listing.missing_label(name)?;
    Some(CachedDentry { child: None, label })
}

/// `name` was answered to be missing since a complete directory does not have it. From now on
/// it is a missing name like others. `filled`: what became of it before.
pub(crate) fn note_negative_from_listing(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    label: NameLabel,
    filled: FillOutcome,
) {
    let _ = names::cache_learned(sb, directory, name, None, Said::Negative(label));
    // A change of ours may have made the name since it was looked for, and what that kept be
    // replaced by this.
    let still = negative_from_listing(sb, directory, name).map(|absence| absence.label);
    if still != Some(label) {
        let former = names::uncache_name(sb, directory, name);
        drop(former);
    }
    if filled != FillOutcome::Sent {
        directory.note_spared();
    }
    sb.count(ClientCounter::DirFillMissing);
}

/// `name` was looked up. If it is missing, and that is not kept, it does not count; if it is
/// there although the directory was believed to be complete without it, the directory does not
/// list all its names, or its clock is too coarse to tell.
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
                directory.facts().by_type.directory().fill.missed_for_nothing();
                sb.core.learn_fill(MountFillRecord::missed_for_nothing);
            }
            return;
        }
    };
    let is_denied =
        negative_from_listing(sb, directory, name).is_some_and(|absence| absence.label.epoch == label.epoch);
    if !is_denied {
        return;
    }
    sb.count(ClientCounter::NegFalse);
    let former = {
        let mut facts = directory.facts();
        let kept = facts.by_type.directory();
        kept.hides_names = why != LookupReason::Racy;
        kept.invalidate_listing("it has names that it does not list")
    };
    drop(former);
    if why == LookupReason::Racy {
        sb.core.proven_coarse(directory.fsid().unwrap_or(0));
    }
}
