//! Requests names and attributes together because one is needed ([`curt_policy::prefetch`]
//! decides).
//!
//! One such request of a directory is in flight at a time. A caller that needs another of its names
//! waits for it, and checks again. If the reply does not contain the name, that is requested
//! individually. The reply's attributes are dated by when its request was sent, like any others.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, probe, scope};
use curt_policy::{
    AccessDecision,
    prefetch::{PART_NAMES, PrefetchBenefit, PrefetchReason, PrefetchView, decide},
    readdir::ListingDecision,
};
use curt_rpc::client::CallError;
use curt_types::{Access, Fault};
use rustix::io::Errno;

use super::{
    cache::{DirectoryListing, ListingGap, ReaddirError, ReaddirReply},
    cursor::ListingReader,
    fetch::{FetchStart, ReaddirRequester, reply_max},
    local_changes::NamePresence,
    names::{self, PrimeCounting, is_due, prime},
};
use crate::{
    errno,
    inode::{Inode, TypeState, single_flight::InodeFlight, type_state::DirectoryState},
    ops::permission,
    superblock::{Op, Superblock},
};

/// The outcome of a fill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FillOutcome {
    /// The name takes a LOOKUP.
    #[default]
    Nothing,
    /// The name is to be searched again: another caller requested it with others.
    ByOther,
    /// This caller sent the request in place of a LOOKUP: no request was saved.
    Sent,
}

/// When a name that has to be requested counts as one that a fill might have saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissCounting {
    /// Now.
    Now,
    /// When it is known what the name refers to ([`note_miss`]).
    Later,
}

/// A name was requested alone that a fill might have saved.
pub(crate) fn note_miss(sb: &Superblock, directory: &Inode) {
    directory.lock().by_type.directory().prefetch.own.missed();
    sb.core.learn_prefetch(PrefetchBenefit::missed);
}

fn wait_for(op: &Op<'_>, call: &Arc<InodeFlight>) -> Result<(), Errno> {
    call.wait(op.interrupt()).map(|_| ()).ok_or(Errno::INTR)
}

/// Decides whether a name is requested together with others.
fn decide_for_name(
    sb: &Superblock,
    directory: &Inode,
    counting: MissCounting,
    want: for<'a> fn(&'a PrefetchView) -> PrefetchReason<'a>,
) -> Option<u32> {
    if counting == MissCounting::Now {
        note_miss(sb, directory);
    }
    let (record, size) = {
        let mut locked = directory.lock();
        let size = locked.attributes.newest().map(|known| known.size);
        (locked.by_type.directory().prefetch, size)
    };
    let parent = directory.parent();
    let siblings = parent.map(|parent| parent.lock().by_type.directory().prefetch.below);
    let view = PrefetchView {
        record,
        siblings: siblings.unwrap_or_default(),
        mount: sb.core.prefetch_benefit(),
        size,
        round_trip: sb.core.protocol.rpc().latency(),
    };
    decide(want(&view), &sb.core.options())
}

/// Records the reply to a fill for `name`, or its failure. `is_complete`: all names are known by
/// now. Returns whether the name may be served.
fn note_fill(
    sb: &Superblock,
    directory: &Arc<Inode>,
    name: &[u8],
    reply: Option<&ReaddirReply>,
    is_complete: bool,
) -> bool {
    let count = reply.map_or(0, ReaddirReply::count);
    let label = reply.and_then(|reply| reply.origin.label);
    let cached = sb.dentries.cached_dentry(directory, name).filter(|cached| Some(cached.label) == label);
    let child = cached.and_then(|cached| cached.child);
    let is_listed = |reply: &ReaddirReply| reply.page.names.iter().any(|listed| *listed.name == *name);
    let holds_it = child.is_some() || is_complete && !reply.is_some_and(is_listed);
    // Found by this request itself: its use saves no request.
    if let Some(child) = child {
        child.note_use();
    }
    directory.lock().by_type.directory().prefetch.own.filled(count, holds_it);
    sb.core.learn_prefetch(|mount| mount.filled_on_mount(count, holds_it));
    if let Some(reply) = reply {
        probe!(NfsDirFill { dir: directory.event_fileid(), name, entries: count, eof: reply.page.end });
    }
    sb.core.counters.add(ClientCounter::DirFillNames, u64::from(count));
    if !holds_it {
        sb.count(ClientCounter::DirFillWasted);
    }
    holds_it
}

