//! What is known of an inode by its type: a directory's parent and listing, a link's text, who has
//! a file open.
//!
//! Owns storage only; each part exists only where it is used, for there are as many inodes as known
//! names.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use curt_policy::{
    Epoch, Moment, NameLabel,
    prefetch::{LookupOrder, PrefetchRecord},
};

use super::{Inode, PendingRemovals};
use crate::{
    credentials::InternedCaller,
    identity::InodeId,
    readdir::{DirectoryListing, LocalChange},
};

/// The part that depends on the type.
#[derive(Debug, Default)]
pub(crate) enum TypeState {
    #[default]
    Nothing,
    Directory(Box<DirectoryState>),
    Link(Box<CachedLinkText>),
    File(Box<OpenState>),
}

/// Of a directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryState {
    /// What `..` leads to, learned under this directory's own contents. Weak: a server may say that
    /// two directories are in each other.
    pub(crate) parent: Option<(Weak<Inode>, NameLabel)>,
    /// Its names in the server's order, as far as they were listed under one epoch.
    listing: Option<Arc<DirectoryListing>>,
    /// The names that somebody reads, whatever they are worth: where the server told each of them
    /// it will hardly have moved.
    last_read: Weak<DirectoryListing>,
    /// Changes of ours that ended and are not yet in `listing`.
    changes_to_list: Vec<u64>,
    /// Names that listings gave since one of its children was asked about, but for those of the
    /// last reply: nobody had the time to ask about them.
    pub(crate) names_since_stat: u32,
    /// Its chunks were last asked for with attributes.
    pub(crate) lists_plus: bool,
    /// Names of the last reply.
    pub(crate) names_last: u32,
    /// Listed names that were looked up at the server one by one.
    pub(crate) lookup_order: LookupOrder,
    /// What is remembered of asking for its names together.
    pub(crate) prefetch: PrefetchRecord,
    /// When its names last came together because one was wanted.
    pub(crate) filled_at: Moment,
    /// It has names that it does not list: what it lists are not all.
    pub(crate) hides_names: bool,
    /// Which of its objects was asked about last by itself.
    pub(crate) last_getattr_alone: Option<InodeId>,
    /// Which of its objects is looked up again and again.
    pub(crate) create_probe: Option<CreateProbe>,
    /// Names that requests of ours are about to change, and whether two of them are about the same
    /// one.
    changes_in_flight: Vec<PendingNameChange>,
    last_change: u64,
}

#[derive(Debug)]
struct PendingNameChange {
    number: u64,
    name: Box<[u8]>,
    is_alone: bool,
}

/// Of a symbolic link.
#[derive(Debug)]
pub(crate) struct CachedLinkText {
    pub(crate) text: Box<[u8]>,
    pub(crate) epoch: Epoch,
}

/// Of a file that is or was open.
#[derive(Debug, Default)]
pub(crate) struct OpenState {
    pub(crate) opens: u32,
    /// Opens that the server is being asked about.
    pub(crate) opening: u32,
    /// Removals of its names that began when it was neither open nor being opened.
    pub(crate) removals: PendingRemovals,
    pub(crate) write_opens: u32,
    /// When it was last closed after writing.
    pub(crate) closed_after_writing: Option<Moment>,
    /// Who was first to open it since its cached data were last void: cached data are its.
    pub(crate) first_user: Option<u32>,
    /// Counts how often copies that others keep of the data became void, and up to which count they
    /// were dropped.
    pub(crate) copies_invalidated: u32,
    pub(crate) copies_dropped: u32,
    /// The name that it has until its last close, having been removed while it was open.
    pub(crate) silly: Option<SillyName>,
}

/// A name that stands for a removed file.
#[derive(Debug, Clone)]
pub(crate) struct SillyName {
    /// Who removed it.
    pub(crate) identity: Arc<InternedCaller>,
    pub(crate) directory: Arc<Inode>,
    pub(crate) name: Box<[u8]>,
}

/// Why a listing goes, as events tell it.
const LOCAL_CHANGE_REASON: &str = "it was changed here, and maybe elsewhere";

