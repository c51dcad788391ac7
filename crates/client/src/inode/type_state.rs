//! The state of an inode by type: a directory's parent and listing, a symbolic link's target, a
//! file's opens.
//!
//! Owns storage only. Each part is allocated when it is first used, because there are as many
//! inodes as cached names.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU8, Ordering::Relaxed},
};

use curt_policy::{
    Epoch, MonotonicTime, NameLabel,
    kernel_cache::NameLifetimes,
    names::CreateProbe,
    open_order::{NameOrder, OpenOrder},
    prefetch::{LookupOrder, PrefetchRecord},
};

use super::{Inode, TypeState, single_flight::PendingRemovals};
use crate::{
    api::InodeId,
    caller::InternedCaller,
    protocol::HeldDelegation,
    readdir::{cache::DirectoryListing, local_changes::LocalChange},
};

/// The state of a directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryState {
    /// The target of `..`, learned under this directory's own contents. Weak: a server may return
    /// two directories as entries of each other.
    pub(crate) parent: Option<(Weak<Inode>, NameLabel)>,
    /// Its names in the server's order, as far as they were listed under one epoch.
    listing: Option<Arc<DirectoryListing>>,
    /// The listing that is being read, even if invalid: the cookies of its names are probably still
    /// right.
    last_read: Weak<DirectoryListing>,
    /// Ended changes by this client that are not yet applied to `listing`.
    changes_to_list: Vec<u64>,
    /// Names returned by listings since the last request about a child, except those of the last
    /// reply, which the reader has not had time to use.
    pub(crate) names_since_stat: u32,
    /// Its chunks were last requested with attributes.
    pub(crate) lists_plus: bool,
    /// Number of names in the last reply.
    pub(crate) names_last: u32,
    /// Listed names that were looked up one by one.
    pub(crate) lookup_order: LookupOrder,
    /// Listed files that were opened one by one.
    pub(crate) open_orders: [OpenOrder; NameOrder::ALL.len()],
    /// The history of prefetches of its names.
    pub(crate) prefetch: PrefetchRecord,
    /// When its names were last fetched together because one was needed.
    pub(crate) filled_at: MonotonicTime,
    /// The directory contains names that the server does not list: its listings are not complete.
    pub(crate) hides_names: bool,
    /// The last child whose attributes were requested alone.
    pub(crate) last_getattr_alone: Option<InodeId>,
    /// The child that was looked up last, and its repeated lookups.
    pub(crate) create_probe: Option<(InodeId, CreateProbe)>,
    /// Lifetimes of names that the kernel was granted.
    pub(crate) name_lifetimes: NameLifetimes,
    /// The server denied search to a caller whom the mode bits permit it.
    pub(super) search_was_denied: bool,
    /// Names that requests in flight change, and whether two of these change the same name.
    changes_in_flight: Vec<PendingNameChange>,
    last_change: u64,
}

#[derive(Debug)]
struct PendingNameChange {
    number: u64,
    name: Box<[u8]>,
    is_alone: bool,
}

/// The cached target of a symbolic link.
#[derive(Debug)]
pub(crate) struct CachedLinkText {
    pub(crate) text: Box<[u8]>,
    pub(crate) epoch: Epoch,
}

/// The state of a file that is or was open.
#[derive(Debug, Default)]
pub(crate) struct LocalOpens {
    pub(crate) opens: u32,
    /// Opens whose access check is in flight.
    pub(crate) opening: u32,
    /// Removals of its names that began while it was neither open nor being opened.
    pub(crate) removals: PendingRemovals,
    pub(crate) write_opens: u32,
    /// When it was last closed after writing.
    pub(crate) closed_after_writing: Option<MonotonicTime>,
    /// The first caller that opened it since its cached data became invalid: the data were read
    /// with this caller's credential.
    pub(crate) first_user: Option<u32>,
    /// How often copies outside this client became invalid, and up to which of these invalidations
    /// they were dropped.
    pub(crate) copies_invalidated: u32,
    pub(crate) copies_dropped: u32,
    /// This mount has removed a name of it, and the server keeps it while it is open.
    pub(crate) was_removed_here: bool,
    /// Its silly name, if it was removed while it was open.
    pub(crate) silly: Option<SillyName>,
    /// Its delegation.
    pub(crate) delegation: Option<FileDelegation>,
    pub(crate) opened_ahead: OpenedAhead,
}

