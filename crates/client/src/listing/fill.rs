//! Requesting a directory's names together because one of them is wanted.
//!
//! Policy decides whether that is worth while ([`curt_policy::fill`]) and when a directory is
//! complete ([`curt_policy::complete`]). One such request of a directory is in flight at a time; a
//! look-up of another of its names waits for it, and checks again. If the reply does not contain
//! the wanted name, a LOOKUP is sent.

use std::sync::Arc;

use curt_policy::{
    AccessDecision,
    fill::{FillDecision, FillView, MountFillRecord, decide},
    listing::ListingDecision,
};
use curt_rpc::client::CallError;
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use curt_types::{Access, Fault, FileKind};
use rustix::io::Errno;

use super::{
    NamePresence,
    cursor::ListingReader,
    directory_listing::{DirectoryListing, ReaddirCookie},
    extend::ReaddirStart,
    fetch::{ReaddirError, ReaddirReply, ReaddirRequester},
    priming::PrimeCounting,
    request::ReaddirInFlightGuard,
};
use crate::{
    client::{Client, OpContext},
    errno,
    inode::{InFlightCall, InFlightEnd, Inode, InodeUse, TypeState as ByKind},
};

/// Bytes of a listed name beside itself and its handle: number, cookie, attributes, lengths (RFC
/// 1813 §3.3.17, entryplus3).
const ENTRY_BYTES: usize = 124;

/// Bytes of a handle, where it was not told.
const HANDLE_BYTES: usize = 36;

/// What became of a name that has to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillOutcome {
    /// It is to be looked up by itself.
    Nothing,
    /// It is to be looked for again: somebody else asked for the names beside it.
    ByOther,
    /// The same, and the request for them was sent in its place: it was not spared one.
    Sent,
}

impl FillOutcome {
    /// Whether it is to be looked for again, if it is `again`.
    fn when(again: bool, filled: Self) -> Self {
        if again { filled } else { Self::Nothing }
    }
}

/// A request for names that is being sent because `name` is wanted.
struct FillRequest<'a> {
    asked: &'a OpContext,
    requester: ReaddirRequester,
    name: &'a [u8],
    listing: Arc<DirectoryListing>,
    /// The names follow others that are known.
    is_next: bool,
}