impl TypeState {
    pub(crate) fn directory(&mut self) -> &mut DirectoryState {
        if !matches!(self, Self::Directory(_)) {
            *self = Self::Directory(Box::default());
        }
        match self {
            Self::Directory(directory) => directory,
            Self::Nothing | Self::Link(_) | Self::File(_) => unreachable!("it was just made a directory"),
        }
    }

    pub(crate) fn file(&mut self) -> &mut OpenState {
        if !matches!(self, Self::File(_)) {
            *self = Self::File(Box::default());
        }
        match self {
            Self::File(file) => file,
            Self::Nothing | Self::Link(_) | Self::Directory(_) => unreachable!("it was just made a file"),
        }
    }

    /// The listing that may say that a directory does not have `name`, as far as the directory can
    /// tell.
    pub(crate) fn complete_listing(&self, name: &[u8]) -> Option<&Arc<DirectoryListing>> {
        match self {
            Self::Directory(kept) => kept.settled_listing(name).filter(|_| !kept.hides_names),
            Self::Nothing | Self::Link(_) | Self::File(_) => None,
        }
    }

    /// What a directory's listing says is not what is there any more; it goes when it is asked for.
    pub(crate) fn trace_listing_invalid(&self, reason: &str) {
        if let Self::Directory(kept) = self
            && let Some(listing) = &kept.listing
        {
            listing.trace_invalidated(reason);
        }
    }

    /// The open state, if there ever was one.
    pub(crate) fn file_if_any(&self) -> Option<&OpenState> {
        match self {
            Self::File(file) => Some(file),
            Self::Nothing | Self::Link(_) | Self::Directory(_) => None,
        }
    }
}

impl OpenState {
    /// Whether programs here have it open, or are about to.
    pub(crate) fn is_used(&self) -> bool {
        self.opens > 0 || self.opening > 0
    }

    /// The name that stands for it, if nobody uses the file any more: it is to be removed, and that
    /// has begun.
    pub(crate) fn take_unused_silly_name(&mut self) -> Option<SillyName> {
        if self.is_used() {
            return None;
        }
        let silly = self.silly.take()?;
        self.removals.begin();
        Some(silly)
    }
}

/// For how long a name has to be tried before the server is asked for it.
const FIRST_PROBE_AFTER: Duration = Duration::from_secs(1);

/// Which object of a directory is asked for again and again, and no other.
///
/// A kernel looks a name up before it makes it, and fails by itself (EEXIST) if the name is there.
/// So its look-up of a name that is believed to be there may be all that is ever seen of mkdir(2),
/// open(2) with O_EXCL, symlink(2), link(2) or mknod(2), and nothing in it says so. What gives it
/// away: nothing but that one name is looked up in the directory, again and again, and nothing is
/// done with what it leads to: somebody may be trying to make it. The server is asked after a
/// second, and then whenever twice that time has passed. Whoever uses the library without a kernel
/// makes a name by asking for just that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateProbe {
    object: InodeId,
    since: Moment,
    /// When the server was last asked for it, or this began.
    last_lookup: Moment,
}

impl CreateProbe {
    pub(crate) fn of(object: InodeId, now: Moment) -> Self {
        Self { object, since: now, last_lookup: now }
    }

    /// Whether the server is to be asked for `object`, which is looked up at `now`.
    pub(crate) fn is_due(&mut self, object: InodeId, now: Moment) -> bool {
        if self.object != object {
            *self = Self::of(object, now);
            return false;
        }
        let is_due = now.since(self.last_lookup) >= self.last_lookup.since(self.since).max(FIRST_PROBE_AFTER);
        if is_due {
            self.last_lookup = now;
        }
        is_due
    }
}

impl DirectoryState {
    /// A request that changes `name` is about to be sent; gives what [`Self::end_change`] wants.
    pub(crate) fn begin_change(&mut self, name: &[u8]) -> u64 {
        let mut is_alone = true;
        for other in self.changes_in_flight.iter_mut().filter(|other| *other.name == *name) {
            other.is_alone = false;
            is_alone = false;
        }
        self.last_change += 1;
        let number = self.last_change;
        // What is still being read may or may not hold the name; what is whole is told of the
        // change when it is done.
        if let Some(listing) = self.listing.take_if(|listing| !listing.is_complete()) {
            listing.mark_inconsistent();
            listing.trace_invalidated("it was being read, and is changed here");
        }
        self.changes_in_flight.push(PendingNameChange { number, name: name.into(), is_alone });
        number
    }