/// `name` must be requested. Requests it together with others if policy expects a benefit, or waits
/// for another caller's request.
///
/// # Errors
/// EINTR; no answer on a soft mount.
pub(crate) fn fill(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    counting: MissCounting,
) -> Result<FillOutcome, Errno> {
    if !op.options.fills() || !op.sb.core.protocol.lists_attributes() || name == b".." {
        return Ok(FillOutcome::Nothing);
    }
    let listing = directory.lock().by_type.directory_if_any().and_then(DirectoryState::listing_for_cookies);
    // If a large listing without attributes contains the name, its names are requested in the
    // listing's order, if they are looked up in that order.
    let has_it = |listing: &DirectoryListing| listing.presence_of(name) == NamePresence::Present;
    if listing.is_some_and(|listing| listing.is_large() && has_it(&listing)) {
        return Ok(FillOutcome::Nothing);
    }
    // If negative entries are not cached, listing a complete directory again has no benefit.
    if !op.options.keeps_missing_names() && names::negative_from_listing(op.sb, directory, name).is_some() {
        return Ok(FillOutcome::Nothing);
    }
    if let Some(call) = op.sb.fills_in_flight.in_progress(directory.id()) {
        return wait_for(op, &call).map(|()| FillOutcome::ByOther);
    }
    if is_unlistable_name(op.sb, directory, name) {
        return Ok(FillOutcome::Nothing);
    }
    let Some(bytes) = decide_for_name(op.sb, directory, counting, |view| PrefetchReason::Name(view)) else {
        return Ok(FillOutcome::Nothing);
    };
    // LOOKUP proves search permission, a listing does not.
    let search = permission::access_decision(op, directory, Access::LOOKUP);
    if search != AccessDecision::Allow || !permission::may_list(op, directory) {
        return Ok(FillOutcome::Nothing);
    }
    match op.sb.fills_in_flight.join(directory.id()) {
        Ok(call) => wait_for(op, &call).map(|()| FillOutcome::ByOther),
        Err(_turn) if directory.lock().by_type.directory().filled_at > op.began => Ok(FillOutcome::ByOther),
        Err(_turn) => send_fill(op, directory, name, bytes),
    }
}

/// Whether all names of `directory` are known and do not cover `name`: a name that servers hide or
/// may encode differently. Listing them again has no benefit.
fn is_unlistable_name(sb: &Superblock, directory: &Inode, name: &[u8]) -> bool {
    let locked = directory.lock();
    let listing = locked.by_type.directory_if_any().and_then(|state| state.settled_listing(name)).cloned();
    let contents = locked.contents();
    drop(locked);
    let is_known = |listing: &DirectoryListing| {
        let label = listing.complete_label();
        label.is_some_and(|label| contents == Some(label.epoch))
            && listing.presence_of(name) != NamePresence::Present
    };
    listing.is_some_and(|listing| is_known(&listing))
        && names::negative_from_listing(sb, directory, name).is_none()
}

/// The known names of the directory's current state if more follow, otherwise an empty listing; and
/// whether there are any.
fn listing_to_extend(sb: &Superblock, directory: &Inode) -> (Arc<DirectoryListing>, bool) {
    let mut locked = directory.lock();
    let contents = locked.contents();
    let listing = locked.by_type.directory().settled_listing(b"").cloned();
    drop(locked);
    let is_good = |listing: &Arc<DirectoryListing>| {
        let label = listing.label();
        !listing.is_complete() && label.is_some_and(|label| Some(label.epoch) == contents)
    };
    match listing.filter(is_good) {
        Some(listing) => (listing, true),
        None => (DirectoryListing::from_start(&sb.listing_memory), false),
    }
}

