//! What listings teach about single names: those in a reply with attributes, and those that a
//! complete directory does not contain.
//!
//! A name is cached only with a handle and attributes that match and belong to the directory's own
//! file system, whatever the reply proves about the directory as a whole. Policy decides when a
//! directory is complete ([`curt_policy::complete_directory`]); lookups of missing names are
//! answered from such a listing, and results of LOOKUPs are compared with it.

use std::sync::Arc;

use curt_observe::{ClientCounter, probe};
use curt_policy::{
    Freshness, MutationTicket, NameLabel, complete_directory,
    names::{DentryUpdate, LookupReason, is_racy},
    open_order::{ListingDirection, NAMES_SEARCHED_MAX, NameOrder},
    prefetch::PrefetchBenefit,
};
use curt_types::FileKind;
use parking_lot::MutexGuard;

use super::cache::{DirectoryListing, ReaddirReply};
use crate::{
    dentry_cache::{CachedDentry, ResolvedName},
    inode::{Inode, InodeFlag, InodeState},
    protocol::ReaddirEntry,
    superblock::Superblock,
};

/// The events that are counted while names are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrimeCounting {
    Nothing,
    /// Names that were not cached, each when it is first used.
    New,
    /// Objects in use whose attributes had expired.
    Expired,
}

/// Whether the attributes of `inode` are no longer served without a request: they have expired, or
/// are older than `sloppycto` lets opens use them.
pub(super) fn is_due(sb: &Superblock, inode: &Inode) -> bool {
    let (options, now) = (sb.core.options(), sb.core.now());
    let window = options.sloppy_window();
    let locked = inode.lock();
    let known = locked.attributes.newest();
    let is_file = known.is_some_and(|known| known.kind == FileKind::Regular);
    let is_beyond = || locked.attributes.sent_at().is_some_and(|sent_at| now.since(sent_at) > window);
    // No operation begins later than now.
    let has_expired = || locked.attributes.freshness(now, now, &options) == Freshness::Expired;
    is_file && !window.is_zero() && is_beyond() || has_expired()
}

/// Caches the names and attributes of a listing. Returns the number of objects in use
/// whose attributes had expired, if that is to be counted.
pub(super) fn prime(
    sb: &Superblock,
    directory: &Arc<Inode>,
    reply: &ReaddirReply,
    count: PrimeCounting,
) -> u32 {
    // Attributes belong to a handle, and are valid even if the name is not; a refresh needs only
    // them.
    let label = reply.origin.label;
    if label.is_none() && count != PrimeCounting::Expired {
        return 0;
    }
    let fsid = directory.fsid();
    let (mut primed, mut expired) = (0, 0);
    for (place, listed) in (reply.first..).zip(&reply.page.names) {
        let (Some(handle), Some(attributes)) = (&listed.handle, &listed.attributes) else {
            continue;
        };
        // The object mounted on the name differs from the entry of the directory's file system.
        // Also rejects attributes of another object than the entry's own.
        let is_own = Some(attributes.fsid) == fsid && attributes.fileid == listed.fileid;
        if matches!(&*listed.name, b"." | b"..") || !is_own {
            continue;
        }
        let child = sb.registry.inode(handle);
        let number = sb.core.numbering.number(attributes.fsid, attributes.fileid);
        if child.attributes().is_some_and(|known| known.fileid != number) {
            continue;
        }
        let was_expired = count == PrimeCounting::Expired && is_due(sb, &child);
        let _ = child.absorb(attributes, reply.sent_at);
        let was_used = child.mark_refreshed_in(directory, place);
        expired += u32::from(was_expired && was_used);
        if let Some(label) = label {
            primed += u64::from(prime_name(sb, directory, listed, &child, label, reply.origin.ticket, count));
        }
    }
    sb.core.counters.add(ClientCounter::NamesPrimed, primed);
    expired
}

/// Caches that a name leads to `child`; false if the same reply also gives another object: then
/// LOOKUP decides.
fn prime_name(
    sb: &Superblock,
    directory: &Arc<Inode>,
    listed: &ReaddirEntry,
    child: &Arc<Inode>,
    label: NameLabel,
    ticket: MutationTicket,
    count: PrimeCounting,
) -> bool {
    let name = &*listed.name;
    let learned = DentryUpdate::Positive(label);
    let (cached, former) = sb.dentries.cache_name(directory, name, Some(child), learned, Some(ticket));
    if cached.is_none() {
        return false;
    }
    let is_child =
        |cached: &CachedDentry| cached.child.as_ref().is_some_and(|known| Arc::ptr_eq(known, child));
    macro_rules! trace_name {
        ($event:ident) => {
            probe!($event { dir: directory.event_fileid(), name, fileid: child.event_fileid() })
        };
    }
    match former.as_ref().map(is_child) {
        None => trace_name!(NfsReaddirLookup),
        Some(true) => trace_name!(NfsReaddirLookupRevalidate),
        Some(false) => trace_name!(NfsReaddirLookupRevalidateFailed),
    }
    let is_other =
        |cached: &CachedDentry| cached.label == label && cached.child.is_some() && !is_child(cached);
    if former.as_ref().is_some_and(is_other) {
        drop(sb.dentries.uncache_name(directory, name));
        return false;
    }
    let was_known = former.is_some_and(|cached| cached.label.epoch == label.epoch);
    if count == PrimeCounting::New && !was_known {
        child.set(InodeFlag::Primed);
    }
    true
}

