//! The locks that are held in one file.
//!
//! Each lock is a node of two treaps in one arena. One orders the locks of a type by their
//! position; each subtree knows the lock that reaches furthest, and the one of another owner that
//! does. So a conflict is found in O(log n), however many locks the requester itself or others
//! hold. The other treap orders all locks by owner and position, for merges and splits. The locks
//! of an owner do not overlap, and those of the same type do not touch.

use std::cmp::Ordering;

use arrayvec::ArrayVec;
use curt_types::{ByteRange, LockType};

use super::owners::OwnerId;

#[cfg(test)]
thread_local! {
    /// The number of times that this thread has looked at a node.
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of times that this thread has looked at a lock.
#[cfg(test)]
pub(in crate::state) fn visits() -> u64 {
    VISITS.get()
}

/// The index of no node.
const NONE: u32 = u32::MAX;

/// The locks of a file.
#[derive(Debug)]
pub(super) struct HeldLocks {
    nodes: Vec<Node>,
    /// The first free node; their left links by owner connect them.
    free: u32,
    len: u32,
    /// The roots of the treaps of read and of write locks by position.
    positions: [u32; 2],
    /// The root of the treap by owner.
    owners: u32,
}

/// A lock: 48 bytes.
#[derive(Clone, Copy, Debug)]
struct Node {
    range: ByteRange,
    owner: OwnerId,
    lock_type: LockType,
    by_position: Links,
    by_owner: Links,
    /// The lock of this subtree by position that ends last.
    furthest: u32,
    /// The lock of this subtree that ends last among those whose owner is not that of `furthest`.
    furthest_other: u32,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    left: u32,
    right: u32,
}

/// The treap's order of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Position,
    Owner,
}

/// The two parts of a divided treap.
struct SplitTreap {
    before: u32,
    after: u32,
}

/// A lock, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldPart {
    pub(super) owner: OwnerId,
    pub(super) lock_type: LockType,
    pub(super) range: ByteRange,
}

/// The change of the ranges by a LOCK or UNLOCK.
#[derive(Debug)]
pub(super) struct Change {
    removed: Vec<u32>,
    added: ArrayVec<HeldPart, 3>,
    /// The owner's locks of the range before.
    pub(super) replaced: Vec<HeldPart>,
}

impl Change {
    /// How many locks more there will be.
    pub(super) fn growth(&self) -> i64 {
        i64::try_from(self.added.len()).unwrap_or(0) - i64::try_from(self.removed.len()).unwrap_or(0)
    }
}

