//! Changes of ours that are in flight, and those that arrived and are not explained yet.
//!
//! A reply to a change of ours says what the object was before it and is after it: a step. Steps
//! that join on to each other lead from the state whose contents we know to the newest attributes;
//! then nobody else changed the object between. Replies may arrive in any order, so a step waits
//! until the one before it has arrived.

use curt_types::PreOpState;

use crate::time::Moment;

/// How many unexplained steps of our own changes are kept; one more makes the contents count as
/// changed by others.
pub const STEPS_MAX: usize = 64;

/// What is only needed while something is in flight or in doubt; most objects have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct UnsettledMutations {
    /// Changes of ours that are in flight.
    pub(super) in_flight: u32,
    /// Those that arrived and do not yet join on to `contents_at`.
    pub(super) steps: Vec<WccStep>,
    /// The state whose contents the present epoch describes, if it is not the newest known.
    pub(super) contents_at: Option<PreOpState>,
    /// Believe nothing until a request sent from this moment on is answered.
    pub(super) distrusted_at: Option<Moment>,
}

/// One change of ours that the server described: from what to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WccStep {
    pub(super) before: PreOpState,
    pub(super) after: PreOpState,
}

impl UnsettledMutations {
    /// Keeps a step until it is explained; forgets all of them if they are too many.
    pub(super) fn remember(&mut self, step: WccStep) {
        if self.steps.len() == STEPS_MAX {
            self.steps.clear();
        } else {
            self.steps.push(step);
        }
    }

    /// Forgets the steps: the contents count as changed by others.
    pub(super) fn forget_steps(&mut self) {
        self.steps.clear();
        self.contents_at = None;
    }

    /// Whether steps that wait lead from `reached` to where `step` begins.
    pub(super) fn leads_to(&self, mut reached: PreOpState, step: WccStep) -> bool {
        for _ in 0..=self.steps.len() {
            if reached == step.before {
                return true;
            }
            match self.steps.iter().find(|waiting| waiting.before == reached) {
                Some(waiting) => reached = waiting.after,
                None => return false,
            }
        }
        false
    }

    /// Moves `contents_at` along the steps that join on to it, as far as they lead; `newest` is the
    /// state of the newest attributes. Returns whether any step did.
    pub(super) fn advance(&mut self, newest: PreOpState) -> bool {
        let mut reached = self.contents_at.unwrap_or(newest);
        let mut moved = false;
        while let Some(index) = self.steps.iter().position(|step| step.before == reached) {
            reached = self.steps.swap_remove(index).after;
            moved = true;
        }
        self.contents_at = (reached != newest).then_some(reached);
        moved
    }
}