fn send_fill(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8], bytes: u32) -> Result<FillOutcome, Errno> {
    let sb = op.sb;
    let (listing, is_next) = listing_to_extend(sb, directory);
    // The last reader of the directory may stop meanwhile: that must not permit a second request
    // for the same names.
    let _reading = ListingReader::new(&listing);
    let requester = ReaddirRequester::new(op, directory);
    let _why = scope::with_cause(Cause::Fill);
    let (_turn, reply, outcome) = match listing.begin_fetch(|_, _| bytes.min(reply_max(sb))) {
        FetchStart::AtEnd | FetchStart::Loop => return Ok(FillOutcome::Nothing),
        // Another reader of the directory has requested the following names.
        other @ (FetchStart::Wait(_) | FetchStart::Arrived) => {
            if let FetchStart::Wait(call) = &other {
                wait_for(op, call)?;
            }
            let Some((guard, reply)) = listing.take_arrived() else {
                return Ok(FillOutcome::ByOther);
            };
            (guard, reply, FillOutcome::ByOther)
        }
        FetchStart::Send(guard, gap, size) => {
            sb.count(ClientCounter::DirFill);
            let reply = requester.fetch_retrying(op, gap, size, ListingDecision::Plus);
            (guard, reply, FillOutcome::Sent)
        }
    };
    let reply = match reply {
        Ok(reply) => {
            prime(sb, directory, &reply, PrimeCounting::New);
            requester.enter(sb, &listing, &reply).is_ok().then_some(reply)
        }
        Err(error) => {
            note_fill(sb, directory, name, None, false);
            fault_of(op, directory, error)?;
            return Ok(FillOutcome::Nothing);
        }
    };
    let mut is_complete = false;
    if let Some(reply) = &reply {
        is_complete = names::note_completeness(sb, directory, &listing);
        let now = sb.core.now();
        let mut locked = directory.lock();
        let state = locked.by_type.directory();
        state.filled_at = now;
        state.prefetch.read(reply.page.bytes(), is_next, reply.page.end);
        state.prefetch.refreshed(None);
    }
    let holds_it = note_fill(sb, directory, name, reply.as_ref(), is_complete);
    let Some(reply) = reply else {
        return Ok(FillOutcome::Nothing);
    };
    if let Some(parent) = directory.parent() {
        let mut locked = parent.lock();
        locked.by_type.directory().prefetch.below.filled(reply.count(), holds_it);
    }
    Ok(outcome)
}

/// A fill failed. The name or the attributes are then requested individually, which returns the
/// actual error.
///
/// # Errors
/// No answer.
fn fault_of(op: &Op<'_>, directory: &Arc<Inode>, error: ReaddirError) -> Result<(), Errno> {
    match error {
        ReaddirError::Refused(Fault::Notsupp, _) | ReaddirError::Stuck => {}
        ReaddirError::Refused(status, shown) => {
            directory.note_refusal(&op.identity, status, Access::READ, shown);
        }
        ReaddirError::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)) => {}
        ReaddirError::Failed(error) => return Err(errno::of_call(error)),
    }
    Ok(())
}

/// A name must be looked up. `was_known`: a cached entry existed that may not be served any more.
/// The name may be in a listing without attributes whose names are looked up one after another, in
/// its order (`ls -l`) or another (`find`, `rm -r`: that of inode numbers). Then it is requested
/// together with those that follow or those around it. Returns whether it was.
pub(crate) fn fill_from_listing(op: &Op<'_>, inode: &Arc<Inode>, name: &[u8], was_known: bool) -> bool {
    let (listing, ordinal, in_order) = {
        let mut locked = inode.lock();
        let TypeState::Directory(state) = &mut locked.by_type else {
            return false;
        };
        if !state.lookup_order.missed() {
            return false;
        }
        // The listing may be out of date: the reply gives the current state. If nothing from such a
        // reply may be served, only `was_known` counts.
        let is_worth_while =
            |listing: &Arc<DirectoryListing>| !was_known || op.options.fills() && listing.is_large();
        let listing = state.listing_for_cookies().filter(is_worth_while);
        let Some((listing, ordinal)) = listing.and_then(|it| it.ordinal_of(name).map(|at| (it, at))) else {
            return false;
        };
        state.lookup_order.missed_at(ordinal);
        (listing, ordinal, decide(PrefetchReason::NameInOrder(&state.lookup_order), &op.options))
    };
    // Aligned, so that the requests for two names do not overlap.
    let around = ordinal - ordinal % PART_NAMES;
    let (first, bytes) = match in_order {
        Some(bytes) => (ordinal, bytes),
        None if !listing.is_large() => return false,
        None => {
            match decide_for_name(op.sb, inode, MissCounting::Now, |view| PrefetchReason::ListedName(view)) {
                Some(bytes) if permission::may_list(op, inode) => (around, bytes),
                Some(_) | None => return false,
            }
        }
    };
    let Some(gap) = listing.gap_before(first) else {
        return false;
    };
    if in_order.is_some() {
        inode.lock().by_type.directory().lookup_order.requested(ordinal, bytes);
    } else {
        op.sb.count(ClientCounter::DirFill);
    }
    let _why = scope::with_cause(Cause::Fill);
    let requester = ReaddirRequester::new(op, inode);
    let size = bytes.min(reply_max(op.sb));
    let reply = requester.fetch(gap, size, ListingDecision::Plus, op.interrupt()).ok();
    let counting = if in_order.is_some() { PrimeCounting::Nothing } else { PrimeCounting::New };
    match &reply {
        Some(reply) => _ = prime(op.sb, inode, reply, counting),
        // Without an answer the names are looked up individually, as before.
        None => inode.lock().by_type.directory().forget_cookies(&listing),
    }
    if in_order.is_none() {
        return note_fill(op.sb, inode, name, reply.as_ref(), false);
    }
    let last = reply.as_ref().and_then(|reply| reply.page.names.last());
    if let Some(ordinal) = last.and_then(|last| listing.ordinal_of(&last.name)) {
        inode.lock().by_type.directory().lookup_order.requested(ordinal, bytes);
    }
    reply.is_some()
}

