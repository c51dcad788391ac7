//! Sends LOOKUP and absorbs its reply.

use std::sync::Arc;

use curt_policy::{
    AccessDecision, Moment, NameLabel, Rights, Ticket,
    names::{self, Found as Said, Learned, LookupWhy},
};
use curt_proto::nfs3::Status;
use curt_trace::ClientCounter;
use rustix::io::Errno;

use super::Resolved;
use crate::{
    client::{Asked, Client},
    errno,
    inode::Inode,
    names::Kept,
    plan::v3,
};

/// What a LOOKUP's reply is judged by.
#[derive(Clone, Copy)]
struct Learning<'a> {
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    ticket: Ticket,
    adopted: bool,
    sent_at: Moment,
}

impl Client {
    /// Sends LOOKUP. With `softreval`, what was kept of the name does if the server is silent, unless the directory is known
    /// to have changed since.
    pub(super) fn ask_known_name(
        &self,
        asked: &Asked,
        directory: &Arc<Inode>,
        name: &[u8],
        (reason, former): (LookupWhy, Option<Kept>),
    ) -> Result<Resolved, Errno> {
        let usable = match reason {
            LookupWhy::DirectoryChanged => None,
            LookupWhy::Unknown | LookupWhy::TooOld | LookupWhy::Racy => former.clone(),
        };
        let Some(usable) = usable.filter(|_| self.patience.is_some()) else {
            return self.ask_name(asked, directory, name, former);
        };
        if !asked.is_content.get()
            && let Some(resolved) = self.patiently(asked, |asked| {
                self.ask_name(asked, directory, name, former.clone())
            })?
        {
            return Ok(resolved);
        }
        match self.access_decision(asked, directory, Rights::LOOKUP, false) {
            AccessDecision::Allow => Ok(match usable.child {
                Some(child) => Resolved::Object(child, None),
                None => Resolved::Missing(None),
            }),
            AccessDecision::Deny | AccessDecision::Revalidate | AccessDecision::Ask(_) => {
                self.ask_name(asked, directory, name, former)
            }
        }
    }

    /// Sends LOOKUP. `former` is what was kept of the name.
    pub(crate) fn ask_name(
        &self,
        asked: &Asked,
        directory: &Arc<Inode>,
        name: &[u8],
        former: Option<Kept>,
    ) -> Result<Resolved, Errno> {
        let ticket = directory.facts().state.ticket();
        let answer =
            v3::lookup(&self.core.wire, asked.asker(), directory.handle(), name).map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        let adopted = answer
            .about
            .as_ref()
            .is_some_and(|attributes| directory.absorb(attributes, sent_at).adopted);
        let learning = Learning {
            directory,
            name,
            ticket,
            adopted,
            sent_at,
        };
        match answer.outcome {
            Ok(found) => {
                directory.prove(&asked.identity, Rights::LOOKUP, sent_at);
                let inode = self.core.registry.inode(&self.core, &found.handle);
                inode.found();
                match &found.attributes {
                    Some(attributes) => {
                        let _ = inode.absorb(attributes, sent_at);
                    }
                    None => self.ask_attributes(asked, &inode)?,
                }
                let label = self.learn(&learning, Some(&inode));
                self.note_use(&inode);
                self.note_false_negative(directory, former.as_ref(), label);
                Ok(Resolved::Object(inode, label))
            }
            Err(Status::Noent) => {
                directory.prove(&asked.identity, Rights::LOOKUP, sent_at);
                self.count(ClientCounter::NegMiss);
                Ok(Resolved::Missing(self.learn(&learning, None)))
            }
            Err(status) => {
                self.note_refusal(asked, directory, status, Rights::LOOKUP, sent_at);
                Err(self.refused(directory, status))
            }
        }
    }

    /// Keeps what a LOOKUP said, if it may be kept.
    fn learn(&self, learning: &Learning<'_>, child: Option<&Arc<Inode>>) -> Option<NameLabel> {
        let Learning {
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
        if child.is_none() && learned == Learned::Drop {
            self.count(ClientCounter::NegRejectRace);
        }
        self.keep_learned(directory, name, child, learned)
    }
}
