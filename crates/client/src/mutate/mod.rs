//! Changes of names: creating, removing, renaming and linking.
//!
//! Owns the steps that all these changes share: the names concerned are forgotten before the request and after it, the directory
//! is marked as changing meanwhile, and what the reply proves is kept. Invariant: each change that begins also ends, whatever
//! happens to its request.

mod create;
mod link;
mod remove;
mod rename;
mod retransmitted;

use std::sync::Arc;

use curt_policy::{
    Absorbed, Moment, Rights,
    names::{Found as Said, Learned, learn_own},
};
use curt_proto::nfs3::Status;
use curt_rpc::client::CallError;
use rustix::io::Errno;

use crate::{
    client::{Asked, Client},
    errno,
    inode::Inode,
    listing::OwnChange,
    plan::{Answer, Wcc},
};

/// A change of one name that is on its way.
#[must_use]
pub(crate) struct NameChange<'a> {
    client: &'a Client,
    directory: &'a Arc<Inode>,
    name: &'a [u8],
    number: u64,
    sent_at: Moment,
    has_ended: bool,
}

/// How a change ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// What became of the directory's attributes in the reply.
    pub(crate) absorbed: Absorbed,
    /// No other change of ours was about the same name meanwhile.
    pub(crate) is_alone: bool,
    pub(crate) sent_at: Moment,
    /// If it was sent more than once: by when an earlier copy was executed, if it was.
    repeated_at: Option<Moment>,
    /// Which change of the directory it was.
    number: u64,
}

impl<'a> NameChange<'a> {
    /// A request that changes `name` in `directory` is about to be sent.
    pub(crate) fn begin(client: &'a Client, directory: &'a Arc<Inode>, name: &'a [u8]) -> Self {
        let sent_at = client.core.now();
        let number = {
            let mut facts = directory.facts();
            facts.state.begin_mutation();
            facts.kept.directory().begin_change(name)
        };
        let former = client.forget_name(directory, name);
        drop(former);
        Self {
            client,
            directory,
            name,
            number,
            sent_at,
            has_ended: false,
        }
    }

    /// Its reply came, which says this of the directory.
    pub(crate) fn end<T, A>(mut self, wcc: &Wcc, answer: &Answer<T, A>) -> Ended {
        let core = &self.client.core;
        let (sent_at, repeated_at) = (core.moment(answer.sent_at), answer.repeated_at);
        let repeated_at = repeated_at.map(|repeated_at| core.moment(repeated_at));
        Ended {
            repeated_at,
            ..self.finish(wcc, sent_at)
        }
    }

    fn finish(&mut self, wcc: &Wcc, sent_at: Moment) -> Ended {
        self.has_ended = true;
        let is_alone = self.directory.facts().kept.directory().end_change(self.number);
        let absorbed = self.directory.end_mutation(wcc, sent_at);
        let former = self.client.forget_name(self.directory, self.name);
        drop(former);
        Ended {
            absorbed,
            is_alone,
            sent_at,
            repeated_at: None,
            number: self.number,
        }
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
pub(super) fn prove_change(asked: &Asked, directory: &Inode, ended: Ended) {
    let rights = Rights::LOOKUP.with(Rights::MODIFY).with(Rights::EXTEND);
    directory.prove(&asked.identity, rights, ended.sent_at);
}

impl Client {
    /// Does one change of `name`: sends, ends the change, and gives the result.
    pub(crate) fn change_name<T>(
        &self,
        asked: &Asked,
        directory: &Arc<Inode>,
        name: &[u8],
        send: impl FnOnce() -> Result<Answer<T, Wcc>, CallError>,
    ) -> Result<(Result<T, Status>, Ended), Errno> {
        let change = NameChange::begin(self, directory, name);
        let answer = send().map_err(errno::of_call)?;
        let ended = change.end(&answer.about, &answer);
        if answer.outcome.is_ok() {
            prove_change(asked, directory, ended);
        }
        Ok((answer.outcome, ended))
    }

    /// Keeps what the success of a change of ours proves of its own name.
    pub(crate) fn learn_own(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        child: Option<&Arc<Inode>>,
        ended: Ended,
    ) -> Option<curt_policy::NameLabel> {
        let said = if child.is_some() {
            Said::Object
        } else {
            Said::Nothing
        };
        let Ended {
            absorbed,
            is_alone,
            sent_at,
            number,
            ..
        } = ended;
        let learned = learn_own(said, is_alone, &directory.facts().state, absorbed, sent_at);
        self.list_own(directory, name, child, (number, learned));
        self.keep_learned(directory, name, child, learned)
    }

    /// Enters a change of ours into what is kept of the directory's listing.
    fn list_own(
        &self,
        directory: &Inode,
        name: &[u8],
        child: Option<&Arc<Inode>>,
        (number, learned): (u64, Learned),
    ) {
        let attributes = child.and_then(|child| child.attributes());
        let leads_to = attributes.map(|attributes| (attributes.fileid, attributes.kind));
        let change = match learned {
            // It leads nobody knows where.
            Learned::Positive(_) if leads_to.is_none() => None,
            Learned::Positive(_) => Some(OwnChange::Made(name, learned, leads_to)),
            Learned::Negative(_) | Learned::Drop | Learned::Leave => {
                Some(OwnChange::Made(name, learned, None))
            }
        };
        directory.facts().kept.directory().list_change(number, change);
    }

    /// The error number of a refused change in `directory`; drops what the refusal disproves.
    pub(crate) fn refused_change(
        &self,
        asked: &Asked,
        (directory, name): (&Arc<Inode>, &[u8]),
        status: Status,
        ended: Ended,
    ) -> Errno {
        // What was kept of the name is forgotten by now.
        let change = OwnChange::Refused {
            name,
            exists: status == Status::Exist,
            stands: ended.absorbed.stands,
        };
        directory
            .facts()
            .kept
            .directory()
            .list_change(ended.number, Some(change));
        self.note_refusal(asked, directory, status, Rights::MODIFY, ended.sent_at);
        self.refused(directory, status)
    }
}
