//! Caches single names and objects from a reply with attributes, whatever it proves about the
//! directory as a whole.
//!
//! Owns the checks: a name is cached only with a handle and attributes that match and belong to the
//! directory's own file system. Must not know why the request was sent.

use std::sync::Arc;

use curt_observe::{ClientCounter, events::Event, probe};
use curt_policy::{Freshness, MutationTicket, NameLabel, names::DentryUpdate};
use curt_types::FileKind;

use super::reply::ReaddirReply;
use crate::{
    dentry_cache::CachedDentry, inode::Inode, ops::names, protocol::ReaddirEntry, superblock::Superblock,
};

/// What is counted while names are cached.
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
    let facts = inode.facts();
    let known = facts.state.facts();
    let is_file = known.is_some_and(|known| known.kind == FileKind::Regular);
    let is_beyond = || facts.state.sent_at().is_some_and(|sent_at| now.since(sent_at) > window);
    // No operation begins later than now.
    let has_expired = || facts.state.freshness(now, now, &options) == Freshness::Expired;
    is_file && !window.is_zero() && is_beyond() || has_expired()
}

/// Caches the names and attributes of a READDIRPLUS reply. Returns the number of objects in use
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
    for listed in &reply.page.names {
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
        let was_used = child.mark_refreshed_in(directory);
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
    let (cached, former) = names::cache_name(sb, directory, name, Some(child), learned, Some(ticket));
    if cached.is_none() {
        return false;
    }
    let is_child =
        |cached: &CachedDentry| cached.child.as_ref().is_some_and(|known| Arc::ptr_eq(known, child));
    macro_rules! trace_name {
        ($event:ident) => {
            probe!($event {
                dir: directory.fileid_if_enabled(Event::$event),
                name,
                fileid: child.fileid_if_enabled(Event::$event)
            })
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
        drop(names::uncache_name(sb, directory, name));
        return false;
    }
    let was_known = former.is_some_and(|cached| cached.label.epoch == label.epoch);
    if count == PrimeCounting::New && !was_known {
        child.mark_primed();
    }
    true
}
