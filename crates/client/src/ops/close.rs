//! Closing files, and flushing their data to the server.

use std::sync::atomic::Ordering::Relaxed;

use curt_rpc::client::Interrupt;
use rustix::io::Errno;

use crate::{op::Op, open_file::OpenFile, ops::last_close, superblock::Superblock};

/// Closes the open file. Dirty data that were not flushed are written in the background. The last
/// release of a file that was removed while open removes its silly name. Further calls for the same
/// file do nothing.
pub fn release(sb: &Superblock, file: &OpenFile) {
    release_noting(sb, file, || {});
}

/// The same; `noted` is called once the removal of the silly name is registered, so that a later
/// removal of its directory waits for it.
pub fn release_noting(sb: &Superblock, file: &OpenFile, noted: impl FnOnce()) {
    if file.released.swap(true, Relaxed) {
        return;
    }
    if file.flags.write && file.owner.data().has_unwritten() {
        sb.core.data.write_behind(&file.owner);
    }
    if file.locks.was_used() {
        // Others must see the data once they have the lock.
        let _ = sb.core.data.flush_unsent(&file.owner, &Interrupt::never());
        sb.locks.close_open(file);
    }
    let now = sb.core.now();
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
    let _going = silly.as_ref().map(|silly| sb.silly_directories.begin_removal(silly.directory.id()));
    noted();
    if let Some(silly) = silly {
        last_close::remove_silly_name(sb, &file.inode, &silly);
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
    result.map_err(|error| file.inode.note_data_error(error))
}

/// fsync(2) and fdatasync(2): writes all data of the file to the server's stable storage.
/// `datasync` has no effect: NFSv3 has no request that commits data without metadata.
///
/// # Errors
/// As [`super::flush`].
pub fn fsync(op: &Op<'_>, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
    file.locks.check_lost()?;
    let _ = datasync;
    flush(op, file)
}
