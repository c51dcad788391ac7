//! RENAME.

use std::sync::Arc;

use curt_types::{Fault, FileKind};
use rustix::io::Errno;

use super::{NameChange, NameChangeOutcome, prove_change, remove::RemovalTarget};
use crate::{
    api::RenameMode,
    client::{Client, OpContext},
    errno,
    identity::{Caller, InodeId},
    inode::{Inode, TypeState},
    lookup::ResolvedName,
    open_unlink::OpenGuard,
    protocol::v3,
};

/// A name in a directory.
type NameInDirectory<'a> = (&'a Arc<Inode>, &'a [u8]);

impl Client {
    /// Renames `from` to `to`, replacing what is there. A replaced file that is open here lives on
    /// until its last release.
    ///
    /// # Errors
    /// EINVAL for modes that NFSv3 cannot do; ENOENT, EXDEV, ENOTEMPTY, EACCES, EROFS and the
    /// others of RENAME.
    pub fn rename(
        &self,
        caller: &Caller,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        if mode != RenameMode::Replace {
            return Err(Errno::INVAL);
        }
        let (old, new) = (self.find_directory(from.0)?, self.find_directory(to.0)?);
        let asked = self.op_context(caller);
        self.check_name(from.1)?;
        self.check_name(to.1)?;
        if [from.1, to.1].iter().any(|name| matches!(*name, b"." | b"..")) {
            return Err(Errno::BUSY);
        }
        let places = ((old.id(), from.1), (new.id(), to.1));
        let _turns = self.name_locks.lock_both(places.0, places.1, &asked.interrupt)?;
        let moved = self.dentries.find(old.id(), from.1).and_then(|kept| kept.child);
        let is_moved = |target: &Arc<Inode>| moved.as_ref().is_some_and(|moved| Arc::ptr_eq(moved, target));
        let target = self.removal_target(&asked, &new, to.1)?;
        let former = match &target {
            RemovalTarget::Open(target) => Some(target).filter(|target| is_moved(target)),
            RemovalTarget::Closed(removal) => Some(removal.of()),
            RemovalTarget::Missing => None,
        };
        let replaced_open = match &target {
            RemovalTarget::Open(target) if !is_moved(target) => Some(target),
            RemovalTarget::Open(_) | RemovalTarget::Closed(_) | RemovalTarget::Missing => None,
        };
        // Its last close would remove it, and it is to have its name again if the server refuses.
        let _kept = replaced_open.map(|target| OpenGuard::of_new(self, target));
        if let Some(target) = replaced_open {
            self.sillyrename(&asked, &new, to.1, target)?;
        }
        if let Err(error) = self.rename_at_server(&asked, (&old, from.1), (&new, to.1), former) {
            if let Some(target) = replaced_open {
                self.undo_sillyrename(&asked, (&new, to.1), target);
            }
            return Err(error);
        }
        if let RemovalTarget::Closed(removal) = &target
            && !is_moved(removal.of())
        {
            self.note_removed(&asked, removal.of());
        }
        Ok(())
    }

    /// Gives a file its name again that was to be replaced while it is open, and was not. LINK
    /// replaces nothing, so this does no harm if the reply was lost to a RENAME that was done. Many
    /// servers refuse LINK of another's file (Linux: `fs.protected_hardlinks`); then the name is
    /// moved back, if nothing has it.
    fn undo_sillyrename(&self, asked: &OpContext, place: NameInDirectory<'_>, target: &Arc<Inode>) {
        let Some(silly) = target.facts().by_type.file().silly.clone() else {
            return;
        };
        let forget = || {
            let mut facts = target.facts();
            facts.by_type.file().silly.take_if(|now| now.name == silly.name);
        };
        match self.link_at_server(asked, target, place.0, place.1) {
            Ok(ended) => {
                let _ = self.learn_own(place.0, place.1, Some(target), ended);
                forget();
                self.remove_silly(target, &silly);
            }
            // It was replaced after all, or somebody has taken the name: the other one goes with
            // the last close.
            Err(Errno::EXIST) => {}
            Err(error) => {
                // Whatever comes of it, nobody removed this file.
                forget();
                self.silly_directories.remove(silly.directory.id());
                if self.move_back(asked, (&silly.directory, &silly.name), place) {
                    return;
                }
                let (name, silly) = (place.1.escape_ascii(), silly.name.escape_ascii());
                tracing::warn!(%name, %silly, %error, "cannot undo a silly rename after a failed rename");
            }
        }
    }

