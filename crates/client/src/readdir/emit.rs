//! Returns names to a reader: from the cache, from the pass, from the server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use curt_observe::{Cause, ClientCounter, probe, scope};
use curt_policy::{
    NameDecision, NameView, OpenDecision, OpenIntent,
    names::{DentryState, LookupTime, decide_lookup},
    prefetch::{PrefetchReason, decide},
    readdir::{ListingContinuation, decide_continuation, names_between_decisions},
};
use curt_types::Access;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    OpenDirectory,
    bad_cookie::{self, trace_restart},
    cache::{DirectoryListing, ListedEntry, ListingChunk, ListingStep},
    cursor::{CursorPosition, ReaddirCursor},
    fetch::{ListingExtension, extend_listing, list_with_rights, send_readahead},
    returned_names::ReturnedNames,
};
use crate::{
    api::{DirEmit, DirEntry, FoundInode, InodeId},
    dentry_cache::NameInDirectory,
    inode::{Inode, InodeFlag, TypeState},
    ops::{getattr, kernel_names, lookup, open, readlink},
    superblock::Op,
};

/// One readdir call: the reader, its position, and the receiver of the names.
struct ReaddirCall<'a> {
    op: &'a Op<'a>,
    directory: &'a OpenDirectory,
    plus: bool,
    emit: &'a mut dyn FnMut(&DirEntry<'_>) -> DirEmit,
    at: CursorPosition,
    /// Names returned by this call, and their maximum.
    count: usize,
    count_max: usize,
}

/// Why not all names of a chunk were returned.
#[derive(PartialEq, Eq)]
enum EmitStop {
    Full,
    /// The next name was returned before, although the server did not start again.
    Loop,
}

