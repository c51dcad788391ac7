//! Opening and closing files; operations on open files are in the folder's other files.
//!
//! Owns the actions of close-to-open: policy decides, the data half moves the bytes.

mod copies;
mod reading;
mod writing;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use curt_policy::{
    AccessReason, OpenDecision, OpenIntent, OpenView,
    data::{PagesDecision, PagesLabel, decide_pages, decide_written_pages},
    open::{OpenServed, decide_open},
};
use curt_trace::{Cause, ClientCounter, scope};
use curt_types::{FileKind, SetAttributes};
use rustix::io::Errno;

use crate::{
    api::{OpenFlags, OpenResult, PageCacheState},
    client::{Client, OpContext},
    credentials::InternedCaller,
    data::{DataError, DataOwner, OpenData, OpenMode},
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    open_unlink::OpenGuard,
    revalidate::SiblingAttributes,
};

/// An open file. Given to [`Client::release`] (or [`Client::close`]) when it is not used any more.
pub struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) owner: Arc<dyn DataOwner>,
    /// Who opened it: in whose name data are asked for.
    identity: Arc<InternedCaller>,
    flags: OpenFlags,
    data: OpenData,
    copies_invalidated: AtomicU32,
    released: AtomicBool,
}

impl OpenFile {
    /// The file's inode. It is kept as long as the file is open, whoever else holds it.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Who opened it.
    pub(crate) fn opener(&self) -> Arc<InternedCaller> {
        Arc::clone(&self.identity)
    }

    /// How it was opened.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile")
            .field("id", &self.id())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

fn intent(flags: OpenFlags) -> OpenIntent {
    OpenIntent {
        read: flags.read,
        write: flags.write,
        truncate: flags.truncate,
        create: false,
        direct: flags.direct,
        sync: flags.sync,
        execute: flags.execute,
    }
}

impl Client {
    /// Opens a file that exists. What other clients had closed before is seen (close-to-open),
    /// unless the options say otherwise.
    ///
    /// # Errors
    /// EACCES, EISDIR for writing a directory, ELOOP for a symbolic link, ENXIO for what is no
    /// file; those of GETATTR, ACCESS and, with `truncate`, SETATTR.
    pub fn open(&self, caller: &Caller, id: InodeId, flags: OpenFlags) -> Result<OpenResult, Errno> {
        let inode = self.find_inode(id)?;
        let asked = self.op_context(caller);
        let came_back = self.take_stale_open(caller);
        if let Some(held) = &came_back {
            held.note_size(&inode);
        }
        let comes_back = came_back.is_none() && self.serves_a_kernel();
        let opened = self.open_inode(&asked, &inode, flags, comes_back.then_some(caller));
        // A kernel comes back once.
        if opened.as_ref().is_err_and(|error| *error == Errno::STALE) && came_back.is_none() {
            self.note_stale_open(caller, asked.began, None);
        }
        opened
    }

    /// Opens `inode`. `comes_back`: the caller, if its kernel looks the name up again after ESTALE.
    /// That is what it gets where the kernel may take the file for larger than it is: a reply to
    /// OPEN carries no size, and nothing but a reply with attributes makes a kernel take a file for
    /// smaller in time. Reads up to the old end would find zeros, and appended bytes get positions
    /// behind it.
    pub(crate) fn open_inode(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        flags: OpenFlags,
        comes_back: Option<&Caller>,
    ) -> Result<OpenResult, Errno> {
        let opening = OpenGuard::begin(self, asked, inode)?;
        self.decide_open(asked, inode, intent(flags))?;
        match inode.facts().state.facts().map(|known| known.kind) {
            Some(FileKind::Regular) => {}
            Some(FileKind::Directory) => return Err(Errno::ISDIR),
            Some(FileKind::Symlink) => return Err(Errno::LOOP),
            Some(_) | None => return Err(Errno::NXIO),
        }
        if let Some(caller) = comes_back.filter(|_| inode.may_seem_larger() && !flags.truncate) {
            self.count(ClientCounter::OpenDataChanged);
            let copies_void = self.drop_copies_to_look_up(asked, inode);
            if !self.note_stale_open(caller, asked.began, Some(copies_void)) {
                inode.seems_no_larger();
            }
            return Err(Errno::STALE);
        }
        if flags.truncate {
            let set = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            self.set_attributes(asked, inode, &set)?;
        }
        Ok(self.opened(asked, opening, flags))
    }

    /// Registers an open that was granted.
    pub(crate) fn opened(&self, asked: &OpContext, opening: OpenGuard<'_>, flags: OpenFlags) -> OpenResult {
        let inode = opening.inode();
        let data = self.check_page_cache(inode);
        if data == PageCacheState::Changed {
            self.count(ClientCounter::OpenDataChanged);
        }
        let copies_void = opening.complete(|file| {
            if flags.write {
                file.write_opens += 1;
            }
            file.first_user.get_or_insert(asked.identity.number);
            file.copies_invalidated
        });
        let mode = OpenMode {
            direct: flags.direct,
            synchronous: flags.sync,
        };
        let credential = Arc::clone(&asked.identity.credential);
        let open_data = self.core.data.open(inode.data(), credential, mode);
        let file = OpenFile {
            inode: Arc::clone(inode),
            owner: Arc::clone(inode) as Arc<dyn DataOwner>,
            identity: Arc::clone(&asked.identity),
            flags,
            data: open_data,
            copies_invalidated: AtomicU32::new(copies_void),
            released: AtomicBool::new(false),
        };
        OpenResult {
            file: Arc::new(file),
            data,
        }
    }

