//! The opens of files at the server, for versions that have them.

use std::{sync::Arc, time::Instant};

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::open::OpenTime;
use curt_rpc::client::Interrupt;
use curt_types::{Access, FileKind};
use rustix::io::Errno;

use crate::{
    api::OpenFlags,
    data::DataOwner,
    errno,
    inode::{Inode, rights_reply::RightsReply},
    open_file::OpenFile,
    ops::steps::siblings::{self, Siblings},
    protocol::{OpenExtras, OpenOwner, ReadData, ShareAccess},
    superblock::{Op, Superblock},
};

/// Attempts to get an open that others return at the same time.
const ATTEMPTS_MAX: usize = 4;

/// The access of an open with these flags. To execute a file is to read it.
pub(crate) const fn share_access(flags: OpenFlags) -> ShareAccess {
    ShareAccess::of(flags.read || flags.execute, flags.write)
}

/// A user's share of an open at the server. Dropping it returns the share.
#[must_use]
pub(crate) struct ServerOpenGuard<'a> {
    sb: &'a Superblock,
    inode: Arc<Inode>,
    owner: u32,
    access: ShareAccess,
    /// The file was read with the open.
    has_read: bool,
    is_kept: bool,
}

impl<'a> ServerOpenGuard<'a> {
    /// A share of the caller's open, which is requested if the client does not have it and the open
    /// cannot wait, or if the request is expected to bring a delegation. The reply has attributes
    /// and rights that are as recent as a close-to-open check needs.
    ///
    /// # Errors
    /// EACCES; those of OPEN; ESTALE.
    pub(crate) fn get(
        op: &Op<'a>,
        inode: &Arc<Inode>,
        flags: OpenFlags,
        time: OpenTime,
    ) -> Result<Self, Errno> {
        let access = share_access(flags);
        if access != ShareAccess::Read {
            inode.give_up_delegation();
        }
        let owner = OpenOwner { number: op.identity.number, credential: &op.identity.credential };
        let mut has_read = false;
        let mut must_send = matches!(time, OpenTime::ForDelegation(_)) && !inode.lock().has_delegation();
        for _ in 0..ATTEMPTS_MAX {
            let mut is_granted = !must_send && op.protocol().share_open(inode.handle(), owner, access);
            if !is_granted && time == OpenTime::Later {
                is_granted = op.protocol().delay_open(inode.handle(), owner);
                if is_granted {
                    op.sb.count(ClientCounter::OpenDelayed);
                }
            }
            if is_granted {
                let (inode, owner) = (Arc::clone(inode), owner.number);
                return Ok(Self { sb: op.sb, inode, owner, access, has_read, is_kept: false });
            }
            has_read |= send_open(op, inode, owner, access, time)?;
            must_send = false;
        }
        Err(Errno::IO)
    }

    /// The share belongs to an open file now: [`release`] returns it. Returns whether the file was
    /// read with the open.
    pub(crate) fn keep(mut self) -> bool {
        self.is_kept = true;
        self.has_read
    }
}

impl Drop for ServerOpenGuard<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.sb.core.protocol.close(self.inode.handle(), self.owner, self.access);
        }
    }
}

/// Sends OPEN, with a READ if it is time for that. Returns whether data were read.
fn send_open(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    owner: OpenOwner<'_>,
    access: ShareAccess,
    time: OpenTime,
) -> Result<bool, Errno> {
    let (OpenTime::WithRead(size) | OpenTime::ForDelegation(Some(size))) = time else {
        return send_open_alone(op, inode, owner, access, None, &Siblings::default()).map(|_| false);
    };
    let of_data = Arc::clone(inode) as Arc<dyn DataOwner>;
    let mut refused = None;
    inode.lock().by_type.file().first_user.get_or_insert(op.identity.number);
    let siblings =
        if access == ShareAccess::Read { siblings::expected(op, inode, size) } else { Siblings::default() };
    let has_read = op.sb.core.data.read_with_open(&of_data, size, |read| {
        let answer = send_open_alone(op, inode, owner, access, read, &siblings);
        answer.map_err(|error| refused = Some(error)).ok().flatten()
    });
    match refused {
        Some(error) => Err(error),
        None => {
            if has_read {
                op.sb.count(ClientCounter::OpenRead);
            }
            Ok(has_read)
        }
    }
}

/// Sends one OPEN. Returns what was read, and when the request was sent.
fn send_open_alone(
    op: &Op<'_>,
    inode: &Inode,
    owner: OpenOwner<'_>,
    access: ShareAccess,
    read: Option<u32>,
    siblings: &Siblings,
) -> Result<Option<(ReadData, Instant)>, Errno> {
    let rights = Access::applicable_to(FileKind::Regular);
    let _why = scope::with_cause(Cause::OpenCheck);
    let ticket = inode.lock().attributes.ticket();
    let requests = siblings.requests();
    let wanted = OpenExtras { rights, read, siblings: &requests };
    let answer = op.protocol().open(op.rpc_caller(), inode.handle(), owner, access, wanted);
    let answer = answer.map_err(errno::of_call)?;
    let mut sent_at = op.sb.core.moment(answer.sent_at);
    let delegation = answer.outcome.as_ref().ok().and_then(|opened| opened.delegation.as_ref());
    if let Some(attributes) = &answer.attributes {
        (_, sent_at) = inode.absorb_opened(attributes, sent_at, ticket, delegation);
    }
    let reply = RightsReply::new(sent_at, answer.attributes.as_ref());
    match answer.outcome {
        Ok(opened) => {
            inode.absorb_answer(&op.identity, rights, opened.granted, reply);
            siblings::absorb(op, inode, siblings, opened.siblings, answer.sent_at);
            let read_at = op.sb.core.instant(sent_at).max(answer.sent_at);
            Ok(opened.data.map(|data| (data, read_at)))
        }
        Err(status) => {
            let needs = match access {
                ShareAccess::Read => Access::READ,
                ShareAccess::Write => Access::MODIFY,
                ShareAccess::Both => Access::READ.with(Access::MODIFY),
            };
            inode.note_refusal(&op.identity, status, needs, reply);
            Err(inode.note_failed_status(status))
        }
    }
}

/// Returns the share of an open file that is released. Bytes that were not sent yet are sent
/// before.
pub(crate) fn release(sb: &Superblock, file: &OpenFile) {
    let (protocol, access) = (Arc::clone(&sb.core.protocol), share_access(file.flags()));
    let (inode, owner) = (Arc::clone(&file.inode), file.opener().number);
    if !file.flags().write || !inode.has_unsent() {
        return protocol.close(inode.handle(), owner, access);
    }
    let (data, unsent) = (Arc::clone(&sb.core.data), Arc::clone(&file.owner));
    sb.after_writeback.spawn(Box::new(move || {
        // What cannot be sent was reported already, or will be.
        let _ = data.flush_unsent(&unsent, &Interrupt::never());
        protocol.close(inode.handle(), owner, access);
    }));
}
