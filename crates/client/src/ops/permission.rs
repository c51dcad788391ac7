//! The check of rights that every operation makes: whether the caller has them, and ACCESS where
//! only the server can tell.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::{AccessDecision, AccessReason};
use curt_types::Access;
use rustix::io::Errno;

use crate::{
    errno,
    inode::{Inode, rights_reply::RightsReply},
    ops::getattr::revalidate,
    superblock::{Op, Superblock},
};

/// Checks that the caller has the rights `needs` on `inode`.
pub(crate) fn require(op: &Op<'_>, inode: &Arc<Inode>, needs: Access) -> Result<(), Errno> {
    let mut why = None;
    for _ in op.rounds() {
        match access_decision(op, inode, needs) {
            AccessDecision::Allow => {
                count_allowed(op, inode, needs, why);
                return Ok(());
            }
            AccessDecision::Deny => {
                count_denied(op.sb, why);
                return Err(Errno::ACCESS);
            }
            AccessDecision::Revalidate => revalidate(op, inode)?,
            AccessDecision::Ask(reason) => {
                send_access(op, inode, reason)?;
                why = Some(reason);
            }
        }
    }
    Err(Errno::IO)
}

pub(crate) fn access_decision(op: &Op<'_>, inode: &Inode, needs: Access) -> AccessDecision {
    inode.access_decision(&op.identity, op.time(), needs, &op.options)
}

/// Sends ACCESS for all rights that apply to the type of `inode`.
pub(crate) fn send_access(op: &Op<'_>, inode: &Inode, why: AccessReason) -> Result<(), Errno> {
    let kind = inode.lock().attributes.newest().map(|known| known.kind);
    let rights = kind.map_or(Access::ALL, Access::applicable_to);
    let _why = scope::with_cause(match why {
        AccessReason::ForeignData | AccessReason::ConfirmDenial => Cause::AccessConfirm,
        AccessReason::Unasked => Cause::Access,
    });
    let answer = op.protocol().access(op.rpc_caller(), inode.handle(), rights).map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    op.sb.count(ClientCounter::AccessWire);
    match why {
        AccessReason::ForeignData => op.sb.count(ClientCounter::AccessDataCheck),
        AccessReason::ConfirmDenial => count_doubted_denial(op, inode),
        AccessReason::Unasked => {}
    }
    if let Some(attributes) = &answer.attributes {
        let _ = inode.absorb(attributes, sent_at);
    }
    match answer.outcome {
        Ok(granted) => {
            // If the rights change during each of many rounds, the last reply counts.
            let attributes = answer.attributes.as_ref().filter(|_| !op.uses_cache.get());
            let reply = RightsReply::new(sent_at, attributes);
            inode.absorb_answer(&op.identity, rights, granted, reply);
            Ok(())
        }
        Err(status) => Err(inode.note_failed_status(status)),
    }
}

fn count_doubted_denial(op: &Op<'_>, inode: &Inode) {
    let now = op.now();
    let locked = inode.lock();
    if inode.access_view(&locked, &op.identity, now).entry.is_none() {
        drop(locked);
        op.sb.count(ClientCounter::AccessLocalDeny);
    }
}

/// Counts why access was granted.
pub(crate) fn count_allowed(op: &Op<'_>, inode: &Inode, needs: Access, why: Option<AccessReason>) {
    if !needs.is_empty() {
        let now = op.now();
        let view = inode.access_view(&inode.lock(), &op.identity, now);
        op.sb.count_allowed(view.allowed_by(needs), why);
    }
}

/// Counts why access was denied.
pub(crate) fn count_denied(sb: &Superblock, why: Option<AccessReason>) {
    match why {
        Some(AccessReason::ConfirmDenial) => sb.count(ClientCounter::AccessDenyConfirmed),
        Some(AccessReason::Unasked | AccessReason::ForeignData) => {}
        None => sb.count(ClientCounter::AccessHitNegative),
    }
}

/// Whether the server is expected to let the caller list the directory. A wrong answer does not
/// affect LOOKUP.
pub(crate) fn may_list(op: &Op<'_>, directory: &Inode) -> bool {
    match access_decision(op, directory, Access::READ) {
        AccessDecision::Allow => true,
        AccessDecision::Deny => false,
        AccessDecision::Revalidate | AccessDecision::Ask(_) => {
            let now = op.now();
            let view = directory.access_view(&directory.lock(), &op.identity, now);
            view.local.is_none_or(|bits| bits.contains(Access::READ))
        }
    }
}
