//! How a sequence grows: who requests the next names, and what the replies prove about all of them.
//!
//! Owns who may send, and the label by which other operations may trust the names. Must not send anything.

use std::sync::Arc;

use curt_policy::{AttributeState, Epoch, NameLabel, Ticket, complete::Pass};

use super::{
    ahead::Ahead,
    places::State,
    sequence::{Sequence, ServerPlace},
};

/// Who asks for what follows the last names.
#[derive(Debug)]
pub(super) enum Departing {
    /// Whoever is given this; for what, and in how many bytes.
    Go(Arc<Ahead>, Gap, u32),
    /// Somebody does.
    Join(Arc<Ahead>),
    /// Nothing follows.
    Nowhere,
    /// The server goes round in circles.
    Broken,
}

/// What is missing of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    /// Behind which name it is.
    pub(super) place: ServerPlace,
    /// How many replies are before it.
    pub(super) index: usize,
    /// What fills it is for others, too: the listing begins where the directory does.
    pub(super) is_shared: bool,
}

/// By what a sequence was learned, for those who begin to read the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Learned {
    pub(super) label: Option<NameLabel>,
    /// What the directory was like before the first names were asked for.
    pub(super) ticket: Ticket,
    /// The same of the names that came last.
    pub(super) last_ticket: Ticket,
    /// The state of the directory's contents when it was asked.
    pub(super) epoch: Option<Epoch>,
}

impl Sequence {
    /// Whoever wants more than there is asks for it, or waits for who did. `size` says in how many bytes, by the place and what was asked for last.
    pub(super) fn depart(&self, size: impl FnOnce(ServerPlace, u32) -> u32) -> Departing {
        let mut state = self.state.lock();
        if let Some(ahead) = &state.ahead {
            return Departing::Join(Arc::clone(ahead));
        }
        if state.is_broken {
            return Departing::Broken;
        }
        if state.is_complete {
            return Departing::Nowhere;
        }
        let ahead = Ahead::new();
        state.ahead = Some(Arc::clone(&ahead));
        let size = size(state.end, state.size);
        let gap = Gap {
            place: state.end,
            index: state.places.len(),
            is_shared: self.is_whole(),
        };
        Departing::Go(ahead, gap, size)
    }

    /// What a request brought is in the sequence, or it brought nothing.
    pub(super) fn landed(&self, ahead: &Arc<Ahead>) {
        let mut state = self.state.lock();
        if state
            .ahead
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, ahead))
        {
            state.ahead = None;
        }
    }

    /// A request that nobody waits for brought nothing.
    pub(super) fn was_futile(&self, ahead: &Arc<Ahead>) {
        self.state.lock().is_ahead_futile = true;
        self.landed(ahead);
    }

    /// Takes note of what the reply proves that was added last; true if it is of another state of the directory than those before.
    pub(super) fn learn(&self, learned: Learned) -> bool {
        let state = &mut *self.state.lock();
        let first = state.learned.get_or_insert(learned);
        first.last_ticket = learned.ticket;
        let is_complete = state.is_complete;
        let is_first = state.pass.is_none();
        let pass = state.pass.get_or_insert_with(|| Pass::begin(learned.ticket));
        let was_whole = !is_first && pass.label().is_some();
        let is_whole = pass.add(learned.label, is_complete);
        was_whole && !is_whole
    }

    /// By what a name that is not in it may be believed to be missing, if it is a listing of all names.
    pub(crate) fn complete_label(&self) -> Option<NameLabel> {
        self.complete_label_in(&self.state.lock())
    }

    pub(super) fn complete_label_in(&self, state: &State) -> Option<NameLabel> {
        let is_all = state.is_complete && self.is_whole() && !state.is_evicted && !state.is_broken;
        state.pass?.complete().filter(|_| is_all)
    }

    /// Whether it may be kept for others in a directory of which `directory` is known; if it is not the directory's as it is now, it is
    /// torn.
    pub(super) fn is_to_be_kept(&self, directory: &AttributeState) -> bool {
        let state = &mut *self.state.lock();
        let is_intact = self.is_whole() && !state.is_evicted && !state.is_broken;
        is_intact && state.pass.as_mut().is_some_and(|pass| pass.keep(directory))
    }

    /// What the directory was like before the last names were asked for.
    pub(super) fn last_ticket(&self) -> Option<Ticket> {
        self.state.lock().learned.map(|learned| learned.last_ticket)
    }

    /// The state of the directory's contents when it was first asked, if that is known.
    pub(super) fn began_in(&self) -> Option<Epoch> {
        self.state.lock().learned?.epoch
    }

    /// Whether it is worth while to ask ahead for what is behind this place.
    pub(super) fn is_last_place(&self, place: usize) -> bool {
        let state = self.state.lock();
        place + 1 == state.places.len() && !state.is_complete && !state.is_ahead_futile
    }
}
