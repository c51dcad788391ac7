//! Learning single names and objects from a reply with attributes, whatever it proves about the
//! directory as a whole.
//!
//! Owns the checks: a name is learned only with a handle and attributes that fit together and
//! belong to the directory's own file system. Must not know why the request was sent.

use std::sync::Arc;

use curt_policy::{Freshness, Moment, NameLabel, names::DentryUpdate as Said};
use curt_trace::{ClientCounter, events::Event, probe};
use curt_types::FileKind;

use super::fetch::ReaddirReply;
use crate::{
    dentry_cache::CachedDentry, inode::Inode, ops::names, protocol::ReaddirEntry, superblock::Superblock,
};

/// What is to be counted while names are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrimeCounting {
    Nothing,
    /// Names that were not known, each by itself when it is used.
    New,
    /// Objects in use whose attributes had expired.
    Expired,
}

/// One reply, and what it is learned under.
#[derive(Clone, Copy)]
struct PrimingReply<'a> {
    directory: &'a Arc<Inode>,
    fsid: Option<u64>,
    label: Option<NameLabel>,
    sent_at: Moment,
    count: PrimeCounting,
}

/// Tells that a listing told of a name, and what was known of it.
fn trace_primed(directory: &Inode, child: &Arc<Inode>, name: &[u8], former: Option<&CachedDentry>) {
    macro_rules! trace_name {
        ($event:ident) => {
            probe!($event {
                dir: directory.fileid_if_enabled(Event::$event),
                name,
                fileid: child.fileid_if_enabled(Event::$event)
            })
        };
    }
    let known = former.map(|kept| kept.child.as_ref().is_some_and(|known| Arc::ptr_eq(known, child)));
    match known {
        None => trace_name!(NfsReaddirLookup),
        Some(true) => trace_name!(NfsReaddirLookupRevalidate),
        Some(false) => trace_name!(NfsReaddirLookupRevalidateFailed),
    }
}

/// Whether nobody is served the attributes of `inode` any more without asking: they have
/// expired, or are older than `sloppycto` lets opens believe them.
pub(super) fn is_due(sb: &Superblock, inode: &Inode) -> bool {
    let options = sb.core.options();
    let now = sb.core.now();
    let facts = inode.facts();
    let window = options.sloppy_window();
    let is_file = facts
        .state
        .facts()
        .is_some_and(|known| known.kind == FileKind::Regular);
    let is_old = is_file
        && !window.is_zero()
        && facts
            .state
            .sent_at()
            .is_some_and(|sent_at| now.since(sent_at) > window);
    // No operation begins later than now.
    is_old || facts.state.freshness(now, now, &options) == Freshness::Expired
}

/// Learns the names and attributes that READDIRPLUS brought; how many objects had been in use
/// whose attributes had expired, if that is to be counted.
pub(super) fn prime(
    sb: &Superblock,
    directory: &Arc<Inode>,
    fetched: &ReaddirReply,
    count: PrimeCounting,
) -> u32 {
    let reply = PrimingReply {
        directory,
        fsid: directory.fsid(),
        label: fetched.label(),
        sent_at: fetched.sent_at,
        count,
    };
    // Attributes are those of a handle, and good whatever becomes of its name; only refreshing
    // is after them.
    if reply.label.is_none() && count != PrimeCounting::Expired {
        return 0;
    }
    let (mut primed, mut expired) = (0, 0);
    for listed in &fetched.page.names {
        let Some((child, was_expired)) = prime_object(sb, &reply, listed) else {
            continue;
        };
        expired += u32::from(was_expired);
        if let Some(label) = reply.label {
            primed += u64::from(prime_name(sb, &reply, listed, &child, label));
        }
    }
    sb.core.counters.add(ClientCounter::NamesPrimed, primed);
    expired
}

/// Takes in what is said of the object that a name leads to; whether its attributes had expired
/// while it was in use.
fn prime_object(
    sb: &Superblock,
    reply: &PrimingReply<'_>,
    listed: &ReaddirEntry,
) -> Option<(Arc<Inode>, bool)> {
    let (handle, attributes) = (listed.handle.as_ref()?, listed.attributes.as_ref()?);
    // What is mounted there is not what the directory's file system has there; and no server
    // means another object than the entry's own.
    let is_own = Some(attributes.fsid) == reply.fsid && attributes.fileid == listed.fileid;
    if matches!(&*listed.name, b"." | b"..") || !is_own {
        return None;
    }
    let child = sb.core.registry.inode(&sb.core, handle);
    let number = sb.core.numbering.number(attributes.fsid, attributes.fileid);
    if child.attributes().is_some_and(|known| known.fileid != number) {
        return None;
    }
    let was_expired = reply.count == PrimeCounting::Expired && is_due(sb, &child);
    let _ = child.absorb(attributes, reply.sent_at);
    let was_used = child.mark_refreshed_in(reply.directory);
    Some((child, was_expired && was_used))
}

/// Keeps that a name leads to `child`; false if the same reply says that it leads elsewhere,
/// too: LOOKUP will tell.
fn prime_name(
    sb: &Superblock,
    reply: &PrimingReply<'_>,
    listed: &ReaddirEntry,
    child: &Arc<Inode>,
    label: NameLabel,
) -> bool {
    let directory = reply.directory;
    let former = names::cache_name(sb, directory, &listed.name, Some(child), Said::Positive(label)).1;
    trace_primed(directory, child, &listed.name, former.as_ref());
    let is_other = |kept: &CachedDentry| {
        let other = kept.child.as_ref().filter(|other| !Arc::ptr_eq(other, child));
        kept.label == label && other.is_some()
    };
    if former.as_ref().is_some_and(is_other) {
        let dropped = names::uncache_name(sb, directory, &listed.name);
        drop(dropped);
        return false;
    }
    let was_known = former.is_some_and(|kept| kept.label.epoch == label.epoch);
    if reply.count == PrimeCounting::New && !was_known {
        child.mark_primed();
    }
    true
}
