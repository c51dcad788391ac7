//! Reading: which pages are kept, and how far a sequential reader is read ahead of.
//!
//! The window is that of mm/readahead.c with Linux's 128 KiB for NFS: it begins at two to four
//! times what is asked for, doubles while the reader goes on, and is filled anew when the reader
//! reaches the page that marks it. A program that asks for more at once than the window gets what
//! it asked for, up to a READ's size.

use super::{Linux, LinuxRequest, ObjectId, OpenId, Seen};
use curt_policy::Moment;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages of the largest window.
const WINDOW_MAX: u64 = 32;

/// What is remembered of one open file's reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinuxReadahead {
    start: u64,
    size: u64,
    left: u64,
    previous: u64,
    marker: Option<u64>,
}

impl Linux {
    /// read(2) of `count` bytes at `offset`.
    pub(super) fn read(&mut self, open: OpenId, seen: &Seen, offset: u64, count: u64, now: Moment) {
        self.see(seen);
        if self.object(seen.id, now).must_be_asked(now) {
            self.ask_attributes(seen.id, LinuxRequest::AttributesExpired, now);
        }
        let size = self.object(seen.id, now).size;
        let end = size.min(offset.saturating_add(count));
        if offset >= end {
            return;
        }
        let (mut page, last) = (offset / PAGE, end.div_ceil(PAGE));
        let mut reader = self.readers.get(&open).copied().unwrap_or_default();
        let pages_of_file = size.div_ceil(PAGE);
        while page < last {
            let is_kept = self.object(seen.id, now).pages.has(page);
            if !is_kept || reader.marker == Some(page) {
                let is_wanted = !is_kept;
                let wanted = reader.window(page, last - page, is_wanted, self.options.read_size / PAGE);
                let (from, to) = (wanted.0, wanted.1.min(pages_of_file));
                self.fetch(seen.id, from, to, is_wanted, now);
                if is_wanted {
                    self.fetch(seen.id, page, page + 1, true, now);
                }
            }
            page += 1;
        }
        reader.previous = last - 1;
        self.readers.insert(open, reader);
    }

    /// read(2) of a file that was opened with O_DIRECT. Linux asks behind the end, too; whoever
    /// reads up to the end comes once more to see that it is one.
    pub(super) fn read_direct(&mut self, seen: &Seen, offset: u64, count: u64, now: Moment) {
        self.see(seen);
        self.make_durable(seen.id, now);
        let size = self.object(seen.id, now).size;
        let end = size.min(offset.saturating_add(count));
        let reads = end.saturating_sub(offset).div_ceil(self.options.read_size.max(1));
        let is_last = reads > 0 && end == size;
        for _ in 0..reads + u64::from(is_last) {
            self.send(LinuxRequest::DataRead);
            self.refresh(seen.id, now);
        }
    }

    /// READs for what is missing of some pages.
    fn fetch(&mut self, id: ObjectId, start: u64, end: u64, is_wanted: bool, now: Moment) {
        let per_read = (self.options.read_size / PAGE).max(1);
        for (from, to) in self.object(id, now).pages.gaps(start, end) {
            for _ in 0..(to - from).div_ceil(per_read) {
                let request = if is_wanted {
                    LinuxRequest::DataRead
                } else {
                    LinuxRequest::ReadAhead
                };
                self.send(request);
            }
            self.refresh(id, now);
            let pages = &mut self.object(id, now).pages;
            pages.add(from, to);
            if pages.is_too_many() {
                // As a kernel does that is short of memory.
                pages.clear();
                pages.add(from, to);
                self.forgotten += 1;
            }
        }
    }
}

impl LinuxReadahead {
    /// The pages to be read when `page` is reached, `count` of which are wanted: missing, or marked
    /// as the place to go on from.
    fn window(&mut self, page: u64, count: u64, is_missing: bool, read_pages: u64) -> (u64, u64) {
        let most = if count > WINDOW_MAX {
            WINDOW_MAX.max(count.min(read_pages))
        } else {
            WINDOW_MAX
        };
        let goes_on =
            page != 0 && (page == self.start + self.size - self.left || page == self.start + self.size);
        if goes_on && self.size > 0 {
            self.start += self.size;
            self.size = next(self.size, most);
            self.left = self.size;
        } else if page == 0 || count > most || page.wrapping_sub(self.previous) <= 1 || !is_missing {
            self.start = page;
            self.size = first(count, most);
            self.left = if self.size > count {
                self.size - count
            } else {
                self.size
            };
        } else {
            // One page here, one there.
            return (page, page + count);
        }
        if page == self.start && self.size == self.left {
            let more = next(self.size, most);
            if self.size + more <= most {
                self.left = more;
                self.size += more;
            } else {
                self.size = most;
                self.left = most / 2;
            }
        }
        self.marker = Some(self.start + self.size - self.left);
        (self.start, self.start + self.size)
    }
}

/// The first window of a reader who wants so many pages.
const fn first(wanted: u64, most: u64) -> u64 {
    let rounded = wanted.next_power_of_two();
    if rounded <= most / 32 {
        rounded * 4
    } else if rounded <= most / 4 {
        rounded * 2
    } else {
        most
    }
}

/// The window after one of so many pages.
const fn next(size: u64, most: u64) -> u64 {
    if size < most / 16 {
        size * 4
    } else if size <= most / 2 {
        size * 2
    } else {
        most
    }
}
