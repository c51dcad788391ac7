//! Names and rights: what a step along a path asks.

use curt_policy::{LookupCache, Moment};
use curt_types::FileKind;

use super::{
    Linux, LinuxRequest, ObjectId, Seen, Who,
    object::{LinuxDentry, LinuxDentryTarget},
};

/// What a name is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupIntent {
    /// To go on along the path, or for what needs no more than the object.
    Use,
    /// To open it: close-to-open looks at its attributes here.
    Open,
    /// To make it, unless it is there (open(2) with O_CREAT).
    OpenOrMake,
    /// To make it (mkdir(2), link(2), O_EXCL) or to move something there: the server decides.
    Make,
}

impl Linux {
    /// `who` looks `name` up in `directory`; the server has `found` there.
    pub(super) fn look_up(
        &mut self,
        who: Who,
        directory: ObjectId,
        name: &[u8],
        found: Option<&Seen>,
        intent: LookupIntent,
        now: Moment,
    ) {
        self.check_access(who, directory, now);
        if let Some(seen) = found {
            self.see(seen);
        }
        let key = (directory, Box::from(name));
        let Some(dentry) = self.names.get(&key).copied() else {
            if intent != LookupIntent::Make {
                self.ask_name(directory, name, found, LinuxRequest::FirstUse, now);
            }
            return;
        };
        if dentry.leads == LinuxDentryTarget::Negative
            && matches!(intent, LookupIntent::Make | LookupIntent::OpenOrMake)
        {
            // The server says whether it is there by now.
            return;
        }
        if !self.is_believed(directory, dentry, now) {
            self.names.remove(&key);
            let was = match (dentry.leads, found) {
                (LinuxDentryTarget::Inode(id), Some(seen)) => id == seen.id,
                (LinuxDentryTarget::Inode(_) | LinuxDentryTarget::Listed(_), None) => false,
                (LinuxDentryTarget::Listed(_), Some(_)) | (LinuxDentryTarget::Negative, _) => true,
            };
            self.ask_name(directory, name, found, LinuxRequest::NameAgain, now);
            if !was {
                // The name was asked about and led elsewhere: it is dropped and looked up anew.
                self.ask_name(directory, name, found, LinuxRequest::NameAgain, now);
            }
            return;
        }
        let Some(seen) = found else { return };
        if let LinuxDentryTarget::Listed(at) = dentry.leads {
            self.learn(*seen, at);
            self.objects
                .entry(seen.id)
                .and_modify(|object| object.parent = Some(directory));
            let leads = LinuxDentryTarget::Inode(seen.id);
            self.names.insert(key, LinuxDentry { leads, ..dentry });
        }
        if matches!(intent, LookupIntent::Open | LookupIntent::OpenOrMake) {
            self.check_open(seen, now);
        }
    }

    /// Close-to-open, where the name was known.
    pub(super) fn check_open(&mut self, seen: &Seen, now: Moment) {
        let is_checked = matches!(seen.kind, FileKind::Regular | FileKind::Directory);
        if is_checked && self.options.cache.close_to_open {
            self.ask_attributes(seen.id, LinuxRequest::OpenCheck, now);
        }
    }

    /// An object is opened without its name (the root, an object that was walked to already).
    pub(super) fn open_by_handle(&mut self, seen: &Seen, now: Moment) {
        self.see(seen);
        self.check_open(seen, now);
    }

    /// LOOKUP, which brings the attributes of the directory and of what it finds.
    fn ask_name(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        found: Option<&Seen>,
        request: LinuxRequest,
        now: Moment,
    ) {
        let contents = self.object(directory, now).contents;
        self.send(request);
        self.refresh(directory, now);
        let leads = match found {
            Some(seen) => {
                self.learn(*seen, now);
                if let Some(object) = self.objects.get_mut(&seen.id) {
                    object.parent = Some(directory);
                }
                LinuxDentryTarget::Inode(seen.id)
            }
            None => LinuxDentryTarget::Negative,
        };
        if found.is_some() {
            self.note_look(directory, true);
        }
        self.keep_name(directory, name, leads, contents);
    }

    pub(super) fn keep_name(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        leads: LinuxDentryTarget,
        contents: u64,
    ) {
        if self.names.len() >= self.room {
            // The next object that is learned makes room; until then no further name is kept.
            return;
        }
        self.names
            .insert((directory, Box::from(name)), LinuxDentry { contents, leads });
    }

    /// Whether a name is believed: its directory is as it was, by attributes that are young enough.
    fn is_believed(&mut self, directory: ObjectId, dentry: LinuxDentry, now: Moment) -> bool {
        match (self.options.cache.names, dentry.leads) {
            (LookupCache::None, _) | (LookupCache::Positive, LinuxDentryTarget::Negative) => return false,
            (LookupCache::All | LookupCache::Positive, _) => {}
        }
        if self.object(directory, now).contents != dentry.contents {
            return false;
        }
        if self.object(directory, now).must_be_asked(now) {
            self.ask_attributes(directory, LinuxRequest::NameCheck, now);
        }
        self.object(directory, now).contents == dentry.contents
    }

    /// GETATTR.
    pub(super) fn ask_attributes(&mut self, id: ObjectId, request: LinuxRequest, now: Moment) {
        self.send(request);
        self.refresh(id, now);
    }

    /// A reply to a request that changed nothing brought the attributes of `id`.
    pub(super) fn refresh(&mut self, id: ObjectId, now: Moment) {
        let kind = self.object(id, now).kind;
        let interval = self.options.cache.interval(kind);
        self.object(id, now).refresh(now, interval);
    }

    /// The rights of `who`: by the access cache, while the object's attributes are believed, or by
    /// ACCESS.
    pub(super) fn check_access(&mut self, who: Who, id: ObjectId, now: Moment) {
        if self.object(id, now).may(who) && self.object(id, now).must_be_asked(now) {
            self.ask_attributes(id, LinuxRequest::AttributesExpired, now);
        }
        if !self.object(id, now).may(who) {
            self.send(LinuxRequest::Access);
            self.refresh(id, now);
            self.object(id, now).allow(who);
        }
    }

    /// stat(2): attributes while they are young, of a written file after its bytes were sent.
    pub(super) fn stat(&mut self, seen: &Seen, now: Moment) {
        self.see(seen);
        self.send_written(seen.id, now);
        let is_old = self.object(seen.id, now).must_be_asked(now);
        let parent = self.object(seen.id, now).parent;
        if is_old {
            self.ask_attributes(seen.id, LinuxRequest::AttributesExpired, now);
        }
        if let Some(parent) = parent {
            self.note_look(parent, is_old);
        }
    }

    /// readlink(2), or a link on the way.
    pub(super) fn read_link(&mut self, seen: &Seen, now: Moment) {
        self.see(seen);
        if self.object(seen.id, now).must_be_asked(now) {
            self.ask_attributes(seen.id, LinuxRequest::AttributesExpired, now);
        }
        let object = self.object(seen.id, now);
        if object.cached != Some(object.contents) {
            self.send(LinuxRequest::LinkTarget);
            self.refresh(seen.id, now);
            let object = self.object(seen.id, now);
            object.cached = Some(object.contents);
        }
    }

    /// statfs(2).
    pub(super) fn statfs(&mut self) {
        self.send(LinuxRequest::Statfs);
    }
}
