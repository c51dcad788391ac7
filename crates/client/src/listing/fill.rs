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
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::{
    NamePresence,
    chunk::ReaddirCookie,
    cursor::ListingReader,
    directory_listing::DirectoryListing,
    extend::ReaddirStart,
    fetch::{ReaddirError, ReaddirReply, ReaddirRequester},
    priming::PrimeCounting,
    request::ReaddirInFlightGuard,
};
use crate::{
    errno,
    inode::{InFlightCall, InFlightEnd, Inode, TypeState as ByKind},
    listing::{absence, priming, request},
    op::Op,
    ops::{attributes, names},
    superblock::Superblock,
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
    op: &'a Op<'a>,
    requester: ReaddirRequester,
    name: &'a [u8],
    listing: Arc<DirectoryListing>,
    /// The names follow others that are known.
    is_next: bool,
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

/// `name` has to be asked for. It is asked for with those beside it if that is expected to be
/// worth while, or somebody does so already.
///
/// # Errors
/// EINTR; no answer on a soft mount.
pub(crate) fn fill(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8]) -> Result<FillOutcome, Errno> {
    if !op.options.fills() || op.sb.core.lacks_plus() || name == b".." {
        return Ok(FillOutcome::Nothing);
    }
    // Of many names that were listed without attributes those are asked for in the listing's
    // order, if they are wanted so.
    if is_one_of_many(directory, name) {
        return Ok(FillOutcome::Nothing);
    }
    // Where nothing is kept of missing names, a directory's names tell nothing that is known
    // already.
    if !op.options.keeps_missing_names() && absence::negative_from_listing(op.sb, directory, name).is_some() {
        return Ok(FillOutcome::Nothing);
    }
    if let Some(flight) = op.sb.fills_in_flight.under_way(directory.id()) {
        return wait_for_fill(op, &flight).map(|()| FillOutcome::ByOther);
    }
    if is_unlistable_name(op.sb, directory, name) {
        return Ok(FillOutcome::Nothing);
    }
    let FillDecision::Fill { bytes } = decide_fill(op.sb, directory) else {
        return Ok(FillOutcome::Nothing);
    };
    // LOOKUP proves the right to search, READDIRPLUS does not.
    let search = attributes::access_decision(op, directory, Access::LOOKUP, false);
    if search != AccessDecision::Allow || !attributes::may_list(op, directory) {
        return Ok(FillOutcome::Nothing);
    }
    match op.sb.fills_in_flight.join(directory.id()) {
        Ok(flight) => wait_for_fill(op, &flight).map(|()| FillOutcome::ByOther),
        Err(_departure) => {
            if directory.facts().by_type.directory().filled_at > op.began {
                return Ok(FillOutcome::ByOther);
            }
            send_fill(op, directory, name, bytes)
        }
    }
}

/// Whether `name` is known to be there, in a directory of more names than one would ask for
/// because of it.
fn is_one_of_many(directory: &Inode, name: &[u8]) -> bool {
    let listing = match &directory.facts().by_type {
        ByKind::Directory(kept) => kept.listing_for_cookies(),
        ByKind::Nothing | ByKind::Link(_) | ByKind::File(_) => None,
    };
    listing.is_some_and(|listing| listing.is_large() && listing.presence_of(name) == NamePresence::Present)
}

/// Whether all names of `directory` are known and say nothing of `name`: one that servers hide
/// or may spell otherwise. Listing them again would say no more.
fn is_unlistable_name(sb: &Superblock, directory: &Inode, name: &[u8]) -> bool {
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
        && absence::negative_from_listing(sb, directory, name).is_none()
}

pub(super) fn wait_for_fill(op: &Op<'_>, flight: &Arc<InFlightCall>) -> Result<(), Errno> {
    match flight.wait(&op.interrupt) {
        Some(InFlightEnd::Done | InFlightEnd::Silent) => Ok(()),
        None => Err(Errno::INTR),
    }
}

fn decide_fill(sb: &Superblock, directory: &Inode) -> FillDecision {
    let options = sb.core.options();
    let (record, size) = {
        let mut facts = directory.facts();
        let size = facts.state.facts().map(|known| known.size);
        let record = &mut facts.by_type.directory().fill;
        record.missed();
        (*record, size)
    };
    let parent = directory
        .parent()
        .map(|parent| parent.facts().by_type.directory().fill);
    sb.core.learn_fill(MountFillRecord::missed);
    let view = FillView {
        record,
        parent,
        mount: sb.core.fills(),
        size,
        round_trip: sb.core.protocol.rpc().latency(),
    };
    decide(&view, &options)
}

