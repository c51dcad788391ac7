//! Reading: cached pages, and read-ahead for sequential readers.
//!
//! The window is that of mm/readahead.c with Linux's 128 KiB for NFS: it begins at two to four
//! times the requested size, doubles while the reader continues, and is filled again when the
//! reader reaches the marked page. A request larger than the window is sent as it is, up to a
//! READ's size.

use super::{Linux, LinuxRequest, ObjectId, OpenId, ReportedObject};
use curt_policy::MonotonicTime;

/// Page size in bytes.
const PAGE: u64 = 4096;
/// Maximum window in pages.
const WINDOW_MAX: u64 = 32;

/// The read-ahead state of one open file.
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
    pub(super) fn read(
        &mut self,
        open: OpenId,
        seen: &ReportedObject,
        offset: u64,
        count: u64,
        now: MonotonicTime,
    ) {
        self.see(seen);
        if self.object(seen.id, now).must_revalidate(now) {
            self.send_getattr(seen.id, LinuxRequest::AttributesExpired, now);
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

    /// read(2) of a file with O_DIRECT. Linux sends a READ beyond the end, too; a program that
    /// reads up to the end reads once more to find it.
    pub(super) fn read_direct(&mut self, seen: &ReportedObject, offset: u64, count: u64, now: MonotonicTime) {
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

    /// READs for the missing ones of some pages.
    fn fetch(&mut self, id: ObjectId, start: u64, end: u64, is_wanted: bool, now: MonotonicTime) {
        let per_read = (self.options.read_size / PAGE).max(1);
        for (from, to) in self.object(id, now).pages.gaps(start, end) {
            for _ in 0..(to - from).div_ceil(per_read) {
                let request = if is_wanted { LinuxRequest::DataRead } else { LinuxRequest::ReadAhead };
                self.send(request);
            }
            self.refresh(id, now);
            let pages = &mut self.object(id, now).pages;
            pages.add(from, to);
            if pages.is_too_many() {
                // Like a kernel that is short of memory.
                pages.clear();
                pages.add(from, to);
                self.forgotten += 1;
            }
        }
    }
}

impl LinuxReadahead {
    /// The pages to read when `page` is reached, `count` of which are requested: missing, or marked
    /// as the start of the next window.
    fn window(&mut self, page: u64, count: u64, is_missing: bool, read_pages: u64) -> (u64, u64) {
        let most = if count > WINDOW_MAX { WINDOW_MAX.max(count.min(read_pages)) } else { WINDOW_MAX };
        let goes_on =
            page != 0 && (page == self.start + self.size - self.left || page == self.start + self.size);
        if goes_on && self.size > 0 {
            self.start += self.size;
            self.size = next(self.size, most);
            self.left = self.size;
        } else if page == 0 || count > most || page.wrapping_sub(self.previous) <= 1 || !is_missing {
            self.start = page;
            self.size = first(count, most);
            self.left = if self.size > count { self.size - count } else { self.size };
        } else {
            // Random access.
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

/// The first window for a request of this many pages.
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

/// The window after one of this many pages.
const fn next(size: u64, most: u64) -> u64 {
    if size < most / 16 {
        size * 4
    } else if size <= most / 2 {
        size * 2
    } else {
        most
    }
}
