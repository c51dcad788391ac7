//! Requesting the neighbours of a wanted name, in the middle of a large directory that was listed
//! without attributes.
//!
//! `find`, `rm -r` and similar programs read all names and then go through them in another order,
//! mostly of inode numbers. Policy decides after how many look-ups a name's neighbours are
//! requested with it ([`curt_policy::fill::decide_fill_around_name`]).

use std::sync::Arc;

use curt_policy::{
    fill::{FillDecision, FillView, MountFillRecord, PART_NAMES, decide_part},
    listing::{self, ListingDecision, PLUS_SIZE_MAX, SIZE_FIRST_MAX},
};
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};

use super::{DirectoryListing, priming::PrimeCounting};
use crate::{
    inode::{Inode, TypeState},
    listing::{priming, request},
    op::Op,
    ops::{attributes, names},
    superblock::Superblock,
};

/// `name`, the `ordinal`-th of a listing of all names, is to be looked up. If it is worth while
/// it is asked for with the names beside it; whether it came.
pub(super) fn fill_around_name(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    sequence: &Arc<DirectoryListing>,
    ordinal: u32,
) -> bool {
    if !sequence.is_large() {
        return false;
    }
    let FillDecision::Fill { bytes } = decide_fill_around_name(op.sb, inode) else {
        return false;
    };
    // Aligned, so that what is asked for because of two names overlaps in none.
    let Some(gap) = sequence.cookie_before(ordinal - ordinal % PART_NAMES) else {
        return false;
    };
    if !attributes::may_list(op, inode) {
        return false;
    }
    let _why = scope::with_cause(Cause::Fill);
    op.sb.count(ClientCounter::DirFill);
    let requester = request::requester(op, inode);
    let size = bytes.min(request::reply_max(op.sb));
    let fetched = requester.fetch(gap, size, ListingDecision::Plus, &op.interrupt);
    let (mut count, mut eof) = (0, false);
    match &fetched {
        Ok(fetched) => {
            priming::prime(op.sb, inode, fetched, PrimeCounting::New);
            count = u32::try_from(fetched.page.names.len()).unwrap_or(u32::MAX);
            eof = fetched.page.end;
        }
        Err(_) => inode.facts().by_type.directory().forget_cookies(sequence),
    }
    let label = fetched.ok().and_then(|fetched| fetched.label());
    let kept = names::cached_dentry(op.sb, inode, name).filter(|kept| Some(kept.label) == label);
    let child = kept.and_then(|kept| kept.child);
    let holds_it = child.is_some();
    inode
        .facts()
        .by_type
        .directory()
        .fill
        .filled_part(count, holds_it);
    op.sb.core.learn_fill(|mount| mount.filled(count, holds_it));
    probe!(NfsDirFill {
        dir: inode.fileid_if_enabled(Event::NfsDirFill),
        name,
        entries: count,
        eof
    });
    op.sb
        .core
        .counters
        .add(ClientCounter::DirFillNames, u64::from(count));
    match child {
        // It was asked for by this very request: that it is used spares none.
        Some(child) => _ = child.note_use(),
        None => op.sb.count(ClientCounter::DirFillWasted),
    }
    holds_it
}

fn decide_fill_around_name(sb: &Superblock, inode: &Inode) -> FillDecision {
    let record = {
        let mut facts = inode.facts();
        let record = &mut facts.by_type.directory().fill;
        record.missed();
        *record
    };
    sb.core.learn_fill(MountFillRecord::missed);
    let view = FillView {
        record,
        parent: None,
        mount: sb.core.fills(),
        size: None,
        round_trip: sb.core.protocol.rpc().latency(),
    };
    decide_part(&view, &sb.core.options())
}

/// A name is to be looked up; `was_known`: something was known of it that may not be served any
/// more. If names of a listing are being looked up one by one, in its order or many of them, it
/// is asked for with others; whether it was.
pub(crate) fn refetch_with_attributes(op: &Op<'_>, inode: &Arc<Inode>, name: &[u8], was_known: bool) -> bool {
    let (gap, sequence, size) = {
        let mut facts = inode.facts();
        let TypeState::Directory(kept) = &mut facts.by_type else {
            return false;
        };
        if !kept.misses.note_miss() {
            return false;
        }
        // What it says is not believed: the reply says what is there now. Where nothing that
        // comes so is served, all that is known of a name is that it was known.
        let is_worth_while =
            |listing: &Arc<DirectoryListing>| !was_known || op.options.fills() && listing.is_large();
        let Some(sequence) = kept.listing_for_cookies().filter(is_worth_while) else {
            return false;
        };
        let Some((ordinal, gap)) = sequence.cookie_before_name(name) else {
            return false;
        };
        if !listing::wants_attributes(kept.misses.note_miss_at(ordinal), &op.options) {
            drop(facts);
            return fill_around_name(op, inode, name, &sequence, ordinal);
        }
        kept.plus_size = listing::next_size(kept.plus_size.max(SIZE_FIRST_MAX / 2), PLUS_SIZE_MAX);
        kept.misses.note_listed_up_to(ordinal);
        (gap, sequence, kept.plus_size.min(request::reply_max(op.sb)))
    };
    let requester = request::requester(op, inode);
    let _why = scope::with_cause(Cause::Fill);
    // Without an answer the names are looked up one by one, as they were.
    let Ok(fetched) = requester.fetch(gap, size, ListingDecision::Plus, &op.interrupt) else {
        inode.facts().by_type.directory().forget_cookies(&sequence);
        return false;
    };
    priming::prime(op.sb, inode, &fetched, PrimeCounting::Nothing);
    let last = fetched.page.names.last();
    if let Some((ordinal, _)) = last.and_then(|last| sequence.cookie_before_name(&last.name))
        && let TypeState::Directory(kept) = &mut inode.facts().by_type
    {
        kept.misses.note_listed_up_to(ordinal);
    }
    true
}
