//! Closing files: flushing their data to the server, and the last close of a removed file.
//!
//! Owns the removal of `.nfs` names, and opens that may fail after they were counted.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_observe::{ClientCounter, events::Event, probe};
use curt_rpc::client::Interrupt;
use curt_types::Fault;
use rustix::io::Errno;

use crate::{
    errno,
    inode::{
        Inode, TypeState,
        type_state::{LocalOpens, SillyName},
    },
    open_file::OpenFile,
    open_unlink::{RemovalGuard, begin_open},
    ops::{
        change::{self, NameChangeOutcome},
        getattr, read,
        steps::server_open,
    },
    superblock::{Op, Superblock},
};

/// Closes the open file. Dirty data that were not flushed are written in the background. The last
/// release of a file that was removed while open removes its silly name. Further calls for the same
/// file do nothing.
pub fn release(sb: &Superblock, file: &OpenFile) {
    release_noting(sb, file, || {});
}

/// As [`release`]; `noted` is called once the removal of the silly name is registered, so that a
/// later removal of its directory waits for it.
pub fn release_noting(sb: &Superblock, file: &OpenFile, noted: impl FnOnce()) {
    if file.released.swap(true, Relaxed) {
        return;
    }
    if file.flags.write && file.owner.data().has_unwritten() {
        sb.core.data.write_behind(&file.owner);
    }
    if file.locks.was_used() {
        // Others must see the data once they have the lock.
        let _ = sb.core.data.settle_durably(&file.owner, &Interrupt::never());
        sb.locks.close_open(file);
    }
    read::note_read_at_open(sb, file, false);
    server_open::release(sb, file);
    let now = sb.core.now();
    let silly = {
        let mut locked = file.inode.lock();
        let state = locked.by_type.file();
        state.opens = state.opens.saturating_sub(1);
        if file.flags.write {
            state.write_opens = state.write_opens.saturating_sub(1);
            state.closed_after_writing = Some(now);
        }
        state.take_unused_silly_name()
    };
    let _going = silly.as_ref().map(|silly| sb.silly_directories.begin_removal(silly.directory.id()));
    noted();
    if let Some(silly) = silly {
        remove_silly_name(sb, &file.inode, &silly);
    }
}

/// Flushes and releases the file, as close(2) of its only descriptor does.
///
/// # Errors
/// As [`super::flush`]; the file is released also on errors.
pub fn close(op: &Op<'_>, file: &OpenFile) -> Result<(), Errno> {
    let result = flush(op, file);
    release(op.sb, file);
    result
}

/// close(2) of one descriptor of the open file: writes its data to the server's stable storage.
///
/// # Errors
/// A write error that was not yet reported through this open file; EINTR (the data are still
/// written in the background).
pub fn flush(op: &Op<'_>, file: &OpenFile) -> Result<(), Errno> {
    if !file.flags.write {
        return Ok(());
    }
    let result = op.sb.core.data.flush(&file.owner, &file.data, op.interrupt());
    result.map_err(|error| file.locks.note_failure(file.inode.note_data_error(error)))
}

/// fsync(2) and fdatasync(2): writes all data of the file to the server's stable storage.
/// `datasync` has no effect: NFS has no request that commits data without metadata.
///
/// # Errors
/// As [`super::flush`].
pub fn fsync(op: &Op<'_>, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
    file.check_lost()?;
    let _ = datasync;
    flush(op, file)
}

/// Uncounts an open that failed.
pub(crate) fn cancel_open(sb: &Superblock, inode: &Arc<Inode>) {
    let silly = match &mut inode.lock().by_type {
        TypeState::File(file) => {
            file.opening = file.opening.saturating_sub(1);
            file.take_unused_silly_name()
        }
        TypeState::Nothing | TypeState::Directory(_) | TypeState::Link(_) => None,
    };
    if let Some(silly) = silly {
        remove_silly_name(sb, inode, &silly);
    }
}

/// Removes the silly name of a file that is no longer open; the removal was begun by
/// [`LocalOpens::take_unused_silly_name`].
pub(crate) fn remove_silly_name(sb: &Superblock, inode: &Arc<Inode>, silly: &SillyName) {
    let removal = RemovalGuard::begun(inode);
    remove_silly(sb, inode, silly);
    drop(removal);
}

pub(crate) fn remove_at_server(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
) -> Result<(Result<(), Fault>, NameChangeOutcome), Errno> {
    let dir = |event| directory.fileid_if_enabled(event);
    probe!(NfsRemoveEnter { dir: dir(Event::NfsRemoveEnter), name });
    if let Some(child) = op.sb.dentries.cached_dentry(directory, name).and_then(|cached| cached.child) {
        child.give_up_delegation();
    }
    let send = || op.protocol().remove(op.rpc_caller(), directory.handle(), name, false);
    let answer = change::change_name(op, directory, name, send);
    probe!(NfsRemoveExit { dir: dir(Event::NfsRemoveExit), name, error: event_status(&answer) });
    answer
}

