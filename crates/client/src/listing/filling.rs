//! Requesting a directory's names together because one of them is wanted.
//!
//! Policy decides whether that is worth while ([`curt_policy::fill`]) and when a directory is complete
//! ([`curt_policy::complete`]). One such request of a directory is in flight at a time; a look-up of another of its names waits
//! for it, and checks again. If the reply does not contain the wanted name, a LOOKUP is sent.

use std::sync::Arc;

use curt_policy::{
    AccessDecision, ObjectKind, Rights,
    fill::{FillDecision, FillView, Mount, decide},
    listing::ListingDecision,
};
use curt_proto::nfs3::Status;
use curt_rpc::client::CallError;
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use rustix::io::Errno;

use super::{
    Says,
    asking::Underway,
    fetch::{Fetched, NotFetched, Requester},
    growing::Departing,
    pass::Reading,
    priming::Count,
    sequence::{Sequence, ServerPlace},
};
use crate::{
    client::{Asked, Client},
    errno,
    inode::{Flight, Inode, Kept as ByKind, Landed, Use},
};

/// Bytes of a listed name beside itself and its handle: number, cookie, attributes, lengths (RFC 1813 §3.3.17, entryplus3).
const ENTRY_BYTES: usize = 124;

/// Bytes of a handle, where it was not told.
const HANDLE_BYTES: usize = 36;

/// What became of a name that has to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// It is to be looked up by itself.
    Nothing,
    /// It is to be looked for again: somebody else asked for the names beside it.
    Meanwhile,
    /// The same, and the request for them was sent in its place: it was not spared one.
    InItsPlace,
}

impl Filled {
    /// Whether it is to be looked for again, if it is `again`.
    fn when(again: bool, filled: Self) -> Self {
        if again { filled } else { Self::Nothing }
    }
}

/// A request for names that is being sent because `name` is wanted.
struct Filling<'a> {
    asked: &'a Asked,
    requester: Requester,
    name: &'a [u8],
    sequence: Arc<Sequence>,
    /// The names follow others that are known.
    is_next: bool,
}

impl Client {
    /// `name` has to be asked for. It is asked for with those beside it if that is expected to be worth while, or somebody does
    /// so already.
    ///
    /// # Errors
    /// EINTR; no answer on a soft mount.
    pub(crate) fn fill(&self, asked: &Asked, directory: &Arc<Inode>, name: &[u8]) -> Result<Filled, Errno> {
        let options = self.core.options();
        if !options.fills() || self.core.lacks_plus() || name == b".." {
            return Ok(Filled::Nothing);
        }
        // Of many names that were listed without attributes those are asked for in the listing's order, if they are wanted so.
        if self.is_one_of_many(directory, name) {
            return Ok(Filled::Nothing);
        }
        // Where nothing is kept of missing names, a directory's names tell nothing that is known already.
        if !options.keeps_missing_names() && self.absence(directory, name).is_some() {
            return Ok(Filled::Nothing);
        }
        if let Some(flight) = self.fills.under_way(directory.id()) {
            return self.wait_for_fill(asked, &flight).map(|()| Filled::Meanwhile);
        }
        if self.is_beyond_listing(directory, name) {
            return Ok(Filled::Nothing);
        }
        let FillDecision::Fill { bytes } = self.decide_fill(directory) else {
            return Ok(Filled::Nothing);
        };
        // LOOKUP proves the right to search, READDIRPLUS does not.
        let search = self.access_decision(asked, directory, Rights::LOOKUP, false);
        if search != AccessDecision::Allow || !self.may_list(asked, directory) {
            return Ok(Filled::Nothing);
        }
        match self.fills.join(directory.id()) {
            Ok(flight) => self.wait_for_fill(asked, &flight).map(|()| Filled::Meanwhile),
            Err(_departure) => {
                if directory.facts().kept.directory().filled_at > asked.began {
                    return Ok(Filled::Meanwhile);
                }
                self.send_fill(asked, directory, name, bytes)
            }
        }
    }

    /// Whether `name` is known to be there, in a directory of more names than one would ask for because of it.
    fn is_one_of_many(&self, directory: &Inode, name: &[u8]) -> bool {
        let listing = match &directory.facts().kept {
            ByKind::Directory(kept) => kept.places(),
            ByKind::Nothing | ByKind::Link(_) | ByKind::File(_) => None,
        };
        listing.is_some_and(|listing| listing.is_large() && listing.says(name) == Says::Has)
    }

