//! SETATTR and READLINK: an object's own attributes and a link's text.

use std::sync::Arc;

use curt_trace::{ClientCounter, events::Event, probe};
use curt_types::{Access, FileKind, SetAttributes, Wcc};
use rustix::io::Errno;

use crate::{
    api::InodeStat,
    client::{Client, OpContext},
    errno,
    identity::{Caller, InodeId},
    inode::{CachedLinkText, Inode, TypeState},
    open::OpenFile,
    protocol::v3,
};

impl Client {
    /// Sets attributes; what is `None` stays. Bytes written before are with the server before it is
    /// asked, so that it changes times and modes after them. To set a size takes the right to
    /// write, as truncate(2) does.
    ///
    /// # Errors
    /// EACCES; EFBIG; those of SETATTR; EINTR.
    pub fn setattr(&self, caller: &Caller, id: InodeId, set: &SetAttributes) -> Result<InodeStat, Errno> {
        let inode = self.find_inode(id)?;
        let asked = self.op_context(caller);
        if set.size.is_some() {
            // Servers (knfsd 6.1, `curt serve`) let a file's owner do so whatever its mode says,
            // for the sake of files that are open for writing (RFC 1813 §4.4). A path is no open
            // file.
            self.require(&asked, &inode, Access::MODIFY)?;
        }
        if *set != SetAttributes::default() {
            self.set_attributes(&asked, &inode, set)?;
        }
        match set.size {
            Some(_) => self.stat_resized(&asked, &inode),
            None => self.stat(&asked, &inode),
        }
    }

    /// The same through an open file, as ftruncate(2): a file that is open for writing is given its
    /// size in the name of whoever opened it, whoever calls now and whatever its mode says.
    ///
    /// # Errors
    /// As [`Client::setattr`].
    pub fn setattr_open(
        &self,
        caller: &Caller,
        file: &OpenFile,
        set: &SetAttributes,
    ) -> Result<InodeStat, Errno> {
        if set.size.is_none() || !file.flags().write {
            return self.setattr(caller, file.id(), set);
        }
        let asked = self.op_context(caller);
        let opener = OpContext::new(file.opener(), asked.interrupt.clone(), asked.began);
        self.set_attributes(&opener, &file.inode, set)?;
        self.stat_resized(&asked, &file.inode)
    }

    /// Attributes for the reply to a request that has set the size. Without a reply the kernel
    /// keeps the size that it knew.
    fn stat_resized(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<InodeStat, Errno> {
        let stat = self.stat(asked, inode);
        if stat.is_err() {
            inode.may_seem_larger_again();
        }
        stat
    }

    pub(crate) fn set_attributes(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        set: &SetAttributes,
    ) -> Result<(), Errno> {
        if set
            .size
            .is_some_and(|size| size > self.core.size_max(inode.fsid()))
        {
            return Err(Errno::FBIG);
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            // Servers ask for the right to write at COMMIT, too (knfsd 6.1). Whoever wrote may have
            // none afterwards.
            self.settle_durably(asked, inode)?;
        } else {
            self.flush_unsent(asked, inode)?;
        }
        let cur_size = Event::NfsSizeTruncate
            .is_wanted()
            .then(|| inode.event_fields().size);
        inode.begin_mutation();
        let sent_at = self.core.now();
        let answer = match v3::setattr(&self.core.rpc, asked.rpc_caller(), inode.handle(), set, None) {
            Ok(answer) => answer,
            Err(error) => {
                let _ = inode.end_mutation(&Wcc::default(), sent_at);
                return Err(errno::of_call(error));
            }
        };
        let sent_at = self.core.moment(answer.sent_at);
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
        answer
            .outcome
            .map_err(|status| self.note_failed_status(inode, status))
    }

    /// The text of a symbolic link; from memory while the link's attributes are believed.
    ///
    /// # Errors
    /// EINVAL if it is no link; those of READLINK and GETATTR.
    pub fn readlink(&self, caller: &Caller, id: InodeId) -> Result<Box<[u8]>, Errno> {
        let inode = self.find_inode(id)?;
        let asked = self.op_context(caller);
        if let Some(text) = self.cached_link_text(&asked, &inode)? {
            return Ok(text);
        }
        let answer =
            v3::readlink(&self.core.rpc, asked.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        let adopted = answer
            .attributes
            .as_ref()
            .is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
        let text = answer
            .outcome
            .map_err(|status| self.note_failed_status(&inode, status))?;
        let mut facts = inode.facts();
        let is_link = facts
            .state
            .facts()
            .is_some_and(|known| known.kind == FileKind::Symlink);
        if let (true, true, Some(epoch)) = (is_link, adopted, facts.contents()) {
            facts.by_type = TypeState::Link(Box::new(CachedLinkText {
                text: text.clone(),
                epoch,
            }));
        }
        Ok(text)
    }

    fn cached_link_text(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<Option<Box<[u8]>>, Errno> {
        if !matches!(inode.facts().by_type, TypeState::Link(_)) {
            return Ok(None);
        }
        let is_believed = || {
            let options = self.core.options();
            inode.facts().can_be_served(asked, self.core.now(), &options)
        };
        if is_believed() {
            self.count(ClientCounter::AttrHit);
        } else {
            self.revalidate(asked, inode)?;
        }
        let facts = inode.facts();
        let TypeState::Link(link) = &facts.by_type else {
            return Ok(None);
        };
        Ok((facts.contents() == Some(link.epoch)).then(|| link.text.clone()))
    }
}

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
