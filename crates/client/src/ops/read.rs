//! Reading an open file: whether cached data may be served, and the credential of READ requests.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_observe::ClientCounter;
use curt_types::Access;
use rustix::io::Errno;

use crate::{
    data::{DataError, ReadBytes, ReadTarget},
    inode::{Inode, rights_reply::RightsReply},
    open_file::OpenFile,
    ops::getattr,
    superblock::{Op, Superblock},
};

/// Reads up to `count` bytes at `offset`; returns fewer only at end of file.
///
/// # Errors
/// EBADF if the file was not opened for reading; those of READ; EINTR.
pub fn read(op: &Op<'_>, file: &OpenFile, offset: u64, count: usize) -> Result<ReadBytes, Errno> {
    begin_read(op, file)?;
    let plane = &op.sb.core.data;
    let result = plane.read(&file.owner, &file.data, offset, count, op.interrupt());
    result.map_err(|error| read_error(op, file, error))
}

/// As [`super::read`], but passes the bytes to `target`, possibly on another thread. Data of large
/// files may be passed as they are received, without being cached. This may return about 20 ms
/// after `target` got the bytes: until then the thread receives replies for other readers and
/// passes the data to their targets.
///
/// # Errors
/// As [`super::read`]; after EINTR `target` may have been called.
pub fn read_to(
    op: &Op<'_>,
    file: &OpenFile,
    offset: u64,
    count: usize,
    target: &Arc<dyn ReadTarget>,
) -> Result<(), Errno> {
    begin_read(op, file)?;
    let plane = &op.sb.core.data;
    let result = plane.read_to(&file.owner, &file.data, offset, count, op.interrupt(), target);
    result.map_err(|error| read_error(op, file, error))
}

fn begin_read(op: &Op<'_>, file: &OpenFile) -> Result<(), Errno> {
    file.check_lost()?;
    note_read_at_open(op.sb, file, true);
    if file.owner.data().take_read_at_lookup() {
        op.sb.core.speculations(|benefits| benefits.lookup_reads.record_use());
        op.sb.count(ClientCounter::LookupReadUsed);
    }
    if !(file.flags.read || file.flags.execute || file.flags.write) {
        return Err(Errno::BADF);
    }
    if !file.flags.direct {
        refresh_for_read(op, &file.inode)?;
    }
    Ok(())
}

/// Records whether what was read with the open is used.
pub(crate) fn note_read_at_open(sb: &Superblock, file: &OpenFile, is_used: bool) {
    if file.read_at_open.load(Relaxed) && file.read_at_open.swap(false, Relaxed) {
        sb.core.speculations(|benefits| benefits.open_reads.record(is_used));
        if is_used {
            sb.count(ClientCounter::OpenReadUsed);
        }
    }
}

fn read_error(op: &Op<'_>, file: &OpenFile, error: DataError) -> Errno {
    if let DataError::Status(status) = error {
        // READ is sent with the opener's credential.
        let identity = Arc::clone(&file.identity);
        let opener = Op::new(op.sb, identity, op.interrupt().clone(), op.began);
        file.inode.note_refusal(&opener.identity, status, Access::READ, RightsReply::new(op.began, None));
    }
    file.locks.note_failure(file.inode.note_data_error(error))
}

/// Cached data of an open file are valid while its attributes are.
fn refresh_for_read(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let Some(data) = inode.data_if_any() else {
        return Ok(());
    };
    if data.pages_since().is_none() || data.has_unsent() {
        return Ok(());
    }
    if inode.lock().can_be_served(op.time(), &op.options) {
        return Ok(());
    }
    getattr::revalidate(op, inode)
}
