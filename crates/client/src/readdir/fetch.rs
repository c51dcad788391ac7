//! Listing, with or without attributes: the request for the names after a listing, its sender and
//! waiters, and the effect of the reply.
//!
//! One such request of a listing is in flight at a time. The reply of a read-ahead is held until a
//! reader takes it.

use std::sync::Arc;

use curt_observe::{Cause, ClientCounter, probe, scope};
use curt_policy::{
    complete_directory,
    readdir::{ListingDecision, decide_listing, first_size, next_size, size_max},
};
use curt_rpc::client::Interrupt;
use curt_types::{Access, Fault, FileKind};
use rustix::io::Errno;

use super::{
    bad_cookie,
    cache::{
        ChunkBuilder, DirectoryListing, ListingGap, ListingOrigin, ListingState, ReaddirCookie, ReaddirError,
        ReaddirReply, ReaddirResult,
    },
    names::{self, PrimeCounting, prime},
};
use crate::{
    caller::InternedCaller,
    inode::{
        Inode,
        rights_reply::RightsReply,
        single_flight::{InFlightEnd, InodeFlight},
    },
    mount_core::MountCore,
    protocol::{ListRequest, RpcCaller},
    superblock::{Op, Superblock},
};

/// The directory and the credential of a request for names.
pub(super) struct ReaddirRequester {
    core: Arc<MountCore>,
    pub(super) inode: Arc<Inode>,
    identity: Arc<InternedCaller>,
    /// The rights that are asked about beside.
    rights: Option<Access>,
}

/// The next step of a caller that needs the names after a listing.
pub(super) enum FetchStart {
    /// Send a request: the gap, and the size in bytes.
    Send(FetchGuard, ListingGap, u32),
    /// Wait for the request of another caller.
    Wait(Arc<InodeFlight>),
    /// Take the result of a read-ahead ([`DirectoryListing::take_arrived`]).
    Arrived,
    /// Nothing follows.
    AtEnd,
    /// The server lists names in a loop.
    Loop,
}

/// The right to extend a listing. Dropping it releases the right and wakes the waiters.
pub(super) struct FetchGuard {
    listing: Arc<DirectoryListing>,
    call: Arc<InodeFlight>,
}

/// The outcome of extending a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListingExtension {
    Extended,
    /// The server refused its own cookie.
    BadCookie,
}

impl FetchGuard {
    fn new(listing: &Arc<DirectoryListing>, state: &mut ListingState) -> Self {
        Self { listing: Arc::clone(listing), call: Arc::clone(state.request.insert(Arc::default())) }
    }

    /// Calls `update` unless the request was cancelled or has ended.
    fn update(&self, update: impl FnOnce(&mut ListingState)) {
        let state = &mut *self.listing.state.lock();
        if state.request.as_ref().is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            update(state);
        }
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        self.update(|state| state.request = None);
        self.call.end(InFlightEnd::Done);
    }
}

impl DirectoryListing {
    /// The result of a read-ahead, for the first caller.
    pub(super) fn take_arrived(self: &Arc<Self>) -> Option<(FetchGuard, ReaddirResult)> {
        let state = &mut *self.state.lock();
        let reply = state.arrived.take()?;
        state.ahead = None;
        Some((FetchGuard::new(self, state), *reply))
    }

    /// Begins to extend the listing. `size` returns the bytes to request, by the cookie and the
    /// size of the last request.
    pub(super) fn begin_fetch(self: &Arc<Self>, size: impl FnOnce(ReaddirCookie, u32) -> u32) -> FetchStart {
        let state = &mut *self.state.lock();
        if let Some(call) = &state.request {
            return FetchStart::Wait(Arc::clone(call));
        }
        if state.arrived.is_some() {
            return FetchStart::Arrived;
        }
        if state.is_looping {
            return FetchStart::Loop;
        }
        if state.is_complete {
            return FetchStart::AtEnd;
        }
        let (index, first) = (state.slots.len(), state.count);
        let gap = ListingGap { cookie: state.end, index, first, is_shared: self.is_whole() };
        let size = size(state.end, state.size);
        FetchStart::Send(FetchGuard::new(self, state), gap, size)
    }
}

