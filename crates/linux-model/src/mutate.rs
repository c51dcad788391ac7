//! Names that are created, removed and renamed. Each is one request; the reply contains the
//! directory's attributes before and after, so that its other names remain valid.

use super::{Linux, LinuxRequest, ObjectId, ReportedObject, object::LinuxDentryTarget};
use curt_policy::MonotonicTime;

impl Linux {
    /// Creates `name` in `directory` by `request`. An exclusive creation is followed by SETATTR,
    /// because the server stored the verifier in the times.
    pub(super) fn make(
        &mut self,
        request: LinuxRequest,
        directory: ObjectId,
        name: &[u8],
        made: &ReportedObject,
        exclusive: bool,
        now: MonotonicTime,
    ) {
        self.send(request);
        self.refresh_own(directory, now);
        self.learn(*made, now);
        if let Some(object) = self.objects.get_mut(&made.id) {
            object.parent = Some(directory);
        }
        self.keep_own_name(directory, name, LinuxDentryTarget::Inode(made.id), now);
        if exclusive {
            self.send(LinuxRequest::SetAttributes);
            self.refresh_own(made.id, now);
        }
    }

    /// The server refuses `request` for an object, or `name` in it: Linux leaves decisions about
    /// changes to the server. A name that was not created is no longer cached.
    pub(super) fn refused(
        &mut self,
        request: LinuxRequest,
        about: ObjectId,
        name: Option<&[u8]>,
        now: MonotonicTime,
    ) {
        self.send(request);
        self.refresh(about, now);
        let makes = matches!(
            request,
            LinuxRequest::CreateFile
                | LinuxRequest::CreateDirectory
                | LinuxRequest::CreateLink
                | LinuxRequest::CreateNode
                | LinuxRequest::HardLink
        );
        if let Some(name) = name.filter(|_| makes) {
            self.names.remove(&(about, Box::from(name)));
        }
    }

    /// link(2).
    pub(super) fn link(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        object: &ReportedObject,
        now: MonotonicTime,
    ) {
        self.make_durable(object.id, now);
        self.send(LinuxRequest::HardLink);
        self.refresh_own(directory, now);
        self.see(object);
        self.refresh_own(object.id, now);
        self.keep_own_name(directory, name, LinuxDentryTarget::Inode(object.id), now);
    }

    /// unlink(2). An open file is renamed (silly rename) instead, and removed at its last close.
    pub(super) fn unlink(&mut self, directory: ObjectId, name: &[u8], now: MonotonicTime) {
        self.remove_or_sillyrename(directory, name, now);
        self.keep_own_name(directory, name, LinuxDentryTarget::Negative, now);
    }

    /// rmdir(2).
    pub(super) fn remove_directory(&mut self, directory: ObjectId, name: &[u8], now: MonotonicTime) {
        self.send(LinuxRequest::RemoveDirectory);
        self.refresh_own(directory, now);
        self.keep_own_name(directory, name, LinuxDentryTarget::Negative, now);
    }

    /// rename(2).
    pub(super) fn rename(
        &mut self,
        from: ObjectId,
        from_name: &[u8],
        to: ObjectId,
        to_name: &[u8],
        now: MonotonicTime,
    ) {
        let moved = self.target(from, from_name);
        let replaced = self.target(to, to_name);
        if replaced.is_some_and(|id| self.object(id, now).opens > 0 && moved != Some(id)) {
            self.remove_or_sillyrename(to, to_name, now);
        }
        if let Some(id) = moved {
            self.make_durable(id, now);
        }
        self.send(LinuxRequest::Rename);
        self.refresh_own(from, now);
        self.refresh_own(to, now);
        self.keep_own_name(from, from_name, LinuxDentryTarget::Negative, now);
        match moved {
            Some(id) => {
                let object = self.object(id, now);
                (object.doubtful, object.parent) = (true, Some(to));
                self.keep_own_name(to, to_name, LinuxDentryTarget::Inode(id), now);
            }
            None => drop(self.names.remove(&(to, Box::from(to_name)))),
        }
    }

    /// Removes a name's object, or renames it until its last close.
    fn remove_or_sillyrename(&mut self, directory: ObjectId, name: &[u8], now: MonotonicTime) {
        let target = self.target(directory, name);
        match target {
            Some(id) if self.object(id, now).opens > 0 => {
                self.send(LinuxRequest::FirstUse);
                self.send(LinuxRequest::Rename);
                self.object(id, now).silly = true;
            }
            Some(id) => {
                self.send(LinuxRequest::Remove);
                self.object(id, now).doubtful = true;
            }
            None => self.send(LinuxRequest::Remove),
        }
        self.refresh_own(directory, now);
    }

    fn target(&self, directory: ObjectId, name: &[u8]) -> Option<ObjectId> {
        match self.names.get(&(directory, Box::from(name)))?.leads {
            LinuxDentryTarget::Inode(id) => Some(id),
            LinuxDentryTarget::Listed(_) | LinuxDentryTarget::Negative => None,
        }
    }

    fn keep_own_name(
        &mut self,
        directory: ObjectId,
        name: &[u8],
        leads: LinuxDentryTarget,
        now: MonotonicTime,
    ) {
        let contents = self.object(directory, now).contents;
        self.keep_name(directory, name, leads, contents);
    }
}
