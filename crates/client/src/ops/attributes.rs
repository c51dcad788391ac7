//! Sends GETATTR and ACCESS for one inode, and applies the replies to its caches. `getattr` decides
//! when they are sent.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::{
    AccessDecision, AccessReason, Moment,
    access::{AllowedBy, decide_access},
};
use curt_types::{Access, Fault};
use rustix::io::Errno;

use crate::{
    data::DataError,
    errno,
    event_fields::{trace_enter, trace_exit},
    inode::Inode,
    op::Op,
    superblock::Superblock,
};

pub(crate) fn send_getattr(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let reason = scope::current().cause.unwrap_or(Cause::AttributesUnknown);
    trace_enter!(inode.event_fields(), NfsRevalidateInodeEnter { reason: reason.name() });
    let answer = send_getattr_untraced(op, inode);
    trace_exit!(inode.event_fields(), NfsRevalidateInodeExit { error: errno::event_status(&answer) });
    answer
}

fn send_getattr_untraced(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let answer = op.protocol().attributes(op.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
    match answer.outcome {
        Ok(attributes) => {
            let _ = inode.absorb(&attributes, op.sb.core.moment(answer.sent_at));
            Ok(())
        }
        Err(status) => Err(note_failed_status(inode, status)),
    }
}

/// The errno of a failed request about `inode`; records it if the handle is stale.
pub(crate) fn note_failed_status(inode: &Inode, status: Fault) -> Errno {
    if matches!(status, Fault::Stale | Fault::Badhandle) {
        inode.mark_stale();
    }
    errno::of_fault(status)
}

pub(crate) fn access_decision(op: &Op<'_>, inode: &Inode, needs: Access, is_foreign: bool) -> AccessDecision {
    let now = op.now();
    let facts = inode.facts();
    let view = inode.access_view(&facts, &op.identity, is_foreign, now);
    decide_access(&view, facts.freshness(op.time(), &op.options), needs, &op.options)
}

/// Sends ACCESS for all rights that apply to the type of `inode`.
pub(crate) fn send_access(op: &Op<'_>, inode: &Inode, why: AccessReason) -> Result<(), Errno> {
    let kind = inode.facts().state.facts().map(|known| known.kind);
    let rights = kind.map_or(Access::ALL, Access::worth_asking);
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
            inode.absorb_answer(&op.identity, rights, granted, sent_at);
            Ok(())
        }
        Err(status) => Err(note_failed_status(inode, status)),
    }
}

fn count_doubted_denial(op: &Op<'_>, inode: &Inode) {
    let now = op.now();
    let facts = inode.facts();
    if inode.access_view(&facts, &op.identity, false, now).entry.is_none() {
        drop(facts);
        op.sb.count(ClientCounter::AccessLocalDeny);
    }
}

/// Counts why access was granted.
pub(crate) fn count_allowed(op: &Op<'_>, inode: &Inode, needs: Access, why: Option<AccessReason>) {
    if !needs.is_empty() {
        let now = op.now();
        let view = inode.access_view(&inode.facts(), &op.identity, false, now);
        count_allowed_by(op.sb, view.allowed_by(needs), why);
    }
}

/// Counts a grant by `by`, or by an ACCESS request that was sent for the reason `why`.
pub(crate) fn count_allowed_by(sb: &Superblock, by: AllowedBy, why: Option<AccessReason>) {
    match (why, by) {
        (Some(AccessReason::ConfirmDenial), _) => sb.count(ClientCounter::AccessDenyOverturned),
        (Some(AccessReason::Unasked | AccessReason::ForeignData), _) => {}
        (None, AllowedBy::Server) => sb.count(ClientCounter::AccessHitPositive),
        (None, AllowedBy::ModeBits) => sb.count(ClientCounter::AccessLocalAllow),
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

/// Records that the server refused the caller an operation on `inode` that requires `rights`.
pub(crate) fn note_refusal(op: &Op<'_>, inode: &Inode, status: Fault, rights: Access, sent_at: Moment) {
    if status != Fault::Acces {
        return;
    }
    let view = inode.access_view(&inode.facts(), &op.identity, false, op.now());
    let by_server = view.entry.is_some_and(|entry| entry.granted.contains(rights));
    if by_server || view.local.is_some_and(|bits| bits.contains(rights)) {
        inode.disprove(&op.identity, rights, sent_at);
    } else {
        inode.absorb_answer(&op.identity, rights, Access::NONE, sent_at);
    }
}

/// Whether the server is expected to let the caller list the directory. A wrong answer does not
/// affect LOOKUP.
pub(crate) fn may_list(op: &Op<'_>, directory: &Inode) -> bool {
    match access_decision(op, directory, Access::READ, false) {
        AccessDecision::Allow => true,
        AccessDecision::Deny => false,
        AccessDecision::Revalidate | AccessDecision::Ask(_) => {
            let now = op.now();
            let view = directory.access_view(&directory.facts(), &op.identity, false, now);
            view.local.is_none_or(|bits| bits.contains(Access::READ))
        }
    }
}

pub(crate) fn data_error(inode: &Inode, error: DataError) -> Errno {
    if let DataError::Status(status) = error {
        return note_failed_status(inode, status);
    }
    errno::of_data(error)
}