impl HeldLocks {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE, len: 0, positions: [NONE; 2], owners: NONE }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of locks.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// A lock of another owner that conflicts with a lock of this type and range by `owner`;
    /// `None`: an owner without locks.
    pub(super) fn conflict(
        &self,
        owner: Option<OwnerId>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Option<HeldPart> {
        let writes = self.furthest_of_others(LockType::Write, owner, range);
        writes.or_else(|| match lock_type {
            LockType::Read => None,
            LockType::Write => self.furthest_of_others(LockType::Read, owner, range),
        })
    }

    /// Whether a lock of `owner` itself does not allow others a lock of this type and range.
    pub(super) fn blocks(&self, owner: OwnerId, lock_type: LockType, range: ByteRange) -> bool {
        let own = self.of_owner(owner, range);
        own.iter().any(|index| self.node(*index).lock_type.conflicts(lock_type))
    }

    /// The locks of `owner` that have bytes in the range.
    pub(super) fn parts_of(&self, owner: OwnerId, range: ByteRange) -> Vec<HeldPart> {
        self.of_owner(owner, range).into_iter().map(|index| self.node(index).part()).collect()
    }

    /// Whether `owner` holds any lock.
    pub(super) fn holds(&self, owner: OwnerId) -> bool {
        let mut at = self.owners;
        while at != NONE {
            let node = self.node(at);
            at = match node.owner.cmp(&owner) {
                Ordering::Equal => return true,
                Ordering::Less => node.by_owner.right,
                Ordering::Greater => node.by_owner.left,
            };
        }
        false
    }

    /// Whether `owner` holds all of the range with this type or a stronger one.
    pub(super) fn covers(&self, owner: OwnerId, lock_type: LockType, range: ByteRange) -> bool {
        let mut next = Some(range.first());
        for index in self.of_owner(owner, range) {
            let node = self.node(index);
            let is_weaker = lock_type == LockType::Write && node.lock_type == LockType::Read;
            let Some(first) = next else { return !is_weaker };
            if is_weaker || node.range.first() > first {
                return false;
            }
            next = node.range.last().checked_add(1);
        }
        next.is_none_or(|first| first > range.last())
    }

    /// Computes the change that gives `owner` the range with this type, or unlocks it if `None`.
    pub(super) fn change(&self, owner: OwnerId, lock_type: Option<LockType>, range: ByteRange) -> Change {
        let touching = ByteRange::new(range.first().saturating_sub(1), range.last().saturating_add(1));
        let (mut added, mut replaced) = (ArrayVec::new(), Vec::new());
        let mut merged = range;
        let mut removed = self.of_owner(owner, touching.unwrap_or(range));
        removed.retain(|index| {
            let node = self.node(*index);
            let part = |range| HeldPart { owner, lock_type: node.lock_type, range };
            let common = node.range.common(range);
            replaced.extend(common.map(part));
            if lock_type == Some(node.lock_type) {
                let first = merged.first().min(node.range.first());
                let last = merged.last().max(node.range.last());
                merged = ByteRange::new(first, last).unwrap_or(merged);
            } else if common.is_none() {
                return false;
            } else {
                let before = range.first().checked_sub(1);
                let after = range.last().checked_add(1);
                let before = before.and_then(|last| ByteRange::new(node.range.first(), last));
                let after = after.and_then(|first| ByteRange::new(first, node.range.last()));
                // At most the first lock in the range has a rest before it, and the last one after.
                added.extend(before.into_iter().chain(after).map(part));
            }
            true
        });
        if let Some(lock_type) = lock_type {
            added.push(HeldPart { owner, lock_type, range: merged });
        }
        Change { removed, added, replaced }
    }

    /// Carries out a change. Nothing was changed since it was determined.
    pub(super) fn apply(&mut self, change: &Change, seed: u64) {
        for index in &change.removed {
            self.remove(*index, seed);
        }
        for part in &change.added {
            self.insert(*part, seed);
        }
    }

    /// Calls `visit` for each lock that has bytes in the range, read locks first, each type in the
    /// order of positions.
    pub(super) fn visit(&self, range: ByteRange, visit: &mut dyn FnMut(HeldPart)) {
        for root in self.positions {
            self.visit_below(root, range, visit);
        }
    }

    fn visit_below(&self, at: u32, range: ByteRange, visit: &mut dyn FnMut(HeldPart)) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        if self.node(node.furthest).range.last() < range.first() {
            return;
        }
        self.visit_below(node.by_position.left, range, visit);
        if node.range.overlaps(range) {
            visit(node.part());
        }
        if node.range.first() <= range.last() {
            self.visit_below(node.by_position.right, range, visit);
        }
    }

    /// The lock that ends last among those of this type that are not of `owner` and do not begin
    /// behind the range, if it ends in or behind the range.
    fn furthest_of_others(
        &self,
        lock_type: LockType,
        owner: Option<OwnerId>,
        range: ByteRange,
    ) -> Option<HeldPart> {
        let mut at = self.positions[lock_type as usize];
        let mut best: Option<HeldPart> = None;
        let mut consider = |index: u32| {
            if index == NONE {
                return;
            }
            let node = self.node(index);
            let is_further = best.is_none_or(|best| best.range.last() < node.range.last());
            if Some(node.owner) != owner && is_further {
                best = Some(node.part());
            }
        };
        while at != NONE {
            let node = self.node(at);
            if node.range.first() > range.last() {
                at = node.by_position.left;
                continue;
            }
            consider(at);
            if node.by_position.left != NONE {
                let left = self.node(node.by_position.left);
                consider(left.furthest);
                consider(left.furthest_other);
            }
            at = node.by_position.right;
        }
        best.filter(|best| best.range.last() >= range.first())
    }

    /// The locks of `owner` that have bytes in the range, in the order of their positions.
    fn of_owner(&self, owner: OwnerId, range: ByteRange) -> Vec<u32> {
        let mut found = Vec::new();
        self.of_owner_below(self.owners, owner, range, &mut found);
        found
    }

    fn of_owner_below(&self, at: u32, owner: OwnerId, range: ByteRange, found: &mut Vec<u32>) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        if (node.owner, node.range.first()) > (owner, range.last()) {
            return self.of_owner_below(node.by_owner.left, owner, range, found);
        }
        // The locks of one owner are disjoint: if this one ends before the range, so do those on
        // its left.
        if node.owner == owner && node.range.last() >= range.first() {
            self.of_owner_below(node.by_owner.left, owner, range, found);
            found.push(at);
        }
        self.of_owner_below(node.by_owner.right, owner, range, found);
    }

    fn insert(&mut self, part: HeldPart, seed: u64) {
        let node = Node {
            range: part.range,
            owner: part.owner,
            lock_type: part.lock_type,
            by_position: Links { left: NONE, right: NONE },
            by_owner: Links { left: NONE, right: NONE },
            furthest: NONE,
            furthest_other: NONE,
        };
        let index = if self.free == NONE {
            if self.nodes.is_empty() {
                // Most files have one lock.
                self.nodes.reserve_exact(1);
            }
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("limits keep the number of locks below 2^32-1")
        } else {
            let index = self.free;
            self.free = self.node(index).by_owner.left;
            *self.node_mut(index) = node;
            index
        };
        self.update(index);
        self.len += 1;
        let root = self.positions[part.lock_type as usize];
        self.positions[part.lock_type as usize] = self.insert_below(root, index, Order::Position, seed);
        self.owners = self.insert_below(self.owners, index, Order::Owner, seed);
    }

    fn remove(&mut self, index: u32, seed: u64) {
        let lock_type = self.node(index).lock_type as usize;
        self.positions[lock_type] =
            self.remove_below(self.positions[lock_type], index, Order::Position, seed);
        self.owners = self.remove_below(self.owners, index, Order::Owner, seed);
        self.node_mut(index).by_owner.left = self.free;
        self.free = index;
        self.len -= 1;
        if self.len == 0 {
            self.nodes = Vec::new();
            self.free = NONE;
        }
    }

    fn insert_below(&mut self, at: u32, index: u32, order: Order, seed: u64) -> u32 {
        if at == NONE {
            return index;
        }
        if priority(index, seed) > priority(at, seed) {
            let halves = self.divide(at, index, order);
            *self.links_mut(index, order) = Links { left: halves.before, right: halves.after };
            self.update_in(index, order);
            return index;
        }
        let links = *self.links(at, order);
        if self.compare(index, at, order) == Ordering::Less {
            let before = self.furthest_below(links.left);
            let left = self.insert_below(links.left, index, order, seed);
            self.links_mut(at, order).left = left;
            self.update_after(at, order, before, left);
        } else {
            let before = self.furthest_below(links.right);
            let right = self.insert_below(links.right, index, order, seed);
            self.links_mut(at, order).right = right;
            self.update_after(at, order, before, right);
        }
        at
    }

    fn remove_below(&mut self, at: u32, index: u32, order: Order, seed: u64) -> u32 {
        assert_ne!(at, NONE, "a lock is in both orders");
        let links = *self.links(at, order);
        match self.compare(index, at, order) {
            Ordering::Equal => return self.join(links.left, links.right, order, seed),
            Ordering::Less => {
                let before = self.furthest_below(links.left);
                let left = self.remove_below(links.left, index, order, seed);
                self.links_mut(at, order).left = left;
                self.update_after(at, order, before, left);
            }
            Ordering::Greater => {
                let before = self.furthest_below(links.right);
                let right = self.remove_below(links.right, index, order, seed);
                self.links_mut(at, order).right = right;
                self.update_after(at, order, before, right);
            }
        }
        at
    }

    /// Divides a treap into the locks before and after `index`.
    fn divide(&mut self, at: u32, index: u32, order: Order) -> SplitTreap {
        if at == NONE {
            return SplitTreap { before: NONE, after: NONE };
        }
        let links = *self.links(at, order);
        let halves = if self.compare(at, index, order) == Ordering::Less {
            let halves = self.divide(links.right, index, order);
            self.links_mut(at, order).right = halves.before;
            SplitTreap { before: at, ..halves }
        } else {
            let halves = self.divide(links.left, index, order);
            self.links_mut(at, order).left = halves.after;
            SplitTreap { after: at, ..halves }
        };
        self.update_in(at, order);
        halves
    }

    /// Joins two treaps, one before the other.
    fn join(&mut self, before: u32, after: u32, order: Order, seed: u64) -> u32 {
        if before == NONE || after == NONE {
            return if before == NONE { after } else { before };
        }
        if priority(before, seed) > priority(after, seed) {
            let right = self.join(self.links(before, order).right, after, order, seed);
            self.links_mut(before, order).right = right;
            self.update_in(before, order);
            before
        } else {
            let left = self.join(before, self.links(after, order).left, order, seed);
            self.links_mut(after, order).left = left;
            self.update_in(after, order);
            after
        }
    }

    fn compare(&self, one: u32, other: u32, order: Order) -> Ordering {
        let (one, other) = (self.node(one), self.node(other));
        let position = one.range.first().cmp(&other.range.first());
        match order {
            Order::Position => position.then(one.owner.cmp(&other.owner)),
            Order::Owner => one.owner.cmp(&other.owner).then(position),
        }
    }

    fn update_in(&mut self, index: u32, order: Order) {
        if order == Order::Position {
            self.update(index);
        }
    }

    /// The locks of a subtree that reach furthest.
    fn furthest_below(&self, at: u32) -> [u32; 2] {
        if at == NONE {
            return [NONE; 2];
        }
        let node = self.node(at);
        [node.furthest, node.furthest_other]
    }

    /// Updates a node one of whose children was changed. As a rule its furthest locks are those
    /// from before: then nothing is to be computed, which would look at nodes all over the memory.
    fn update_after(&mut self, index: u32, order: Order, before: [u32; 2], child: u32) {
        if order == Order::Position && self.furthest_below(child) != before {
            self.update(index);
        }
    }

    /// Computes which locks of a subtree reach furthest, from those of its parts.
    fn update(&mut self, index: u32) {
        let links = self.node(index).by_position;
        let mut furthest = index;
        let mut furthest_other = NONE;
        for child in [links.left, links.right].into_iter().filter(|child| *child != NONE) {
            let child = *self.node(child);
            for candidate in [child.furthest, child.furthest_other] {
                if candidate == NONE {
                    continue;
                }
                let (reach, owner) = self.reach(candidate);
                let (best, best_owner) = self.reach(furthest);
                if reach > best {
                    if owner != best_owner {
                        furthest_other = furthest;
                    }
                    furthest = candidate;
                } else if owner != best_owner
                    && (furthest_other == NONE || reach > self.node(furthest_other).range.last())
                {
                    furthest_other = candidate;
                }
            }
        }
        let node = self.node_mut(index);
        node.furthest = furthest;
        node.furthest_other = furthest_other;
    }

    fn reach(&self, index: u32) -> (u64, OwnerId) {
        let node = self.node(index);
        (node.range.last(), node.owner)
    }

    fn node(&self, index: u32) -> &Node {
        #[cfg(test)]
        VISITS.set(VISITS.get() + 1);
        &self.nodes[index as usize]
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    fn links(&self, index: u32, order: Order) -> &Links {
        match order {
            Order::Position => &self.node(index).by_position,
            Order::Owner => &self.node(index).by_owner,
        }
    }

    fn links_mut(&mut self, index: u32, order: Order) -> &mut Links {
        match order {
            Order::Position => &mut self.node_mut(index).by_position,
            Order::Owner => &mut self.node_mut(index).by_owner,
        }
    }
}

