//! The bytes of a file in memory: written pages over a formula that needs no memory, and holes.

use std::collections::HashMap;
use std::sync::Arc;

/// Bytes that depend only on a file's path and the offset.
pub trait ContentFormula: Send + Sync {
    /// Fills `buffer` with the bytes from `offset` of the file at `path` (relative to the tree,
    /// without a leading `/`).
    fn fill(&self, path: &[u8], offset: u64, buffer: &mut [u8]);
}

/// The unit of space in bytes.
pub(super) const PAGE_BYTES: usize = 4096;

/// The bytes below the pages: those of the formula up to `end`, zeros beyond.
#[derive(Clone)]
struct FormulaContent {
    formula: Arc<dyn ContentFormula>,
    path: Arc<[u8]>,
    end: u64,
}

/// A regular file's bytes. A copy shares the pages until one side writes.
#[derive(Clone, Default)]
pub(super) struct FileContent {
    size: u64,
    base: Option<FormulaContent>,
    pages: HashMap<u64, Arc<[u8; PAGE_BYTES]>>,
}

impl FileContent {
    pub(super) fn from_formula(formula: Arc<dyn ContentFormula>, path: &[u8], size: u64) -> Self {
        Self {
            size,
            base: Some(FormulaContent { formula, path: path.into(), end: size }),
            pages: HashMap::new(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Size of the pages in bytes.
    pub(super) fn used(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }

    /// The value of `used` for files with a formula, as if they were on a disk.
    pub(super) fn shown_used(&self) -> u64 {
        let base = self.base.as_ref().map_or(0, |base| base.end.next_multiple_of(512));
        base.max(self.used())
    }

    /// Additional space that a write needs.
    pub(super) fn growth(&self, offset: u64, count: usize) -> u64 {
        if count == 0 {
            return 0;
        }
        let pages = page_of(offset)..=page_of(offset + count as u64 - 1);
        (pages.filter(|page| !self.pages.contains_key(page)).count() * PAGE_BYTES) as u64
    }

    /// Appends the bytes from `offset` to the end, at most `count`.
    pub(super) fn read(&self, offset: u64, count: u32, data: &mut Vec<u8>) -> u32 {
        let count = u32::try_from(self.size.saturating_sub(offset).min(u64::from(count))).unwrap_or(count);
        let start = data.len();
        data.resize(start + count as usize, 0);
        let mut at = offset;
        let mut rest = &mut data[start..];
        while !rest.is_empty() {
            let within = within_page(at);
            let (now, later) = rest.split_at_mut(rest.len().min(PAGE_BYTES - within));
            match self.pages.get(&page_of(at)) {
                Some(page) => now.copy_from_slice(&page[within..within + now.len()]),
                None => self.fill_base(at, now),
            }
            at += now.len() as u64;
            rest = later;
        }
        count
    }

    fn fill_base(&self, offset: u64, buffer: &mut [u8]) {
        let Some(base) = &self.base else { return };
        let count = usize::try_from(base.end.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        base.formula.fill(&base.path, offset, &mut buffer[..count]);
    }

    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) {
        let mut at = offset;
        while !data.is_empty() {
            let within = within_page(at);
            let (now, later) = data.split_at(data.len().min(PAGE_BYTES - within));
            let page = self.page_mut(page_of(at));
            page[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            data = later;
        }
        self.size = self.size.max(at);
    }

    fn page_mut(&mut self, page: u64) -> &mut [u8; PAGE_BYTES] {
        if !self.pages.contains_key(&page) {
            let mut bytes = [0; PAGE_BYTES];
            self.fill_base(page * PAGE_BYTES as u64, &mut bytes);
            self.pages.insert(page, Arc::new(bytes));
        }
        let shared = self.pages.get_mut(&page).expect("it was put there just now");
        Arc::make_mut(shared)
    }

    /// Truncates or extends; the extension reads as zeros.
    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            if let Some(base) = &mut self.base {
                base.end = base.end.min(size);
            }
            let keep = size.div_ceil(PAGE_BYTES as u64);
            self.pages.retain(|page, _| *page < keep);
            let within = within_page(size);
            if within > 0
                && let Some(last) = self.pages.get_mut(&page_of(size))
            {
                Arc::make_mut(last)[within..].fill(0);
            }
        }
        self.size = size;
    }
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES as u64
}

fn within_page(offset: u64) -> usize {
    usize::try_from(offset % PAGE_BYTES as u64).expect("a page's size is a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting;

    impl ContentFormula for Counting {
        fn fill(&self, path: &[u8], offset: u64, buffer: &mut [u8]) {
            for (at, byte) in (offset..).zip(buffer) {
                *byte = (at % 251) as u8 ^ path[0];
            }
        }
    }

    fn bytes(content: &FileContent, offset: u64, count: u32) -> Vec<u8> {
        let mut data = Vec::new();
        content.read(offset, count, &mut data);
        data
    }

    #[test]
    fn a_write_over_a_formula_keeps_the_bytes_around_it() {
        let mut content = FileContent::from_formula(Arc::new(Counting), b"p", 10_000);
        let mut model = vec![0; 10_000];
        Counting.fill(b"p", 0, &mut model);
        assert_eq!((content.used(), bytes(&content, 0, 20_000)), (0, model.clone()));
        content.write(4090, b"0123456789");
        model[4090..4100].copy_from_slice(b"0123456789");
        assert_eq!((content.used(), bytes(&content, 0, 20_000)), (8192, model));
    }

    #[test]
    fn what_was_cut_does_not_come_back() {
        let mut content = FileContent::from_formula(Arc::new(Counting), b"p", 10_000);
        content.write(5000, b"x");
        content.resize(4500);
        content.resize(9000);
        let mut model = vec![0; 4500];
        Counting.fill(b"p", 0, &mut model);
        model.resize(9000, 0);
        assert_eq!(bytes(&content, 0, 9000), model);
    }

    #[test]
    fn a_copy_shares_nothing_that_is_written_later() {
        let mut content = FileContent::default();
        content.write(0, b"before");
        let copy = content.clone();
        content.write(0, b"after!");
        assert_eq!((bytes(&copy, 0, 9), bytes(&content, 0, 9)), (b"before".to_vec(), b"after!".to_vec()));
    }
}
