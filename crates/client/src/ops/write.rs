//! Writing an open file.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    data::{DataError, WritePosition},
    inode::Inode,
    open_file::OpenFile,
    superblock::Op,
};

/// Writes `bytes` at `offset`, or at end of file if the file was opened with `append`. Returns the
/// number of bytes accepted; they are on the server's stable storage after [`super::flush`] or
/// [`super::fsync`].
///
/// # Errors
/// EBADF if the file was not opened for writing; the error of an earlier write that was not yet
/// reported; EINTR; EFBIG.
pub fn write(op: &Op<'_>, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    file.check_lost()?;
    if !file.flags.write {
        return Err(Errno::BADF);
    }
    if !file.flags.append {
        return write_at(op, file, offset, bytes);
    }
    let size = || size_now(op, &file.inode);
    let interrupt = op.interrupt();
    let taken = op.sb.core.data.write(&file.owner, &file.data, WritePosition::End(&size), bytes, interrupt);
    let taken = taken.map_err(|error| file.locks.note_failure(file.inode.note_data_error(error)))?;
    if taken.offset != offset
        && let Some(observer) = &op.sb.core.observer
    {
        // A kernel has placed its copy at the end of file that it assumed.
        observer.contents_changed(file.id(), None);
    }
    Ok(taken.count)
}

/// Writes `bytes` at `offset` even with O_APPEND: pages dirtied through a mapping are written at
/// their own offsets through any open file.
///
/// # Errors
/// As [`super::write`].
pub fn write_at(op: &Op<'_>, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    if !file.flags.write {
        return Err(Errno::BADF);
    }
    let position = WritePosition::At(offset);
    let taken = op.sb.core.data.write(&file.owner, &file.data, position, bytes, op.interrupt());
    let taken = taken.map_err(|error| file.locks.note_failure(file.inode.note_data_error(error)))?;
    Ok(taken.count)
}

/// The file's size by a GETATTR sent now.
fn size_now(op: &Op<'_>, inode: &Arc<Inode>) -> Result<u64, DataError> {
    let answer = op.protocol().attributes(op.rpc_caller(), inode.handle())?;
    let attributes = answer.outcome.map_err(DataError::Status)?;
    let _ = inode.absorb(&attributes, op.sb.core.moment(answer.sent_at));
    Ok(inode.lock().attributes.newest().map_or(attributes.size, |known| known.size))
}
