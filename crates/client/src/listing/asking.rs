//! Continuing a listing: who requests the next names, who waits for them, and what the reply teaches.

use std::sync::Arc;

use curt_policy::{
    Rights,
    listing::{self, ListingDecision, PLUS_SIZE_MAX, SIZE_FIRST_MAX},
};
use curt_proto::nfs3::Status;
use curt_trace::{Cause, ClientCounter, scope};
use curt_trace::{events::Event, probe};
use rustix::io::Errno;

use super::{
    OpenDirectory,
    ahead::Ahead,
    chunk::ChunkBuilder,
    fetch::{Fetched, NotFetched, Requester},
    growing::{Departing, Gap},
    priming::Count,
    sequence::{Appended, Sequence},
};
use crate::{
    client::{Asked, Client},
    errno,
    inode::{Inode, Kept},
};

/// What came of reading on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOn {
    /// The sequence tells.
    Look,
    /// The server refused the cookie.
    Refused,
}

/// A request under way: whatever becomes of it, it ends.
pub(super) struct Underway<'a> {
    pub(super) sequence: &'a Sequence,
    pub(super) ahead: Arc<Ahead>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.sequence.landed(&self.ahead);
        self.ahead.end();
    }
}

impl Client {
    /// Reads the names that follow the last ones of `sequence`, or waits for those that were asked for already.
    pub(super) fn read_on(
        &self,
        asked: &Asked,
        directory: &OpenDirectory,
        sequence: &Arc<Sequence>,
    ) -> Result<ReadOn, Errno> {
        let requester = self.requester(asked, &directory.inode);
        match self.depart(&directory.inode, sequence) {
            Departing::Nowhere => Ok(ReadOn::Look),
            Departing::Broken => Err(Errno::IO),
            Departing::Join(ahead) => match ahead.take(&asked.interrupt) {
                Err(_) => Err(Errno::INTR),
                Ok(None) => Ok(ReadOn::Look),
                Ok(Some(reply)) => {
                    let _underway = Underway { sequence, ahead };
                    self.count(ClientCounter::ListingAheadUsed);
                    probe!(NfsReaddirPrefetchUsed {
                        dir: requester.inode.fileid_for(Event::NfsReaddirPrefetchUsed),
                        cookie: sequence.end().cookie
                    });
                    self.take_reply((asked, &requester), sequence, *reply)
                }
            },
            Departing::Go(ahead, gap, size) => {
                let _underway = Underway { sequence, ahead };
                let reply = self.fetch_listing(&requester, asked, gap, size);
                self.take_reply((asked, &requester), sequence, reply)
            }
        }
    }

    fn take_reply(
        &self,
        (asked, requester): (&Asked, &Requester),
        sequence: &Arc<Sequence>,
        reply: Result<Fetched, NotFetched>,
    ) -> Result<ReadOn, Errno> {
        match reply {
            Ok(fetched) => self.take_in(requester, sequence, fetched),
            Err(NotFetched::Refused(Status::BadCookie | Status::NotSync, _))
                if sequence.end().cookie != 0 =>
            {
                self.count(ClientCounter::ListingBadCookie);
                probe!(NfsReaddirBadCookie {
                    dir: requester.inode.fileid_for(Event::NfsReaddirBadCookie),
                    cookie: sequence.end().cookie
                });
                Ok(ReadOn::Refused)
            }
            Err(NotFetched::Refused(status, sent_at)) => {
                self.note_refusal(asked, &requester.inode, status, Rights::READ, sent_at);
                Err(self.refused(&requester.inode, status))
            }
            Err(NotFetched::Failed(error)) => Err(errno::of_call(error)),
            Err(NotFetched::Stuck) => Err(Errno::IO),
        }
    }

    /// Has what follows asked for without waiting for it.
    pub(super) fn ask_ahead(&self, asked: &Asked, inode: &Arc<Inode>, sequence: &Arc<Sequence>) {
        let Departing::Go(ahead, gap, size) = self.depart(inode, sequence) else {
            return;
        };
        let requester = self.requester(asked, inode);
        let sequence = Arc::downgrade(sequence);
        self.background.spawn(Box::new(move || {
            let _why = scope::because(Cause::ListingAhead);
            let decision = requester.decide(gap.place.cookie);
            let fetched = requester.fetch(gap, decision.bound(size), decision, ahead.interrupt());
            let is_answer = match &fetched {
                Ok(fetched) => !fetched.is_without_progress(),
                // Another refusal may be about who asked, and another reader may take it.
                Err(NotFetched::Refused(status, _)) => matches!(status, Status::BadCookie | Status::NotSync),
                Err(NotFetched::Failed(_) | NotFetched::Stuck) => false,
            };
            match fetched {
                reply if is_answer => ahead.bring(Box::new(reply)),
                // Whoever wants it asks again, and hears why not.
                Ok(_) | Err(_) => {
                    if let Some(sequence) = sequence.upgrade() {
                        sequence.was_futile(&ahead);
                    }
                    ahead.end();
                }
            }
        }));
    }

