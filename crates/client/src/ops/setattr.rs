//! SETATTR and READLINK: an object's own attributes and a link's text.

use std::sync::Arc;

use curt_observe::{events::Event, probe};
use curt_types::{Access, SetAttributes, Wcc};
use rustix::io::Errno;

use crate::{
    api::InodeStat,
    errno,
    identity::InodeId,
    inode::Inode,
    op::Op,
    open_file::OpenFile,
    ops::{attributes, getattr},
};

/// Tells of a size that a program gave to a file; `cur_size` if anybody wanted to know before.
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

/// Sets attributes; what is `None` stays. Bytes written before are with the server before it is
/// asked, so that it changes times and modes after them. To set a size takes the right to
/// write, as truncate(2) does.
///
/// # Errors
/// EACCES; EFBIG; those of SETATTR; EINTR.
pub fn setattr(op: &Op<'_>, id: InodeId, set: &SetAttributes) -> Result<InodeStat, Errno> {
    let inode = op.sb.find_inode(id)?;
    if set.size.is_some() {
        // Servers (knfsd 6.1, `curt serve`) let a file's owner do so whatever its mode says,
        // for the sake of files that are open for writing (RFC 1813 §4.4). A path is no open
        // file.
        getattr::require(op, &inode, Access::MODIFY)?;
    }
    if *set != SetAttributes::default() {
        set_attributes(op, &inode, set)?;
    }
    match set.size {
        Some(_) => stat_resized(op, &inode),
        None => getattr::stat(op, &inode),
    }
}

/// The same through an open file, as ftruncate(2): a file that is open for writing is given its
/// size in the name of whoever opened it, whoever calls now and whatever its mode says.
///
/// # Errors
/// As [`super::setattr`].
pub fn setattr_open(op: &Op<'_>, file: &OpenFile, set: &SetAttributes) -> Result<InodeStat, Errno> {
    if set.size.is_none() || !file.flags().write {
        return setattr(op, file.id(), set);
    }
    let opener = Op::new(op.sb, file.opener(), op.interrupt().clone(), op.began);
    set_attributes(&opener, &file.inode, set)?;
    stat_resized(op, &file.inode)
}

/// Attributes for the reply to a request that has set the size. Without a reply the kernel keeps
/// the size that it knew.
fn stat_resized(op: &Op<'_>, inode: &Arc<Inode>) -> Result<InodeStat, Errno> {
    let stat = getattr::stat(op, inode);
    if stat.is_err() {
        inode.may_seem_larger_again();
    }
    stat
}

pub(crate) fn set_attributes(op: &Op<'_>, inode: &Arc<Inode>, set: &SetAttributes) -> Result<(), Errno> {
    if set.size.is_some_and(|size| size > op.sb.core.size_max(inode.fsid())) {
        return Err(Errno::FBIG);
    }
    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
        // Servers ask for the right to write at COMMIT, too (knfsd 6.1). Whoever wrote may have
        // none afterwards.
        getattr::settle_durably(op, inode)?;
    } else {
        getattr::flush_unsent(op, inode)?;
    }
    let cur_size = Event::NfsSizeTruncate.is_wanted().then(|| inode.event_fields().size);
    inode.begin_mutation();
    let sent_at = op.now();
    let answer = match op.protocol().set(op.rpc_caller(), inode.handle(), set) {
        Ok(answer) => answer,
        Err(error) => {
            let _ = inode.end_mutation(&Wcc::default(), sent_at);
            return Err(errno::of_call(error));
        }
    };
    let sent_at = op.sb.core.moment(answer.sent_at);
    // The data half first: the size that the reply tells must not meet bytes that are cut off.
    if let (Ok(()), Some(size), Some(data)) = (&answer.outcome, set.size, inode.data_if_any()) {
        data.truncated(size);
    }
    if let (Ok(()), Some(new_size)) = (&answer.outcome, set.size) {
        trace_truncate(inode, cur_size, new_size);
    }
    if answer.outcome.is_ok() && set.size.is_some() {
        inode.end_resizing(&answer.attributes, sent_at);
    } else {
        let _ = inode.end_mutation(&answer.attributes, sent_at);
    }
    answer.outcome.map_err(|status| attributes::note_failed_status(inode, status))
}
