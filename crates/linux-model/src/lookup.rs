//! Names and access rights: the requests of one step of a path walk.

use curt_policy::{LookupCache, MonotonicTime};
use curt_types::FileKind;

use super::{
    CredentialId, Linux, LinuxRequest, ObjectId, ReportedObject,
    object::{LinuxDentry, LinuxDentryTarget},
};

/// The purpose of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupIntent {
    /// To continue the path walk, or for an operation that needs only the object.
    Use,
    /// To open it: close-to-open revalidates its attributes here.
    Open,
    /// To create it unless it exists (open(2) with O_CREAT).
    OpenOrMake,
    /// To create it (mkdir(2), link(2), O_EXCL) or to rename to it: the server decides.
    Make,
}

impl Linux {
    /// `credential` looks `name` up in `directory`; the server has `found` there.
    pub(super) fn look_up(
        &mut self,
        credential: CredentialId,
        directory: ObjectId,
        name: &[u8],
        found: Option<&ReportedObject>,
        intent: LookupIntent,
        now: MonotonicTime,
    ) {
        self.check_access(credential, directory, now);
        if let Some(seen) = found {
            self.see(seen);
        }
        let key = (directory, Box::from(name));
        let Some(dentry) = self.names.get(&key).copied() else {
            if intent != LookupIntent::Make {
                self.send_lookup(directory, name, found, LinuxRequest::FirstUse, now);
            }
            return;
        };
        if dentry.leads == LinuxDentryTarget::Negative
            && matches!(intent, LookupIntent::Make | LookupIntent::OpenOrMake)
        {
            // The server decides whether it exists.
            return;
        }
        if !self.revalidate_dentry(directory, dentry, now) {
            self.names.remove(&key);
            let was = match (dentry.leads, found) {
                (LinuxDentryTarget::Inode(id), Some(seen)) => id == seen.id,
                (LinuxDentryTarget::Inode(_) | LinuxDentryTarget::Listed(_), None) => false,
                (LinuxDentryTarget::Listed(_), Some(_)) | (LinuxDentryTarget::Negative, _) => true,
            };
            self.send_lookup(directory, name, found, LinuxRequest::NameAgain, now);
            if !was {
                // The name was revalidated and refers to another object: it is dropped and looked
                // up again.
                self.send_lookup(directory, name, found, LinuxRequest::NameAgain, now);
            }
            return;
        }
        let Some(seen) = found else { return };
        if let LinuxDentryTarget::Listed(at) = dentry.leads {
            self.learn(*seen, at);
            self.objects.entry(seen.id).and_modify(|object| object.parent = Some(directory));
            let leads = LinuxDentryTarget::Inode(seen.id);
            self.names.insert(key, LinuxDentry { leads, ..dentry });
        }
        if matches!(intent, LookupIntent::Open | LookupIntent::OpenOrMake) {
            self.check_open(seen, now);
        }
    }

    /// Close-to-open for a cached name.
    pub(super) fn check_open(&mut self, seen: &ReportedObject, now: MonotonicTime) {
        let is_checked = matches!(seen.kind, FileKind::Regular | FileKind::Directory);
        if is_checked && self.options.cache.close_to_open {
            self.send_getattr(seen.id, LinuxRequest::OpenCheck, now);
        }
    }

    /// An object is opened without its name (the root, or an object that was looked up before).
    pub(super) fn open_by_handle(&mut self, seen: &ReportedObject, now: MonotonicTime) {
        self.see(seen);
        self.check_open(seen, now);
    }

    /// LOOKUP, which returns the attributes of the directory and of the object.
    fn send_lookup(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        found: Option<&ReportedObject>,
        request: LinuxRequest,
        now: MonotonicTime,
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
            // The next new object makes room; until then no further name is cached.
            return;
        }
        self.names.insert((directory, Box::from(name)), LinuxDentry { contents, leads });
    }

    /// Returns whether a cached name is valid: its directory has not changed, by fresh attributes.
    /// Sends GETATTR for them if necessary.
    fn revalidate_dentry(&mut self, directory: ObjectId, dentry: LinuxDentry, now: MonotonicTime) -> bool {
        match (self.options.cache.names, dentry.leads) {
            (LookupCache::None, _) | (LookupCache::Positive, LinuxDentryTarget::Negative) => return false,
            (LookupCache::All | LookupCache::Positive, _) => {}
        }
        if self.object(directory, now).contents != dentry.contents {
            return false;
        }
        if self.object(directory, now).must_revalidate(now) {
            self.send_getattr(directory, LinuxRequest::NameCheck, now);
        }
        self.object(directory, now).contents == dentry.contents
    }

    /// GETATTR.
    pub(super) fn send_getattr(&mut self, id: ObjectId, request: LinuxRequest, now: MonotonicTime) {
        self.send(request);
        self.refresh(id, now);
    }

    /// The reply to a request without changes contained the attributes of `id`.
    pub(super) fn refresh(&mut self, id: ObjectId, now: MonotonicTime) {
        let kind = self.object(id, now).kind;
        let interval = self.options.cache.interval(kind);
        self.object(id, now).refresh(now, interval);
    }

    /// The access rights of `credential`: from the access cache, while the object's attributes are
    /// fresh, or by ACCESS.
    pub(super) fn check_access(&mut self, credential: CredentialId, id: ObjectId, now: MonotonicTime) {
        if self.object(id, now).may(credential) && self.object(id, now).must_revalidate(now) {
            self.send_getattr(id, LinuxRequest::AttributesExpired, now);
        }
        if !self.object(id, now).may(credential) {
            self.send(LinuxRequest::Access);
            self.refresh(id, now);
            self.object(id, now).allow(credential);
        }
    }

    /// stat(2): attributes while they are fresh; for a file with dirty pages after a write-back.
    pub(super) fn stat(&mut self, seen: &ReportedObject, now: MonotonicTime) {
        self.see(seen);
        self.send_written(seen.id, now);
        let is_old = self.object(seen.id, now).must_revalidate(now);
        let parent = self.object(seen.id, now).parent;
        if is_old {
            self.send_getattr(seen.id, LinuxRequest::AttributesExpired, now);
        }
        if let Some(parent) = parent {
            self.note_look(parent, is_old);
        }
    }

    /// readlink(2), or a link in a path walk.
    pub(super) fn read_link(&mut self, seen: &ReportedObject, now: MonotonicTime) {
        self.see(seen);
        if self.object(seen.id, now).must_revalidate(now) {
            self.send_getattr(seen.id, LinuxRequest::AttributesExpired, now);
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
