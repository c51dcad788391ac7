//! Changes of names: creating, removing, renaming and linking.
//!
//! Owns the steps that all these changes share: the names concerned are forgotten before the
//! request and after it, the directory is marked as changing meanwhile, and what the reply proves
//! is kept. Invariant: each change that begins also ends, whatever happens to its request.

use std::sync::Arc;

use curt_policy::{
    Absorbed, Moment,
    names::{self as rules, DentryUpdate, LookupFinding as Said},
};
use curt_rpc::client::CallError;
use curt_types::{Access, Fault, Wcc};
use rustix::io::Errno;

use crate::{
    errno,
    inode::Inode,
    op::Op,
    ops::{attributes, names},
    protocol::NfsReply,
    readdir::LocalChange,
    superblock::Superblock,
};

/// A change of one name that is on its way.
#[must_use]
pub(crate) struct NameChange<'a> {
    sb: &'a Superblock,
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    number: u64,
    sent_at: Moment,
    has_ended: bool,
}

/// How a change ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameChangeOutcome {
    /// What became of the directory's attributes in the reply.
    pub(crate) absorbed: Absorbed,
    /// No other change of ours was about the same name meanwhile.
    pub(crate) is_alone: bool,
    pub(crate) sent_at: Moment,
    /// If it was sent again to a server that had been restarted: by when an earlier copy was
    /// executed, if it was.
    pub(crate) lost_at: Option<Moment>,
    /// Which change of the directory it was.
    number: u64,
}

impl<'a> NameChange<'a> {
    /// A request that changes `name` in `directory` is about to be sent.
    pub(crate) fn begin(sb: &'a Superblock, directory: &'a Arc<Inode>, name: &'a [u8]) -> Self {
        let sent_at = sb.core.now();
        let number = {
            let mut facts = directory.facts();
            facts.state.begin_mutation();
            facts.by_type.directory().begin_change(name)
        };
        let former = names::uncache_name(sb, directory, name);
        drop(former);
        Self { sb, directory, name, number, sent_at, has_ended: false }
    }

    /// Its reply came, which says this of the directory.
    pub(crate) fn end<T, A>(mut self, wcc: &Wcc, answer: &NfsReply<T, A>) -> NameChangeOutcome {
        let core = &self.sb.core;
        let (sent_at, lost_at) = (core.moment(answer.sent_at), answer.lost_at);
        let lost_at = lost_at.map(|lost_at| core.moment(lost_at));
        NameChangeOutcome { lost_at, ..self.finish(wcc, sent_at) }
    }

    fn finish(&mut self, wcc: &Wcc, sent_at: Moment) -> NameChangeOutcome {
        self.has_ended = true;
        let is_alone = self.directory.facts().by_type.directory().end_change(self.number);
        let absorbed = self.directory.end_mutation(wcc, sent_at);
        let former = names::uncache_name(self.sb, self.directory, self.name);
        drop(former);
        NameChangeOutcome { absorbed, is_alone, sent_at, lost_at: None, number: self.number }
    }
}

impl Drop for NameChange<'_> {
    /// No reply came: nobody knows what was changed.
    fn drop(&mut self) {
        if !self.has_ended {
            let sent_at = self.sent_at;
            let _ = self.finish(&Wcc::default(), sent_at);
        }
    }
}

/// A change of a directory's names takes the rights to search and to modify it.
pub(crate) fn prove_change(op: &Op<'_>, directory: &Inode, ended: NameChangeOutcome) {
    let rights = Access::LOOKUP.with(Access::MODIFY).with(Access::EXTEND);
    directory.prove(&op.identity, rights, ended.sent_at);
}

/// Does one change of `name`: sends, ends the change, and gives the result.
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

/// Keeps what the success of a change of ours proves of its own name.
pub(crate) fn learn_own(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    child: Option<&Arc<Inode>>,
    ended: NameChangeOutcome,
) -> Option<curt_policy::NameLabel> {
    let said = if child.is_some() { Said::Object } else { Said::Nothing };
    let NameChangeOutcome { absorbed, is_alone, sent_at, number, .. } = ended;
    let learned = rules::learn_own(said, is_alone, &directory.facts().state, absorbed, sent_at);
    list_own(directory, name, child, number, learned);
    names::cache_learned(sb, directory, name, child, learned)
}

/// Enters a change of ours into what is kept of the directory's listing.
fn list_own(directory: &Inode, name: &[u8], child: Option<&Arc<Inode>>, number: u64, learned: DentryUpdate) {
    let attributes = child.and_then(|child| child.attributes());
    let leads_to = attributes.map(|attributes| (attributes.fileid, attributes.kind));
    let change = match learned {
        // It leads nobody knows where.
        DentryUpdate::Positive(_) if leads_to.is_none() => None,
        DentryUpdate::Positive(_) => Some(LocalChange::Made(name, learned, leads_to)),
        DentryUpdate::Negative(_) | DentryUpdate::Forget | DentryUpdate::Unchanged => {
            Some(LocalChange::Made(name, learned, None))
        }
    };
    directory.facts().by_type.directory().apply_change_to_listing(number, change);
}

/// The change succeeded, but its object is unknown: cached listings do not contain it.
pub(crate) fn discard_listing(directory: &Inode, ended: NameChangeOutcome) {
    directory.facts().by_type.directory().apply_change_to_listing(ended.number, None);
}

/// The error number of a refused change in `directory`; drops what the refusal disproves.
pub(crate) fn refused_change(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    status: Fault,
    ended: NameChangeOutcome,
) -> Errno {
    // What was kept of the name is forgotten by now.
    let change = LocalChange::Refused { name, exists: status == Fault::Exist, stands: ended.absorbed.stands };
    directory.facts().by_type.directory().apply_change_to_listing(ended.number, Some(change));
    attributes::note_refusal(op, directory, status, Access::MODIFY, ended.sent_at);
    attributes::note_failed_status(directory, status)
}