/// Returns the names that follow `cookie` (0: from the beginning) until the receiver is full, the
/// directory ends, or no further names are cached and at least one was returned. With `plus`, each
/// name has the result of its lookup where that is cached. `.` and `..` are returned where the
/// server lists them. Cookies are those of the server: any 64 bits except zero.
///
/// Names that exist all the time are returned once each. Names that are created or removed
/// meanwhile may or may not be returned.
///
/// # Errors
/// The errors of READDIR. EIO if the server refuses its own cookies twice, or once when not all
/// returned names are known; if it makes no progress; or if it lists in a loop.
pub fn readdir(
    op: &Op<'_>,
    directory: &OpenDirectory,
    cookie: u64,
    plus: bool,
    emit: &mut dyn FnMut(&DirEntry<'_>) -> DirEmit,
) -> Result<(), Errno> {
    let identity = Arc::clone(&directory.identity);
    let op = &Op::new(op.sb, identity, op.interrupt().clone(), op.now());
    if cookie == 0 {
        begin_reading(op, directory)?;
    } else {
        continue_reading(op, directory, cookie)?;
    }
    let at = directory.cursor.lock().seek(&op.sb.listing_memory, cookie);
    let count_max = names_between_decisions(&op.options);
    ReaddirCall { op, directory, plus, emit, at, count: 0, count_max }.run()
}

/// Names that `directory` lists are used: the following ones are requested with attributes.
pub fn names_are_used(directory: &OpenDirectory) {
    probe!(let subject = directory.inode.event_fields(); NfsReaddirForceReaddirplus {
        dir: subject.fileid,
        dev: subject.dev,
        fhandle: subject.fhandle,
        object_type: subject.object_type,
        version: subject.version,
        size: subject.size,
        cache_validity: subject.cache_validity,
        nfsi_flags: subject.nfsi_flags
    });
    directory.inode.lock().note_stat();
}

impl ReaddirCall<'_> {
    fn run(mut self) -> Result<(), Errno> {
        let (op, directory) = (self.op, self.directory);
        let memory = &op.sb.listing_memory;
        loop {
            match self.at.listing.step(self.at.ordinal) {
                ListingStep::Names { chunk, index, is_last } => {
                    let first = self.at.ordinal;
                    let listed = self.at.listing.label().map(|label| label.epoch);
                    let waits = kernel_names::contradicts_missing(op, &directory.inode, listed);
                    if waits && self.count > 0 {
                        return Ok(());
                    }
                    if waits {
                        kernel_names::await_listed(op, &directory.inode, listed);
                    }
                    let stop = self.emit_chunk(&chunk, index);
                    let had = index + (self.at.ordinal - first) as usize;
                    let of = chunk.len();
                    directory.cursor.lock().advance(&self.at, chunk);
                    if stop == Some(EmitStop::Loop) && self.count == 0 {
                        tracing::warn!(
                            directory = ?directory.id(),
                            "the server lists a directory in a loop: it returned a name twice"
                        );
                        return Err(Errno::IO);
                    }
                    if is_last {
                        self.read_ahead(had, of);
                    }
                    if stop.is_some() {
                        return Ok(());
                    }
                }
                ListingStep::End => return Ok(()),
                // A reader that has names does not wait for more. A reader that stats each name
                // does so before the attributes expire.
                ListingStep::Evicted | ListingStep::Unread { has_arrived: false } if self.count > 0 => {
                    return Ok(());
                }
                ListingStep::Unread { .. } if self.count > 0 && self.plus => return Ok(()),
                ListingStep::Evicted => {
                    self.at = directory.cursor.lock().continue_uncached(memory, &self.at);
                }
                ListingStep::Unread { .. } => match extend_listing(op, &directory.inode, &self.at.listing)? {
                    ListingExtension::Extended => {}
                    ListingExtension::BadCookie => {
                        self.at = bad_cookie::restart(op.sb, &directory.inode, &directory.cursor, &self.at)?;
                    }
                },
            }
        }
    }

    /// Returns the names of a chunk from `index` on.
    fn emit_chunk(&mut self, chunk: &ListingChunk, index: usize) -> Option<EmitStop> {
        let (mut left_out, mut stop) = (0, None);
        for index in index..chunk.len() {
            let entry = chunk.entry(index)?;
            let was_returned = |skipped: &Arc<ReturnedNames>| skipped.contains(entry.name);
            if self.at.skipped.as_ref().is_some_and(was_returned) {
                left_out += 1;
            } else if !entry.is_gone {
                if self.at.loops.is_repeated(entry.cookie) {
                    stop = Some(EmitStop::Loop);
                    break;
                }
                if self.count == self.count_max || !self.emit(&entry) {
                    stop = Some(EmitStop::Full);
                    break;
                }
                self.at.cookie = entry.cookie;
                self.at.loops.note_returned(entry.cookie);
                self.count += 1;
            }
            self.at.ordinal += 1;
        }
        let counters = &self.op.sb.core.counters;
        counters.add(ClientCounter::ListingSuppressed, left_out);
        if left_out > 0 {
            probe!(NfsReaddirDupSuppressed {
                dir: self.at.listing.state.lock().directory,
                cookie: self.at.cookie,
                entries: left_out
            });
        }
        stop
    }

    /// Returns one name; false if the receiver is full.
    fn emit(&mut self, entry: &ListedEntry<'_>) -> bool {
        let found = if self.plus { self.found(entry) } else { None };
        let ListedEntry { name, fileid, kind, cookie, .. } = *entry;
        let taken = (self.emit)(&DirEntry { name, fileid, kind, cookie, found });
        if let (DirEmit::Full, Some(found)) = (&taken, found) {
            self.op.sb.forget(found.id, 1);
        }
        matches!(taken, DirEmit::Taken)
    }

    /// The result of a lookup of a listed name, if the cache can serve it.
    fn found(&self, entry: &ListedEntry<'_>) -> Option<FoundInode> {
        if matches!(entry.name, b"." | b"..") {
            return None;
        }
        let (op, inode) = (self.op, &self.directory.inode);
        let cached = op.sb.dentries.find(inode.id(), entry.name)?;
        let child = cached.child.filter(|child| !child.has(InodeFlag::Stale))?;
        // One lock after the other: the server may list a directory in itself.
        let contents = inode.lock().contents();
        let is_old = child.lock().attributes.remaining(op.now(), &op.options).is_zero();
        if contents != Some(cached.label.epoch) || is_old {
            return None;
        }
        // Names in the buffer have lifetimes, so nothing here waits.
        if readlink::must_await_target(op, &child) {
            return None;
        }
        lookup::found(op, NameInDirectory::new(inode, entry.name), &child, Some(cached.label)).ok()
    }

    /// Requests the names after the last chunk, if the reader will need them soon.
    fn read_ahead(&self, had: usize, of: usize) {
        let inode = &self.directory.inode;
        let ticket = self.at.listing.state.lock().last_ticket;
        let is_undisturbed = ticket.is_some_and(|ticket| inode.lock().attributes.is_undisturbed(ticket));
        let want = PrefetchReason::NextNames { had, of, is_undisturbed };
        if decide(want, &self.op.sb.core.options()).is_some() {
            send_readahead(self.op, inode, &self.at.listing);
        }
    }
}

/// Begins a pass: with the cached listing if that is valid.
fn begin_reading(op: &Op<'_>, directory: &OpenDirectory) -> Result<(), Errno> {
    if directory.was_listed.swap(false, Relaxed) {
        op.sb.count(ClientCounter::OpenListUsed);
        op.sb.core.speculations(|benefits| benefits.open_lists.record_use());
    }
    let cached = fresh_listing(op, &directory.inode)?;
    probe!(NfsReaddirPass { dir: directory.inode.event_fileid(), hit: cached.is_some() });
    let listing = cached.unwrap_or_else(|| DirectoryListing::from_start(&op.sb.listing_memory));
    begin_pass(directory, listing);
    Ok(())
}

fn begin_pass(directory: &OpenDirectory, listing: Arc<DirectoryListing>) {
    let former = std::mem::replace(&mut *directory.cursor.lock(), ReaddirCursor::new(listing));
    drop(former);
}