    /// Asks until the open is granted or refused.
    pub(crate) fn decide_open(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        intent: OpenIntent,
    ) -> Result<(), Errno> {
        self.count(ClientCounter::OpenTotal);
        let mut why: Option<AccessReason> = None;
        for _ in asked.rounds() {
            match self.open_decision(asked, inode, intent) {
                OpenDecision::Serve(served) => {
                    self.count_allowed(asked, inode, intent.needs(), why);
                    self.note_use(inode);
                    match served {
                        OpenServed::Confirmed => {}
                        OpenServed::WithoutCloseToOpen => self.count(ClientCounter::OpenNocto),
                        OpenServed::Sloppy => self.count(ClientCounter::OpenCtoSloppy),
                    }
                    return Ok(());
                }
                OpenDecision::Revalidate => {
                    self.count(ClientCounter::OpenCtoGetattr);
                    let _why = scope::with_cause(Cause::OpenCheck);
                    // Without sloppycto or nocto nobody's open is served from what this one asked
                    // for.
                    let options = self.core.options();
                    let is_strict = options.close_to_open && options.sloppy_window().is_zero();
                    let beside = if is_strict {
                        SiblingAttributes::Nothing
                    } else {
                        SiblingAttributes::IfExpected
                    };
                    self.revalidate_with(asked, inode, beside)?;
                }
                OpenDecision::Ask(reason) => {
                    self.send_access(asked, inode, reason)?;
                    why = Some(reason);
                }
                OpenDecision::Deny => {
                    self.count_denied(why);
                    return Err(Errno::ACCESS);
                }
            }
        }
        Err(Errno::IO)
    }

    fn open_decision(&self, asked: &OpContext, inode: &Inode, intent: OpenIntent) -> OpenDecision {
        let options = self.core.options();
        let now = self.core.now();
        let written_here = inode
            .data_if_any()
            .is_some_and(|data| data.has_unsent() || data.has_unwritten());
        let facts = inode.facts();
        let file = facts.by_type.file_if_any();
        let sent_at = facts.state.sent_at();
        let is_foreign = (intent.read || intent.execute)
            && file.is_some_and(|file| {
                file.first_user
                    .is_some_and(|first| first != asked.identity.number)
            });
        let closed_at = file.and_then(|file| file.closed_after_writing);
        let view = OpenView {
            kind: facts.state.facts().map(|known| known.kind),
            attributes: facts.freshness(asked, now, &options),
            age: sent_at.map_or(std::time::Duration::MAX, |sent_at| now.since(sent_at)),
            written_here: written_here || file.is_some_and(|file| file.write_opens > 0),
            closed_after_writing: closed_at
                .is_some_and(|closed| sent_at.is_none_or(|sent_at| sent_at < closed)),
            locked: false,
            access: inode.access_view(&facts, &asked.identity, is_foreign, now),
        };
        drop(facts);
        decide_open(&view, intent, &options)
    }

    /// Whether copies of the file's data, ours and those that others keep, are still good.
    fn check_page_cache(&self, inode: &Inode) -> PageCacheState {
        let options = self.core.options();
        let clock = self.core.server_clock(inode.fsid().unwrap_or(0));
        let since = inode.data_if_any().and_then(|data| data.pages_since());
        let mut facts = inode.facts();
        let pages = match (since, facts.contents()) {
            (None, _) if inode.data_if_any().is_some() => decide_written_pages(&options),
            (None, _) => PagesDecision::Keep,
            (Some(_), None) => PagesDecision::Drop,
            (Some(since), Some(epoch)) => {
                let label = PagesLabel {
                    epoch,
                    sent_at: self.core.moment(since),
                };
                decide_pages(Some(label), &facts.state, &clock, &options)
            }
        };
        if pages == PagesDecision::Drop {
            facts.invalidate_copies();
            if let Some(data) = inode.data_if_any() {
                data.invalidate();
            }
        }
        let void = facts
            .by_type
            .file_if_any()
            .is_some_and(|file| file.copies_invalidated != file.copies_dropped);
        if !void {
            PageCacheState::Same
        } else {
            PageCacheState::Changed
        }
    }

    /// The open file is not used any more. What it wrote and nobody flushed is written behind; a
    /// file that was removed while it was open goes at the last release. Further calls for the same
    /// file do nothing.
    pub fn release(&self, file: &OpenFile) {
        self.release_noting(file, || {});
    }

    /// The same; `noted` is called when whoever removes a directory later waits for what this still
    /// removes from it.
    pub fn release_noting(&self, file: &OpenFile, noted: impl FnOnce()) {
        if file.released.swap(true, Relaxed) {
            return;
        }
        if file.flags.write && file.owner.data().has_unwritten() {
            self.core.data.write_behind(&file.owner);
        }
        let now = self.core.now();
        let silly = {
            let mut facts = file.inode.facts();
            let state = facts.by_type.file();
            state.opens = state.opens.saturating_sub(1);
            if file.flags.write {
                state.write_opens = state.write_opens.saturating_sub(1);
                state.closed_after_writing = Some(now);
            }
            state.take_unused_silly_name()
        };
        let _going = silly
            .as_ref()
            .map(|silly| self.silly_directories.begin_removal(silly.directory.id()));
        noted();
        if let Some(silly) = silly {
            self.remove_silly_name(&file.inode, &silly);
        }
    }

    /// Flushes and releases: what close(2) of the only descriptor does.
    ///
    /// # Errors
    /// As [`Client::flush`]; the file is released all the same.
    pub fn close(&self, caller: &Caller, file: &OpenFile) -> Result<(), Errno> {
        let result = self.flush(caller, file);
        self.release(file);
        result
    }

    fn data_error(&self, inode: &Inode, error: DataError) -> Errno {
        if let DataError::Status(status) = error {
            return self.note_failed_status(inode, status);
        }
        errno::of_data(error)
    }
}
