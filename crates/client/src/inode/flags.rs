//! An inode's flags, and the directory in which it was last found.
//!
//! Owns the bits: they are beside the facts, because in them they would take eight bytes of each of
//! millions of inodes. All accesses are relaxed.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_policy::prefetch::PrefetchBenefit;
use curt_types::FileKind;

use super::{Inode, InodeFacts, TypeState};

/// Its name came because another was wanted, was not known before, and was not used since: whoever
/// uses it is spared a request.
const PRIMED: u8 = 1;
/// It was used since its attributes last came with those of others.
const USED_SINCE_REFRESH: u8 = 2;
/// The server said that the handle is stale.
const STALE: u8 = 4;
/// The server and the mode bits disagreed: the mode bits no longer decide about access to this
/// object.
const BITS_DISPUTED: u8 = 8;
/// It was looked up, and nothing was done with it since.
const LOOKED_UP: u8 = 16;
/// It was found shorter than before, and nothing proves that a kernel in front of this client knows
/// that.
const SHRUNK: u8 = 32;

/// Somebody who has held it since was told what names in it lead to.
const TOLD_NAMES: u8 = 128;

/// All look-ups of it were given back once, and the registry knows its number.
const FORGOTTEN: u8 = 64;

const _: () = assert!(
    PRIMED + USED_SINCE_REFRESH + STALE + BITS_DISPUTED + LOOKED_UP + SHRUNK == 63
        && FORGOTTEN == 64
        && TOLD_NAMES == 128,
    "each flag is a bit of its own"
);

impl Inode {
    /// It is used, having been asked for by itself or answered about without a request; whether
    /// that spares one since its name came with another, unasked for.
    pub(crate) fn note_use(&self) -> bool {
        let marks = self.flags.load(Relaxed);
        let is_first = marks & USED_SINCE_REFRESH == 0
            && self.flags.fetch_or(USED_SINCE_REFRESH, Relaxed) & USED_SINCE_REFRESH == 0;
        if is_first && let Some(home) = self.listed_in() {
            home.facts().by_type.directory().prefetch.used();
        }
        marks & PRIMED != 0 && self.flags.fetch_and(!PRIMED, Relaxed) & PRIMED != 0
    }

    /// A name in it was answered for that nobody had asked for: a request was spared. Whether that
    /// was due to a fill.
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
        self.core.learn_prefetch(PrefetchBenefit::spared);
        true
    }

    /// The directory that this one is in, if that is known. Its facts are to be taken after those
    /// of this one: the server may say that a directory is in itself, or that `..` leads to a file.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        let parent = match &self.facts().by_type {
            TypeState::Directory(kept) => kept.parent.as_ref()?.0.upgrade()?,
            TypeState::Nothing | TypeState::Link(_) | TypeState::File(_) => return None,
        };
        let kind = parent.facts().state.facts().map(|known| known.kind);
        (kind == Some(FileKind::Directory)).then_some(parent)
    }

    /// Its name came because another was wanted, and was not known.
    pub(crate) fn mark_primed(&self) {
        self.flags.fetch_or(PRIMED, Relaxed);
    }

    /// It was found at `home`, and its attributes came with those of others there; whether it had
    /// been used since they last did.
    pub(crate) fn mark_refreshed_in(&self, home: &Arc<Self>) -> bool {
        self.clear_stale();
        let mut facts = self.facts();
        let is_known = facts.listed_in.as_ref().is_some_and(|known| known.as_ptr() == Arc::as_ptr(home));
        let former = if is_known { None } else { facts.listed_in.replace(Arc::downgrade(home)) };
        drop(facts);
        drop(former);
        self.flags.fetch_and(!USED_SINCE_REFRESH, Relaxed) & USED_SINCE_REFRESH != 0
    }

    /// It is looked up; whether nothing was done with it since it was before.
    pub(crate) fn mark_looked_up(&self) -> bool {
        self.flags.fetch_or(LOOKED_UP, Relaxed) & LOOKED_UP != 0
    }

    /// Something is done with it.
    pub(crate) fn clear_looked_up(&self) {
        if self.flags.load(Relaxed) & LOOKED_UP != 0 {
            self.flags.fetch_and(!LOOKED_UP, Relaxed);
        }
    }

    /// It is shorter than a kernel may have been told, whose copies are void.
    pub(super) fn shrinks(&self, facts: &mut InodeFacts) {
        // That they are void is counted even if the file was never opened: replies told of its
        // size.
        let _ = facts.by_type.file();
        facts.invalidate_copies();
        self.flags.fetch_or(SHRUNK, Relaxed);
    }

    /// A kernel that set its size was told of a failure, and keeps the size that it knew.
    pub(crate) fn may_seem_larger_again(&self) {
        self.shrinks(&mut self.facts());
    }

    /// Whether a kernel may take it for larger than it is.
    pub(crate) fn may_seem_larger(&self) -> bool {
        self.flags.load(Relaxed) & SHRUNK != 0
    }

    /// A kernel takes it for no larger than it is.
    pub(crate) fn seems_no_larger(&self) {
        self.flags.fetch_and(!SHRUNK, Relaxed);
    }

    /// Whether the server said that its handle is stale.
    pub(crate) fn is_stale(&self) -> bool {
        self.flags.load(Relaxed) & STALE != 0
    }

    /// The server said so.
    pub(super) fn set_stale(&self) {
        self.flags.fetch_or(STALE, Relaxed);
    }

    /// The server told of its handle again.
    pub(crate) fn clear_stale(&self) {
        self.flags.fetch_and(!STALE, Relaxed);
    }

    pub(super) fn bits_are_disputed(&self) -> bool {
        self.flags.load(Relaxed) & BITS_DISPUTED != 0
    }

    pub(super) fn dispute_bits(&self) {
        self.flags.fetch_or(BITS_DISPUTED, Relaxed);
    }

    /// What a name in it leads to is told.
    pub(crate) fn tells_a_name(&self) {
        if self.flags.load(Relaxed) & TOLD_NAMES == 0 {
            self.flags.fetch_or(TOLD_NAMES, Relaxed);
        }
    }

    /// Whether that was told of any since it has been held.
    pub(crate) fn told_names(&self) -> bool {
        self.flags.load(Relaxed) & TOLD_NAMES != 0
    }

    /// Nobody held a look-up of it until now.
    pub(crate) fn begins_to_be_held(&self) {
        self.flags.fetch_and(!TOLD_NAMES, Relaxed);
    }

    /// All look-ups of it were given back.
    pub(super) fn is_forgotten(&self) {
        self.flags.fetch_or(FORGOTTEN, Relaxed);
    }

    /// Whether they were once.
    pub(super) fn was_forgotten(&self) -> bool {
        self.flags.load(Relaxed) & FORGOTTEN != 0
    }

    /// The directory that told of it last together with others.
    pub(crate) fn listed_in(&self) -> Option<Arc<Self>> {
        self.facts().listed_in.as_ref()?.upgrade()
    }

    /// It is not where it was any more.
    pub(crate) fn clear_listed_in(&self) {
        let former = self.facts().listed_in.take();
        drop(former);
    }
}
