//! Requesting the attributes of a directory's objects together because those of one have expired.
//!
//! Policy decides whether the others are expected to be wanted, too
//! ([`curt_policy::fill::decide_revalidation`]). The reply's attributes are dated by when its
//! request was sent, like any others: an open that has to see what others closed before it began
//! accepts a reply only if its request was sent since. A GETATTR is sent for an object that the
//! reply does not contain.

use std::sync::Arc;

use curt_policy::{
    fill::{RevalidationDecision, RevalidationView, decide_revalidation},
    listing::ListingDecision,
};
use curt_rpc::client::CallError;
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use rustix::io::Errno;

use super::{
    chunk::ReaddirCookie,
    directory_listing::DirectoryListing,
    extend::ReaddirStart,
    fetch::{ReaddirError, ReaddirReply, ReaddirRequester},
    fill::bytes_of,
    priming::PrimeCounting,
    request::ReaddirInFlightGuard,
};
use crate::{
    errno,
    inode::Inode,
    listing::{absence, fill, priming, request},
    op::Op,
    ops::attributes,
    superblock::Superblock,
};

/// The attributes of `inode` have expired. They are asked for with those of the others in its
/// directory if that is expected to be worth while, or waited for if somebody does so; whether
/// they came.
///
/// # Errors
/// EINTR; no answer on a soft mount.
pub(crate) fn refresh_directory_of(op: &Op<'_>, inode: &Arc<Inode>) -> Result<bool, Errno> {
    if !op.options.fills() || op.sb.core.lacks_plus() || !priming::is_due(op.sb, inode) {
        return Ok(false);
    }
    let Some(home) = inode.listed_in() else {
        return Ok(false);
    };
    inode.note_use();
    if let Some(flight) = op.sb.fills_in_flight.under_way(home.id()) {
        fill::wait_for_fill(op, &flight)?;
        return Ok(!priming::is_due(op.sb, inode));
    }
    let record = home.facts().by_type.directory().fill;
    let view = RevalidationView {
        record,
        round_trip: op.sb.core.protocol.rpc().latency(),
    };
    let bytes = match decide_revalidation(&view, &op.options) {
        RevalidationDecision::Directory { bytes } if attributes::may_list(op, &home) => bytes,
        RevalidationDecision::Directory { .. } | RevalidationDecision::Object => {
            note_asked_alone(&home, inode);
            return Ok(false);
        }
    };
    match op.sb.fills_in_flight.join(home.id()) {
        Ok(flight) => fill::wait_for_fill(op, &flight)?,
        Err(_departure) => send_refresh(op, &home, bytes)?,
    };
    let has_come = !priming::is_due(op.sb, inode);
    if !has_come {
        inode.clear_listed_in();
    }
    Ok(has_come)
}

fn note_asked_alone(home: &Inode, inode: &Inode) {
    let mut facts = home.facts();
    let kept = facts.by_type.directory();
    if kept.last_getattr_alone.replace(inode.id()) != Some(inode.id()) {
        kept.fill.asked_alone();
    }
}

fn send_refresh(op: &Op<'_>, home: &Arc<Inode>, bytes: u32) -> Result<(), Errno> {
    let requester = request::requester(op, home);
    let sequence = DirectoryListing::new(&op.sb.listing_memory, ReaddirCookie::default());
    let bytes = bytes.min(request::reply_max(op.sb));
    let ReaddirStart::Send(ahead, gap, size) = sequence.start_request(|_, _| bytes) else {
        return Ok(());
    };
    let _underway = ReaddirInFlightGuard {
        listing: &sequence,
        request: ahead,
    };
    let _why = scope::with_cause(Cause::FillAgain);
    op.sb.count(ClientCounter::DirFillRevalidation);
    match request::fetch_retrying_size(&requester, op, gap, size, ListingDecision::Plus) {
        Ok(fetched) => keep_refresh(op.sb, &requester, &sequence, &fetched),
        Err(
            ReaddirError::Refused(..)
            | ReaddirError::Stuck
            | ReaddirError::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)),
        ) => {
            // The object's own request will say what is wrong, if anything is.
            home.facts().by_type.directory().fill.refreshed(Some(0));
            op.sb.count(ClientCounter::DirFillWasted);
        }
        Err(ReaddirError::Failed(error)) => return Err(errno::of_call(error)),
    }
    Ok(())
}

fn keep_refresh(
    sb: &Superblock,
    requester: &ReaddirRequester,
    sequence: &Arc<DirectoryListing>,
    fetched: &ReaddirReply,
) {
    let home = &requester.inode;
    let expired = priming::prime(sb, home, fetched, PrimeCounting::Expired);
    if request::enter(sb, requester, sequence, fetched).is_ok() {
        absence::note_completeness(sb, home, sequence);
    }
    let mut facts = home.facts();
    let record = &mut facts.by_type.directory().fill;
    record.refreshed(Some(expired));
    let count = u32::try_from(fetched.page.names.len()).unwrap_or(u32::MAX);
    record.refilled(count, bytes_of(fetched), fetched.page.end);
    drop(facts);
    probe!(NfsDirRefresh {
        dir: home.fileid_if_enabled(Event::NfsDirRefresh),
        entries: count,
        eof: fetched.page.end
    });
}
