//! Opening, reading, writing and closing files.
//!
//! Owns close-to-open as far as it is doing: policy decides, the data half moves the bytes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use curt_policy::{
    AskWhy, ObjectKind, OpenDecision, OpenIntent, OpenView, Rights,
    data::{DataLabel, Pages, decide_pages, decide_written_pages},
    open::{OpenServed, decide_open},
};
use curt_trace::{Cause, ClientCounter, scope};
use rustix::io::Errno;

use crate::{
    api::{DataState, OpenFlags, Opened},
    asking::Beside,
    client::{Asked, Client},
    credentials::Identity,
    data::{DataError, DataOwner, OpenData, OpenMode, Position, ReadBytes, ReadTarget},
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    meeting::Opening,
    plan::SetAttributes,
};

/// An open file. Given to [`Client::release`] (or [`Client::close`]) when it is not used any more.
pub struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) owner: Arc<dyn DataOwner>,
    /// Who opened it: in whose name data are asked for.
    identity: Arc<Identity>,
    flags: OpenFlags,
    data: OpenData,
    copies_void: AtomicU32,
    released: AtomicBool,
}

impl OpenFile {
    /// The file's inode. It is kept as long as the file is open, whoever else holds it.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Who opened it.
    pub(crate) fn opener(&self) -> Arc<Identity> {
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
    /// Opens a file that exists. What other clients had closed before is seen (close-to-open), unless the options say
    /// otherwise.
    ///
    /// # Errors
    /// EACCES, EISDIR for writing a directory, ELOOP for a symbolic link, ENXIO for what is no file; those of GETATTR, ACCESS
    /// and, with `truncate`, SETATTR.
    pub fn open(&self, caller: &Caller, id: InodeId, flags: OpenFlags) -> Result<Opened, Errno> {
        let inode = self.held(id)?;
        let asked = self.asked(caller);
        self.open_inode(&asked, &inode, flags)
    }

    pub(crate) fn open_inode(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        flags: OpenFlags,
    ) -> Result<Opened, Errno> {
        let opening = Opening::begin(self, asked, inode)?;
        self.decide_open(asked, inode, intent(flags))?;
        match inode.facts().state.facts().map(|known| known.kind) {
            Some(ObjectKind::Regular) => {}
            Some(ObjectKind::Directory) => return Err(Errno::ISDIR),
            Some(ObjectKind::Symlink) => return Err(Errno::LOOP),
            Some(ObjectKind::Special) | None => return Err(Errno::NXIO),
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
    pub(crate) fn opened(&self, asked: &Asked, opening: Opening<'_>, flags: OpenFlags) -> Opened {
        let inode = opening.inode();
        let data = self.judge_copies(inode);
        if data == DataState::Changed {
            self.count(ClientCounter::OpenDataChanged);
        }
        let copies_void = opening.grant(|file| {
            if flags.write {
                file.write_opens += 1;
            }
            file.first_user.get_or_insert(asked.identity.number);
            file.copies_void
        });
        let mode = OpenMode {
            direct: flags.direct,
            synchronous: flags.sync,
        };
        let credential = Arc::clone(&asked.identity.credential);
        let open_data = self.core.plane.open(inode.data(), credential, mode);
        let file = OpenFile {
            inode: Arc::clone(inode),
            owner: Arc::clone(inode) as Arc<dyn DataOwner>,
            identity: Arc::clone(&asked.identity),
            flags,
            data: open_data,
            copies_void: AtomicU32::new(copies_void),
            released: AtomicBool::new(false),
        };
        Opened {
            file: Arc::new(file),
            data,
        }
    }

    /// Asks until the open is granted or refused.
    pub(crate) fn decide_open(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        intent: OpenIntent,
    ) -> Result<(), Errno> {
        self.count(ClientCounter::OpenTotal);
        let mut why: Option<AskWhy> = None;
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
                    let _why = scope::because(Cause::OpenCheck);
                    // Without sloppycto or nocto nobody's open is served from what this one asked for.
                    let options = self.core.options();
                    let is_strict = options.close_to_open && options.sloppy_window().is_zero();
                    let beside = if is_strict {
                        Beside::Nothing
                    } else {
                        Beside::IfWorthIt
                    };
                    self.revalidate_with(asked, inode, beside)?;
                }
                OpenDecision::Ask(reason) => {
                    self.ask_access(asked, inode, reason)?;
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

    fn open_decision(&self, asked: &Asked, inode: &Inode, intent: OpenIntent) -> OpenDecision {
        let options = self.core.options();
        let now = self.core.now();
        let written_here = inode
            .data_if_any()
            .is_some_and(|data| data.has_unsent() || data.has_unwritten());
        let facts = inode.facts();
        let file = facts.kept.file_if_any();
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
    fn judge_copies(&self, inode: &Inode) -> DataState {
        let options = self.core.options();
        let clock = self.core.server_clock(inode.fsid().unwrap_or(0));
        let since = inode.data_if_any().and_then(|data| data.pages_since());
        let mut facts = inode.facts();
        let pages = match (since, facts.contents()) {
            (None, _) if inode.data_if_any().is_some() => decide_written_pages(&options),
            (None, _) => Pages::Keep,
            (Some(_), None) => Pages::Drop,
            (Some(since), Some(epoch)) => {
                let label = DataLabel {
                    epoch,
                    sent_at: self.core.moment(since),
                };
                decide_pages(Some(label), &facts.state, &clock, &options)
            }
        };
        if pages == Pages::Drop {
            facts.void_copies();
            if let Some(data) = inode.data_if_any() {
                data.invalidate();
            }
        }
        let void = facts
            .kept
            .file_if_any()
            .is_some_and(|file| file.copies_void != file.copies_dropped);
        if !void {
            DataState::Same
        } else {
            DataState::Changed
        }
    }

    /// Whoever keeps copies of the file's data has dropped them, as [`DataState::Changed`] had demanded of this open. Until
    /// then every open is told so.
    pub fn copies_dropped(&self, file: &OpenFile) {
        let seen = file.copies_void.load(Relaxed);
        let mut facts = file.inode.facts();
        let state = facts.kept.file();
        // Serial numbers: the later of the two, across the wrap.
        if seen.wrapping_sub(state.copies_dropped) <= u32::MAX / 2 {
            state.copies_dropped = seen;
        }
    }

    /// Reads up to `count` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// EBADF if it was not opened for reading; those of READ; EINTR.
    pub fn read(
        &self,
        caller: &Caller,
        file: &OpenFile,
        offset: u64,
        count: usize,
    ) -> Result<ReadBytes, Errno> {
        let asked = self.begin_read(caller, file)?;
        let plane = &self.core.plane;
        let result = plane.read(&file.owner, &file.data, offset, count, &asked.interrupt);
        result.map_err(|error| self.read_error(&asked, file, error))
    }

    /// As [`Client::read`], but has `target` given the bytes, perhaps on another thread. Those of large files may go there as
    /// they are received, and are kept nowhere else. It may return some 20 ms after the target was given them: meanwhile this
    /// thread receives what others read and gives it to their targets.
    ///
    /// # Errors
    /// As [`Client::read`]; the target may have been given the bytes of a read that ended with EINTR.
    pub fn read_to(
        &self,
        caller: &Caller,
        file: &OpenFile,
        (offset, count): (u64, usize),
        target: &Arc<dyn ReadTarget>,
    ) -> Result<(), Errno> {
        let asked = self.begin_read(caller, file)?;
        let plane = &self.core.plane;
        let range = (offset, count);
        let result = plane.read_to(&file.owner, &file.data, range, &asked.interrupt, target);
        result.map_err(|error| self.read_error(&asked, file, error))
    }

    fn begin_read(&self, caller: &Caller, file: &OpenFile) -> Result<Asked, Errno> {
        if !(file.flags.read || file.flags.execute || file.flags.write) {
            return Err(Errno::BADF);
        }
        let asked = self.asked(caller);
        if !file.flags.direct {
            self.refresh_for_read(&asked, &file.inode)?;
        }
        Ok(asked)
    }

    fn read_error(&self, asked: &Asked, file: &OpenFile, error: DataError) -> Errno {
        if let DataError::Status(status) = error {
            // It was asked in the opener's name.
            let identity = Arc::clone(&file.identity);
            let opener = Asked::new(identity, asked.interrupt.clone(), asked.began);
            self.note_refusal(&opener, &file.inode, status, Rights::READ, asked.began);
        }
        self.data_error(&file.inode, error)
    }

    /// Cached data of a file that stays open are believed as long as its attributes are.
    fn refresh_for_read(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<(), Errno> {
        let Some(data) = inode.data_if_any() else {
            return Ok(());
        };
        if data.pages_since().is_none() || data.has_unsent() {
            return Ok(());
        }
        let now = self.core.now();
        let options = self.core.options();
        if inode.facts().can_be_served(asked, now, &options) {
            return Ok(());
        }
        self.revalidate(asked, inode)
    }

    /// Writes `bytes` at `offset`, or at the file's end if it was opened with `append`. Returns how many were taken; they are
    /// on the server's disk after [`Client::flush`] or [`Client::fsync`].
    ///
    /// # Errors
    /// EBADF if it was not opened for writing; a failure of an earlier write that was not told yet; EINTR; EFBIG.
    pub fn write(&self, caller: &Caller, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        if !file.flags.write {
            return Err(Errno::BADF);
        }
        if !file.flags.append {
            return self.write_at(caller, file, offset, bytes);
        }
        let asked = self.asked(caller);
        let size = || self.size_now(&asked, &file.inode);
        let interrupt = &asked.interrupt;
        let taken = self
            .core
            .plane
            .write(&file.owner, &file.data, Position::End(&size), bytes, interrupt);
        let taken = taken.map_err(|error| self.data_error(&file.inode, error))?;
        if taken.offset != offset
            && let Some(observer) = &self.core.observer
        {
            // A kernel has put its copy where it thought that the end was.
            observer.contents_changed(file.id());
        }
        Ok(taken.count)
    }

    /// Writes `bytes` at `offset` whatever the file was opened with: pages that were changed through a mapping go back to
    /// where they belong by any open file.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_at(
        &self,
        caller: &Caller,
        file: &OpenFile,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        if !file.flags.write {
            return Err(Errno::BADF);
        }
        let position = Position::At(offset);
        let taken = self
            .core
            .plane
            .write(&file.owner, &file.data, position, bytes, &caller.interrupt);
        taken
            .map(|taken| taken.count)
            .map_err(|error| self.data_error(&file.inode, error))
    }

    /// The server's size of the file, asked for now.
    fn size_now(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<u64, DataError> {
        let wire = &self.core.wire;
        let answer = crate::plan::v3::getattr(wire, asked.asker(), inode.handle())?;
        let attributes = answer.outcome.map_err(DataError::Status)?;
        let _ = inode.absorb(&attributes, self.core.moment(answer.sent_at));
        Ok(inode
            .facts()
            .state
            .facts()
            .map_or(attributes.size, |known| known.size))
    }

    /// close(2) by one of those who share the open file: has its bytes on the server's disk, or says why not.
    ///
    /// # Errors
    /// A failure of a write that this open file was not told of; EINTR (the bytes are still written behind).
    pub fn flush(&self, caller: &Caller, file: &OpenFile) -> Result<(), Errno> {
        if !file.flags.write {
            return Ok(());
        }
        let result = self.core.plane.flush(&file.owner, &file.data, &caller.interrupt);
        result.map_err(|error| self.data_error(&file.inode, error))
    }

    /// fsync(2) and fdatasync(2): has all bytes written so far on the server's disk, or says why not. `datasync` changes
    /// nothing: NFSv3 keeps a file's size and times with its data.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub fn fsync(&self, caller: &Caller, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
        let _ = datasync;
        self.flush(caller, file)
    }

    /// The open file is not used any more. What it wrote and nobody flushed is written behind; a file that was removed
    /// while it was open goes at the last release. Further calls for the same file do nothing.
    pub fn release(&self, file: &OpenFile) {
        if file.released.swap(true, Relaxed) {
            return;
        }
        if file.flags.write && file.owner.data().has_unwritten() {
            self.core.plane.write_behind(&file.owner);
        }
        let now = self.core.now();
        let silly = {
            let mut facts = file.inode.facts();
            let state = facts.kept.file();
            state.opens = state.opens.saturating_sub(1);
            if file.flags.write {
                state.write_opens = state.write_opens.saturating_sub(1);
                state.closed_after_writing = Some(now);
            }
            state.take_abandoned()
        };
        if let Some(silly) = silly {
            self.remove_abandoned(&file.inode, &silly);
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
            return self.refused(inode, status);
        }
        errno::of_data(error)
    }
}
