//! Writing: data stay dirty until close(2), fsync(2) or a stat(2), and are then sent in as few
//! WRITEs as possible. A single one is FILE_SYNC; several are followed by COMMIT. If each write(2)
//! has to be durable, or bypasses the page cache, this applies to each.

use std::ops::Range;

use curt_policy::MonotonicTime;
use curt_types::FileKind;

use super::{Linux, LinuxRequest, ObjectId, OpenId, ReportedObject, Writing};

/// Page size in bytes.
const PAGE: u64 = 4096;

impl Linux {
    /// write(2) of `count` bytes at `offset`.
    pub(super) fn write(&mut self, id: ObjectId, offset: u64, count: u64, how: Writing, now: MonotonicTime) {
        if count == 0 {
            return;
        }
        let end = offset.saturating_add(count);
        if how.direct {
            self.write_direct(id, count, now);
            let object = self.object(id, now);
            object.size = object.size.max(end);
            return;
        }
        if how.reads {
            self.read_torn_pages(id, offset..end, now);
        }
        let object = self.object(id, now);
        object.size = object.size.max(end);
        object.dirty.add(offset / PAGE, end.div_ceil(PAGE));
        object.pages.add(offset / PAGE, end.div_ceil(PAGE));
        if object.pages.is_too_many() {
            object.pages.clear();
        }
        let is_too_many = object.dirty.is_too_many();
        if how.durable || self.options.sync || !self.options.cache.attribute_cache {
            self.make_durable(id, now);
        } else if is_too_many {
            // A kernel would have sent them long before.
            self.send_written(id, now);
        }
    }

    /// A write that bypasses the page cache, and drops all pages.
    fn write_direct(&mut self, id: ObjectId, count: u64, now: MonotonicTime) {
        self.make_durable(id, now);
        let writes = count.div_ceil(self.options.write_size.max(1));
        for _ in 0..writes {
            self.send(LinuxRequest::Write);
        }
        if writes > 1 {
            self.send(LinuxRequest::Commit);
        }
        self.refresh_own(id, now);
        self.object(id, now).pages.clear();
    }

    /// READs for the first and last page of `range` if they contain other bytes, too, and are not
    /// cached.
    fn read_torn_pages(&mut self, id: ObjectId, range: Range<u64>, now: MonotonicTime) {
        let size = self.object(id, now).size;
        let is_torn = |page: u64| {
            let (from, to) = (page * PAGE, size.min((page + 1) * PAGE));
            from < size && (range.start > from || range.end < to)
        };
        let (first, last) = (range.start / PAGE, (range.end - 1) / PAGE);
        for page in [first, last] {
            if is_torn(page) && !self.object(id, now).pages.has(page) {
                self.send(LinuxRequest::DataRead);
                self.refresh(id, now);
                self.object(id, now).pages.add(page, page + 1);
            }
        }
    }

    /// fsync(2), or close(2) of a file that was open for writing.
    pub(super) fn make_durable(&mut self, id: ObjectId, now: MonotonicTime) {
        if self.send_written(id, now) > 1 {
            self.send(LinuxRequest::Commit);
            self.refresh_own(id, now);
        }
    }

    /// fsync(2) or close(2) if the server does not accept the data.
    pub(super) fn fail_to_write(&mut self, id: ObjectId, now: MonotonicTime) {
        self.send_written(id, now);
    }

    /// WRITEs for all dirty pages; returns their number.
    pub(super) fn send_written(&mut self, id: ObjectId, now: MonotonicTime) -> u64 {
        let dirty = self.object(id, now).dirty.take();
        let per_write = (self.options.write_size / PAGE).max(1);
        let writes: u64 = dirty.iter().map(|(from, to)| (to - from).div_ceil(per_write)).sum();
        for _ in 0..writes {
            self.send(LinuxRequest::Write);
        }
        if writes > 0 {
            self.refresh_own(id, now);
        }
        writes
    }

    /// chmod(2), utimes(2), truncate(2) and similar. `rights`: owner, group or mode are set.
    pub(super) fn set_attributes(&mut self, seen: &ReportedObject, rights: bool, now: MonotonicTime) {
        if seen.kind == FileKind::Regular {
            self.make_durable(seen.id, now);
        }
        self.send(LinuxRequest::SetAttributes);
        self.refresh_own(seen.id, now);
        self.see(seen);
        let object = self.object(seen.id, now);
        // Linux treats a new ctime as a change of content, even after an own change: after a
        // chmod(2) or utimensat(2) a file is read again.
        object.pages.clear();
        if rights {
            object.forget_rights();
        }
    }

    /// An object is open from now on.
    pub(super) fn opened(&mut self, id: ObjectId, now: MonotonicTime) {
        self.object(id, now).opens += 1;
    }

    /// The last close of an open file or directory.
    pub(super) fn closed(&mut self, open: OpenId, id: ObjectId, now: MonotonicTime) {
        self.readers.remove(&open);
        self.listers.remove(&open);
        let object = self.object(id, now);
        object.opens = object.opens.saturating_sub(1);
        if object.opens == 0 && std::mem::take(&mut object.silly) {
            let directory = object.parent.unwrap_or(id);
            self.send(LinuxRequest::Remove);
            self.refresh_own(directory, now);
        }
    }

    /// An own change, whose reply contained the attributes before and after it.
    pub(super) fn refresh_own(&mut self, id: ObjectId, now: MonotonicTime) {
        let kind = self.object(id, now).kind;
        let interval = self.options.cache.interval(kind);
        self.object(id, now).refresh_own(now, interval);
    }
}
