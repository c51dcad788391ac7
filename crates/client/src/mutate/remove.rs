//! REMOVE and RMDIR, and files that are removed while they are open (sillyrename).
//!
//! An NFSv3 server forgets a file with its last name, whoever has it open. So a file that is open
//! here is renamed to `.nfs` and a number instead, as other clients do, which a listing shows, and
//! removed at its last release. Those of a client that died stay behind; the administrator removes
//! what `find -name '.nfs*'` shows on the server.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_rpc::client::Interrupt;
use curt_trace::ClientCounter;
use curt_trace::{events::Event, probe};
use curt_types::Fault;
use rustix::io::Errno;

use super::{NameChangeOutcome, prove_change};
use crate::{
    client::{Client, OpContext},
    errno,
    identity::{Caller, InodeId},
    inode::{Inode, SillyName, TypeState},
    lookup::ResolvedName,
    open_unlink::RemovalGuard,
    protocol::v3,
};

/// How many names are tried for a removed file before it is refused with EBUSY.
const NAMES_MAX: u32 = 8;

/// What a name leads to that is about to be removed or replaced.
#[must_use]
pub(super) enum RemovalTarget {
    /// Programs here have it open, or are about to.
    Open(Arc<Inode>),
    /// Nobody here has.
    Closed(RemovalGuard),
    /// Nothing, as far as is known here.
    Missing,
}

