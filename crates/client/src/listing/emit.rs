//! Telling names to a listener: from what is kept, from the pass, from the server.

use std::sync::Arc;

use curt_policy::{
    NameDecision, NameIntent, NameView,
    listing::{ListingContinuation, decide_continuation, names_between_decisions, reads_ahead},
    names::{DentryState as Known, LookupTime, decide_lookup},
};
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use curt_types::Access;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    OpenDirectory,
    chunk::{ListedEntry, ListingChunk, ListingPosition, ReaddirCookie},
    cookie_loop::CookieLoopDetector,
    cursor::ReaddirCursor,
    directory_listing::{DirectoryListing, ListingStep},
    request::ListingExtension,
    returned_names::ReturnedNames,
};
use crate::{
    api::{DirEmit, DirEntry, FoundInode},
    identity::InodeId,
    inode::TypeState,
    listing::request,
    op::Op,
    ops::{getattr, lookup, open},
    superblock::Superblock,
};

/// A reader, where it is, and who is told.
struct ReaddirCall<'a> {
    op: &'a Op<'a>,
    directory: &'a OpenDirectory,
    plus: bool,
    emit: &'a mut dyn FnMut(&DirEntry<'_>) -> DirEmit,
    listing: Arc<DirectoryListing>,
    position: ListingPosition,
    /// Of the last name that was told.
    cookie: u64,
    loop_detector: CookieLoopDetector,
    /// The next name was told before, although the server did not begin again.
    is_looping: bool,
    skipped: Option<Arc<ReturnedNames>>,
    /// Names told by this call, and how many it may tell.
    count: usize,
    count_max: usize,
}

/// Tells that a pass begins again.
fn trace_restart(inode: &crate::inode::Inode, cookie: u64) {
    probe!(NfsReaddirRestart {
        dir: inode.fileid_if_enabled(Event::NfsReaddirRestart),
        cookie
    });
}

/// Tells the names that follow `cookie` (0: from the beginning) until the listener is full, the
/// directory ends, or the names that are at hand do, at least one having been told. With
/// `plus`, what a look-up would give comes with each name where it is known. `.` and `..` are
/// told where the server tells them. Cookies are the server's: any 64 bits but zeros.
///
/// Names that are there all the time are told once each; those that come or go meanwhile may or
/// may not be told.
///
/// # Errors
/// Those of READDIR; EIO if the server refuses its own cookies twice, or once when not all that
/// was told is remembered, never gets on, or goes round in circles.
pub fn readdir(
    op: &Op<'_>,
    directory: &OpenDirectory,
    cookie: u64,
    plus: bool,
    listener: &mut dyn FnMut(&DirEntry<'_>) -> DirEmit,
) -> Result<(), Errno> {
    let identity = Arc::clone(&directory.identity);
    let op = &Op::new(op.sb, identity, op.interrupt.clone(), op.now());
    if cookie == 0 {
        begin_reading(op, directory)?;
    } else {
        continue_reading(op, directory, cookie)?;
    }
    let mut reader = ReaddirCall {
        op,
        directory,
        plus,
        emit: listener,
        listing: Arc::clone(&directory.cursor.lock().reader.listing),
        position: ListingPosition::default(),
        cookie,
        loop_detector: CookieLoopDetector::default(),
        is_looping: false,
        skipped: None,
        count: 0,
        count_max: names_between_decisions(&op.options),
    };
    seek(op.sb, &mut reader);
    emit_all(op.sb, &mut reader)
}

/// Somebody uses names that `directory` lists: those that follow are asked for with attributes.
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
    directory.inode.facts().note_stat();
}

/// Where the name after the reader's cookie is; where nobody knows, the server is asked from
/// there.
fn seek(sb: &Superblock, reader: &mut ReaddirCall<'_>) {
    let mut pass = reader.directory.cursor.lock();
    reader.loop_detector = pass.loop_detector(reader.cookie);
    if pass.find(reader.cookie).is_none() {
        pass.seek(&sb.listing_memory, reader.cookie);
    }
    reader.position = pass.find(reader.cookie).unwrap_or_default();
    reader.listing = Arc::clone(&pass.reader.listing);
    reader.skipped = pass.skipped.clone();
}