/// Counts a directory that has become complete.
pub(super) fn note_completeness(sb: &Superblock, directory: &Inode, listing: &Arc<DirectoryListing>) -> bool {
    let is_cached = {
        let mut locked = directory.lock();
        let cached = locked.by_type.directory().settled_listing(b"");
        cached.is_some_and(|cached| Arc::ptr_eq(cached, listing))
    };
    let is_complete = is_cached && listing.complete_label().is_some();
    // With `dirfill=off` it is complete, but answers no lookups.
    if is_complete && sb.core.options().fills() {
        sb.count(ClientCounter::DirFillComplete);
        probe!(NfsDirComplete { dir: directory.event_fileid(), entries: listing.count() });
    }
    is_complete
}

/// The listing that has `child` of a directory at `ordinal`.
pub(crate) fn listing_with(
    sb: &Superblock,
    directory: &Inode,
    child: &Arc<Inode>,
    ordinal: u32,
) -> Option<Arc<DirectoryListing>> {
    let listing = directory.lock().by_type.directory_if_any()?.settled_listing(b"").cloned()?;
    // It may be another than the one in which the ordinal was.
    let found = sb.dentries.find(directory.id(), &listing.name_at(ordinal)?)?.child?;
    Arc::ptr_eq(&found, child).then_some(listing)
}

/// The objects next to a place of an order, each with its place.
pub(crate) fn listed_neighbours(
    sb: &Superblock,
    directory: &Inode,
    listing: &DirectoryListing,
    order: NameOrder,
    place: u32,
    direction: ListingDirection,
) -> impl Iterator<Item = (u32, Arc<Inode>)> {
    let neighbours = listing.neighbouring_names(order, place, direction, NAMES_SEARCHED_MAX);
    let id = directory.id();
    let found = move |name: &[u8]| sb.dentries.find(id, name).and_then(|cached| cached.child);
    neighbours.into_iter().filter_map(move |(place, name)| found(&name).map(|child| (place, child)))
}

/// The negative entry for a name that a complete `directory` does not contain.
pub(crate) fn negative_from_listing(sb: &Superblock, directory: &Inode, name: &[u8]) -> Option<CachedDentry> {
    negative_under_lock(sb, &mut directory.lock(), name)
}

/// The negative answer under the lock of the directory, whose state is `locked`: no change of this
/// client is being entered, and a change that replaces a name removes it first. The lock is
/// released while the table of names is built.
pub(crate) fn negative_under_lock(
    sb: &Superblock,
    locked: &mut MutexGuard<'_, InodeState>,
    name: &[u8],
) -> Option<CachedDentry> {
    let is_off = !sb.core.options().fills() || sb.path_limits.case_insensitive;
    if is_off || complete_directory::may_be_hidden(name) {
        return None;
    }
    let listing = locked.by_type.complete_listing(name)?;
    if !listing.is_indexed() {
        let listing = Arc::clone(listing);
        MutexGuard::unlocked(locked, || listing.missing_label(name))?;
    }
    let label = locked.by_type.complete_listing(name)?.missing_label(name)?;
    Some(CachedDentry { child: None, label })
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
                directory.lock().by_type.directory().prefetch.own.missed_for_nothing();
                sb.core.learn_prefetch(PrefetchBenefit::missed_for_nothing);
            }
            return;
        }
    };
    let denied = negative_from_listing(sb, directory, name);
    let Some(absence) = denied.filter(|absence| absence.label.epoch == label.epoch) else {
        return;
    };
    sb.count(ClientCounter::NegFalse);
    let fsid = directory.fsid().unwrap_or(0);
    let (is_racy, former) = {
        let clock = sb.core.clocks.of(fsid);
        let mut locked = directory.lock();
        let is_racy = why == LookupReason::Racy
            || is_racy(absence.label, &locked.attributes, &clock, &sb.core.options());
        let state = locked.by_type.directory();
        state.hides_names = !is_racy;
        (is_racy, state.invalidate_listing("it has names that it does not list"))
    };
    drop(former);
    if is_racy {
        sb.core.clocks.proven_coarse(fsid);
    }
}