    /// Whether all names of `directory` are known and say nothing of `name`: one that servers hide or may spell otherwise. Listing
    /// them again would say no more.
    fn is_beyond_listing(&self, directory: &Inode, name: &[u8]) -> bool {
        let (listing, contents) = {
            let facts = directory.facts();
            let ByKind::Directory(kept) = &facts.kept else {
                return false;
            };
            (kept.settled_listing(name).cloned(), facts.contents())
        };
        let listing = listing.filter(|listing| {
            let label = listing.complete_label();
            label.is_some_and(|label| contents == Some(label.epoch))
        });
        listing.is_some_and(|listing| listing.says(name) != Says::Has)
            && self.absence(directory, name).is_none()
    }

    pub(super) fn wait_for_fill(&self, asked: &Asked, flight: &Arc<Flight>) -> Result<(), Errno> {
        match flight.wait(&asked.interrupt) {
            Some(Landed::Anyhow | Landed::Silent) => Ok(()),
            None => Err(Errno::INTR),
        }
    }

    fn decide_fill(&self, directory: &Inode) -> FillDecision {
        let options = self.core.options();
        let (record, size) = {
            let mut facts = directory.facts();
            let size = facts.state.facts().map(|known| known.size);
            let record = &mut facts.kept.directory().fill;
            record.missed();
            (*record, size)
        };
        let parent = self
            .parent(directory)
            .map(|parent| parent.facts().kept.directory().fill);
        self.core.learn_fill(Mount::missed);
        let view = FillView {
            record,
            parent,
            mount: self.core.fills(),
            size,
            round_trip: self.core.wire.latency(),
        };
        decide(&view, &options)
    }

    /// The directory that `directory` is in, if that is known. Its facts are to be taken after those of `directory`: the server may say
    /// that a directory is in itself, or that `..` leads to a file.
    fn parent(&self, directory: &Inode) -> Option<Arc<Inode>> {
        let parent = match &directory.facts().kept {
            ByKind::Directory(kept) => kept.parent.as_ref()?.0.upgrade()?,
            ByKind::Nothing | ByKind::Link(_) | ByKind::File(_) => return None,
        };
        let kind = parent.facts().state.facts().map(|known| known.kind);
        (kind == Some(ObjectKind::Directory)).then_some(parent)
    }

    /// Whether it is likely that the server lets the caller list the directory. If it does not, LOOKUP is not hurt.
    pub(super) fn may_list(&self, asked: &Asked, directory: &Inode) -> bool {
        match self.access_decision(asked, directory, Rights::READ, false) {
            AccessDecision::Allow => true,
            AccessDecision::Deny => false,
            AccessDecision::Revalidate | AccessDecision::Ask(_) => {
                let now = self.core.now();
                let view = directory.access_view(&directory.facts(), &asked.identity, false, now);
                view.local.is_none_or(|bits| bits.contains(Rights::READ))
            }
        }
    }

    fn send_fill(
        &self,
        asked: &Asked,
        directory: &Arc<Inode>,
        name: &[u8],
        bytes: u32,
    ) -> Result<Filled, Errno> {
        let (sequence, is_next) = self.sequence_to_fill(directory);
        // The last one who lists the directory may stop meanwhile: that must not make room for a second request for the same names.
        let _reading = Reading::new(Arc::clone(&sequence));
        let filling = Filling {
            asked,
            requester: self.requester(asked, directory),
            name,
            sequence,
            is_next,
        };
        let _why = scope::because(Cause::Fill);
        let bytes = bytes.min(self.reply_max());
        match filling.sequence.depart(|_, _| bytes) {
            Departing::Nowhere | Departing::Broken => Ok(Filled::Nothing),
            // Whoever lists the directory asked for what follows.
            Departing::Join(ahead) => match ahead.take(&asked.interrupt) {
                Err(_) => Err(Errno::INTR),
                Ok(None) => Ok(Filled::Meanwhile),
                Ok(Some(reply)) => {
                    let _underway = Underway {
                        sequence: &filling.sequence,
                        ahead,
                    };
                    self.take_fill(&filling, *reply)
                        .map(|again| Filled::when(again, Filled::Meanwhile))
                }
            },
            Departing::Go(ahead, gap, size) => {
                let _underway = Underway {
                    sequence: &filling.sequence,
                    ahead,
                };
                self.count(ClientCounter::DirFill);
                let plus = ListingDecision::Plus;
                let reply = self.fetch_patiently(&filling.requester, asked, (gap, size), plus);
                self.take_fill(&filling, reply)
                    .map(|again| Filled::when(again, Filled::InItsPlace))
            }
        }
    }

