//! READDIR and READDIRPLUS: what is asked, and what a reply says of the directory itself.
//!
//! Owns one request. Must not know passes or who waits.

use std::sync::Arc;

use curt_policy::{
    Epoch, Moment, MutationTicket, NameLabel, complete,
    listing::{ListingDecision, ListingView, decide_listing},
};
use curt_rpc::client::{CallError, Interrupt};
use curt_trace::{ClientCounter, events::Event, probe};
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::chunk::ReaddirCookie;
use crate::{
    core::MountCore,
    credentials::InternedCaller,
    errno,
    inode::Inode,
    protocol::{ListRequest, NfsReply, ReaddirPage, RpcCaller},
};

/// What is missing of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingGap {
    /// Behind which name it is.
    pub(super) cookie: ReaddirCookie,
    /// How many replies are before it.
    pub(super) index: usize,
    /// What fills it is for others, too: the listing begins where the directory does.
    pub(super) is_shared: bool,
}

/// By what a sequence was learned, for those who begin to read the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingOrigin {
    pub(super) label: Option<NameLabel>,
    /// What the directory was like before the first names were asked for.
    pub(super) ticket: MutationTicket,
    /// The same of the names that came last.
    pub(super) last_ticket: MutationTicket,
    /// The state of the directory's contents when it was asked.
    pub(super) epoch: Option<Epoch>,
}

