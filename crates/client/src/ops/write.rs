//! Writing an open file, and making what was written durable.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    data::{DataError, WritePosition},
    inode::Inode,
    op::Op,
    open_file::OpenFile,
    ops::attributes,
};

/// Writes `bytes` at `offset`, or at the file's end if it was opened with `append`. Returns how
/// many were taken; they are on the server's disk after [`super::flush`] or [`super::fsync`].
///
/// # Errors
/// EBADF if it was not opened for writing; a failure of an earlier write that was not told yet;
/// EINTR; EFBIG.
pub fn write(op: &Op<'_>, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    if !file.flags.write {
        return Err(Errno::BADF);
    }
    if !file.flags.append {
        return write_at(op, file, offset, bytes);
    }
    let size = || size_now(op, &file.inode);
    let interrupt = op.interrupt();
    let taken = op.sb.core.data.write(&file.owner, &file.data, WritePosition::End(&size), bytes, interrupt);
    let taken = taken.map_err(|error| attributes::data_error(&file.inode, error))?;
    if taken.offset != offset
        && let Some(observer) = &op.sb.core.observer
    {
        // A kernel has put its copy where it thought that the end was.
        observer.contents_changed(file.id(), None);
    }
    Ok(taken.count)
}

/// Writes `bytes` at `offset` whatever the file was opened with: pages that were changed
/// through a mapping go back to where they belong by any open file.
///
/// # Errors
/// As [`super::write`].
pub fn write_at(op: &Op<'_>, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    if !file.flags.write {
        return Err(Errno::BADF);
    }
    let position = WritePosition::At(offset);
    let taken = op.sb.core.data.write(&file.owner, &file.data, position, bytes, op.interrupt());
    taken.map(|taken| taken.count).map_err(|error| attributes::data_error(&file.inode, error))
}

/// The server's size of the file, asked for now.
fn size_now(op: &Op<'_>, inode: &Arc<Inode>) -> Result<u64, DataError> {
    let answer = op.protocol().attributes(op.rpc_caller(), inode.handle())?;
    let attributes = answer.outcome.map_err(DataError::Status)?;
    let _ = inode.absorb(&attributes, op.sb.core.moment(answer.sent_at));
    Ok(inode.facts().state.facts().map_or(attributes.size, |known| known.size))
}
