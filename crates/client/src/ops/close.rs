//! Closing files, and making what was written durable.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use crate::{
    op::Op,
    open_file::OpenFile,
    ops::{attributes, last_close},
    superblock::Superblock,
};

/// The open file is not used any more. What it wrote and nobody flushed is written behind; a
/// file that was removed while it was open goes at the last release. Further calls for the same
/// file do nothing.
pub fn release(sb: &Superblock, file: &OpenFile) {
    release_noting(sb, file, || {});
}

/// The same; `noted` is called when whoever removes a directory later waits for what this still
/// removes from it.
pub fn release_noting(sb: &Superblock, file: &OpenFile, noted: impl FnOnce()) {
    if file.released.swap(true, Relaxed) {
        return;
    }
    if file.flags.write && file.owner.data().has_unwritten() {
        sb.core.data.write_behind(&file.owner);
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

/// Flushes and releases: what close(2) of the only descriptor does.
///
/// # Errors
/// As [`super::flush`]; the file is released all the same.
pub fn close(op: &Op<'_>, file: &OpenFile) -> Result<(), Errno> {
    let result = flush(op, file);
    release(op.sb, file);
    result
}

/// close(2) by one of those who share the open file: has its bytes on the server's disk, or
/// says why not.
///
/// # Errors
/// A failure of a write that this open file was not told of; EINTR (the bytes are still written
/// behind).
pub fn flush(op: &Op<'_>, file: &OpenFile) -> Result<(), Errno> {
    if !file.flags.write {
        return Ok(());
    }
    let result = op.sb.core.data.flush(&file.owner, &file.data, op.interrupt());
    result.map_err(|error| attributes::data_error(&file.inode, error))
}

/// fsync(2) and fdatasync(2): has all bytes written so far on the server's disk, or says why
/// not. `datasync` changes nothing: NFSv3 keeps a file's size and times with its data.
///
/// # Errors
/// As [`super::flush`].
pub fn fsync(op: &Op<'_>, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
    let _ = datasync;
    flush(op, file)
}
