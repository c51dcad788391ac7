//! Continuing a listing: who requests the next names, who waits for them, and what the reply
//! teaches.

use std::sync::Arc;

use curt_policy::listing::{self, ListingDecision};
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::{
    OpenDirectory,
    chunk::ChunkBuilder,
    directory_listing::{AppendOutcome, DirectoryListing},
    extend::ReaddirStart,
    fetch::{ListingGap, ReaddirError, ReaddirReply, ReaddirRequester},
    in_flight::ReaddirInFlight,
    priming::PrimeCounting,
};
use crate::{
    errno,
    inode::Inode,
    listing::{absence, priming},
    op::Op,
    ops::attributes,
    superblock::Superblock,
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

/// Reads the names that follow the last ones of `sequence`, or waits for those that were asked
/// for already.
pub(super) fn extend_listing(
    op: &Op<'_>,
    directory: &OpenDirectory,
    sequence: &Arc<DirectoryListing>,
) -> Result<ListingExtension, Errno> {
    let requester = requester(op, &directory.inode);
    match start_request(op.sb, &directory.inode, sequence) {
        ReaddirStart::AtEnd => Ok(ListingExtension::Extended),
        ReaddirStart::Loop => Err(Errno::IO),
        ReaddirStart::Wait(ahead) => match ahead.wait(&op.interrupt) {
            Err(_) => Err(Errno::INTR),
            Ok(None) => Ok(ListingExtension::Extended),
            Ok(Some(reply)) => {
                let _underway = ReaddirInFlightGuard {
                    listing: sequence,
                    request: ahead,
                };
                op.sb.count(ClientCounter::ListingAheadUsed);
                probe!(NfsReaddirPrefetchUsed {
                    dir: requester.inode.fileid_if_enabled(Event::NfsReaddirPrefetchUsed),
                    cookie: sequence.end().cookie
                });
                handle_reply(op, &requester, sequence, *reply)
            }
        },
        ReaddirStart::Send(ahead, gap, size) => {
            let _underway = ReaddirInFlightGuard {
                listing: sequence,
                request: ahead,
            };
            let reply = fetch_listing(&requester, op, gap, size);
            handle_reply(op, &requester, sequence, reply)
        }
    }
}

fn handle_reply(
    op: &Op<'_>,
    requester: &ReaddirRequester,
    sequence: &Arc<DirectoryListing>,
    reply: Result<ReaddirReply, ReaddirError>,
) -> Result<ListingExtension, Errno> {
    match reply {
        Ok(fetched) => absorb_reply(op.sb, requester, sequence, fetched),
        Err(ReaddirError::Refused(Fault::BadCookie | Fault::NotSync, _)) if sequence.end().cookie != 0 => {
            op.sb.count(ClientCounter::ListingBadCookie);
            probe!(NfsReaddirBadCookie {
                dir: requester.inode.fileid_if_enabled(Event::NfsReaddirBadCookie),
                cookie: sequence.end().cookie
            });
            Ok(ListingExtension::Refused)
        }
        Err(ReaddirError::Refused(status, sent_at)) => {
            attributes::note_refusal(op, &requester.inode, status, Access::READ, sent_at);
            Err(attributes::note_failed_status(&requester.inode, status))
        }
        Err(ReaddirError::Failed(error)) => Err(errno::of_call(error)),
        Err(ReaddirError::Stuck) => Err(Errno::IO),
    }
}

/// Has what follows asked for without waiting for it.
pub(super) fn send_readahead(op: &Op<'_>, inode: &Arc<Inode>, sequence: &Arc<DirectoryListing>) {
    let ReaddirStart::Send(ahead, gap, size) = start_request(op.sb, inode, sequence) else {
        return;
    };
    let requester = requester(op, inode);
    let sequence = Arc::downgrade(sequence);
    op.sb.background.spawn(Box::new(move || {
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

pub(super) fn requester(op: &Op<'_>, inode: &Arc<Inode>) -> ReaddirRequester {
    ReaddirRequester {
        core: Arc::clone(&op.sb.core),
        inode: Arc::clone(inode),
        identity: Arc::clone(&op.identity),
    }
}

/// Bytes of a reply at most.
pub(super) fn reply_max(sb: &Superblock) -> u32 {
    let limits = &sb.server_limits;
    let server = limits.listing_preferred.max(limits.read_max);
    let most = server.min(sb.listing_memory.reply_max());
    listing::size_max(most, &sb.core.options())
}

fn start_request(sb: &Superblock, inode: &Inode, sequence: &Arc<DirectoryListing>) -> ReaddirStart {
    let size = inode.facts().state.facts().map(|known| known.size);
    sequence.start_request(|place, former| {
        if place.cookie == 0 {
            listing::first_size(size, reply_max(sb))
        } else {
            listing::next_size(former, reply_max(sb))
        }
    })
}

/// Asks with attributes or without; without if it turns out that the server has no listings
/// with them.
fn fetch_listing(
    requester: &ReaddirRequester,
    op: &Op<'_>,
    gap: ListingGap,
    size: u32,
) -> Result<ReaddirReply, ReaddirError> {
    let decision = requester.decide(gap.cookie.cookie);
    let fetched = fetch_retrying_size(requester, op, gap, size, decision);
    match (&fetched, decision) {
        (Err(ReaddirError::Refused(..) | ReaddirError::Failed(_)), ListingDecision::Plus)
            if op.sb.core.lacks_plus() =>
        {
            fetch_retrying_size(requester, op, gap, size, ListingDecision::Plain)
        }
        (_, ListingDecision::Plus | ListingDecision::Plain) => fetched,
    }
}

/// Asks, and again in more bytes where those were too few: for as long as the server says so
/// itself, and once if it gives neither a name nor the end.
pub(super) fn fetch_retrying_size(
    requester: &ReaddirRequester,
    op: &Op<'_>,
    gap: ListingGap,
    size: u32,
    decision: ListingDecision,
) -> Result<ReaddirReply, ReaddirError> {
    let most = reply_max(op.sb);
    let (mut size, mut was_empty) = (decision.bound(size), false);
    loop {
        let larger = listing::next_size(size, most);
        match requester.fetch(gap, size, decision, &op.interrupt) {
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
    sb: &Superblock,
    requester: &ReaddirRequester,
    sequence: &Arc<DirectoryListing>,
    fetched: ReaddirReply,
) -> Result<ListingExtension, Errno> {
    if fetched.plus {
        priming::prime(sb, &requester.inode, &fetched, PrimeCounting::Nothing);
    }
    enter(sb, requester, sequence, &fetched)?;
    if absence::note_completeness(sb, &requester.inode, sequence) {
        let mut facts = requester.inode.facts();
        facts.by_type.directory().fill.listed(sequence.count());
    }
    Ok(ListingExtension::Extended)
}

/// Keeps a reply's names for the sequence.
pub(super) fn enter(
    sb: &Superblock,
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
            sb.core.numbering.number(fsid, listed.fileid),
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
        sb.count(ClientCounter::ListingTorn);
        probe!(NfsReaddirTorn {
            dir: inode.fileid_if_enabled(Event::NfsReaddirTorn)
        });
    }
    cache_listing(inode, sequence);
    Ok(())
}

/// Keeps a listing for those who list the directory while it does not change.
fn cache_listing(inode: &Inode, sequence: &Arc<DirectoryListing>) {
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