    /// The names known of the directory's present state if more of them follow, else none; whether they are any.
    fn sequence_to_fill(&self, directory: &Inode) -> (Arc<Sequence>, bool) {
        let mut facts = directory.facts();
        let contents = facts.contents();
        let listing = facts.kept.directory().settled_listing(b"").cloned();
        drop(facts);
        let is_good = |listing: &Arc<Sequence>| {
            let label = listing.label();
            !listing.is_complete() && label.is_some_and(|label| Some(label.epoch) == contents)
        };
        match listing.filter(is_good) {
            Some(listing) => (listing, true),
            None => (Sequence::new(&self.listing_memory, ServerPlace::default()), false),
        }
    }

    fn take_fill(&self, filling: &Filling<'_>, reply: Result<Fetched, NotFetched>) -> Result<bool, Errno> {
        let directory = &filling.requester.inode;
        let failed = match reply {
            Ok(fetched) => return Ok(self.keep_fill(filling, &fetched)),
            Err(NotFetched::Refused(status, sent_at)) => {
                if status != Status::Notsupp {
                    self.note_refusal(filling.asked, directory, status, Rights::READ, sent_at);
                }
                Ok(false)
            }
            Err(NotFetched::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)))
            | Err(NotFetched::Stuck) => Ok(false),
            Err(NotFetched::Failed(error)) => Err(errno::of_call(error)),
        };
        self.learn_failure(directory);
        failed
    }

    fn learn_failure(&self, directory: &Inode) {
        directory.facts().kept.directory().fill.failed();
        self.core.learn_fill(|mount| mount.filled(0, false));
        self.count(ClientCounter::DirFillWasted);
    }

    /// Keeps what a fill brought; whether the name may be among it.
    fn keep_fill(&self, filling: &Filling<'_>, fetched: &Fetched) -> bool {
        let Filling {
            requester,
            name,
            sequence,
            is_next,
            ..
        } = filling;
        let directory = &requester.inode;
        let names = &fetched.page.names;
        let told = names.iter().find(|listed| *listed.name == **name);
        let is_kept = fetched.label().is_some();
        let is_told =
            is_kept && told.is_some_and(|listed| listed.handle.is_some() && listed.attributes.is_some());
        self.prime(directory, fetched, Count::New);
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
            let kept = facts.kept.directory();
            kept.filled_at = now;
            kept.fill
                .filled((count, bytes_of(fetched)), *is_next, fetched.page.end, holds_it);
            kept.fill.refreshed(None);
        }
        if let Some(parent) = self.parent(directory) {
            parent.facts().kept.directory().fill.filled_below(count, holds_it);
        }
        // It was asked for by this very request: that it is used spares none.
        if let Some(child) = self.kept(directory, name).and_then(|kept| kept.child) {
            self.note_use(&child);
        }
        self.core.learn_fill(|mount| mount.filled(count, holds_it));
        probe!(NfsDirFill {
            dir: directory.fileid_for(Event::NfsDirFill),
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

    /// An object is used, that was asked for by itself or answered about without a request; whether that spares one since its name
    /// came with another.
    pub(crate) fn note_use(&self, inode: &Inode) -> bool {
        let Use { is_first, spares } = inode.becomes_used();
        if is_first && let Some(home) = inode.home() {
            home.facts().kept.directory().fill.used();
        }
        spares
    }

    /// A name was answered for that nobody had asked for: a request was spared. Whether that was due to a fill.
    pub(crate) fn note_spared(&self, directory: &Inode) -> bool {
        {
            let mut facts = directory.facts();
            let record = &mut facts.kept.directory().fill;
            if !record.has_filled() {
                return false;
            }
            record.spared();
        }
        if let Some(parent) = self.parent(directory) {
            parent.facts().kept.directory().fill.spared_below();
        }
        self.core.learn_fill(Mount::spared);
        true
    }
}

/// About how many bytes a reply's names took.
pub(super) fn bytes_of(fetched: &Fetched) -> u32 {
    let names = fetched.page.names.iter().map(|listed| {
        let handle = listed
            .handle
            .as_ref()
            .map_or(HANDLE_BYTES, |handle| handle.as_bytes().len());
        ENTRY_BYTES + handle + listed.name.len().next_multiple_of(4)
    });
    u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
}
