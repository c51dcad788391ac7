//! Lists threaded through a slab: which entry was used last.
//!
//! Owns links only. Invariant: an entry is in a list exactly if the list's links say so; all
//! operations are O(1).

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// An entry's place in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct LruLinks {
    previous: u32,
    next: u32,
}

impl LruLinks {
    pub(super) const ALONE: Self = Self {
        previous: NONE,
        next: NONE,
    };
}

/// A list: the entry used last is at its head.
#[derive(Clone, Copy, Debug)]
pub(super) struct LruList {
    head: u32,
    tail: u32,
    pub(super) len: usize,
}

impl LruList {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };

    /// The entry that was not used for longest.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    /// Puts `index` at the head. `links` gives the place of an entry in this list.
    pub(super) fn push<S>(&mut self, slab: &mut S, index: u32, links: impl Fn(&mut S, u32) -> &mut LruLinks) {
        *links(slab, index) = LruLinks {
            previous: NONE,
            next: self.head,
        };
        if self.head == NONE {
            self.tail = index;
        } else {
            links(slab, self.head).previous = index;
        }
        self.head = index;
        self.len += 1;
    }

    /// Takes `index` out.
    pub(super) fn remove<S>(
        &mut self,
        slab: &mut S,
        index: u32,
        links: impl Fn(&mut S, u32) -> &mut LruLinks,
    ) {
        let LruLinks { previous, next } = std::mem::replace(links(slab, index), LruLinks::ALONE);
        if previous == NONE {
            self.head = next;
        } else {
            links(slab, previous).next = next;
        }
        if next == NONE {
            self.tail = previous;
        } else {
            links(slab, next).previous = previous;
        }
        self.len -= 1;
    }
}