/// The delegation of a file.
#[derive(Debug)]
pub(crate) struct FileDelegation {
    pub(super) held: Arc<HeldDelegation>,
    /// When the reply that brought it was dealt with.
    pub(super) since: MonotonicTime,
}

/// A file was opened before a program has opened it, and not used since. Relaxed accesses: it
/// stands for itself.
#[derive(Debug, Default)]
pub(crate) struct OpenedAhead(AtomicU8);

/// The request with which a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedWith {
    /// The look-up of its name.
    Lookup = 1,
    /// The open of a file that is listed beside it.
    Sibling = 2,
}

impl OpenedAhead {
    pub(crate) fn set(&self, with: OpenedWith) {
        self.0.store(with as u8, Relaxed);
    }

    pub(crate) fn take(&self) -> Option<OpenedWith> {
        if self.0.load(Relaxed) == 0 {
            return None;
        }
        let with = self.0.swap(0, Relaxed);
        [OpenedWith::Lookup, OpenedWith::Sibling].into_iter().find(|known| *known as u8 == with)
    }
}

/// The silly name of a removed file.
#[derive(Debug, Clone)]
pub(crate) struct SillyName {
    /// The caller that removed it.
    pub(crate) identity: Arc<InternedCaller>,
    pub(crate) directory: Arc<Inode>,
    pub(crate) name: Box<[u8]>,
}

/// The reason of an invalidated listing in trace events.
const LOCAL_CHANGE_REASON: &str = "it was changed here, and maybe elsewhere";

impl Inode {
    /// Whether the target of this symbolic link is cached.
    pub(crate) fn has_link_text(&self) -> bool {
        matches!(self.lock().by_type, TypeState::Link(_))
    }
}

impl TypeState {
    /// The listing that can prove the absence of `name`, as far as the directory's state shows.
    pub(crate) fn complete_listing(&self, name: &[u8]) -> Option<&Arc<DirectoryListing>> {
        let directory = self.directory_if_any().filter(|directory| !directory.hides_names)?;
        directory.settled_listing(name)
    }

    /// Traces that a directory's listing is invalid; it is dropped when it is next requested.
    pub(crate) fn trace_listing_invalid(&self, reason: &str) {
        if let Some(listing) = self.directory_if_any().and_then(|directory| directory.listing.as_ref()) {
            listing.trace_invalidated(reason);
        }
    }
}

impl LocalOpens {
    /// Whether the file is open here or being opened.
    pub(crate) fn is_used(&self) -> bool {
        self.opens > 0 || self.opening > 0
    }

    /// Takes the silly name of a file that is no longer open, and begins its removal.
    pub(crate) fn take_unused_silly_name(&mut self) -> Option<SillyName> {
        if self.is_used() {
            return None;
        }
        let silly = self.silly.take()?;
        self.removals.begin();
        Some(silly)
    }
}

impl DirectoryState {
    /// Begins a change of `name`; to be called before the request is sent. Returns its number for
    /// [`Self::end_change`].
    pub(crate) fn begin_change(&mut self, name: &[u8]) -> u64 {
        let mut is_alone = true;
        for other in self.changes_in_flight.iter_mut().filter(|other| *other.name == *name) {
            other.is_alone = false;
            is_alone = false;
        }
        self.last_change += 1;
        let number = self.last_change;
        // A listing that is being read may or may not contain the name. A complete listing is
        // updated when the change has ended.
        if let Some(listing) = self.listing.take_if(|listing| !listing.is_complete()) {
            listing.mark_inconsistent();
            listing.trace_invalidated("it was being read, and is changed here");
        }
        self.changes_in_flight.push(PendingNameChange { number, name: name.into(), is_alone });
        number
    }

