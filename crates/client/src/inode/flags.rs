//! The flags of an inode, and the directory in which it was last listed.
//!
//! Owns the flag bits. They are outside the facts, where they would take eight bytes of each of
//! millions of inodes. All accesses are relaxed.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_policy::prefetch::PrefetchBenefit;
use curt_types::FileKind;

use super::{Inode, InodeFacts, type_state::TypeState};

/// Its name was prefetched with another name, was not cached before, and has not been used since:
/// the first use saves a request.
const PRIMED: u8 = 1;
/// It was used since its attributes were last fetched together with those of siblings.
const USED_SINCE_REFRESH: u8 = 2;
/// The server reported the handle as stale.
const STALE: u8 = 4;
/// The server's decision differed from the mode bits: they no longer decide about access to this
/// inode.
const BITS_DISPUTED: u8 = 8;
/// It was looked up, and no other operation has used it since.
const LOOKED_UP: u8 = 16;
/// Its size has decreased, and it is not certain that the kernel knows the smaller size.
const SHRUNK: u8 = 32;

/// A name in it has been returned to a caller since its lookups were last counted from 0.
const TOLD_NAMES: u8 = 128;

/// All its lookups were returned once, and the registry has its ID.
const FORGOTTEN: u8 = 64;

const _: () = assert!(
    PRIMED + USED_SINCE_REFRESH + STALE + BITS_DISPUTED + LOOKED_UP + SHRUNK == 63
        && FORGOTTEN == 64
        && TOLD_NAMES == 128,
    "each flag is a bit of its own"
);

impl Inode {
    /// Records a use: an operation requested it or was answered from the cache. Returns whether
    /// this is the first use of a prefetched name, which saves a request.
    pub(crate) fn note_use(&self) -> bool {
        let marks = self.flags.load(Relaxed);
        let is_first = marks & USED_SINCE_REFRESH == 0
            && self.flags.fetch_or(USED_SINCE_REFRESH, Relaxed) & USED_SINCE_REFRESH == 0;
        if is_first && let Some(home) = self.listed_in() {
            home.facts().by_type.directory().prefetch.used();
        }
        marks & PRIMED != 0 && self.flags.fetch_and(!PRIMED, Relaxed) & PRIMED != 0
    }

    /// Records that a prefetched name of this directory was used, which saved a request. Returns
    /// whether the name came from a fill.
    pub(crate) fn note_spared(&self) -> bool {
        {
            let mut facts = self.facts();
            let own = &mut facts.by_type.directory().prefetch.own;
            if !own.has_filled() {
                return false;
            }
            own.spared();
        }
        if let Some(parent) = self.parent() {
            parent.facts().by_type.directory().prefetch.below.spared();
        }
        self.core().learn_prefetch(PrefetchBenefit::spared);
        true
    }