impl Client {
    /// `name` has to be asked for. It is asked for with those beside it if that is expected to be
    /// worth while, or somebody does so already.
    ///
    /// # Errors
    /// EINTR; no answer on a soft mount.
    pub(crate) fn fill(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<FillOutcome, Errno> {
        let options = self.core.options();
        if !options.fills() || self.core.lacks_plus() || name == b".." {
            return Ok(FillOutcome::Nothing);
        }
        // Of many names that were listed without attributes those are asked for in the listing's
        // order, if they are wanted so.
        if self.is_one_of_many(directory, name) {
            return Ok(FillOutcome::Nothing);
        }
        // Where nothing is kept of missing names, a directory's names tell nothing that is known
        // already.
        if !options.keeps_missing_names() && self.negative_from_listing(directory, name).is_some() {
            return Ok(FillOutcome::Nothing);
        }
        if let Some(flight) = self.fills_in_flight.under_way(directory.id()) {
            return self.wait_for_fill(asked, &flight).map(|()| FillOutcome::ByOther);
        }
        if self.is_unlistable_name(directory, name) {
            return Ok(FillOutcome::Nothing);
        }
        let FillDecision::Fill { bytes } = self.decide_fill(directory) else {
            return Ok(FillOutcome::Nothing);
        };
        // LOOKUP proves the right to search, READDIRPLUS does not.
        let search = self.access_decision(asked, directory, Access::LOOKUP, false);
        if search != AccessDecision::Allow || !self.may_list(asked, directory) {
            return Ok(FillOutcome::Nothing);
        }
        match self.fills_in_flight.join(directory.id()) {
            Ok(flight) => self.wait_for_fill(asked, &flight).map(|()| FillOutcome::ByOther),
            Err(_departure) => {
                if directory.facts().by_type.directory().filled_at > asked.began {
                    return Ok(FillOutcome::ByOther);
                }
                self.send_fill(asked, directory, name, bytes)
            }
        }
    }

    /// Whether `name` is known to be there, in a directory of more names than one would ask for
    /// because of it.
    fn is_one_of_many(&self, directory: &Inode, name: &[u8]) -> bool {
        let listing = match &directory.facts().by_type {
            ByKind::Directory(kept) => kept.listing_for_cookies(),
            ByKind::Nothing | ByKind::Link(_) | ByKind::File(_) => None,
        };
        listing
            .is_some_and(|listing| listing.is_large() && listing.presence_of(name) == NamePresence::Present)
    }

    /// Whether all names of `directory` are known and say nothing of `name`: one that servers hide
    /// or may spell otherwise. Listing them again would say no more.
    fn is_unlistable_name(&self, directory: &Inode, name: &[u8]) -> bool {
        let (listing, contents) = {
            let facts = directory.facts();
            let ByKind::Directory(kept) = &facts.by_type else {
                return false;
            };
            (kept.settled_listing(name).cloned(), facts.contents())
        };
        let listing = listing.filter(|listing| {
            let label = listing.complete_label();
            label.is_some_and(|label| contents == Some(label.epoch))
        });
        listing.is_some_and(|listing| listing.presence_of(name) != NamePresence::Present)
            && self.negative_from_listing(directory, name).is_none()
    }

    pub(super) fn wait_for_fill(&self, asked: &OpContext, flight: &Arc<InFlightCall>) -> Result<(), Errno> {
        match flight.wait(&asked.interrupt) {
            Some(InFlightEnd::Done | InFlightEnd::Silent) => Ok(()),
            None => Err(Errno::INTR),
        }
    }

    fn decide_fill(&self, directory: &Inode) -> FillDecision {
        let options = self.core.options();
        let (record, size) = {
            let mut facts = directory.facts();
            let size = facts.state.facts().map(|known| known.size);
            let record = &mut facts.by_type.directory().fill;
            record.missed();
            (*record, size)
        };
        let parent = self
            .parent(directory)
            .map(|parent| parent.facts().by_type.directory().fill);
        self.core.learn_fill(MountFillRecord::missed);
        let view = FillView {
            record,
            parent,
            mount: self.core.fills(),
            size,
            round_trip: self.core.rpc.latency(),
        };
        decide(&view, &options)
    }

    /// The directory that `directory` is in, if that is known. Its facts are to be taken after
    /// those of `directory`: the server may say that a directory is in itself, or that `..` leads
    /// to a file.
    fn parent(&self, directory: &Inode) -> Option<Arc<Inode>> {
        let parent = match &directory.facts().by_type {
            ByKind::Directory(kept) => kept.parent.as_ref()?.0.upgrade()?,
            ByKind::Nothing | ByKind::Link(_) | ByKind::File(_) => return None,
        };
        let kind = parent.facts().state.facts().map(|known| known.kind);
        (kind == Some(FileKind::Directory)).then_some(parent)
    }

    /// Whether it is likely that the server lets the caller list the directory. If it does not,
    /// LOOKUP is not hurt.
    pub(super) fn may_list(&self, asked: &OpContext, directory: &Inode) -> bool {
        match self.access_decision(asked, directory, Access::READ, false) {
            AccessDecision::Allow => true,
            AccessDecision::Deny => false,
            AccessDecision::Revalidate | AccessDecision::Ask(_) => {
                let now = self.core.now();
                let view = directory.access_view(&directory.facts(), &asked.identity, false, now);
                view.local.is_none_or(|bits| bits.contains(Access::READ))
            }
        }
    }

    fn send_fill(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        bytes: u32,
    ) -> Result<FillOutcome, Errno> {
        let (sequence, is_next) = self.listing_to_extend(directory);
        // The last one who lists the directory may stop meanwhile: that must not make room for a
        // second request for the same names.
        let _reading = ListingReader::new(Arc::clone(&sequence));
        let filling = FillRequest {
            asked,
            requester: self.requester(asked, directory),
            name,
            listing: sequence,
            is_next,
        };
        let _why = scope::with_cause(Cause::Fill);
        let bytes = bytes.min(self.reply_max());
        match filling.listing.start_request(|_, _| bytes) {
            ReaddirStart::AtEnd | ReaddirStart::Loop => Ok(FillOutcome::Nothing),
            // Whoever lists the directory asked for what follows.
            ReaddirStart::Wait(ahead) => match ahead.wait(&asked.interrupt) {
                Err(_) => Err(Errno::INTR),
                Ok(None) => Ok(FillOutcome::ByOther),
                Ok(Some(reply)) => {
                    let _underway = ReaddirInFlightGuard {
                        listing: &filling.listing,
                        request: ahead,
                    };
                    self.handle_fill_reply(&filling, *reply)
                        .map(|again| FillOutcome::when(again, FillOutcome::ByOther))
                }
            },
            ReaddirStart::Send(ahead, gap, size) => {
                let _underway = ReaddirInFlightGuard {
                    listing: &filling.listing,
                    request: ahead,
                };
                self.count(ClientCounter::DirFill);
                let plus = ListingDecision::Plus;
                let reply = self.fetch_retrying_size(&filling.requester, asked, gap, size, plus);
                self.handle_fill_reply(&filling, reply)
                    .map(|again| FillOutcome::when(again, FillOutcome::Sent))
            }
        }
    }

    /// The names known of the directory's present state if more of them follow, else none; whether
    /// they are any.
    fn listing_to_extend(&self, directory: &Inode) -> (Arc<DirectoryListing>, bool) {
        let mut facts = directory.facts();
        let contents = facts.contents();
        let listing = facts.by_type.directory().settled_listing(b"").cloned();
        drop(facts);
        let is_good = |listing: &Arc<DirectoryListing>| {
            let label = listing.label();
            !listing.is_complete() && label.is_some_and(|label| Some(label.epoch) == contents)
        };
        match listing.filter(is_good) {
            Some(listing) => (listing, true),
            None => (
                DirectoryListing::new(&self.listing_memory, ReaddirCookie::default()),
                false,
            ),
        }
    }

    fn handle_fill_reply(
        &self,
        filling: &FillRequest<'_>,
        reply: Result<ReaddirReply, ReaddirError>,
    ) -> Result<bool, Errno> {
        let directory = &filling.requester.inode;
        let failed = match reply {
            Ok(fetched) => return Ok(self.absorb_fill(filling, &fetched)),
            Err(ReaddirError::Refused(status, sent_at)) => {
                if status != Fault::Notsupp {
                    self.note_refusal(filling.asked, directory, status, Access::READ, sent_at);
                }
                Ok(false)
            }
            Err(ReaddirError::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)))
            | Err(ReaddirError::Stuck) => Ok(false),
            Err(ReaddirError::Failed(error)) => Err(errno::of_call(error)),
        };
        self.learn_failure(directory);
        failed
    }

    fn learn_failure(&self, directory: &Inode) {
        directory.facts().by_type.directory().fill.failed();
        self.core.learn_fill(|mount| mount.filled(0, false));
        self.count(ClientCounter::DirFillWasted);
    }

    /// Keeps what a fill brought; whether the name may be among it.
    fn absorb_fill(&self, filling: &FillRequest<'_>, fetched: &ReaddirReply) -> bool {
        let FillRequest {
            requester,
            name,
            listing: sequence,
            is_next,
            ..
        } = filling;
        let directory = &requester.inode;
        let names = &fetched.page.names;
        let told = names.iter().find(|listed| *listed.name == **name);
        let is_kept = fetched.label().is_some();
        let is_told =
            is_kept && told.is_some_and(|listed| listed.handle.is_some() && listed.attributes.is_some());
        self.prime(directory, fetched, PrimeCounting::New);
        if self.enter(requester, sequence, fetched).is_err() {
            self.learn_failure(directory);
            return false;
        }
        let is_complete = self.note_completeness(directory, sequence);
        let holds_it = is_told || (told.is_none() && is_complete);
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let now = self.core.now();
        {
            let mut facts = directory.facts();
            let kept = facts.by_type.directory();
            kept.filled_at = now;
            kept.fill
                .filled(count, bytes_of(fetched), *is_next, fetched.page.end, holds_it);
            kept.fill.refreshed(None);
        }
        if let Some(parent) = self.parent(directory) {
            parent
                .facts()
                .by_type
                .directory()
                .fill
                .filled_below(count, holds_it);
        }
        // It was asked for by this very request: that it is used spares none.
        if let Some(child) = self.cached_dentry(directory, name).and_then(|kept| kept.child) {
            self.note_use(&child);
        }
        self.core.learn_fill(|mount| mount.filled(count, holds_it));
        probe!(NfsDirFill {
            dir: directory.fileid_if_enabled(Event::NfsDirFill),
            name: *name,
            entries: count,
            eof: fetched.page.end
        });
        self.core
            .counters
            .add(ClientCounter::DirFillNames, u64::from(count));
        if !holds_it {
            self.count(ClientCounter::DirFillWasted);
        }
        true
    }

    /// An object is used, that was asked for by itself or answered about without a request; whether
    /// that spares one since its name came with another.
    pub(crate) fn note_use(&self, inode: &Inode) -> bool {
        let InodeUse { is_first, spares } = inode.mark_used();
        if is_first && let Some(home) = inode.listed_in() {
            home.facts().by_type.directory().fill.used();
        }
        spares
    }

    /// A name was answered for that nobody had asked for: a request was spared. Whether that was
    /// due to a fill.
    pub(crate) fn note_spared(&self, directory: &Inode) -> bool {
        {
            let mut facts = directory.facts();
            let record = &mut facts.by_type.directory().fill;
            if !record.has_filled() {
                return false;
            }
            record.spared();
        }
        if let Some(parent) = self.parent(directory) {
            parent.facts().by_type.directory().fill.spared_below();
        }
        self.core.learn_fill(MountFillRecord::spared);
        true
    }
}

/// About how many bytes a reply's names took.
pub(super) fn bytes_of(fetched: &ReaddirReply) -> u32 {
    let names = fetched.page.names.iter().map(|listed| {
        let handle = listed
            .handle
            .as_ref()
            .map_or(HANDLE_BYTES, |handle| handle.as_bytes().len());
        ENTRY_BYTES + handle + listed.name.len().next_multiple_of(4)
    });
    u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
}