    /// Ends the change; returns whether no other change of the same name by this client overlapped.
    pub(crate) fn end_change(&mut self, number: u64) -> bool {
        let Some(index) = self.changes_in_flight.iter().position(|change| change.number == number) else {
            return false;
        };
        if self.listing.is_some() {
            self.changes_to_list.push(number);
        }
        self.changes_in_flight.swap_remove(index).is_alone
    }

    /// The listing, as far as it was read, with all changes by this client applied.
    pub(crate) fn current_listing(&mut self) -> Option<Arc<DirectoryListing>> {
        // The result of a change is unknown.
        if !self.changes_to_list.is_empty() {
            drop(self.invalidate_listing(LOCAL_CHANGE_REASON));
        }
        self.listing.clone()
    }

    /// As [`Self::current_listing`], but keeps a listing to which a change is still to be applied;
    /// `None` if there is such a change or one of `name` is in flight.
    pub(crate) fn settled_listing(&self, name: &[u8]) -> Option<&Arc<DirectoryListing>> {
        let is_changing = self.changes_in_flight.iter().any(|change| *change.name == *name);
        self.listing.as_ref().filter(|_| self.changes_to_list.is_empty() && !is_changing)
    }

    /// Records that `listing` is being read: its names may be needed next.
    pub(crate) fn note_reader(&mut self, listing: &Arc<DirectoryListing>) {
        if !std::ptr::eq(self.last_read.as_ptr(), Arc::as_ptr(listing)) {
            self.last_read = Arc::downgrade(listing);
        }
    }

    /// The listing whose cookies may be used to fetch names: the cached listing, or the one that
    /// was last read while a reader has it, even if the directory has changed since.
    pub(crate) fn listing_for_cookies(&self) -> Option<Arc<DirectoryListing>> {
        let listing = self.listing.as_ref().filter(|listing| listing.label().is_some());
        listing.cloned().or_else(|| self.last_read.upgrade())
    }

    /// Stops the use of cookies of `listing`, because the server did not continue after one of its
    /// names; restarts the detection of lookups in listing order.
    pub(crate) fn forget_cookies(&mut self, listing: &Arc<DirectoryListing>) {
        if std::ptr::eq(self.last_read.as_ptr(), Arc::as_ptr(listing)) {
            self.last_read = Weak::new();
        }
        self.lookup_order.restart();
    }

    /// Caches a listing; returns the previous one.
    pub(crate) fn cache_listing(&mut self, listing: &Arc<DirectoryListing>) -> Option<Arc<DirectoryListing>> {
        self.changes_to_list.clear();
        if let Some(former) = self.listing.as_ref().filter(|former| !Arc::ptr_eq(former, listing)) {
            former.trace_invalidated("it was read anew");
        }
        self.listing.replace(Arc::clone(listing))
    }

    /// Applies the result of this client's change `number` to the listing. `None`: the result is
    /// unknown, or another client has changed the directory.
    pub(crate) fn apply_change_to_listing(&mut self, number: u64, change: Option<LocalChange<'_>>) {
        let Some(index) = self.changes_to_list.iter().position(|unlisted| *unlisted == number) else {
            return;
        };
        self.changes_to_list.swap_remove(index);
        let is_listed = match (&self.listing, change) {
            (Some(listing), Some(change)) => listing.apply_change(&change),
            (None, _) | (_, None) => false,
        };
        if !is_listed {
            drop(self.invalidate_listing(LOCAL_CHANGE_REASON));
        }
    }

    /// Invalidates the cached listing; a reader of it continues with it.
    pub(crate) fn invalidate_listing(&mut self, reason: &str) -> Option<Arc<DirectoryListing>> {
        self.changes_to_list.clear();
        let former = self.listing.take();
        if let Some(former) = &former {
            former.trace_invalidated(reason);
        }
        former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_changes_of_one_name_are_detected() {
        let mut directory = DirectoryState::default();
        let first = directory.begin_change(b"a");
        let other = directory.begin_change(b"b");
        let second = directory.begin_change(b"a");
        assert!(!directory.end_change(first));
        assert!(!directory.end_change(second));
        assert!(directory.end_change(other));
        let alone = directory.begin_change(b"a");
        assert!(directory.end_change(alone));
        assert!(!directory.end_change(alone), "each ends once");
    }
}