/// The attributes of `inode` have expired. Requests them together with those of its directory's
/// other objects if policy expects a benefit, or waits for such a request. Returns whether they
/// arrived.
///
/// # Errors
/// EINTR; no answer on a soft mount.
pub(crate) fn refresh_directory_of(op: &Op<'_>, inode: &Arc<Inode>) -> Result<bool, Errno> {
    let sb = op.sb;
    if !op.options.fills() || !sb.core.protocol.lists_attributes() || !is_due(sb, inode) {
        return Ok(false);
    }
    let Some(home) = inode.listed_in() else {
        return Ok(false);
    };
    inode.note_use();
    if let Some(call) = sb.fills_in_flight.in_progress(home.id()) {
        wait_for(op, &call)?;
        return Ok(!is_due(sb, inode));
    }
    let view = PrefetchView {
        record: home.lock().by_type.directory().prefetch,
        round_trip: sb.core.protocol.rpc().latency(),
        ..PrefetchView::default()
    };
    let bytes = decide(PrefetchReason::Attributes(&view), &op.options);
    let Some(bytes) = bytes.filter(|_| permission::may_list(op, &home)) else {
        let mut locked = home.lock();
        let state = locked.by_type.directory();
        if state.last_getattr_alone.replace(inode.id()) != Some(inode.id()) {
            state.prefetch.note_single_request();
        }
        return Ok(false);
    };
    match sb.fills_in_flight.join(home.id()) {
        Ok(call) => wait_for(op, &call)?,
        Err(_turn) => send_refresh(op, &home, bytes)?,
    }
    let has_come = !is_due(sb, inode);
    if !has_come {
        inode.clear_listed_in();
    }
    Ok(has_come)
}

fn send_refresh(op: &Op<'_>, home: &Arc<Inode>, bytes: u32) -> Result<(), Errno> {
    let sb = op.sb;
    let requester = ReaddirRequester::new(op, home);
    let _why = scope::with_cause(Cause::FillAgain);
    sb.count(ClientCounter::DirFillRevalidation);
    let size = bytes.min(reply_max(sb));
    match requester.fetch_retrying(op, ListingGap::at_start(), size, ListingDecision::Plus) {
        Ok(reply) => {
            let expired = prime(sb, home, &reply, PrimeCounting::Expired);
            let listing = DirectoryListing::from_start(&sb.listing_memory);
            if requester.enter(sb, &listing, &reply).is_ok() {
                names::note_completeness(sb, home, &listing);
            }
            let mut locked = home.lock();
            let record = &mut locked.by_type.directory().prefetch;
            record.refreshed(Some(expired));
            record.read(reply.page.bytes(), false, reply.page.end);
            drop(locked);
            probe!(NfsDirRefresh { dir: home.event_fileid(), entries: reply.count(), eof: reply.page.end });
            Ok(())
        }
        Err(error) => {
            home.lock().by_type.directory().prefetch.refreshed(Some(0));
            sb.count(ClientCounter::DirFillWasted);
            fault_of(op, home, error)
        }
    }
}
