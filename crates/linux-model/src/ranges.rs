//! Sets of pages, as ranges.

use std::collections::BTreeMap;

/// Maximum number of cached ranges of one object: scattered reads add one each.
pub(super) const RANGES_MAX: usize = 1 << 14;

/// A set of pages as half-open ranges; adjacent ones are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageRanges(BTreeMap<u64, u64>);

impl PageRanges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there are more than the maximum.
    pub(super) fn is_too_many(&self) -> bool {
        self.0.len() > RANGES_MAX
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.covered(page).is_some()
    }

    /// The end of the range that contains `page`.
    fn covered(&self, page: u64) -> Option<u64> {
        let (_, end) = self.0.range(..=page).next_back()?;
        (page < *end).then_some(*end)
    }

    /// Adds `start..end`.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        while let Some((&first, &last)) = self.0.range(..=end).next_back() {
            if last < start {
                break;
            }
            (start, end) = (start.min(first), end.max(last));
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }

    /// The parts of `start..end` that are not in it.
    pub(super) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        while at < end {
            if let Some(until) = self.covered(at) {
                at = until;
                continue;
            }
            let next = self.0.range(at..).next().map_or(end, |(first, _)| (*first).min(end));
            gaps.push((at, next));
            at = next;
        }
        gaps
    }

    /// Returns and removes all ranges.
    pub(super) fn take(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets of up to four ranges within eight pages equal sets of single pages.
    #[test]
    fn ranges_are_the_set_of_their_pages() {
        let all: Vec<(u64, u64)> =
            (0..8).flat_map(|start| (start..=8).map(move |end| (start, end))).collect();
        for one in &all {
            for two in &all {
                for three in &all {
                    let mut ranges = PageRanges::default();
                    let mut pages = [false; 8];
                    for (start, end) in [one, two, three] {
                        ranges.add(*start, *end);
                        (*start..*end).for_each(|page| pages[usize::try_from(page).expect("below 8")] = true);
                    }
                    for (page, is_in) in (0..8).zip(pages) {
                        assert_eq!(ranges.has(page), is_in, "{ranges:?}");
                    }
                    let missing: u64 = ranges.gaps(0, 8).iter().map(|(start, end)| end - start).sum();
                    assert_eq!(missing, pages.iter().filter(|is_in| !**is_in).count() as u64);
                    assert!(ranges.gaps(0, 8).iter().all(|(start, end)| start < end));
                }
            }
        }
    }
}