fn emit_all(sb: &Superblock, reader: &mut ReaddirCall<'_>) -> Result<(), Errno> {
    loop {
        match reader.listing.step(&mut reader.position) {
            ListingStep::Names(chunk) => {
                let is_full = emit_chunk(sb, reader, &chunk);
                let mut pass = reader.directory.cursor.lock();
                pass.advance_to(
                    &reader.listing,
                    reader.cookie,
                    reader.loop_detector,
                    reader.position,
                    Some(Arc::clone(&chunk)),
                );
                drop(pass);
                if reader.is_looping && reader.count == 0 {
                    tracing::warn!(
                        directory = ?reader.directory.id(),
                        "the server lists a directory in a loop: it returned a name twice"
                    );
                    return Err(Errno::IO);
                }
                read_ahead(sb, reader, &chunk);
                if is_full {
                    return Ok(());
                }
            }
            ListingStep::End => return Ok(()),
            // Who has names does not wait for more; and whoever looks at each does so before
            // their attributes are old.
            ListingStep::Evicted | ListingStep::Unread { is_near: false } if reader.count > 0 => {
                return Ok(());
            }
            ListingStep::Unread { .. } if reader.count > 0 && reader.plus => return Ok(()),
            ListingStep::Evicted => {
                let mut pass = reader.directory.cursor.lock();
                pass.continue_uncached(&sb.listing_memory, reader.cookie, reader.position);
                drop(pass);
                seek(sb, reader);
            }
            ListingStep::Unread { .. } => {
                match request::extend_listing(reader.op, reader.directory, &reader.listing)? {
                    ListingExtension::Extended => {}
                    ListingExtension::Refused => {
                        start_again(sb, reader)?;
                        seek(sb, reader);
                    }
                }
            }
        }
    }
}

/// Tells the names of a chunk from the reader's position on; true if the listener is full.
fn emit_chunk(sb: &Superblock, reader: &mut ReaddirCall<'_>, chunk: &ListingChunk) -> bool {
    let mut left_out = 0;
    let mut is_full = false;
    while let Some(entry) = chunk.entry(reader.position.name) {
        let is_told = reader
            .skipped
            .as_ref()
            .is_some_and(|told| told.contains(entry.name));
        left_out += u64::from(is_told);
        if !is_told && !entry.is_gone {
            reader.is_looping = reader.loop_detector.is_repeated(entry.cookie);
            if reader.is_looping {
                is_full = true;
                break;
            }
            if reader.count == reader.count_max || !emit(sb, reader, &entry) {
                is_full = true;
                break;
            }
            reader.cookie = entry.cookie;
            reader.loop_detector.note_returned(entry.cookie);
            reader.count += 1;
        }
        reader.position.name += 1;
    }
    sb.core.counters.add(ClientCounter::ListingSuppressed, left_out);
    if left_out > 0 {
        probe!(NfsReaddirDupSuppressed {
            dir: reader.listing.dir(),
            cookie: reader.cookie,
            entries: left_out
        });
    }
    is_full
}

/// Has the names behind a chunk asked for, if the reader will want them soon.
fn read_ahead(sb: &Superblock, reader: &ReaddirCall<'_>, chunk: &ListingChunk) {
    let options = sb.core.options();
    let inode = &reader.directory.inode;
    let is_undisturbed = {
        let facts = inode.facts();
        let ticket = reader.listing.last_ticket();
        ticket.is_some_and(|ticket| facts.state.is_undisturbed(ticket))
    };
    if reads_ahead(reader.position.name, chunk.len(), is_undisturbed, &options)
        && reader.listing.is_last_place(reader.position.place)
    {
        request::send_readahead(reader.op, inode, &reader.listing);
    }
}

/// The server does not know its own cookie any more: the pass starts again, once, and leaves
/// out what was told.
fn start_again(sb: &Superblock, reader: &ReaddirCall<'_>) -> Result<(), Errno> {
    let mut pass = reader.directory.cursor.lock();
    let began = pass.restart_skipping_returned(&sb.listing_memory, reader.cookie, reader.position);
    drop(pass);
    if !began {
        tracing::warn!(
            directory = ?reader.directory.id(),
            "the server refused its own cookie again, or more names were returned than fit into listing_max="
        );
        return Err(Errno::IO);
    }
    sb.count(ClientCounter::ListingRestart);
    trace_restart(&reader.directory.inode, reader.cookie);
    Ok(())
}

/// A pass begins: with the kept listing if that may be believed.
fn begin_reading(op: &Op<'_>, directory: &OpenDirectory) -> Result<(), Errno> {
    let kept = fresh_listing(op, directory)?;
    probe!(NfsReaddirPass {
        dir: directory.inode.fileid_if_enabled(Event::NfsReaddirPass),
        hit: kept.is_some()
    });
    let sequence =
        kept.unwrap_or_else(|| DirectoryListing::new(&op.sb.listing_memory, ReaddirCookie::default()));
    let former = std::mem::replace(&mut *directory.cursor.lock(), ReaddirCursor::new(sequence));
    drop(former);
    Ok(())
}