    /// The parent directory, if known. Its facts are locked after those of this inode are released,
    /// because a server may return a directory as its own parent, or a file as `..`.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        let parent = match &self.facts().by_type {
            TypeState::Directory(directory) => directory.parent.as_ref()?.0.upgrade()?,
            TypeState::Nothing | TypeState::Link(_) | TypeState::File(_) => return None,
        };
        let kind = parent.facts().state.facts().map(|known| known.kind);
        (kind == Some(FileKind::Directory)).then_some(parent)
    }

    /// Marks its name as prefetched.
    pub(crate) fn mark_primed(&self) {
        self.flags.fetch_or(PRIMED, Relaxed);
    }

    /// Records that its attributes were fetched with those of others in the directory `home`.
    /// Returns whether it had been used since the previous such fetch.
    pub(crate) fn mark_refreshed_in(&self, home: &Arc<Self>) -> bool {
        self.clear_stale();
        let mut facts = self.facts();
        let is_known = facts.listed_in.as_ref().is_some_and(|known| known.as_ptr() == Arc::as_ptr(home));
        let former = if is_known { None } else { facts.listed_in.replace(Arc::downgrade(home)) };
        drop(facts);
        drop(former);
        self.flags.fetch_and(!USED_SINCE_REFRESH, Relaxed) & USED_SINCE_REFRESH != 0
    }

    /// Records a lookup; returns whether no other operation has used the inode since the previous
    /// one.
    pub(crate) fn mark_looked_up(&self) -> bool {
        self.flags.fetch_or(LOOKED_UP, Relaxed) & LOOKED_UP != 0
    }

    /// Records a use other than a lookup.
    pub(crate) fn clear_looked_up(&self) {
        if self.flags.load(Relaxed) & LOOKED_UP != 0 {
            self.flags.fetch_and(!LOOKED_UP, Relaxed);
        }
    }

    /// Records that the size has decreased, so that the kernel's size and copies may be invalid.
    pub(super) fn shrinks(&self, facts: &mut InodeFacts) {
        // The invalidation is counted even if the file was never opened: earlier replies reported
        // its size.
        let _ = facts.by_type.file();
        facts.invalidate_copies();
        self.flags.fetch_or(SHRUNK, Relaxed);
    }

    /// Records that a SETATTR of the size failed for the kernel, which then keeps its old size.
    pub(crate) fn may_seem_larger_again(&self) {
        self.shrinks(&mut self.facts());
    }

    /// Whether the kernel may assume a size larger than the file's.
    pub(crate) fn may_seem_larger(&self) -> bool {
        self.flags.load(Relaxed) & SHRUNK != 0
    }

    /// Records that the kernel's size is not larger than the file's.
    pub(crate) fn seems_no_larger(&self) {
        self.flags.fetch_and(!SHRUNK, Relaxed);
    }

    /// Whether the server reported the handle as stale.
    pub(crate) fn is_stale(&self) -> bool {
        self.flags.load(Relaxed) & STALE != 0
    }

    /// Records that the server reported the handle as stale.
    pub(super) fn set_stale(&self) {
        self.flags.fetch_or(STALE, Relaxed);
    }

    /// Records that the server returned the handle again.
    pub(crate) fn clear_stale(&self) {
        self.flags.fetch_and(!STALE, Relaxed);
    }

    pub(super) fn bits_are_disputed(&self) -> bool {
        self.flags.load(Relaxed) & BITS_DISPUTED != 0
    }

    pub(super) fn dispute_bits(&self) {
        self.flags.fetch_or(BITS_DISPUTED, Relaxed);
    }

    /// Records that a name in this directory is returned to a caller.
    pub(crate) fn tells_a_name(&self) {
        if self.flags.load(Relaxed) & TOLD_NAMES == 0 {
            self.flags.fetch_or(TOLD_NAMES, Relaxed);
        }
    }

    /// Whether a name in it was returned to a caller since its lookups were last counted from 0.
    pub(crate) fn told_names(&self) -> bool {
        self.flags.load(Relaxed) & TOLD_NAMES != 0
    }

    /// Begins the counting of lookups from 0.
    pub(crate) fn begins_to_be_held(&self) {
        self.flags.fetch_and(!TOLD_NAMES, Relaxed);
    }

    /// Records that all its lookups were returned.
    pub(super) fn is_forgotten(&self) {
        self.flags.fetch_or(FORGOTTEN, Relaxed);
    }

    /// Whether all its lookups were returned once.
    pub(super) fn was_forgotten(&self) -> bool {
        self.flags.load(Relaxed) & FORGOTTEN != 0
    }

    /// The directory in whose listing it was last returned.
    pub(crate) fn listed_in(&self) -> Option<Arc<Self>> {
        self.facts().listed_in.as_ref()?.upgrade()
    }

    /// Clears that directory, because the inode was moved or removed.
    pub(crate) fn clear_listed_in(&self) {
        let former = self.facts().listed_in.take();
        drop(former);
    }
}
