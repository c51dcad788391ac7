//! Opens of a directory's files in an order: which files are opened together.
//!
//! A program that reads a tree opens each file of a directory, in the order in which they are
//! listed or in that of their names, forward or backward. With read delegations an OPEN is of use
//! whenever it is sent: so the request for a file carries the OPENs and the READs of those that are
//! expected next. As with all that is done ahead, the measured benefit decides whether that goes
//! on.

use crate::speculation::SpeculationBenefit;

/// The most files that are opened together with another.
pub const SIBLINGS_MAX: usize = 7;

/// Names of a directory among which they are searched.
pub const NAMES_SEARCHED_MAX: usize = 64;

/// The most names of a directory that are brought into order.
pub const NAMES_SORTED_MAX: u32 = 4096;

/// The largest file that is opened with another, and all files of such a request, in bytes.
const SIBLING_READ_MAX: u64 = 64 << 10;
const SIBLINGS_READ_MAX: u64 = 256 << 10;

/// Opens in order after which the next ones are expected.
const RUN_MIN: u32 = 4;

/// Names within which an open is the next: between files there are names of other objects, and of
/// files that a program leaves out.
const WINDOW: u32 = 8;

/// An order of a directory's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameOrder {
    /// The order of its listing.
    Listed,
    /// The order of the names' bytes.
    Sorted,
}

impl NameOrder {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::Listed, Self::Sorted];
}

/// The direction in which an order is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListingDirection {
    /// From its beginning.
    Forward,
    /// From its end.
    Backward,
}

/// The opens of a directory's files for which a request was sent, in one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpenOrder {
    /// The place of the last one.
    last: Option<u32>,
    /// Opens in this direction without an interruption.
    run: Option<(ListingDirection, u32)>,
}

impl OpenOrder {
    /// Records that the file at `place` of the order is opened. Returns the direction in which
    /// the next ones are expected, if they are.
    pub fn opened(&mut self, place: u32, benefit: &mut SpeculationBenefit) -> Option<ListingDirection> {
        let last = self.last.replace(place)?;
        let direction = match place {
            _ if place == last || place.abs_diff(last) > WINDOW => {
                self.run = None;
                return None;
            }
            _ if place > last => ListingDirection::Forward,
            _ => ListingDirection::Backward,
        };
        let former = self.run.filter(|(former, _)| *former == direction);
        let length = former.map_or(1, |(_, length)| length).saturating_add(1);
        self.run = Some((direction, length));
        (length >= RUN_MIN && benefit.should_try()).then_some(direction)
    }

    /// Records that files up to `place` were opened together with the last one.
    pub const fn opened_together(&mut self, place: u32) {
        self.last = Some(place);
    }
}

/// The files of one request, in bytes that are read.
#[derive(Clone, Copy, Debug)]
pub struct SiblingBudget {
    count: usize,
    bytes: u64,
}

impl SiblingBudget {
    /// The budget of a request that reads a file of `size` bytes.
    #[must_use]
    pub const fn for_file(size: u64) -> Self {
        Self { count: 0, bytes: size }
    }

    /// Whether there is room for another file.
    #[must_use]
    pub const fn has_room(self) -> bool {
        self.count < SIBLINGS_MAX && self.bytes < SIBLINGS_READ_MAX
    }

    /// Whether a file of `size` bytes is opened with the request.
    pub const fn take(&mut self, size: u64) -> bool {
        let fits = size > 0 && size <= SIBLING_READ_MAX && self.bytes + size <= SIBLINGS_READ_MAX;
        if !(fits && self.has_room()) {
            return false;
        }
        self.count += 1;
        self.bytes += size;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directions(places: &[u32]) -> Vec<Option<ListingDirection>> {
        let (mut order, mut benefit) = (OpenOrder::default(), SpeculationBenefit::default());
        places.iter().map(|place| order.opened(*place, &mut benefit)).collect()
    }

    #[test]
    fn the_next_files_are_expected_after_four_in_order() {
        use ListingDirection::{Backward, Forward};
        assert_eq!(directions(&[1, 2, 3, 4, 5]), [None, None, None, Some(Forward), Some(Forward)]);
        assert_eq!(directions(&[90, 82, 80, 79]), [None, None, None, Some(Backward)]);
        assert_eq!(directions(&[1, 2, 3, 2, 1, 0]), [None, None, None, None, None, Some(Backward)]);
        assert_eq!(directions(&[1, 2, 3, 3, 4]), [None; 5], "it is opened again");
        assert_eq!(directions(&[1, 2, 3, 12, 13, 14, 15]), {
            let mut expected = [None; 7];
            expected[6] = Some(Forward);
            expected
        });
    }

    #[test]
    fn those_that_were_opened_together_do_not_interrupt_the_order() {
        let (mut order, mut benefit) = (OpenOrder::default(), SpeculationBenefit::default());
        let open =
            |order: &mut OpenOrder, benefit: &mut SpeculationBenefit, place| order.opened(place, benefit);
        for place in 0..4 {
            let _ = open(&mut order, &mut benefit, place);
        }
        order.opened_together(60);
        assert_eq!(open(&mut order, &mut benefit, 61), Some(ListingDirection::Forward));
    }

    #[test]
    fn what_is_not_used_is_not_opened_ahead_any_more() {
        let (mut order, mut benefit) = (OpenOrder::default(), SpeculationBenefit::default());
        let mut ahead = 0;
        for place in 0..3200 {
            if order.opened(place, &mut benefit).is_some() {
                ahead += 1;
                benefit.record(false);
            }
        }
        assert!((32..64).contains(&ahead), "{ahead}");
    }

    #[test]
    fn a_request_has_few_files_and_bytes() {
        let mut budget = SiblingBudget::for_file(0);
        assert!(!budget.take(0) && !budget.take(SIBLING_READ_MAX + 1));
        assert_eq!((0..100).filter(|_| budget.take(1)).count(), SIBLINGS_MAX);
        let mut budget = SiblingBudget::for_file(SIBLINGS_READ_MAX - 5);
        assert!(!budget.take(6) && budget.take(5) && !budget.take(1) && !budget.has_room());
    }
}