fn send_fill(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8], bytes: u32) -> Result<FillOutcome, Errno> {
    let (sequence, is_next) = listing_to_extend(op.sb, directory);
    // The last one who lists the directory may stop meanwhile: that must not make room for a
    // second request for the same names.
    let _reading = ListingReader::new(Arc::clone(&sequence));
    let filling = FillRequest {
        op,
        requester: request::requester(op, directory),
        name,
        listing: sequence,
        is_next,
    };
    let _why = scope::with_cause(Cause::Fill);
    let bytes = bytes.min(request::reply_max(op.sb));
    match filling.listing.start_request(|_, _| bytes) {
        ReaddirStart::AtEnd | ReaddirStart::Loop => Ok(FillOutcome::Nothing),
        // Whoever lists the directory asked for what follows.
        ReaddirStart::Wait(ahead) => match ahead.wait(&op.interrupt) {
            Err(_) => Err(Errno::INTR),
            Ok(None) => Ok(FillOutcome::ByOther),
            Ok(Some(reply)) => {
                let _underway = ReaddirInFlightGuard {
                    listing: &filling.listing,
                    request: ahead,
                };
                handle_fill_reply(op.sb, &filling, *reply)
                    .map(|again| FillOutcome::when(again, FillOutcome::ByOther))
            }
        },
        ReaddirStart::Send(ahead, gap, size) => {
            let _underway = ReaddirInFlightGuard {
                listing: &filling.listing,
                request: ahead,
            };
            op.sb.count(ClientCounter::DirFill);
            let plus = ListingDecision::Plus;
            let reply = request::fetch_retrying_size(&filling.requester, op, gap, size, plus);
            handle_fill_reply(op.sb, &filling, reply).map(|again| FillOutcome::when(again, FillOutcome::Sent))
        }
    }
}

/// The names known of the directory's present state if more of them follow, else none; whether
/// they are any.
fn listing_to_extend(sb: &Superblock, directory: &Inode) -> (Arc<DirectoryListing>, bool) {
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
            DirectoryListing::new(&sb.listing_memory, ReaddirCookie::default()),
            false,
        ),
    }
}

fn handle_fill_reply(
    sb: &Superblock,
    filling: &FillRequest<'_>,
    reply: Result<ReaddirReply, ReaddirError>,
) -> Result<bool, Errno> {
    let directory = &filling.requester.inode;
    let failed = match reply {
        Ok(fetched) => return Ok(absorb_fill(sb, filling, &fetched)),
        Err(ReaddirError::Refused(status, sent_at)) => {
            if status != Fault::Notsupp {
                attributes::note_refusal(filling.op, directory, status, Access::READ, sent_at);
            }
            Ok(false)
        }
        Err(ReaddirError::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)))
        | Err(ReaddirError::Stuck) => Ok(false),
        Err(ReaddirError::Failed(error)) => Err(errno::of_call(error)),
    };
    learn_failure(sb, directory);
    failed
}

fn learn_failure(sb: &Superblock, directory: &Inode) {
    directory.facts().by_type.directory().fill.failed();
    sb.core.learn_fill(|mount| mount.filled(0, false));
    sb.count(ClientCounter::DirFillWasted);
}

/// Keeps what a fill brought; whether the name may be among it.
fn absorb_fill(sb: &Superblock, filling: &FillRequest<'_>, fetched: &ReaddirReply) -> bool {
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
    priming::prime(sb, directory, fetched, PrimeCounting::New);
    if request::enter(sb, requester, sequence, fetched).is_err() {
        learn_failure(sb, directory);
        return false;
    }
    let is_complete = absence::note_completeness(sb, directory, sequence);
    let holds_it = is_told || (told.is_none() && is_complete);
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    let now = sb.core.now();
    {
        let mut facts = directory.facts();
        let kept = facts.by_type.directory();
        kept.filled_at = now;
        kept.fill
            .filled(count, bytes_of(fetched), *is_next, fetched.page.end, holds_it);
        kept.fill.refreshed(None);
    }
    if let Some(parent) = directory.parent() {
        parent
            .facts()
            .by_type
            .directory()
            .fill
            .filled_below(count, holds_it);
    }
    // It was asked for by this very request: that it is used spares none.
    if let Some(child) = names::cached_dentry(sb, directory, name).and_then(|kept| kept.child) {
        child.note_use();
    }
    sb.core.learn_fill(|mount| mount.filled(count, holds_it));
    probe!(NfsDirFill {
        dir: directory.fileid_if_enabled(Event::NfsDirFill),
        name: *name,
        entries: count,
        eof: fetched.page.end
    });
    sb.core
        .counters
        .add(ClientCounter::DirFillNames, u64::from(count));
    if !holds_it {
        sb.count(ClientCounter::DirFillWasted);
    }
    true
}