fn fresh_listing(op: &Op<'_>, directory: &OpenDirectory) -> Result<Option<Arc<DirectoryListing>>, Errno> {
    let inode = &directory.inode;
    for _ in op.rounds() {
        let clock = op.sb.core.server_clock(inode.fsid().unwrap_or(0));
        let (decision, listing) = {
            let wanted = LookupTime {
                began: op.began,
                now: op.now(),
            };
            let mut facts = inode.facts();
            let TypeState::Directory(kept) = &mut facts.by_type else {
                return Ok(None);
            };
            let listing = kept.current_listing();
            let Some((listing, label)) =
                listing.and_then(|listing| Some((Arc::clone(&listing), listing.label()?)))
            else {
                return Ok(None);
            };
            let mut view = NameView::of(Known::Positive, label, &facts.state, &clock, wanted, &op.options);
            view.directory = facts.freshness(op.time(), &op.options);
            (decide_lookup(&view, NameIntent::Use, &op.options), listing)
        };
        match decision {
            NameDecision::ServePositive => {
                op.sb.count(ClientCounter::ListingCached);
                return Ok(Some(listing));
            }
            NameDecision::RevalidateDirectory => {
                op.sb.count(ClientCounter::DirGetattrForName);
                let _why = scope::with_cause(Cause::ListingCheck);
                getattr::revalidate(op, inode)?;
            }
            NameDecision::ServeNegative | NameDecision::Lookup(_) | NameDecision::LeaveToServer => break,
        }
    }
    Ok(None)
}

/// With `readdir=restart`, a directory that changed is read again from its beginning up to
/// `cookie`.
fn continue_reading(op: &Op<'_>, directory: &OpenDirectory, cookie: u64) -> Result<(), Errno> {
    let inode = &directory.inode;
    for _ in op.rounds() {
        let began = directory.cursor.lock().reader.listing.began_in();
        let decision = {
            let facts = inode.facts();
            let is_same = began.is_none_or(|epoch| facts.contents() == Some(epoch));
            decide_continuation(facts.freshness(op.time(), &op.options), is_same, &op.options)
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
                return reread_from_start(op, directory, cookie);
            }
        }
    }
    Ok(())
}

fn reread_from_start(op: &Op<'_>, directory: &OpenDirectory, cookie: u64) -> Result<(), Errno> {
    let sequence = DirectoryListing::new(&op.sb.listing_memory, ReaddirCookie::default());
    while sequence.find(cookie).is_none() && !sequence.is_complete() {
        if let ListingExtension::Refused = request::extend_listing(op, directory, &sequence)? {
            return Err(Errno::IO);
        }
    }
    let former = std::mem::replace(&mut *directory.cursor.lock(), ReaddirCursor::new(sequence));
    drop(former);
    Ok(())
}

/// Tells one name; false if the listener is full.
fn emit(sb: &Superblock, reader: &mut ReaddirCall<'_>, entry: &ListedEntry<'_>) -> bool {
    let found = if reader.plus {
        found_listed(reader.op, reader.directory, entry)
    } else {
        None
    };
    let told = DirEntry {
        name: entry.name,
        fileid: entry.fileid,
        kind: entry.kind,
        cookie: entry.cookie,
        found,
    };
    match ((reader.emit)(&told), found) {
        (DirEmit::Taken, _) => true,
        (DirEmit::Full, Some(found)) => {
            sb.forget(found.id, 1);
            false
        }
        (DirEmit::Full, None) => false,
    }
}

/// What a look-up of a listed name would give, if it would give it without a request.
fn found_listed(op: &Op<'_>, directory: &OpenDirectory, entry: &ListedEntry<'_>) -> Option<FoundInode> {
    if matches!(entry.name, b"." | b"..") {
        return None;
    }
    let inode = &directory.inode;
    let kept = op.sb.dentries.find(inode.id(), entry.name)?;
    let child = kept.child?;
    // One after the other: the server may list a directory in itself.
    let contents = inode.facts().contents();
    if contents != Some(kept.label.epoch) {
        return None;
    }
    if child.is_stale() {
        return None;
    }
    let now = op.now();
    if child.facts().state.remaining(now, &op.options).is_zero() {
        return None;
    }
    lookup::found(op, inode, &child, Some(kept.label)).ok()
}

/// Opens a directory for listing. Dropping it closes it, which cancels a request that was sent
/// ahead of its reader.
///
/// # Errors
/// EACCES, ENOTDIR; those of ACCESS and GETATTR.
pub fn opendir(op: &Op<'_>, id: InodeId) -> Result<OpenDirectory, Errno> {
    let inode = op.sb.find_directory(id)?;
    let intent = curt_policy::OpenIntent {
        read: true,
        ..curt_policy::OpenIntent::default()
    };
    debug_assert_eq!(intent.needs(), Access::READ, "listing takes the right to read");
    open::decide_open(op, &inode, intent)?;
    let identity = Arc::clone(&op.identity);
    let nothing = DirectoryListing::new(&op.sb.listing_memory, ReaddirCookie::default());
    Ok(OpenDirectory {
        inode,
        identity,
        cursor: Mutex::new(ReaddirCursor::new(nothing)),
    })
}
