//! How a sequence grows: who requests the next names, and what the replies prove about all of them.
//!
//! Owns who may send, and the label by which other operations may trust the names. Must not send
//! anything.

use std::sync::Arc;

use curt_policy::{AttributeState, Epoch, MutationTicket, NameLabel, complete::ListingScan};

use super::{
    chunk::ReaddirCookie,
    directory_listing::DirectoryListing,
    fetch::{ListingGap, ListingOrigin},
    in_flight::ReaddirInFlight,
    state::DirectoryListingState,
};

/// Who asks for what follows the last names.
#[derive(Debug)]
pub(super) enum ReaddirStart {
    /// Whoever is given this; for what, and in how many bytes.
    Send(Arc<ReaddirInFlight>, ListingGap, u32),
    /// Somebody does.
    Wait(Arc<ReaddirInFlight>),
    /// Nothing follows.
    AtEnd,
    /// The server goes round in circles.
    Loop,
}

impl DirectoryListing {
    /// Whoever wants more than there is asks for it, or waits for who did. `size` says in how many
    /// bytes, by the place and what was asked for last.
    pub(super) fn start_request(&self, size: impl FnOnce(ReaddirCookie, u32) -> u32) -> ReaddirStart {
        let mut state = self.state.lock();
        if let Some(ahead) = &state.request {
            return ReaddirStart::Wait(Arc::clone(ahead));
        }
        if state.is_broken {
            return ReaddirStart::Loop;
        }
        if state.is_complete {
            return ReaddirStart::AtEnd;
        }
        let ahead = ReaddirInFlight::new();
        state.request = Some(Arc::clone(&ahead));
        let size = size(state.end, state.size);
        let gap = ListingGap {
            cookie: state.end,
            index: state.chunks.len(),
            is_shared: self.is_whole(),
        };
        ReaddirStart::Send(ahead, gap, size)
    }

    /// What a request brought is in the sequence, or it brought nothing.
    pub(super) fn end_request(&self, ahead: &Arc<ReaddirInFlight>) {
        let mut state = self.state.lock();
        if state
            .request
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, ahead))
        {
            state.request = None;
        }
    }

    /// A request that nobody waits for brought nothing.
    pub(super) fn readahead_failed(&self, ahead: &Arc<ReaddirInFlight>) {
        self.state.lock().has_readahead_failed = true;
        self.end_request(ahead);
    }

    /// Takes note of what the reply proves that was added last; true if it is of another state of
    /// the directory than those before.
    pub(super) fn note_origin(&self, learned: ListingOrigin) -> bool {
        let state = &mut *self.state.lock();
        let first = state.learned.get_or_insert(learned);
        first.last_ticket = learned.ticket;
        let is_complete = state.is_complete;
        let is_first = state.scan.is_none();
        let pass = state
            .scan
            .get_or_insert_with(|| ListingScan::begin(learned.ticket));
        let was_whole = !is_first && pass.label().is_some();
        let is_whole = pass.add(learned.label, is_complete);
        was_whole && !is_whole
    }

    /// By what a name that is not in it may be believed to be missing, if it is a listing of all
    /// names.
    pub(crate) fn complete_label(&self) -> Option<NameLabel> {
        self.complete_label_in(&self.state.lock())
    }

    pub(super) fn complete_label_in(&self, state: &DirectoryListingState) -> Option<NameLabel> {
        let is_all = state.is_complete && self.is_whole() && !state.is_evicted && !state.is_broken;
        state.scan?.complete().filter(|_| is_all)
    }

    /// Whether it may be kept for others in a directory of which `directory` is known; if it is not
    /// the directory's as it is now, it is torn.
    pub(super) fn is_cacheable(&self, directory: &AttributeState) -> bool {
        let state = &mut *self.state.lock();
        let is_intact = self.is_whole() && !state.is_evicted && !state.is_broken;
        is_intact && state.scan.as_mut().is_some_and(|pass| pass.keep(directory))
    }

    /// What the directory was like before the last names were asked for.
    pub(super) fn last_ticket(&self) -> Option<MutationTicket> {
        self.state.lock().learned.map(|learned| learned.last_ticket)
    }

    /// The state of the directory's contents when it was first asked, if that is known.
    pub(super) fn began_in(&self) -> Option<Epoch> {
        self.state.lock().learned?.epoch
    }

    /// Whether it is worth while to ask ahead for what is behind this place.
    pub(super) fn is_last_place(&self, place: usize) -> bool {
        let state = self.state.lock();
        place + 1 == state.chunks.len() && !state.is_complete && !state.has_readahead_failed
    }
}
