//! Continuing a listing: who requests the next names, who waits for them, and what the reply
//! teaches.

use std::sync::Arc;

use curt_policy::listing::{self, ListingDecision, PLUS_SIZE_MAX, SIZE_FIRST_MAX};
use curt_trace::{Cause, ClientCounter, scope};
use curt_trace::{events::Event, probe};
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::{
    OpenDirectory,
    chunk::ChunkBuilder,
    directory_listing::{AppendOutcome, DirectoryListing},
    extend::{ListingGap, ReaddirStart},
    fetch::{ReaddirError, ReaddirReply, ReaddirRequester},
    in_flight::ReaddirInFlight,
    priming::PrimeCounting,
};
use crate::{
    client::{Client, OpContext},
    errno,
    inode::{Inode, TypeState},
};

/// What came of reading on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListingExtension {
    /// The sequence tells.
    Extended,
    /// The server refused the cookie.
    Refused,
}

/// A request under way: whatever becomes of it, it ends.
pub(super) struct ReaddirInFlightGuard<'a> {
    pub(super) listing: &'a DirectoryListing,
    pub(super) request: Arc<ReaddirInFlight>,
}

impl Drop for ReaddirInFlightGuard<'_> {
    fn drop(&mut self) {
        self.listing.end_request(&self.request);
        self.request.end();
    }
}

impl Client {
    /// Reads the names that follow the last ones of `sequence`, or waits for those that were asked
    /// for already.
    pub(super) fn extend_listing(
        &self,
        asked: &OpContext,
        directory: &OpenDirectory,
        sequence: &Arc<DirectoryListing>,
    ) -> Result<ListingExtension, Errno> {
        let requester = self.requester(asked, &directory.inode);
        match self.start_request(&directory.inode, sequence) {
            ReaddirStart::AtEnd => Ok(ListingExtension::Extended),
            ReaddirStart::Loop => Err(Errno::IO),
            ReaddirStart::Wait(ahead) => match ahead.wait(&asked.interrupt) {
                Err(_) => Err(Errno::INTR),
                Ok(None) => Ok(ListingExtension::Extended),
                Ok(Some(reply)) => {
                    let _underway = ReaddirInFlightGuard {
                        listing: sequence,
                        request: ahead,
                    };
                    self.count(ClientCounter::ListingAheadUsed);
                    probe!(NfsReaddirPrefetchUsed {
                        dir: requester.inode.fileid_if_enabled(Event::NfsReaddirPrefetchUsed),
                        cookie: sequence.end().cookie
                    });
                    self.handle_reply(asked, &requester, sequence, *reply)
                }
            },
            ReaddirStart::Send(ahead, gap, size) => {
                let _underway = ReaddirInFlightGuard {
                    listing: sequence,
                    request: ahead,
                };
                let reply = self.fetch_listing(&requester, asked, gap, size);
                self.handle_reply(asked, &requester, sequence, reply)
            }
        }
    }

    fn handle_reply(
        &self,
        asked: &OpContext,
        requester: &ReaddirRequester,
        sequence: &Arc<DirectoryListing>,
        reply: Result<ReaddirReply, ReaddirError>,
    ) -> Result<ListingExtension, Errno> {
        match reply {
            Ok(fetched) => self.absorb_reply(requester, sequence, fetched),
            Err(ReaddirError::Refused(Fault::BadCookie | Fault::NotSync, _))
                if sequence.end().cookie != 0 =>
            {
                self.count(ClientCounter::ListingBadCookie);
                probe!(NfsReaddirBadCookie {
                    dir: requester.inode.fileid_if_enabled(Event::NfsReaddirBadCookie),
                    cookie: sequence.end().cookie
                });
                Ok(ListingExtension::Refused)
            }
            Err(ReaddirError::Refused(status, sent_at)) => {
                self.note_refusal(asked, &requester.inode, status, Access::READ, sent_at);
                Err(self.note_failed_status(&requester.inode, status))
            }
            Err(ReaddirError::Failed(error)) => Err(errno::of_call(error)),
            Err(ReaddirError::Stuck) => Err(Errno::IO),
        }
    }

