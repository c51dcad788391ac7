//! SETATTR: chmod, chown, utimes and truncate.

use std::sync::Arc;

use curt_observe::{events::Event, probe};
use curt_types::{Access, Fault, SetAttributes, Wcc};
use rustix::io::Errno;

use crate::{
    api::{InodeId, InodeStat},
    data::DataOwner,
    errno,
    inode::Inode,
    open_file::OpenFile,
    ops::{getattr, kernel_names, permission},
    protocol::{OpenCaller, OpenContext},
    superblock::Op,
};

/// Traces a truncation; `cur_size` is the old size if the event is enabled.
fn trace_truncate(inode: &Inode, cur_size: Option<u64>, new_size: u64) {
    let Some(cur_size) = cur_size else { return };
    probe!(let subject = inode.event_fields(); NfsSizeTruncate {
        fileid: subject.fileid,
        cur_size,
        new_size,
        dev: subject.dev,
        fhandle: subject.fhandle,
        version: subject.version
    });
}

/// Sets attributes; `None` leaves an attribute unchanged. Dirty data are written first, so that the
/// request changes times and mode after them. Setting the size requires write permission, as
/// truncate(2) does.
///
/// # Errors
/// EACCES; EFBIG; those of SETATTR; EINTR.
pub fn setattr(op: &Op<'_>, id: InodeId, set: &SetAttributes) -> Result<InodeStat, Errno> {
    let inode = op.sb.find_inode(id)?;
    kernel_names::check_path(op, &inode)?;
    op.note_path_result(setattr_found(op, &inode, set))
}

fn setattr_found(op: &Op<'_>, inode: &Arc<Inode>, set: &SetAttributes) -> Result<InodeStat, Errno> {
    if set.size.is_some() {
        // Servers (knfsd 6.1, `curt serve`) allow this to a file's owner whatever the mode, for
        // files that are open for writing (RFC 1813, section 4.4). truncate(2) has no open file.
        permission::require(op, inode, Access::MODIFY)?;
    }
    if *set != SetAttributes::default() {
        set_attributes(op, inode, set, None)?;
        inode.check_name()?;
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            kernel_names::await_closed(op, inode);
        }
    }
    match set.size {
        Some(_) => stat_resized(op, inode),
        None => getattr::stat(op, inode),
    }
}

/// Sets attributes through an open file, as ftruncate(2): the size of a file that is open for
/// writing is set with the opener's credential, whatever the caller and the file's current mode.
///
/// # Errors
/// As [`super::setattr`].
pub fn setattr_open(op: &Op<'_>, file: &OpenFile, set: &SetAttributes) -> Result<InodeStat, Errno> {
    file.check_lost()?;
    if set.size.is_none() || !file.flags().write {
        return setattr_found(op, &file.inode, set);
    }
    let opener = Op::new(op.sb, file.opener(), op.interrupt().clone(), op.began);
    set_attributes(&opener, &file.inode, set, Some(&opener.identity.open_context()))
        .map_err(|error| file.locks.note_failure(error))?;
    stat_resized(op, &file.inode)
}

/// Attributes for the reply to a request that has set the size. Without them the kernel keeps its
/// old size.
fn stat_resized(op: &Op<'_>, inode: &Arc<Inode>) -> Result<InodeStat, Errno> {
    let stat = getattr::stat(op, inode);
    if stat.is_err() {
        inode.may_seem_larger_again();
    }
    stat
}

/// Writes dirty data as `set` requires it; the result of the SETATTR if it was sent with them.
fn write_before(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    set: &SetAttributes,
) -> Result<Option<Result<(), Fault>>, Errno> {
    if !inode.data_if_any().is_some_and(|data| data.has_unsent() || data.has_unwritten()) {
        return Ok(None);
    }
    let owner: Arc<dyn DataOwner> = Arc::clone(inode) as Arc<dyn DataOwner>;
    op.sb.core.data.write_before_setattr(&owner, set, op.rpc_caller()).map_err(errno::of_data)
}

/// Sets attributes; `open` is for writing, if the caller has the file open.
pub(crate) fn set_attributes(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    set: &SetAttributes,
    open: Option<&OpenContext>,
) -> Result<(), Errno> {
    if set.size.is_some_and(|size| size > op.sb.core.size_max(inode.fsid())) {
        return Err(Errno::FBIG);
    }
    if let Some(outcome) = write_before(op, inode, set)? {
        return outcome.map_err(|status| inode.note_failed_status(status));
    }
    // A file that is open may be locked, with or without data.
    let size = set.size.filter(|_| open.is_some() || inode.data_if_any().is_some());
    let resize = size.map(|size| getattr::begin_resize(op, inode, size)).transpose()?;
    let cur_size = Event::NfsSizeTruncate.is_wanted().then(|| inode.event_fields().size);
    inode.begin_mutation();
    let sent_at = op.now();
    let answer = match open {
        Some(open) => {
            let open = OpenCaller { open, interrupt: op.interrupt() };
            let is_lost = || resize.as_ref().is_some_and(|resize| resize.is_lost());
            op.protocol().set_through_open(open, inode.handle(), set, &is_lost)
        }
        None => op.protocol().set(op.rpc_caller(), inode.handle(), set),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let _ = inode.end_mutation(&Wcc::default(), sent_at);
            return Err(errno::of_call(error));
        }
    };
    let sent_at = op.sb.core.moment(answer.sent_at);
    // The data cache first: the new size must not be reported while data beyond it are cached.
    if let (Ok(()), Some(size), Some(data)) = (&answer.outcome, set.size, inode.data_if_any()) {
        data.truncated(size);
    }
    drop(resize);
    if let (Ok(()), Some(new_size)) = (&answer.outcome, set.size) {
        trace_truncate(inode, cur_size, new_size);
    }
    if answer.outcome.is_ok() && set.size.is_some() {
        inode.end_resizing(&answer.attributes, sent_at);
    } else {
        let _ = inode.end_mutation(&answer.attributes, sent_at);
    }
    answer.outcome.map_err(|status| inode.note_failed_status(status))
}
