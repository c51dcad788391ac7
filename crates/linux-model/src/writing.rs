//! Writing: bytes stay in memory until close(2), fsync(2) or somebody's stat(2), and then go in as
//! few WRITEs as they fit into. A single one is durable by itself; more need a COMMIT. Where each
//! write(2) has to be durable, or goes past the page cache, so it is with each.

use std::ops::Range;

use curt_policy::Moment;
use curt_types::FileKind;

use super::{Linux, LinuxRequest, ObjectId, OpenId, Seen, Writing};

/// Bytes of a page.
const PAGE: u64 = 4096;

impl Linux {
    /// write(2) of `count` bytes at `offset`.
    pub(super) fn write(&mut self, id: ObjectId, offset: u64, count: u64, how: Writing, now: Moment) {
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
            // A kernel has sent them long ago.
            self.send_written(id, now);
        }
    }

    /// Past the page cache, of which nothing is left.
    fn write_direct(&mut self, id: ObjectId, count: u64, now: Moment) {
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

    /// READs for the first and last page of `range` where they hold other bytes, too, and are
    /// not kept.
    fn read_torn_pages(&mut self, id: ObjectId, range: Range<u64>, now: Moment) {
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
    pub(super) fn make_durable(&mut self, id: ObjectId, now: Moment) {
        if self.send_written(id, now) > 1 {
            self.send(LinuxRequest::Commit);
            self.refresh_own(id, now);
        }
    }

    /// The same, where the server does not take the bytes.
    pub(super) fn fail_to_write(&mut self, id: ObjectId, now: Moment) {
        self.send_written(id, now);
    }

    /// WRITEs for all that is not sent; how many.
    pub(super) fn send_written(&mut self, id: ObjectId, now: Moment) -> u64 {
        let dirty = self.object(id, now).dirty.take();
        let per_write = (self.options.write_size / PAGE).max(1);
        let writes: u64 = dirty
            .iter()
            .map(|(from, to)| (to - from).div_ceil(per_write))
            .sum();
        for _ in 0..writes {
            self.send(LinuxRequest::Write);
        }
        if writes > 0 {
            self.refresh_own(id, now);
        }
        writes
    }

    /// chmod(2), utimes(2), truncate(2) and the like. `rights`: owner, group or mode are set.
    pub(super) fn set_attributes(&mut self, seen: &Seen, rights: bool, now: Moment) {
        if seen.kind == FileKind::Regular {
            self.make_durable(seen.id, now);
        }
        self.send(LinuxRequest::SetAttributes);
        self.refresh_own(seen.id, now);
        self.see(seen);
        let object = self.object(seen.id, now);
        // Linux takes another ctime for another content, its own doing or not: after a chmod(2) or
        // utimensat(2) a file is read again.
        object.pages.clear();
        if rights {
            object.forget_rights();
        }
    }

    /// An object is open from now on.
    pub(super) fn opened(&mut self, id: ObjectId, now: Moment) {
        self.object(id, now).opens += 1;
    }

    /// The last close of an open file or directory.
    pub(super) fn closed(&mut self, open: OpenId, id: ObjectId, now: Moment) {
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

    /// A change of our own, whose reply brought the attributes of before and after it.
    pub(super) fn refresh_own(&mut self, id: ObjectId, now: Moment) {
        let kind = self.object(id, now).kind;
        let interval = self.options.cache.interval(kind);
        self.object(id, now).refresh_own(now, interval);
    }
}