impl ReaddirRequester {
    pub(super) fn new(op: &Op<'_>, inode: &Arc<Inode>) -> Self {
        let (core, identity) = (Arc::clone(&op.sb.core), Arc::clone(&op.identity));
        Self { core, inode: Arc::clone(inode), identity, rights: None }
    }

    /// Whether to request the names after `cookie` with attributes.
    fn decide(&self, cookie: u64) -> ListingDecision {
        if !self.core.protocol.lists_attributes() {
            return ListingDecision::Plain;
        }
        let mut locked = self.inode.lock();
        let state = locked.by_type.directory();
        let entries = state.names_since_stat;
        let decision = decide_listing(cookie == 0, entries, &self.core.options());
        let plus = decision == ListingDecision::Plus;
        let was_plus = std::mem::replace(&mut state.lists_plus, plus);
        drop(locked);
        let inode = &self.inode;
        match (was_plus, plus) {
            (false, true) => probe!(NfsReaddirPlusOn { dir: inode.event_fileid(), cookie, entries }),
            (true, false) => probe!(NfsReaddirPlusOff { dir: inode.event_fileid(), cookie, entries }),
            (true, true) | (false, false) => {}
        }
        decision
    }

    /// Requests the names after a cookie, in about `size` bytes, and absorbs the directory's
    /// attributes.
    pub(super) fn fetch(
        &self,
        gap: ListingGap,
        size: u32,
        decision: ListingDecision,
        interrupt: &Interrupt,
    ) -> ReaddirResult {
        macro_rules! trace {
            ($shared:ident or $own:ident, $($fields:tt)*) => {
                if gap.is_shared { trace!($shared, $($fields)*) } else { trace!($own, $($fields)*) }
            };
            ($event:ident, $subject:ident: $($field:ident: $value:expr),*) => {
                probe!(let $subject = self.inode.event_fields(); $event {
                    dir: $subject.fileid,
                    cookie: gap.cookie.cookie,
                    dev: $subject.dev,
                    fhandle: $subject.fhandle,
                    version: $subject.version,
                    $($field: $value),*
                })
            };
        }
        let plus = decision == ListingDecision::Plus;
        trace!(NfsReaddirCacheFill or NfsReaddirUncached, subject:
            verifier: u64::from_be_bytes(gap.cookie.verifier.0), dtsize: size, plus: plus, cache_index: gap.index);
        let reply = self.send(gap, size, plus, interrupt);
        let done = reply.as_ref();
        trace!(NfsReaddirCacheFillDone or NfsReaddirUncachedDone, subject:
            entries: done.map_or(0, |reply| reply.page.names.len()), eof: done.is_ok_and(|reply| reply.page.end),
            error: done.err().map_or(0, |error| -error.errno().raw_os_error()), size: subject.size,
            cache_validity: subject.cache_validity, nfsi_flags: subject.nfsi_flags);
        reply
    }

    fn send(&self, gap: ListingGap, size: u32, plus: bool, interrupt: &Interrupt) -> ReaddirResult {
        let ListingGap { cookie: place, first, .. } = gap;
        let Self { core, inode, identity, rights } = self;
        let ticket = inode.lock().attributes.ticket();
        let caller = RpcCaller { credential: &identity.credential, interrupt };
        core.count(if plus { ClientCounter::ListingPlus } else { ClientCounter::ListingPlain });
        let request =
            ListRequest { cookie: place.cookie, verifier: place.verifier, size, plus, rights: *rights };
        let answer = core.protocol.list(caller, inode.handle(), request);
        let answer = answer.map_err(ReaddirError::Failed)?;
        let sent_at = core.moment(answer.sent_at);
        let about = answer.attributes.as_ref();
        let is_adopted = about.is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
        let shown = RightsReply::new(sent_at, about);
        let page = answer.outcome.map_err(|status| ReaddirError::Refused(status, shown))?;
        inode.prove(identity, Access::READ, shown);
        if let (Some(rights), Some(granted)) = (*rights, page.granted) {
            inode.absorb_answer(identity, rights, granted, shown);
        }
        // The names are judged at the time of the reply.
        let mut locked = inode.lock();
        let state = locked.by_type.directory();
        state.names_since_stat = state.names_since_stat.saturating_add(state.names_last);
        state.names_last = u32::try_from(page.names.len()).unwrap_or(u32::MAX);
        let label = complete_directory::reply_label(ticket, &locked.attributes, is_adopted, sent_at);
        let origin = ListingOrigin { label, ticket, epoch: locked.contents() };
        Ok(ReaddirReply { page, plus, size, origin, sent_at, first })
    }

