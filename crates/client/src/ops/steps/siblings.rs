//! Files that are opened together with another, because a program opens the files of a directory in
//! order.
//!
//! Policy decides how many files. A file qualifies if it is small, has no data here, is not open
//! here, and is not delegated.

use std::{sync::Arc, time::Instant};

use curt_observe::ClientCounter;
use curt_policy::{
    MutationTicket,
    open_order::{ListingDirection, NameOrder, SiblingBudget},
};
use curt_types::{Access, FileKind};

use crate::{
    data::DataOwner,
    inode::{Inode, InodeFlag, rights_reply::RightsReply, type_state::OpenedWith},
    protocol::{LookupOpenReply, SiblingOpenRequest},
    readdir::{cache::DirectoryListing, names},
    superblock::Op,
};

/// Files that are opened together with another.
#[derive(Default)]
pub(crate) struct Siblings(Vec<Sibling>);

struct Sibling {
    inode: Arc<Inode>,
    order: NameOrder,
    place: u32,
    /// Taken before the request.
    ticket: MutationTicket,
    size: u32,
}

impl Siblings {
    pub(crate) fn requests(&self) -> Vec<SiblingOpenRequest<'_>> {
        let requests = self.0.iter();
        requests.map(|it| SiblingOpenRequest { file: it.inode.handle(), read: it.size }).collect()
    }
}

/// The files that are opened together with `inode`, which is read with `size` bytes.
pub(crate) fn expected(op: &Op<'_>, inode: &Arc<Inode>, size: u64) -> Siblings {
    if !op.options.uses_delegations() || !op.protocol().expects_delegations() {
        return Siblings::default();
    }
    let found = inode.listed_at().and_then(|(home, ordinal)| {
        let listing = names::listing_with(op.sb, &home, inode, ordinal)?;
        let (order, place, direction) = next_in_order(op, &home, &listing, ordinal)?;
        let mut budget = SiblingBudget::for_file(size);
        let mut siblings = Vec::new();
        for (place, inode) in names::listed_neighbours(op.sb, &home, &listing, order, place, direction) {
            if !budget.has_room() {
                break;
            }
            if let Some((size, ticket)) = size_to_open(&inode).filter(|(size, _)| budget.take((*size).into()))
            {
                siblings.push(Sibling { inode, order, place, ticket, size });
            }
        }
        Some(siblings)
    });
    Siblings(found.unwrap_or_default())
}

/// Records an open of what is listed at `ordinal`. Returns the order, the place and the direction
/// in which the next opens are expected.
fn next_in_order(
    op: &Op<'_>,
    home: &Inode,
    listing: &DirectoryListing,
    ordinal: u32,
) -> Option<(NameOrder, u32, ListingDirection)> {
    let places = NameOrder::ALL.map(|order| (order, listing.place_in(order, ordinal)));
    let mut locked = home.lock();
    let orders = &mut locked.by_type.directory().open_orders;
    op.sb.core.speculations(|benefits| {
        let mut next = None;
        for (order, place) in places {
            let Some(place) = place else { continue };
            if let Some(direction) = orders[order as usize].opened(place, &mut benefits.sibling_opens) {
                next.get_or_insert((order, place, direction));
            }
        }
        next
    })
}

/// The size of a file whose OPEN is of use, and a ticket.
fn size_to_open(inode: &Arc<Inode>) -> Option<(u32, MutationTicket)> {
    if inode.has(InodeFlag::Stale) || inode.data_if_any().is_some() {
        return None;
    }
    let locked = inode.lock();
    let known = locked.attributes.newest().filter(|known| known.kind == FileKind::Regular)?;
    let file = locked.by_type.file_if_any();
    let is_open = file.is_some_and(|file| file.opens > 0 || file.opening > 0 || file.write_opens > 0);
    let is_used = is_open || locked.has_delegation();
    (!is_used).then_some((u32::try_from(known.size).ok()?, locked.attributes.ticket()))
}

/// Caches what was opened together with `inode` by a request that was sent at `sent_at`.
pub(crate) fn absorb(
    op: &Op<'_>,
    inode: &Inode,
    siblings: &Siblings,
    found: Vec<LookupOpenReply>,
    sent_at: Instant,
) {
    let Some(last) = siblings.0.get(found.len().wrapping_sub(1)) else { return };
    if let Some(home) = inode.listed_in() {
        home.lock().by_type.directory().open_orders[last.order as usize].opened_together(last.place);
    }
    for (sibling, found) in siblings.0.iter().zip(found) {
        absorb_one(op, sibling, found, sent_at);
    }
}

fn absorb_one(op: &Op<'_>, sibling: &Sibling, found: LookupOpenReply, sent_at: Instant) {
    let inode = &sibling.inode;
    if let Some(delegation) = &found.delegation {
        inode.hold_delegation(delegation);
    }
    let Some(attributes) = &found.found.attributes else { return };
    let (is_adopted, dated) = inode.absorb_opened(
        attributes,
        op.sb.core.moment(sent_at),
        sibling.ticket,
        found.delegation.as_ref(),
    );
    if let Some(granted) = found.granted {
        let rights = Access::applicable_to(FileKind::Regular);
        let reply = RightsReply::new(dated, Some(attributes));
        inode.absorb_answer(&op.identity, rights, granted.common(rights), reply);
    }
    inode.lock().by_type.file().opened_ahead.set(OpenedWith::Sibling);
    op.sb.core.speculations(|benefits| benefits.sibling_opens.record(false));
    op.sb.count(ClientCounter::SiblingOpen);
    if let Some(data) = found.data.filter(|_| is_adopted) {
        let owner = Arc::clone(inode) as Arc<dyn DataOwner>;
        inode.lock().by_type.file().first_user.get_or_insert(op.identity.number);
        let read_at = op.sb.core.instant(dated).max(sent_at);
        if op.sb.core.data.enter_untouched(&owner, data, read_at) {
            // Its use is counted with that of the open.
            let _ = owner.data().take_read_at_lookup();
        }
    }
}
