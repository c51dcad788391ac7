//! The opens of files at the server, for versions that have them.

use std::sync::Arc;

use curt_observe::{Cause, scope};
use curt_rpc::client::Interrupt;
use curt_types::{Access, FileKind};
use rustix::io::Errno;

use crate::{
    api::OpenFlags,
    errno,
    inode::Inode,
    open_file::OpenFile,
    protocol::{OpenOwner, ShareAccess},
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
    is_kept: bool,
}

impl<'a> ServerOpenGuard<'a> {
    /// A share of the caller's open, which is requested if the client does not have it. The reply
    /// has attributes and rights that are as recent as a close-to-open check needs.
    ///
    /// # Errors
    /// EACCES; those of OPEN; ESTALE.
    pub(crate) fn get(op: &Op<'a>, inode: &Arc<Inode>, flags: OpenFlags) -> Result<Self, Errno> {
        let access = share_access(flags);
        let owner = OpenOwner { number: op.identity.number, credential: &op.identity.credential };
        for _ in 0..ATTEMPTS_MAX {
            if op.protocol().share_open(inode.handle(), owner, access) {
                let (inode, owner) = (Arc::clone(inode), owner.number);
                return Ok(Self { sb: op.sb, inode, owner, access, is_kept: false });
            }
            send_open(op, inode, owner, access)?;
        }
        Err(Errno::IO)
    }

    /// The share belongs to an open file now: [`release`] returns it.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for ServerOpenGuard<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.sb.core.protocol.close(self.inode.handle(), self.owner, self.access);
        }
    }
}

fn send_open(op: &Op<'_>, inode: &Inode, owner: OpenOwner<'_>, access: ShareAccess) -> Result<(), Errno> {
    let rights = Access::worth_asking(FileKind::Regular);
    let _why = scope::with_cause(Cause::OpenCheck);
    let answer = op.protocol().open(op.rpc_caller(), inode.handle(), owner, access, rights);
    let answer = answer.map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    if let Some(attributes) = &answer.attributes {
        let _ = inode.absorb(attributes, sent_at);
    }
    match answer.outcome {
        Ok(granted) => {
            inode.absorb_answer(&op.identity, rights, granted, sent_at);
            Ok(())
        }
        Err(status) => {
            let needs = match access {
                ShareAccess::Read => Access::READ,
                ShareAccess::Write => Access::MODIFY,
                ShareAccess::Both => Access::READ.with(Access::MODIFY),
            };
            inode.note_refusal(&op.identity, status, needs, sent_at);
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
    sb.background.spawn(Box::new(move || {
        // What cannot be sent was reported already, or will be.
        let _ = data.flush_unsent(&unsent, &Interrupt::never());
        protocol.close(inode.handle(), owner, access);
    }));
}