/// Who asks for names, of which directory.
#[derive(Clone)]
pub(super) struct ReaddirRequester {
    pub(super) core: Arc<MountCore>,
    pub(super) inode: Arc<Inode>,
    pub(super) identity: Arc<InternedCaller>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct ReaddirReply {
    pub(super) page: ReaddirPage,
    pub(super) plus: bool,
    /// Bytes that were asked for.
    pub(super) size: u32,
    pub(super) learned: ListingOrigin,
    pub(super) sent_at: Moment,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum ReaddirError {
    /// The server refused; when that was asked.
    Refused(Fault, Moment),
    /// It did not answer, or not in a way that makes sense.
    Failed(CallError),
    /// It gave neither a name nor the end, twice.
    Stuck,
}

impl ReaddirError {
    /// As an event tells it.
    fn event_status(&self) -> i32 {
        let errno = match self {
            Self::Refused(status, _) => errno::of_fault(*status),
            Self::Failed(error) => errno::of_call(*error),
            Self::Stuck => Errno::IO,
        };
        -errno.raw_os_error()
    }
}

impl ReaddirReply {
    /// Neither the last reply nor one with a name.
    pub(super) fn is_without_progress(&self) -> bool {
        self.page.names.is_empty() && !self.page.end
    }

    /// What the names of this reply are known by.
    pub(super) fn label(&self) -> Option<NameLabel> {
        self.learned.label
    }
}

impl ReaddirRequester {
    /// With attributes or without, behind `cookie`?
    pub(super) fn decide(&self, cookie: u64) -> ListingDecision {
        if self.core.lacks_plus() {
            return ListingDecision::Plain;
        }
        let mut facts = self.inode.facts();
        let kept = facts.by_type.directory();
        let names_since_stat = kept.names_since_stat;
        let view = ListingView {
            at_start: cookie == 0,
            names_since_stat,
        };
        let decision = decide_listing(view, &self.core.options());
        let plus = decision == ListingDecision::Plus;
        let was_plus = std::mem::replace(&mut kept.lists_plus, plus);
        drop(facts);
        if plus != was_plus {
            self.trace_readdirplus_switch(plus, cookie, names_since_stat);
        }
        decision
    }

    /// Tells that listings are asked for otherwise from now on.
    fn trace_readdirplus_switch(&self, plus: bool, cookie: u64, entries: u32) {
        if plus {
            let dir = self.inode.fileid_if_enabled(Event::NfsReaddirPlusOn);
            probe!(NfsReaddirPlusOn { dir, cookie, entries });
        } else {
            let dir = self.inode.fileid_if_enabled(Event::NfsReaddirPlusOff);
            probe!(NfsReaddirPlusOff { dir, cookie, entries });
        }
    }

    /// Asks for the names behind a place, in about `size` bytes, and takes in the directory's
    /// attributes.
    pub(super) fn fetch(
        &self,
        gap: ListingGap,
        size: u32,
        decision: ListingDecision,
        interrupt: &Interrupt,
    ) -> Result<ReaddirReply, ReaddirError> {
        self.trace_request(gap, size, decision);
        let answer = self.fetch_untraced(gap.cookie, size, decision, interrupt);
        self.trace_reply(gap, &answer);
        answer
    }

    /// Tells that a chunk is asked for: into what is remembered for all, or for one reader alone.
    fn trace_request(&self, gap: ListingGap, size: u32, decision: ListingDecision) {
        macro_rules! trace_readdir {
            ($event:ident) => {
                probe!(let subject = self.inode.event_fields(); $event {
                    dir: subject.fileid,
                    cookie: gap.cookie.cookie,
                    verifier: u64::from_be_bytes(gap.cookie.verifier.0),
                    dtsize: size,
                    plus: decision == ListingDecision::Plus,
                    cache_index: gap.index,
                    dev: subject.dev,
                    fhandle: subject.fhandle,
                    version: subject.version
                })
            };
        }
        if gap.is_shared {
            trace_readdir!(NfsReaddirCacheFill);
        } else {
            trace_readdir!(NfsReaddirUncached);
        }
    }

    /// Tells what came.
    fn trace_reply(&self, gap: ListingGap, answer: &Result<ReaddirReply, ReaddirError>) {
        let fetched = answer.as_ref();
        macro_rules! trace_readdir {
            ($event:ident) => {
                probe!(let subject = self.inode.event_fields(); $event {
                    dir: subject.fileid,
                    cookie: gap.cookie.cookie,
                    entries: fetched.map_or(0, |fetched| fetched.page.names.len()),
                    eof: fetched.is_ok_and(|fetched| fetched.page.end),
                    error: fetched.err().map_or(0, ReaddirError::event_status),
                    dev: subject.dev,
                    fhandle: subject.fhandle,
                    version: subject.version,
                    size: subject.size,
                    cache_validity: subject.cache_validity,
                    nfsi_flags: subject.nfsi_flags
                })
            };
        }
        if gap.is_shared {
            trace_readdir!(NfsReaddirCacheFillDone);
        } else {
            trace_readdir!(NfsReaddirUncachedDone);
        }
    }

    fn fetch_untraced(
        &self,
        place: ReaddirCookie,
        size: u32,
        decision: ListingDecision,
        interrupt: &Interrupt,
    ) -> Result<ReaddirReply, ReaddirError> {
        let Self {
            core,
            inode,
            identity,
        } = self;
        let ticket = inode.facts().state.ticket();
        let asker = RpcCaller {
            credential: &identity.credential,
            interrupt,
        };
        let (handle, ReaddirCookie { cookie, verifier }) = (inode.handle(), place);
        let plus = decision == ListingDecision::Plus;
        core.count(if plus {
            ClientCounter::ListingPlus
        } else {
            ClientCounter::ListingPlain
        });
        let request = ListRequest {
            cookie,
            verifier,
            size,
            plus,
        };
        let answer = core.protocol.list(asker, handle, request);
        // RFC 1813 §3.3.17: a server need not have it.
        if plus
            && matches!(
                &answer,
                Err(CallError::ProcedureUnavailable)
                    | Ok(NfsReply {
                        outcome: Err(Fault::Notsupp),
                        ..
                    })
            )
        {
            core.note_lack_of_plus();
        }
        let answer = answer.map_err(ReaddirError::Failed)?;
        let sent_at = core.moment(answer.sent_at);
        let about = answer.attributes.as_ref();
        let is_adopted = about.is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
        let page = answer
            .outcome
            .map_err(|status| ReaddirError::Refused(status, sent_at))?;
        inode.prove(identity, Access::READ, sent_at);
        let learned = self.learn(ticket, is_adopted, sent_at, page.names.len());
        Ok(ReaddirReply {
            page,
            plus,
            size,
            learned,
            sent_at,
        })
    }

    /// What the reply proves of its names, judged while it is new.
    fn learn(
        &self,
        ticket: MutationTicket,
        is_adopted: bool,
        sent_at: Moment,
        count: usize,
    ) -> ListingOrigin {
        let mut facts = self.inode.facts();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let kept = facts.by_type.directory();
        kept.names_since_stat = kept.names_since_stat.saturating_add(kept.names_last);
        kept.names_last = count;
        ListingOrigin {
            label: complete::reply_label(ticket, &facts.state, is_adopted, sent_at),
            ticket,
            last_ticket: ticket,
            epoch: facts.contents(),
        }
    }
}