impl Node {
    const fn part(&self) -> HeldPart {
        HeldPart { owner: self.owner, lock_type: self.lock_type, range: self.range }
    }
}

/// The priority of a node in both treaps. Clients cannot predict it, so they cannot make the treaps
/// deep.
fn priority(index: u32, seed: u64) -> u64 {
    // The finalizer of SplitMix64.
    let mut mixed = u64::from(index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    impl HeldLocks {
        /// The number of nodes on the longest way down a treap.
        fn depth(&self, at: u32, order: Order) -> u32 {
            if at == NONE {
                return 0;
            }
            let links = *self.links(at, order);
            1 + self.depth(links.left, order).max(self.depth(links.right, order))
        }
    }

    #[test]
    fn the_ways_to_a_lock_are_short_whatever_the_order_of_100_000_locks_is() {
        // In order, in reverse, all over the file; of one owner, and each of its own.
        let orders: [fn(u32) -> u32; 3] =
            [|number| number, |number| 99_999 - number, |number| number.wrapping_mul(0x9e37) % 100_000];
        for (seed, position) in (7..).zip(orders) {
            for owners in [1, u32::MAX] {
                let mut held = HeldLocks::new();
                for number in 0..100_000 {
                    let first = u64::from(position(number)) * 2;
                    let range = ByteRange::new(first, first).unwrap();
                    let change = held.change(OwnerId(number % owners), Some(LockType::Write), range);
                    held.apply(&change, seed);
                }
                let [_, writes] = held.positions;
                let depths = [held.depth(writes, Order::Position), held.depth(held.owners, Order::Owner)];
                // A balanced tree has 17 levels; a random one about 40.
                assert!(depths.iter().all(|depth| *depth < 60), "{depths:?}");
                assert_eq!(size_of::<Node>(), 48);
            }
        }
    }
}