    /// As [`Self::fetch`], with retries in more bytes if `size` was too small: while the server
    /// returns TOOSMALL, and once if it returns neither a name nor the end.
    pub(super) fn fetch_retrying(
        &self,
        op: &Op<'_>,
        gap: ListingGap,
        size: u32,
        decision: ListingDecision,
    ) -> ReaddirResult {
        let (mut size, mut was_empty) = (decision.bound(size), false);
        loop {
            let larger = next_size(size, reply_max(op.sb));
            match self.fetch(gap, size, decision, op.interrupt()) {
                Err(ReaddirError::Refused(Fault::Toosmall, _)) if larger > size => size = larger,
                Ok(reply) if reply.is_without_progress() => {
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

    /// Caches what a reader's request has returned.
    ///
    /// # Errors
    /// EIO: the server lists names in a loop.
    fn take_in(
        &self,
        sb: &Superblock,
        listing: &Arc<DirectoryListing>,
        reply: &ReaddirReply,
    ) -> Result<(), Errno> {
        if reply.plus {
            prime(sb, &self.inode, reply, PrimeCounting::Nothing);
        }
        self.enter(sb, listing, reply)?;
        if names::note_completeness(sb, &self.inode, listing) {
            self.inode.lock().by_type.directory().prefetch.listed(listing.count());
        }
        Ok(())
    }

    /// Adds a reply's names to the listing, and caches the listing for other readers of the
    /// directory while it does not change.
    ///
    /// # Errors
    /// EIO: the server lists names in a loop.
    pub(super) fn enter(
        &self,
        sb: &Superblock,
        listing: &Arc<DirectoryListing>,
        reply: &ReaddirReply,
    ) -> Result<(), Errno> {
        let inode = &self.inode;
        let own_fsid = inode.fsid().unwrap_or(0);
        let mut builder = ChunkBuilder::default();
        for listed in &reply.page.names {
            let attributes = listed.attributes.as_ref();
            let fsid = attributes.map_or(own_fsid, |attributes| attributes.fsid);
            let fileid = sb.core.numbering.number(fsid, listed.fileid);
            let kind = attributes.map(|attributes| attributes.kind);
            builder.push(&listed.name, fileid, kind, listed.cookie);
        }
        listing.state.lock().directory = inode.attributes().map_or(0, |attributes| attributes.fileid);
        if !listing.append(builder, reply.page.verifier, reply.page.end, reply.size) {
            tracing::warn!(directory = ?inode, "the server lists a directory in a loop: a cookie repeats or leads back");
            return Err(Errno::IO);
        }
        if listing.note_origin(reply.origin) {
            sb.count(ClientCounter::ListingTorn);
            probe!(NfsReaddirTorn { dir: inode.event_fileid() });
        }
        let mut locked = inode.lock();
        if listing.is_whole() && listing.is_large() {
            locked.by_type.directory().note_reader(listing);
        }
        if listing.is_cacheable(&locked.attributes) {
            let former = locked.by_type.directory().cache_listing(listing);
            drop(locked);
            drop(former);
        }
        Ok(())
    }
}

/// Requests the first names of a directory together with the rights of its opener. `None`: the
/// server has refused one of the two, and the opener has to ask for its rights alone.
///
/// # Errors
/// No answer; EIO: the server lists names in a loop.
pub(super) fn list_with_rights(
    op: &Op<'_>,
    inode: &Arc<Inode>,
) -> Result<Option<Arc<DirectoryListing>>, Errno> {
    let rights = Some(Access::applicable_to(FileKind::Directory));
    let requester = ReaddirRequester { rights, ..ReaddirRequester::new(op, inode) };
    let listing = DirectoryListing::from_start(&op.sb.listing_memory);
    let FetchStart::Send(_turn, gap, size) = begin(op.sb, inode, &listing) else {
        return Ok(None);
    };
    let decision = requester.decide(gap.cookie.cookie);
    match requester.fetch_retrying(op, gap, size, decision) {
        Ok(reply) => requester.take_in(op.sb, &listing, &reply).map(|()| Some(listing)),
        Err(ReaddirError::Refused(..) | ReaddirError::Stuck) => Ok(None),
        Err(error @ ReaddirError::Failed(_)) => Err(error.errno()),
    }
}

/// Maximum bytes of a reply.
pub(super) fn reply_max(sb: &Superblock) -> u32 {
    let limits = &sb.server_limits;
    let server = limits.listing_preferred.max(limits.read_max);
    size_max(server.min(sb.listing_memory.reply_max()), &sb.core.options())
}

fn begin(sb: &Superblock, inode: &Inode, listing: &Arc<DirectoryListing>) -> FetchStart {
    let size = inode.lock().attributes.newest().map(|known| known.size);
    listing.begin_fetch(|place, former| {
        if place.cookie == 0 { first_size(size, reply_max(sb)) } else { next_size(former, reply_max(sb)) }
    })
}

/// Reads the names that follow a listing, or waits for those that were requested already.
pub(super) fn extend_listing(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    listing: &Arc<DirectoryListing>,
) -> Result<ListingExtension, Errno> {
    let requester = ReaddirRequester::new(op, inode);
    let (_turn, reply) = match begin(op.sb, inode, listing) {
        FetchStart::AtEnd => return Ok(ListingExtension::Extended),
        FetchStart::Loop => return Err(Errno::IO),
        FetchStart::Wait(call) => {
            call.wait(op.interrupt()).ok_or(Errno::INTR)?;
            return Ok(ListingExtension::Extended);
        }
        FetchStart::Arrived => {
            let Some(arrived) = listing.take_arrived() else {
                return Ok(ListingExtension::Extended);
            };
            op.sb.count(ClientCounter::ListingAheadUsed);
            probe!(NfsReaddirPrefetchUsed { dir: inode.event_fileid(), cookie: listing.end().cookie });
            arrived
        }
        FetchStart::Send(guard, gap, size) => {
            let decision = requester.decide(gap.cookie.cookie);
            let mut reply = requester.fetch_retrying(op, gap, size, decision);
            let is_refused = matches!(reply, Err(ReaddirError::Refused(..) | ReaddirError::Failed(_)));
            if is_refused && decision == ListingDecision::Plus && !op.sb.core.protocol.lists_attributes() {
                reply = requester.fetch_retrying(op, gap, size, ListingDecision::Plain);
            }
            (guard, reply)
        }
    };
    match reply {
        Ok(reply) => requester.take_in(op.sb, listing, &reply).map(|()| ListingExtension::Extended),
        Err(error) if error.is_bad_cookie() && listing.end().cookie != 0 => {
            bad_cookie::note_bad_cookie(op.sb, inode, listing.end().cookie);
            Ok(ListingExtension::BadCookie)
        }
        Err(ReaddirError::Refused(status, shown)) => {
            inode.note_refusal(&op.identity, status, Access::READ, shown);
            Err(inode.note_failed_status(status))
        }
        Err(error @ (ReaddirError::Failed(_) | ReaddirError::Stuck)) => Err(error.errno()),
    }
}

/// Requests the following names without waiting for them.
pub(super) fn send_readahead(op: &Op<'_>, inode: &Arc<Inode>, listing: &Arc<DirectoryListing>) {
    let FetchStart::Send(guard, gap, size) = begin(op.sb, inode, listing) else {
        return;
    };
    let requester = ReaddirRequester::new(op, inode);
    let interrupt = Interrupt::new();
    guard.update(|state| state.ahead = Some(interrupt.clone()));
    op.sb.background.spawn(Box::new(move || {
        let _why = scope::with_cause(Cause::ListingAhead);
        let decision = requester.decide(gap.cookie.cookie);
        let reply = requester.fetch(gap, decision.bound(size), decision, &interrupt);
        // Another error may depend on the credential: the next reader sends the request itself and
        // gets the error.
        let is_answer = match &reply {
            Ok(reply) => !reply.is_without_progress(),
            Err(error) => error.is_bad_cookie(),
        };
        guard.update(|state| {
            if is_answer {
                state.arrived = Some(Box::new(reply));
            } else {
                (state.ahead, state.has_readahead_failed) = (None, true);
            }
        });
    }));
}