    pub(super) fn requester(&self, asked: &Asked, inode: &Arc<Inode>) -> Requester {
        Requester {
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

    fn depart(&self, inode: &Inode, sequence: &Arc<Sequence>) -> Departing {
        let size = inode.facts().state.facts().map(|known| known.size);
        sequence.depart(|place, former| {
            if place.cookie == 0 {
                listing::first_size(size, self.reply_max())
            } else {
                listing::next_size(former, self.reply_max())
            }
        })
    }

    /// Asks with attributes or without; without if it turns out that the server has no listings with them.
    fn fetch_listing(
        &self,
        requester: &Requester,
        asked: &Asked,
        gap: Gap,
        size: u32,
    ) -> Result<Fetched, NotFetched> {
        let decision = requester.decide(gap.place.cookie);
        let fetched = self.fetch_patiently(requester, asked, (gap, size), decision);
        match (&fetched, decision) {
            (Err(NotFetched::Refused(..) | NotFetched::Failed(_)), ListingDecision::Plus)
                if self.core.lacks_plus() =>
            {
                self.fetch_patiently(requester, asked, (gap, size), ListingDecision::Plain)
            }
            (_, ListingDecision::Plus | ListingDecision::Plain) => fetched,
        }
    }

    /// Asks, and again in more bytes where those were too few: for as long as the server says so itself, and once if it gives
    /// neither a name nor the end.
    pub(super) fn fetch_patiently(
        &self,
        requester: &Requester,
        asked: &Asked,
        (gap, size): (Gap, u32),
        decision: ListingDecision,
    ) -> Result<Fetched, NotFetched> {
        let most = self.reply_max();
        let (mut size, mut was_empty) = (decision.bound(size), false);
        loop {
            let larger = listing::next_size(size, most);
            match requester.fetch(gap, size, decision, &asked.interrupt) {
                Err(NotFetched::Refused(Status::Toosmall, _)) if larger > size => size = larger,
                Ok(fetched) if fetched.is_without_progress() => {
                    if was_empty {
                        tracing::warn!(
                            cookie = gap.place.cookie,
                            "the server lists a directory without getting on"
                        );
                        return Err(NotFetched::Stuck);
                    }
                    (size, was_empty) = (larger, true);
                }
                result => return result,
            }
        }
    }

    fn take_in(
        &self,
        requester: &Requester,
        sequence: &Arc<Sequence>,
        fetched: Fetched,
    ) -> Result<ReadOn, Errno> {
        if fetched.plus {
            self.prime(&requester.inode, &fetched, Count::Nothing);
        }
        self.enter(requester, sequence, &fetched)?;
        if self.note_completeness(&requester.inode, sequence) {
            let mut facts = requester.inode.facts();
            facts.kept.directory().fill.listed(sequence.count());
        }
        Ok(ReadOn::Look)
    }

    /// Keeps a reply's names for the sequence.
    pub(super) fn enter(
        &self,
        requester: &Requester,
        sequence: &Arc<Sequence>,
        fetched: &Fetched,
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
        let reply = (fetched.page.verifier, fetched.page.end);
        sequence.is_of(inode.attributes().map_or(0, |attributes| attributes.fileid));
        if sequence.append(builder, reply, fetched.size) == Appended::Loop {
            tracing::warn!(directory = ?inode, "the server lists a directory in circles: a cookie comes twice, or leads back");
            return Err(Errno::IO);
        }
        if sequence.learn(fetched.learned) {
            self.count(ClientCounter::ListingTorn);
            probe!(NfsReaddirTorn {
                dir: inode.fileid_for(Event::NfsReaddirTorn)
            });
        }
        self.keep_listing(inode, sequence);
        Ok(())
    }

    /// Keeps a listing for those who list the directory while it does not change.
    fn keep_listing(&self, inode: &Inode, sequence: &Arc<Sequence>) {
        let mut facts = inode.facts();
        if sequence.is_whole() && sequence.is_large() {
            facts.kept.directory().is_read(sequence);
        }
        if !sequence.is_to_be_kept(&facts.state) {
            return;
        }
        let former = facts.kept.directory().keep_listing(sequence);
        drop(facts);
        drop(former);
    }

    /// A name is to be looked up; `was_known`: something was known of it that may not be served any more. If names of a listing are
    /// being looked up one by one, in its order or many of them, it is asked for with others; whether it was.
    pub(crate) fn ask_for_attributes(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        (name, was_known): (&[u8], bool),
    ) -> bool {
        let options = self.core.options();
        let (gap, sequence, size) = {
            let mut facts = inode.facts();
            let Kept::Directory(kept) = &mut facts.kept else {
                return false;
            };
            if !kept.misses.is_worth_placing() {
                return false;
            }
            // What it says is not believed: the reply says what is there now. Where nothing that comes so is served, all that is known
            // of a name is that it was known.
            let is_worth_while =
                |listing: &Arc<Sequence>| !was_known || options.fills() && listing.is_large();
            let Some(sequence) = kept.places().filter(is_worth_while) else {
                return false;
            };
            let Some((ordinal, gap)) = sequence.place_of(name) else {
                return false;
            };
            if !listing::wants_attributes(kept.misses.note(ordinal), &options) {
                drop(facts);
                return self.ask_for_part(asked, inode, name, (&sequence, ordinal));
            }
            kept.plus_size = listing::next_size(kept.plus_size.max(SIZE_FIRST_MAX / 2), PLUS_SIZE_MAX);
            kept.misses.served_up_to(ordinal);
            (gap, sequence, kept.plus_size.min(self.reply_max()))
        };
        let requester = self.requester(asked, inode);
        let _why = scope::because(Cause::Fill);
        // Without an answer the names are looked up one by one, as they were.
        let Ok(fetched) = requester.fetch(gap, size, ListingDecision::Plus, &asked.interrupt) else {
            inode.facts().kept.directory().places_are_void(&sequence);
            return false;
        };
        self.prime(inode, &fetched, Count::Nothing);
        let last = fetched.page.names.last();
        if let Some((ordinal, _)) = last.and_then(|last| sequence.place_of(&last.name))
            && let Kept::Directory(kept) = &mut inode.facts().kept
        {
            kept.misses.served_up_to(ordinal);
        }
        true
    }
}