    /// Renames `from` to `to` if nothing is called that; whether it was.
    fn move_back(&self, asked: &OpContext, from: NameInDirectory<'_>, to: NameInDirectory<'_>) -> bool {
        let is_free = matches!(self.resolve(asked, to.0, to.1), Ok(ResolvedName::Missing(_)));
        is_free && self.rename_at_server(asked, from, to, None).is_ok()
    }

    /// Sends RENAME and keeps what its success proves. `former` is what the new name leads to.
    pub(super) fn rename_at_server(
        &self,
        asked: &OpContext,
        from: NameInDirectory<'_>,
        to: NameInDirectory<'_>,
        former: Option<&Arc<Inode>>,
    ) -> Result<(), Errno> {
        let source = self.last_object(from.0, from.1);
        let moved = self
            .dentries
            .find(from.0.id(), from.1)
            .and_then(|kept| kept.child);
        let replaced = self.dentries.find(to.0.id(), to.1).and_then(|kept| kept.child);
        let change_from = NameChange::begin(self, from.0, from.1);
        let change_to = NameChange::begin(self, to.0, to.1);
        let wire = &self.core.rpc;
        let answer = v3::rename(
            wire,
            asked.rpc_caller(),
            (from.0.handle(), from.1),
            (to.0.handle(), to.1),
        );
        let answer = answer.map_err(errno::of_call)?;
        let ended_from = change_from.end(&answer.attributes.from, &answer);
        let ended_to = change_to.end(&answer.attributes.to, &answer);
        let outcome = match (answer.outcome, &source) {
            (Err(Fault::Noent), Some(source)) if self.is_own_rename(asked, source, former, to, ended_to) => {
                Ok(())
            }
            (outcome, _) => outcome,
        };
        if let Err(status) = outcome {
            self.refused_change(asked, from.0, from.1, status, ended_from);
            return Err(self.refused_change(asked, to.0, to.1, status, ended_to));
        }
        prove_change(asked, from.0, ended_from);
        prove_change(asked, to.0, ended_to);
        self.learn_renamed(from, to, moved.as_ref(), (ended_from, ended_to));
        if let Some(replaced) =
            replaced.filter(|replaced| !moved.is_some_and(|moved| Arc::ptr_eq(&moved, replaced)))
        {
            self.note_removed(asked, &replaced);
        }
        Ok(())
    }

    fn learn_renamed(
        &self,
        from: NameInDirectory<'_>,
        to: NameInDirectory<'_>,
        moved: Option<&Arc<Inode>>,
        ended: (NameChangeOutcome, NameChangeOutcome),
    ) {
        let Some(moved) = moved else { return };
        let known = moved.attributes();
        let is_directory = moved
            .facts()
            .state
            .facts()
            .is_some_and(|known| known.kind == FileKind::Directory);
        // Two names of one file: RENAME does nothing, and the old one is still there (RFC 1813,
        // 3.3.14).
        if is_directory || known.is_some_and(|attributes| attributes.nlink == 1) {
            let _ = self.learn_own(from.0, from.1, None, ended.0);
        }
        // It has another ctime now, and a directory that moved another `..`.
        moved.distrust_attributes();
        if is_directory && let TypeState::Directory(directory) = &mut moved.facts().by_type {
            directory.parent = None;
        }
        let _ = self.learn_own(to.0, to.1, Some(moved), ended.1);
    }
}