    /// Has what follows asked for without waiting for it.
    pub(super) fn send_readahead(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        sequence: &Arc<DirectoryListing>,
    ) {
        let ReaddirStart::Send(ahead, gap, size) = self.start_request(inode, sequence) else {
            return;
        };
        let requester = self.requester(asked, inode);
        let sequence = Arc::downgrade(sequence);
        self.background.spawn(Box::new(move || {
            let _why = scope::with_cause(Cause::ListingAhead);
            let decision = requester.decide(gap.cookie.cookie);
            let fetched = requester.fetch(gap, decision.bound(size), decision, ahead.interrupt());
            let is_answer = match &fetched {
                Ok(fetched) => !fetched.is_without_progress(),
                // Another refusal may be about who asked, and another reader may take it.
                Err(ReaddirError::Refused(status, _)) => {
                    matches!(status, Fault::BadCookie | Fault::NotSync)
                }
                Err(ReaddirError::Failed(_) | ReaddirError::Stuck) => false,
            };
            match fetched {
                reply if is_answer => ahead.complete(Box::new(reply)),
                // Whoever wants it asks again, and hears why not.
                Ok(_) | Err(_) => {
                    if let Some(sequence) = sequence.upgrade() {
                        sequence.readahead_failed(&ahead);
                    }
                    ahead.end();
                }
            }
        }));
    }

    pub(super) fn requester(&self, asked: &OpContext, inode: &Arc<Inode>) -> ReaddirRequester {
        ReaddirRequester {
            core: Arc::clone(&self.core),
            inode: Arc::clone(inode),
            identity: Arc::clone(&asked.identity),
        }
    }

    /// Bytes of a reply at most.
    pub(super) fn reply_max(&self) -> u32 {
        let limits = &self.server_limits;
        let server = limits.listing_preferred.max(limits.read_max);
        let most = server.min(self.listing_memory.reply_max());
        listing::size_max(most, &self.core.options())
    }

    fn start_request(&self, inode: &Inode, sequence: &Arc<DirectoryListing>) -> ReaddirStart {
        let size = inode.facts().state.facts().map(|known| known.size);
        sequence.start_request(|place, former| {
            if place.cookie == 0 {
                listing::first_size(size, self.reply_max())
            } else {
                listing::next_size(former, self.reply_max())
            }
        })
    }

    /// Asks with attributes or without; without if it turns out that the server has no listings
    /// with them.
    fn fetch_listing(
        &self,
        requester: &ReaddirRequester,
        asked: &OpContext,
        gap: ListingGap,
        size: u32,
    ) -> Result<ReaddirReply, ReaddirError> {
        let decision = requester.decide(gap.cookie.cookie);
        let fetched = self.fetch_retrying_size(requester, asked, gap, size, decision);
        match (&fetched, decision) {
            (Err(ReaddirError::Refused(..) | ReaddirError::Failed(_)), ListingDecision::Plus)
                if self.core.lacks_plus() =>
            {
                self.fetch_retrying_size(requester, asked, gap, size, ListingDecision::Plain)
            }
            (_, ListingDecision::Plus | ListingDecision::Plain) => fetched,
        }
    }

    /// Asks, and again in more bytes where those were too few: for as long as the server says so
    /// itself, and once if it gives neither a name nor the end.
    pub(super) fn fetch_retrying_size(
        &self,
        requester: &ReaddirRequester,
        asked: &OpContext,
        gap: ListingGap,
        size: u32,
        decision: ListingDecision,
    ) -> Result<ReaddirReply, ReaddirError> {
        let most = self.reply_max();
        let (mut size, mut was_empty) = (decision.bound(size), false);
        loop {
            let larger = listing::next_size(size, most);
            match requester.fetch(gap, size, decision, &asked.interrupt) {
                Err(ReaddirError::Refused(Fault::Toosmall, _)) if larger > size => size = larger,
                Ok(fetched) if fetched.is_without_progress() => {
                    if was_empty {
                        tracing::warn!(
                            cookie = gap.cookie.cookie,
                            "the server returns empty replies before the end of a directory"
                        );
                        return Err(ReaddirError::Stuck);
                    }
                    (size, was_empty) = (larger, true);
                }
                result => return result,
            }
        }
    }

    fn absorb_reply(
        &self,
        requester: &ReaddirRequester,
        sequence: &Arc<DirectoryListing>,
        fetched: ReaddirReply,
    ) -> Result<ListingExtension, Errno> {
        if fetched.plus {
            self.prime(&requester.inode, &fetched, PrimeCounting::Nothing);
        }
        self.enter(requester, sequence, &fetched)?;
        if self.note_completeness(&requester.inode, sequence) {
            let mut facts = requester.inode.facts();
            facts.by_type.directory().fill.listed(sequence.count());
        }
        Ok(ListingExtension::Extended)
    }