/// Removes a silly name at the server. A failure is logged, and the name stays.
pub(crate) fn remove_silly(sb: &Superblock, inode: &Arc<Inode>, silly: &SillyName) {
    let identity = Arc::clone(&silly.identity);
    let op = &Op::new(sb, identity, Interrupt::never(), sb.core.now());
    let has_other_names = inode.attributes().is_some_and(|attributes| attributes.nlink > 1);
    let _going = sb.silly_directories.begin_removal(silly.directory.id());
    let answer = remove_at_server(op, &silly.directory, &silly.name);
    sb.silly_directories.remove(silly.directory.id());
    probe!(NfsSillyrenameUnlink {
        dir: silly.directory.fileid_if_enabled(Event::NfsSillyrenameUnlink),
        name: &silly.name[..],
        error: event_status(&answer)
    });
    let name = silly.name.escape_ascii();
    let is_removed = matches!(answer, Ok((Ok(()) | Err(Fault::Noent), _)));
    match answer {
        Ok((Ok(()) | Err(Fault::Noent), _)) => note_removed(op, inode),
        Ok((Err(status), _)) => {
            tracing::warn!(%name, error = %errno::of_fault(status), "cannot remove a silly-renamed file")
        }
        Err(error) => tracing::warn!(%name, %error, "cannot remove a silly-renamed file"),
    }
    // A kernel invalidates attributes at unlink(2) and close(2), but this removal comes after both.
    if let Some(observer) = &sb.core.observer {
        observer.attributes_changed(silly.directory.id());
        if has_other_names {
            observer.attributes_changed(inode.id());
        }
    }
    if is_removed {
        sb.count(ClientCounter::SillyRemove);
    }
}

/// Updates `inode` after the removal of one of its names: its link count and ctime have changed.
///
/// The cached link count may be old, because another client can have linked the file. So dirty data
/// are discarded only if the server reports that the file is gone. The GETATTR for this is sent
/// only if there are dirty data.
pub(crate) fn note_removed(op: &Op<'_>, inode: &Arc<Inode>) {
    let was_last = inode.attributes().is_some_and(|attributes| attributes.nlink <= 1);
    inode.distrust_attributes();
    let Some(data) = inode.data_if_any().filter(|_| !is_open(inode)) else {
        return;
    };
    let is_gone = if data.has_unwritten() { is_surely_gone(op, inode) } else { was_last };
    if is_gone {
        data.discard();
    }
}

/// Whether the server reports the handle as stale or the link count as zero. Other errors, a
/// timeout and an interrupted caller leave this open, so the result is false.
fn is_surely_gone(op: &Op<'_>, inode: &Arc<Inode>) -> bool {
    match getattr::send_getattr(op, inode) {
        Ok(()) => inode.attributes().is_some_and(|attributes| attributes.nlink == 0),
        Err(error) => error == Errno::STALE,
    }
}

/// A file that is being opened. Dropping it cancels the open, with the work of a last close if no
/// other open is left.
#[must_use]
pub(crate) struct OpenGuard<'a> {
    sb: &'a Superblock,
    inode: &'a Arc<Inode>,
    is_counted: bool,
    is_granted: bool,
}

impl<'a> OpenGuard<'a> {
    /// Counts an open of `inode`, after its removals in flight have ended. The file may be gone
    /// then.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn begin(op: &Op<'a>, inode: &'a Arc<Inode>) -> Result<Self, Errno> {
        let is_counted = begin_open(inode, op.interrupt())?;
        Ok(Self { sb: op.sb, inode, is_counted, is_granted: false })
    }

    /// As [`Self::begin`]; `None` if the object is not a file.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn begin_if_file(op: &Op<'a>, inode: &'a Arc<Inode>) -> Result<Option<Self>, Errno> {
        Self::begin(op, inode).map(|opening| Some(opening).filter(|opening| opening.is_counted))
    }

    /// Keeps the open counted; another part of the client cancels it later.
    pub(crate) fn leave(mut self) {
        self.is_granted = true;
    }

    /// Counts an open of a file that this mount has just created, under the lock of its name.
    pub(crate) fn of_new(sb: &'a Superblock, inode: &'a Arc<Inode>) -> Self {
        inode.lock().by_type.file().opening += 1;
        Self { sb, inode, is_counted: true, is_granted: false }
    }

    /// The inode that is being opened.
    pub(crate) fn inode(&self) -> &'a Arc<Inode> {
        self.inode
    }

    /// Completes the open: it is counted as open until it is released. `note` updates the open
    /// state.
    pub(crate) fn complete<T>(mut self, note: impl FnOnce(&mut LocalOpens) -> T) -> T {
        let mut locked = self.inode.lock();
        let file = locked.by_type.file();
        if self.is_counted {
            file.opening = file.opening.saturating_sub(1);
        }
        file.opens += 1;
        self.is_granted = true;
        note(file)
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        if self.is_counted && !self.is_granted {
            cancel_open(self.sb, self.inode);
        }
    }
}

/// The status in an event: 0 or a negative errno.
fn event_status(answer: &Result<(Result<(), Fault>, NameChangeOutcome), Errno>) -> i32 {
    match answer {
        Ok((Ok(()), _)) => 0,
        Ok((Err(status), _)) => -errno::of_fault(*status).raw_os_error(),
        Err(error) => -error.raw_os_error(),
    }
}

/// Whether the file is open here or being opened.
fn is_open(inode: &Inode) -> bool {
    matches!(&inode.lock().by_type, TypeState::File(state) if state.is_used())
}