    /// It ended; whether no other one of ours was about the same name meanwhile.
    pub(crate) fn end_change(&mut self, number: u64) -> bool {
        let Some(index) = self.changes_in_flight.iter().position(|change| change.number == number) else {
            return false;
        };
        if self.listing.is_some() {
            self.changes_to_list.push(number);
        }
        self.changes_in_flight.swap_remove(index).is_alone
    }

    /// The listing of all its names, as far as it was read, with all changes of ours in it.
    pub(crate) fn current_listing(&mut self) -> Option<Arc<DirectoryListing>> {
        // Nobody said what a change came to.
        if !self.changes_to_list.is_empty() {
            drop(self.invalidate_listing(LOCAL_CHANGE_REASON));
        }
        self.listing.clone()
    }

    /// The same without giving up one that a change of ours is just being entered into; `None` if
    /// there is such a change, or one of `name` is on its way.
    pub(crate) fn settled_listing(&self, name: &[u8]) -> Option<&Arc<DirectoryListing>> {
        let is_changing = self.changes_in_flight.iter().any(|change| *change.name == *name);
        self.listing.as_ref().filter(|_| self.changes_to_list.is_empty() && !is_changing)
    }

    /// `listing` is being read: names of it may be wanted next.
    pub(crate) fn note_reader(&mut self, listing: &Arc<DirectoryListing>) {
        if !std::ptr::eq(self.last_read.as_ptr(), Arc::as_ptr(listing)) {
            self.last_read = Arc::downgrade(listing);
        }
    }

    /// Where the server may tell names that are wanted now: the listing that is kept, or the one
    /// that was read last as long as somebody reads it, be it of another state of the directory.
    pub(crate) fn listing_for_cookies(&self) -> Option<Arc<DirectoryListing>> {
        let kept = self.listing.as_ref().filter(|listing| listing.label().is_some());
        kept.cloned().or_else(|| self.last_read.upgrade())
    }

    /// The server did not go on behind a name of `listing`: it is of no use for that, and names in
    /// a row are counted anew.
    pub(crate) fn forget_cookies(&mut self, listing: &Arc<DirectoryListing>) {
        if std::ptr::eq(self.last_read.as_ptr(), Arc::as_ptr(listing)) {
            self.last_read = Weak::new();
        }
        self.lookup_order.restart();
    }

    /// Keeps a listing for others; gives the former one.
    pub(crate) fn cache_listing(&mut self, listing: &Arc<DirectoryListing>) -> Option<Arc<DirectoryListing>> {
        self.changes_to_list.clear();
        if let Some(former) = self.listing.as_ref().filter(|former| !Arc::ptr_eq(former, listing)) {
            former.trace_invalidated("it was read anew");
        }
        self.listing.replace(Arc::clone(listing))
    }

    /// The change `number` of ours came to this. `None`: nobody knows what, or who else changed the
    /// directory.
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

    /// Listings do not say what is there any more; whoever reads one goes on with it.
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
    fn changes_of_one_name_that_overlap_know_of_each_other() {
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

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn who_insists_waits_no_longer_than_twice_and_is_given_an_answer_ever_more_rarely() {
        let mut insistence = CreateProbe::of(InodeId(7), at(0));
        let due: Vec<u64> = (0..=640)
            .map(|tenth| tenth * 100)
            .filter(|time| insistence.is_due(InodeId(7), at(*time)))
            .collect();
        assert_eq!(due, [1000, 2000, 4000, 8000, 16000, 32000, 64000]);
    }

    #[test]
    fn another_name_begins_anew() {
        let mut insistence = CreateProbe::of(InodeId(7), at(0));
        assert!(!insistence.is_due(InodeId(8), at(5000)));
        assert!(!insistence.is_due(InodeId(7), at(5500)));
        assert!(!insistence.is_due(InodeId(7), at(6499)));
        assert!(insistence.is_due(InodeId(7), at(6500)));
    }
}
