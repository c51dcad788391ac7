//! Sends LOOKUP and absorbs its reply.

use std::sync::Arc;

use curt_policy::{
    AccessDecision, Moment, MutationTicket, NameLabel,
    names::{self, DentryUpdate, LookupFinding as Said, LookupReason},
};
use curt_trace::ClientCounter;
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::ResolvedName;
use crate::{
    client::{Client, OpContext},
    dentry_cache::CachedDentry,
    errno,
    inode::Inode,
    protocol::v3,
};

/// What a LOOKUP's reply is judged by.
#[derive(Clone, Copy)]
struct LookupReplyContext<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    ticket: MutationTicket,
    adopted: bool,
    sent_at: Moment,
}

impl Client {
    /// Sends LOOKUP. With `softreval`, what was kept of the name does if the server is silent,
    /// unless the directory is known to have changed since.
    pub(super) fn revalidate_name(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        reason: LookupReason,
        former: Option<CachedDentry>,
    ) -> Result<ResolvedName, Errno> {
        let usable = match reason {
            LookupReason::DirectoryChanged => None,
            LookupReason::Unknown | LookupReason::TooOld | LookupReason::Racy => former.clone(),
        };
        let Some(usable) = usable.filter(|_| self.soft_revalidation.is_some()) else {
            return self.send_lookup(asked, directory, name, former);
        };
        if !asked.uses_cache.get()
            && let Some(resolved) = self.with_softreval(asked, |asked| {
                self.send_lookup(asked, directory, name, former.clone())
            })?
        {
            return Ok(resolved);
        }
        match self.access_decision(asked, directory, Access::LOOKUP, false) {
            AccessDecision::Allow => Ok(match usable.child {
                Some(child) => ResolvedName::Object(child, None),
                None => ResolvedName::Missing(None),
            }),
            AccessDecision::Deny | AccessDecision::Revalidate | AccessDecision::Ask(_) => {
                self.send_lookup(asked, directory, name, former)
            }
        }
    }

    /// Sends LOOKUP. `former` is what was kept of the name.
    pub(crate) fn send_lookup(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        former: Option<CachedDentry>,
    ) -> Result<ResolvedName, Errno> {
        let ticket = directory.facts().state.ticket();
        let answer = v3::lookup(&self.core.rpc, asked.rpc_caller(), directory.handle(), name)
            .map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        let adopted = answer
            .attributes
            .as_ref()
            .is_some_and(|attributes| directory.absorb(attributes, sent_at).adopted);
        let learning = LookupReplyContext {
            directory,
            name,
            ticket,
            adopted,
            sent_at,
        };
        match answer.outcome {
            Ok(found) => {
                directory.prove(&asked.identity, Access::LOOKUP, sent_at);
                let inode = self.core.registry.inode(&self.core, &found.handle);
                inode.clear_stale();
                match &found.attributes {
                    Some(attributes) => {
                        let _ = inode.absorb(attributes, sent_at);
                    }
                    None => self.send_getattr(asked, &inode)?,
                }
                let label = self.learn(&learning, Some(&inode));
                self.note_use(&inode);
                self.note_false_negative(directory, former.as_ref(), label);
                Ok(ResolvedName::Object(inode, label))
            }
            Err(Fault::Noent) => {
                directory.prove(&asked.identity, Access::LOOKUP, sent_at);
                self.count(ClientCounter::NegMiss);
                Ok(ResolvedName::Missing(self.learn(&learning, None)))
            }
            Err(status) => {
                self.note_refusal(asked, directory, status, Access::LOOKUP, sent_at);
                Err(self.note_failed_status(directory, status))
            }
        }
    }

    /// Keeps what a LOOKUP said, if it may be kept.
    fn learn(&self, learning: &LookupReplyContext<'_>, child: Option<&Arc<Inode>>) -> Option<NameLabel> {
        let LookupReplyContext {
            directory,
            name,
            ticket,
            adopted,
            sent_at,
        } = *learning;
        let said = if child.is_some() {
            Said::Object
        } else {
            Said::Nothing
        };
        let learned = names::learn(said, ticket, &directory.facts().state, adopted, sent_at);
        if child.is_none() && learned == DentryUpdate::Forget {
            self.count(ClientCounter::NegRejectRace);
        }
        self.cache_learned(directory, name, child, learned)
    }
}
