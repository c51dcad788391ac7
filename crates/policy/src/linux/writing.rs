//! Writing: bytes stay in memory until close(2), fsync(2) or somebody's stat(2), and then go in as few WRITEs as they fit into.
//! A single one is durable by itself; more need a COMMIT.

use super::{Linux, ObjectId, OpenId, Request, Seen};
use crate::{Moment, ObjectKind};

/// Bytes of a page.
const PAGE: u64 = 4096;

impl Linux {
    /// write(2) of `count` bytes at `offset`; `now_durable` if the file was opened so.
    pub fn write(&mut self, id: ObjectId, (offset, count): (u64, u64), now_durable: bool, now: Moment) {
        if count == 0 {
            return;
        }
        let end = offset.saturating_add(count);
        let object = self.object(id, now);
        object.size = object.size.max(end);
        object.dirty.add(offset / PAGE, end.div_ceil(PAGE));
        object.pages.add(offset / PAGE, end.div_ceil(PAGE));
        if object.pages.is_too_many() {
            object.pages.clear();
        }
        let is_too_many = object.dirty.is_too_many();
        if now_durable || !self.options.cache.attribute_cache {
            self.make_durable(id, now);
        } else if is_too_many {
            // A kernel has sent them long ago.
            self.send_written(id, now);
        }
    }

    /// fsync(2), or close(2) of a file that was open for writing.
    pub fn make_durable(&mut self, id: ObjectId, now: Moment) {
        if self.send_written(id, now) > 1 {
            self.send(Request::Commit, id);
            self.refresh_own(id, now);
        }
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
            self.send(Request::Write, id);
        }
        if writes > 0 {
            self.refresh_own(id, now);
        }
        writes
    }

    /// chmod(2), utimes(2), truncate(2) and the like. `rights`: owner, group or mode are set.
    pub fn set_attributes(&mut self, seen: &Seen, rights: bool, now: Moment) {
        if seen.kind == ObjectKind::Regular {
            self.make_durable(seen.id, now);
        }
        self.send(Request::SetAttributes, seen.id);
        self.refresh_own(seen.id, now);
        self.see(seen);
        if rights {
            self.object(seen.id, now).forget_rights();
        }
    }

    /// An object is open from now on.
    pub fn opened(&mut self, id: ObjectId, now: Moment) {
        self.object(id, now).opens += 1;
    }

    /// The last close of an open file.
    pub fn closed(&mut self, open: OpenId, id: ObjectId, now: Moment) {
        self.forget_reader(open);
        let object = self.object(id, now);
        object.opens = object.opens.saturating_sub(1);
        if object.opens == 0 && std::mem::take(&mut object.silly) {
            let directory = object.parent.unwrap_or(id);
            self.send(Request::Remove, directory);
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