    /// Keeps a reply's names for the sequence.
    pub(super) fn enter(
        &self,
        requester: &ReaddirRequester,
        sequence: &Arc<DirectoryListing>,
        fetched: &ReaddirReply,
    ) -> Result<(), Errno> {
        let inode = &requester.inode;
        let fsid = inode.fsid().unwrap_or(0);
        let mut builder = ChunkBuilder::with_capacity(fetched.page.names.len());
        for listed in &fetched.page.names {
            let attributes = listed.attributes.as_ref();
            let fsid = attributes.map_or(fsid, |attributes| attributes.fsid);
            let kind = attributes.map(|attributes| attributes.kind);
            builder.push(
                &listed.name,
                self.core.numbering.number(fsid, listed.fileid),
                kind,
                listed.cookie,
            );
        }
        let (verifier, is_last) = (fetched.page.verifier, fetched.page.end);
        sequence.set_directory(inode.attributes().map_or(0, |attributes| attributes.fileid));
        if sequence.append(builder, verifier, is_last, fetched.size) == AppendOutcome::Loop {
            tracing::warn!(directory = ?inode, "the server lists a directory in a loop: a cookie repeats or leads back");
            return Err(Errno::IO);
        }
        if sequence.note_origin(fetched.learned) {
            self.count(ClientCounter::ListingTorn);
            probe!(NfsReaddirTorn {
                dir: inode.fileid_if_enabled(Event::NfsReaddirTorn)
            });
        }
        self.cache_listing(inode, sequence);
        Ok(())
    }

    /// Keeps a listing for those who list the directory while it does not change.
    fn cache_listing(&self, inode: &Inode, sequence: &Arc<DirectoryListing>) {
        let mut facts = inode.facts();
        if sequence.is_whole() && sequence.is_large() {
            facts.by_type.directory().note_reader(sequence);
        }
        if !sequence.is_cacheable(&facts.state) {
            return;
        }
        let former = facts.by_type.directory().cache_listing(sequence);
        drop(facts);
        drop(former);
    }

    /// A name is to be looked up; `was_known`: something was known of it that may not be served any
    /// more. If names of a listing are being looked up one by one, in its order or many of them, it
    /// is asked for with others; whether it was.
    pub(crate) fn refetch_with_attributes(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        name: &[u8],
        was_known: bool,
    ) -> bool {
        let options = self.core.options();
        let (gap, sequence, size) = {
            let mut facts = inode.facts();
            let TypeState::Directory(kept) = &mut facts.by_type else {
                return false;
            };
            if !kept.misses.note_miss() {
                return false;
            }
            // What it says is not believed: the reply says what is there now. Where nothing that
            // comes so is served, all that is known of a name is that it was known.
            let is_worth_while =
                |listing: &Arc<DirectoryListing>| !was_known || options.fills() && listing.is_large();
            let Some(sequence) = kept.listing_for_cookies().filter(is_worth_while) else {
                return false;
            };
            let Some((ordinal, gap)) = sequence.cookie_before_name(name) else {
                return false;
            };
            if !listing::wants_attributes(kept.misses.note_miss_at(ordinal), &options) {
                drop(facts);
                return self.fill_around_name(asked, inode, name, &sequence, ordinal);
            }
            kept.plus_size = listing::next_size(kept.plus_size.max(SIZE_FIRST_MAX / 2), PLUS_SIZE_MAX);
            kept.misses.note_listed_up_to(ordinal);
            (gap, sequence, kept.plus_size.min(self.reply_max()))
        };
        let requester = self.requester(asked, inode);
        let _why = scope::with_cause(Cause::Fill);
        // Without an answer the names are looked up one by one, as they were.
        let Ok(fetched) = requester.fetch(gap, size, ListingDecision::Plus, &asked.interrupt) else {
            inode.facts().by_type.directory().forget_cookies(&sequence);
            return false;
        };
        self.prime(inode, &fetched, PrimeCounting::Nothing);
        let last = fetched.page.names.last();
        if let Some((ordinal, _)) = last.and_then(|last| sequence.cookie_before_name(&last.name))
            && let TypeState::Directory(kept) = &mut inode.facts().by_type
        {
            kept.misses.note_listed_up_to(ordinal);
        }
        true
    }
}