fn fresh_listing(op: &Op<'_>, inode: &Arc<Inode>) -> Result<Option<Arc<DirectoryListing>>, Errno> {
    for _ in op.rounds() {
        match decide_cached(op, inode) {
            Some((NameDecision::ServePositive, listing)) => {
                op.sb.count(ClientCounter::ListingCached);
                return Ok(Some(listing));
            }
            Some((NameDecision::RevalidateDirectory, _)) => {
                op.sb.count(ClientCounter::DirGetattrForName);
                let _why = scope::with_cause(Cause::ListingCheck);
                getattr::revalidate(op, inode)?;
            }
            Some((NameDecision::ServeNegative | NameDecision::Lookup(_), _)) | None => break,
        }
    }
    Ok(None)
}

/// The cached listing, and whether it is served as a name that was learned with it would be.
fn decide_cached(op: &Op<'_>, inode: &Inode) -> Option<(NameDecision, Arc<DirectoryListing>)> {
    let clock = op.sb.core.clocks.of(inode.fsid().unwrap_or(0));
    let wanted = LookupTime { began: op.began, now: op.now() };
    let mut locked = inode.lock();
    let TypeState::Directory(state) = &mut locked.by_type else { return None };
    let listing = state.current_listing()?;
    let view = NameView::of(
        DentryState::Positive,
        listing.label()?,
        &locked.attributes,
        &clock,
        wanted,
        &op.options,
    );
    let directory = locked.freshness(op.time(), &op.options);
    Some((decide_lookup(&NameView { directory, ..view }, &op.options), listing))
}

/// With `readdir=restart`, a directory that changed is read again from its beginning up to
/// `cookie`.
fn continue_reading(op: &Op<'_>, directory: &OpenDirectory, cookie: u64) -> Result<(), Errno> {
    let inode = &directory.inode;
    for _ in op.rounds() {
        let began_in = directory.cursor.lock().listing().state.lock().began_in;
        let decision = {
            let locked = inode.lock();
            let is_same = began_in.is_none_or(|epoch| locked.contents() == Some(epoch));
            decide_continuation(locked.freshness(op.time(), &op.options), is_same, &op.options)
        };
        match decision {
            ListingContinuation::FromCookie => return Ok(()),
            ListingContinuation::Revalidate => {
                let _why = scope::with_cause(Cause::ListingCheck);
                getattr::revalidate(op, inode)?;
            }
            ListingContinuation::FromStart => {
                op.sb.count(ClientCounter::ListingRestart);
                trace_restart(inode, cookie);
                let listing = DirectoryListing::from_start(&op.sb.listing_memory);
                while listing.find(cookie).is_none() && !listing.is_complete() {
                    if extend_listing(op, inode, &listing)? == ListingExtension::BadCookie {
                        return Err(Errno::IO);
                    }
                }
                begin_pass(directory, listing);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Opens a directory for listing. Dropping it closes it, which cancels a read-ahead.
///
/// # Errors
/// EACCES, ENOTDIR; those of ACCESS and GETATTR.
pub fn opendir(op: &Op<'_>, id: InodeId) -> Result<OpenDirectory, Errno> {
    let inode = op.sb.find_directory(id)?;
    kernel_names::check_path(op, &inode)?;
    let intent = OpenIntent { read: true, ..OpenIntent::default() };
    debug_assert_eq!(intent.needs(), Access::READ, "listing takes the right to read");
    let listed = list_at_open(op, &inode, intent)?;
    open::decide_open(op, &inode, intent)?;
    let was_listed = AtomicBool::new(listed.is_some());
    let listing = listed.unwrap_or_else(|| DirectoryListing::from_start(&op.sb.listing_memory));
    let (identity, cursor) = (Arc::clone(&op.identity), Mutex::new(ReaddirCursor::new(listing)));
    Ok(OpenDirectory { inode, identity, was_listed, cursor })
}

/// Lists a directory with the request that its open takes, if no listing of it is known. The
/// listing serves the first reader as any other cached one does.
fn list_at_open(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    intent: OpenIntent,
) -> Result<Option<Arc<DirectoryListing>>, Errno> {
    let has_to_ask =
        matches!(open::open_decision(op, inode, intent), OpenDecision::Revalidate | OpenDecision::Ask(_));
    // A server that does not answer in time is asked for attributes alone.
    if !has_to_ask || op.sb.soft_revalidation.is_some() || !op.protocol().lists_with_rights() {
        return Ok(None);
    }
    let is_known = inode.lock().by_type.directory().current_listing().is_some();
    if is_known || !op.sb.core.speculations(|benefits| benefits.open_lists.should_try()) {
        return Ok(None);
    }
    let listed = list_with_rights(op, inode)?;
    if listed.is_some() {
        op.sb.count(ClientCounter::OpenList);
        op.sb.core.speculations(|benefits| benefits.open_lists.record(false));
    }
    Ok(listed)
}