impl Client {
    /// Removes a name of anything but a directory. A file that is open here lives on under another
    /// name until its last release.
    ///
    /// # Errors
    /// ENOENT, EACCES, EISDIR or EPERM for a directory, EROFS and the others of REMOVE.
    pub fn unlink(&self, caller: &Caller, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::ISDIR);
        }
        let _turn = self.name_locks.lock(directory.id(), name, &asked.interrupt)?;
        let target = self.removal_target(&asked, &directory, name)?;
        if let RemovalTarget::Open(target) = &target {
            return self.sillyrename(&asked, &directory, name, target);
        }
        let (outcome, ended) = self.remove_at_server(&asked, &directory, name)?;
        let removed = match &target {
            RemovalTarget::Closed(removal) => Some(removal.of()),
            RemovalTarget::Open(_) | RemovalTarget::Missing => None,
        };
        match self.own_or_refused(&asked, &directory, removed, outcome, ended) {
            Ok(()) => {
                let _ = self.learn_own(&directory, name, None, ended);
                if let Some(removed) = removed {
                    self.note_removed(&asked, removed);
                }
                Ok(())
            }
            Err(status) => Err(self.refused_change(&asked, &directory, name, status, ended)),
        }
    }

    /// The outcome of a removal whose refusal may have been of a second copy. `target`: what the
    /// name led to.
    fn own_or_refused(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        target: Option<&Arc<Inode>>,
        outcome: Result<(), Fault>,
        ended: NameChangeOutcome,
    ) -> Result<(), Fault> {
        match outcome {
            Err(Fault::Noent) if self.is_own_removal(asked, directory, target, ended) => {
                prove_change(asked, directory, ended);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Sends REMOVE.
    fn remove_at_server(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<(Result<(), Fault>, NameChangeOutcome), Errno> {
        let dir = |event| directory.fileid_if_enabled(event);
        probe!(NfsRemoveEnter {
            dir: dir(Event::NfsRemoveEnter),
            name
        });
        let send = || v3::remove(&self.core.rpc, asked.rpc_caller(), directory.handle(), name);
        let answer = self.change_name(asked, directory, name, send);
        probe!(NfsRemoveExit {
            dir: dir(Event::NfsRemoveExit),
            name,
            error: event_status(&answer)
        });
        answer
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOTEMPTY, ENOENT, ENOTDIR, EACCES, EROFS and the others of RMDIR.
    pub fn rmdir(&self, caller: &Caller, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.check_name(name)?;
        match name {
            b"." => return Err(Errno::INVAL),
            b".." => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let former = self
            .dentries
            .find(directory.id(), name)
            .and_then(|kept| kept.child);
        let target = self.last_object(&directory, name);
        self.await_last_closes(&asked, &directory, name, former.as_ref())?;
        let send = || v3::rmdir(&self.core.rpc, asked.rpc_caller(), directory.handle(), name);
        let (outcome, ended) = self.change_name(&asked, &directory, name, send)?;
        match self.own_or_refused(&asked, &directory, target.as_ref(), outcome, ended) {
            Ok(()) => {
                let _ = self.learn_own(&directory, name, None, ended);
                if let Some(gone) = former {
                    gone.mark_stale();
                }
                Ok(())
            }
            Err(status) => Err(self.refused_change(&asked, &directory, name, status, ended)),
        }
    }

    /// What the removal of `name` would be of. If that is not open, the removal has begun: no open
    /// of it is granted until the target is let go. A name that is not known is looked up, for it
    /// may have been forgotten, or not kept because the directory was changing: only of a file that
    /// is known can opens be told from those of others, which shall not wait.
    pub(super) fn removal_target(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<RemovalTarget, Errno> {
        let kept = self.cached_dentry(directory, name).and_then(|kept| kept.child);
        self.await_last_closes(asked, directory, name, kept.as_ref())?;
        if let Some(child) = kept
            && let Some(removal) = RemovalGuard::begin(&child)
        {
            return Ok(RemovalTarget::Closed(removal));
        }
        // If it is open, somebody else may have given the name to another file since.
        Ok(match self.resolve(asked, directory, name)? {
            ResolvedName::Object(inode, _) => match RemovalGuard::begin(&inode) {
                Some(removal) => RemovalTarget::Closed(removal),
                None => RemovalTarget::Open(inode),
            },
            ResolvedName::Missing(_) => RemovalTarget::Missing,
        })
    }

    /// Waits for the end of last closes in the directory that is about to be removed or replaced,
    /// if `name` leads to one: they began before, and without them the server finds names in it.
    /// `known` is what is kept of the name.
    fn await_last_closes(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        known: Option<&Arc<Inode>>,
    ) -> Result<(), Errno> {
        if self.silly_directories.is_empty() {
            return Ok(());
        }
        if let Some(known) = known {
            return self.silly_directories.wait(known.id(), &asked.interrupt);
        }
        match self.resolve(asked, directory, name) {
            Ok(ResolvedName::Object(found, _)) => self.silly_directories.wait(found.id(), &asked.interrupt),
            Err(Errno::INTR) => Err(Errno::INTR),
            // What is to be done with the name finds that out for itself.
            Ok(ResolvedName::Missing(_)) | Err(_) => Ok(()),
        }
    }

    /// Whether `name` may lead to a directory that holds names of removed files. Whoever is about
    /// to remove or replace it then has to see to it that releases that came before have begun
    /// ([`Client::release_noting`]).
    #[must_use]
    pub fn may_hold_removed_files(&self, directory: InodeId, name: &[u8]) -> bool {
        if self.silly_directories.is_empty() {
            return false;
        }
        let known = self.dentries.find(directory, name).and_then(|kept| kept.child);
        known.is_none_or(|known| self.silly_directories.contains(known.id()))
    }

    /// Gives an open file another name instead of removing it.
    pub(super) fn sillyrename(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        target: &Arc<Inode>,
    ) -> Result<(), Errno> {
        if target
            .facts()
            .by_type
            .file()
            .silly
            .as_ref()
            .is_some_and(|silly| *silly.name == *name)
        {
            // It was removed already; as with other clients it cannot be removed while it is open.
            return Err(Errno::BUSY);
        }
        let fileid = target.attributes().map_or(0, |attributes| attributes.fileid);
        for _ in 0..NAMES_MAX {
            let number = self.silly_names.fetch_add(1, Relaxed);
            let silly = format!(".nfs{fileid:016x}{number:08x}").into_bytes();
            // RENAME would replace a file of that name: the one of a client that died.
            if let ResolvedName::Object(..) = self.send_lookup(asked, directory, &silly, None)? {
                continue;
            }
            let renamed = self.rename_at_server(asked, (directory, name), (directory, &silly), None);
            probe!(let dir = directory.fileid_if_enabled(Event::NfsAsyncRenameDone); NfsAsyncRenameDone {
                dir,
                name,
                new_dir: dir,
                new_name: &silly[..],
                error: errno::event_status(&renamed)
            });
            renamed?;
            self.count(ClientCounter::SillyRename);
            self.silly_directories.add(directory.id());
            let (former, abandoned) = {
                let mut facts = target.facts();
                let state = facts.by_type.file();
                let identity = Arc::clone(&asked.identity);
                let silly = SillyName {
                    identity,
                    directory: Arc::clone(directory),
                    name: silly.into(),
                };
                let former = state.silly.replace(silly);
                (former, state.take_unused_silly_name())
            };
            // A second name of the same file was removed.
            if let Some(former) = former {
                self.remove_silly(target, &former);
            }
            // The file was closed meanwhile.
            if let Some(abandoned) = abandoned {
                self.remove_silly_name(target, &abandoned);
            }
            return Ok(());
        }
        Err(Errno::BUSY)
    }

    /// Removes the last name of a file that was removed while it was open. A failure leaves the
    /// name behind, with a log line.
    pub(crate) fn remove_silly(&self, inode: &Arc<Inode>, silly: &SillyName) {
        let identity = Arc::clone(&silly.identity);
        let asked = OpContext::new(identity, Interrupt::never(), self.core.now());
        let has_other_names = inode.attributes().is_some_and(|attributes| attributes.nlink > 1);
        let _going = self.silly_directories.begin_removal(silly.directory.id());
        let answer = self.remove_at_server(&asked, &silly.directory, &silly.name);
        self.silly_directories.remove(silly.directory.id());
        probe!(NfsSillyrenameUnlink {
            dir: silly.directory.fileid_if_enabled(Event::NfsSillyrenameUnlink),
            name: &silly.name[..],
            error: event_status(&answer)
        });
        let name = silly.name.escape_ascii();
        let is_removed = matches!(answer, Ok((Ok(()) | Err(Fault::Noent), _)));
        match answer {
            Ok((Ok(()) | Err(Fault::Noent), _)) => self.note_removed(&asked, inode),
            Ok((Err(status), _)) => {
                tracing::warn!(%name, error = %errno::of_fault(status), "cannot remove a silly-renamed file")
            }
            Err(error) => tracing::warn!(%name, %error, "cannot remove a silly-renamed file"),
        }
        // A kernel knows what unlink(2) and close(2) change, but this came after both.
        if let Some(observer) = &self.core.observer {
            observer.attributes_changed(silly.directory.id());
            if has_other_names {
                observer.attributes_changed(inode.id());
            }
        }
        if is_removed {
            self.count(ClientCounter::SillyRemove);
        }
    }

    /// One of its names is gone: its links and ctime are not what they were.
    ///
    /// What is remembered of its links may be old: others can have given it a name since. So what
    /// the server does not have yet is let go only if the server says that the file is gone as
    /// well; asking costs nothing where all was written.
    pub(super) fn note_removed(&self, asked: &OpContext, inode: &Arc<Inode>) {
        let was_last = inode.attributes().is_some_and(|attributes| attributes.nlink <= 1);
        inode.distrust_attributes();
        let Some(data) = inode.data_if_any().filter(|_| !is_open(inode)) else {
            return;
        };
        let is_gone = if data.has_unwritten() {
            self.is_surely_gone(asked, inode)
        } else {
            was_last
        };
        if is_gone {
            data.discard();
        }
    }

    /// Whether the server knows the object no more, or knows no name of it. Silence and other
    /// refusals say neither, nor does a caller who does not wait for it.
    fn is_surely_gone(&self, asked: &OpContext, inode: &Arc<Inode>) -> bool {
        match self.send_getattr(asked, inode) {
            Ok(()) => inode.attributes().is_some_and(|attributes| attributes.nlink == 0),
            Err(error) => error == Errno::STALE,
        }
    }
}

/// As an event tells it: 0, or a negative errno.
fn event_status(answer: &Result<(Result<(), Fault>, NameChangeOutcome), Errno>) -> i32 {
    match answer {
        Ok((Ok(()), _)) => 0,
        Ok((Err(status), _)) => -errno::of_fault(*status).raw_os_error(),
        Err(error) => -error.raw_os_error(),
    }
}

/// Whether programs here have it open, or are about to.
fn is_open(inode: &Inode) -> bool {
    matches!(&inode.facts().by_type, TypeState::File(state) if state.is_used())
}
