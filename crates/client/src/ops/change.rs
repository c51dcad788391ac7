//! Changes of names: the steps that CREATE, REMOVE, RENAME and LINK share.
//!
//! Owns these steps: the names are dropped from the caches before the request and after it, the
//! directory is marked as changing in between, and the information in the reply is cached.
//! Invariant: each change that begins also ends, whatever the result of its request.

use std::sync::Arc;

use curt_policy::{
    Absorbed, CachingAttributes, MonotonicTime,
    names::{DentryUpdate, LookupFinding},
};
use curt_rpc::client::CallError;
use curt_types::{Access, Fault, Wcc};
use rustix::io::Errno;

use crate::{
    errno,
    inode::{Inode, rights_reply::RightsReply},
    protocol::NfsReply,
    readdir::local_changes::LocalChange,
    superblock::{Op, Superblock},
};

/// A change of one name that is in flight.
#[must_use]
pub(crate) struct NameChange<'a> {
    sb: &'a Superblock,
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    number: u64,
    sent_at: MonotonicTime,
    has_ended: bool,
}

/// The result of a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameChangeOutcome {
    /// How the directory's attributes in the reply were applied.
    pub(crate) absorbed: Absorbed,
    /// No other change of the same name by this client overlapped with it.
    pub(crate) is_alone: bool,
    pub(crate) sent_at: MonotonicTime,
    /// The directory's attributes after it.
    after: Option<CachingAttributes>,
    /// If the request was retransmitted to a restarted server: the time by which an earlier copy
    /// was executed, if it was.
    pub(crate) lost_at: Option<MonotonicTime>,
    /// The number of this change among those of the directory.
    number: u64,
}

impl NameChangeOutcome {
    const fn reply(&self) -> RightsReply {
        RightsReply { sent_at: self.sent_at, attributes: self.after }
    }
}

impl<'a> NameChange<'a> {
    /// Begins a change of `name` in `directory`; to be called before the request is sent.
    pub(crate) fn begin(sb: &'a Superblock, directory: &'a Arc<Inode>, name: &'a [u8]) -> Self {
        let sent_at = sb.core.now();
        let number = {
            let mut locked = directory.lock();
            locked.attributes.begin_mutation();
            locked.by_type.directory().begin_change(name)
        };
        let former = sb.dentries.uncache_name(directory, name);
        drop(former);
        Self { sb, directory, name, number, sent_at, has_ended: false }
    }

    /// Ends the change with the directory's attributes in the reply.
    pub(crate) fn end<T, A>(mut self, wcc: &Wcc, answer: &NfsReply<T, A>) -> NameChangeOutcome {
        let core = &self.sb.core;
        let (sent_at, lost_at) = (core.moment(answer.sent_at), answer.lost_at);
        let lost_at = lost_at.map(|lost_at| core.moment(lost_at));
        NameChangeOutcome { lost_at, ..self.finish(wcc, sent_at) }
    }

    fn finish(&mut self, wcc: &Wcc, sent_at: MonotonicTime) -> NameChangeOutcome {
        self.has_ended = true;
        let is_alone = self.directory.lock().by_type.directory().end_change(self.number);
        let absorbed = self.directory.end_mutation(wcc, sent_at);
        let former = self.sb.dentries.uncache_name(self.directory, self.name);
        drop(former);
        let after = wcc.after.as_ref().map(CachingAttributes::from);
        NameChangeOutcome { absorbed, is_alone, sent_at, after, lost_at: None, number: self.number }
    }
}

impl Drop for NameChange<'_> {
    /// Ends a change without a reply: its effect is unknown.
    fn drop(&mut self) {
        if !self.has_ended {
            let sent_at = self.sent_at;
            let _ = self.finish(&Wcc::default(), sent_at);
        }
    }
}

/// Caches the rights that a successful change proves: to search the directory and to modify it.
pub(crate) fn prove_change(op: &Op<'_>, directory: &Inode, ended: NameChangeOutcome) {
    let rights = Access::LOOKUP.with(Access::MODIFY).with(Access::EXTEND);
    directory.prove(&op.identity, rights, ended.reply());
}

/// Changes `name`: begins the change, sends the request, ends the change and returns the result.
pub(crate) fn change_name<T>(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    send: impl FnOnce() -> Result<NfsReply<T, Wcc>, CallError>,
) -> Result<(Result<T, Fault>, NameChangeOutcome), Errno> {
    let change = NameChange::begin(op.sb, directory, name);
    let answer = send().map_err(errno::of_call)?;
    let ended = change.end(&answer.attributes, &answer);
    if answer.outcome.is_ok() {
        prove_change(op, directory, ended);
    }
    Ok((answer.outcome, ended))
}

/// Caches the state of a name after a successful change by this client.
pub(crate) fn learn_own(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    child: Option<&Arc<Inode>>,
    ended: NameChangeOutcome,
) -> Option<curt_policy::NameLabel> {
    let said = if child.is_some() { LookupFinding::Object } else { LookupFinding::Nothing };
    let NameChangeOutcome { absorbed, is_alone, sent_at, number, .. } = ended;
    let learned =
        curt_policy::names::learn_own(said, is_alone, &directory.lock().attributes, absorbed, sent_at);
    list_own(directory, name, child, number, learned);
    sb.dentries.cache_learned(directory, name, child, learned, None)
}

/// Applies a change by this client to the cached listing of the directory.
fn list_own(directory: &Inode, name: &[u8], child: Option<&Arc<Inode>>, number: u64, learned: DentryUpdate) {
    let attributes = child.and_then(|child| child.attributes());
    let leads_to = attributes.map(|attributes| (attributes.fileid, attributes.kind));
    let change = match learned {
        // The attributes of the name's object are unknown.
        DentryUpdate::Positive(_) if leads_to.is_none() => None,
        DentryUpdate::Positive(_) => Some(LocalChange::Made(name, learned, leads_to)),
        DentryUpdate::Negative(_) | DentryUpdate::Forget | DentryUpdate::Unchanged => {
            Some(LocalChange::Made(name, learned, None))
        }
    };
    directory.lock().by_type.directory().apply_change_to_listing(number, change);
}

/// The change succeeded, but its object is unknown: cached listings do not contain it.
pub(crate) fn discard_listing(directory: &Inode, ended: NameChangeOutcome) {
    directory.lock().by_type.directory().apply_change_to_listing(ended.number, None);
}

/// The error number of a refused change in `directory`; drops what the refusal disproves.
pub(crate) fn refused_change(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    status: Fault,
    ended: NameChangeOutcome,
) -> Errno {
    // The change has already dropped the cached name.
    let change = LocalChange::Refused { name, exists: status == Fault::Exist, stands: ended.absorbed.stands };
    directory.lock().by_type.directory().apply_change_to_listing(ended.number, Some(change));
    directory.note_refusal(&op.identity, status, Access::MODIFY, ended.reply());
    directory.note_failed_status(status)
}
