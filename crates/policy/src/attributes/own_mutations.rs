//! Changes of this client that are in flight, and completed ones that do not yet fit the known
//! state.
//!
//! The reply to a change gives the state of the object before and after it: a step. If consecutive
//! steps lead from the state of the known contents to the newest attributes, no other client
//! changed the object in between. Replies may arrive in any order, so a step waits until the
//! preceding one has arrived.

use curt_types::PreOpState;

use crate::time::Moment;

/// The maximum number of steps that wait. One more makes the contents count as changed by another
/// client.
pub const STEPS_MAX: usize = 64;

/// State that is needed only while a change is in flight or unexplained; most objects have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct UnsettledMutations {
    /// Number of changes in flight.
    pub(super) in_flight: u32,
    /// Completed steps that do not yet continue from `contents_at`.
    pub(super) steps: Vec<WccStep>,
    /// The state that the current epoch of contents describes, if it is not the newest known.
    pub(super) contents_at: Option<PreOpState>,
    /// Nothing is valid until a request sent at or after this moment is answered.
    pub(super) distrusted_at: Option<Moment>,
}

/// One change of this client: the states before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WccStep {
    pub(super) before: PreOpState,
    pub(super) after: PreOpState,
}

impl UnsettledMutations {
    /// Records a step until it is explained. Drops all steps if there are too many.
    pub(super) fn remember(&mut self, step: WccStep) {
        if self.steps.len() == STEPS_MAX {
            self.steps.clear();
        } else {
            self.steps.push(step);
        }
    }

    /// Drops the steps: the contents count as changed by another client.
    pub(super) fn forget_steps(&mut self) {
        self.steps.clear();
        self.contents_at = None;
    }

    /// Whether waiting steps lead from `reached` to the beginning of `step`.
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

    /// Moves `contents_at` along the steps that continue from it, as far as they lead. `newest` is
    /// the state of the newest attributes. Returns whether it moved.
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
