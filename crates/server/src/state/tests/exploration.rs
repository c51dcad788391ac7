//! The exploration of all states of a model, which its steps reach.

use std::collections::{HashSet, VecDeque};

/// More states mean that the model's keys are wrong.
const STATES_MAX: usize = 20_000;

/// Explores the states of the runs that `new` begins; `key` distinguishes them. A state is reached
/// by the steps from the beginning. Returns their number, or the shortest way to a fault.
pub(super) fn explore<R, S: Copy>(
    new: impl Fn() -> R,
    steps: impl Fn(&R) -> Vec<S>,
    apply: impl Fn(&mut R, S) -> Result<(), String>,
    key: impl Fn(&R) -> String,
) -> Result<usize, (Vec<S>, String)> {
    let along = |path: &[S]| {
        let mut run = new();
        for step in path {
            apply(&mut run, *step).expect("the path was taken before");
        }
        run
    };
    let mut known = HashSet::from([key(&new())]);
    let mut queue = VecDeque::from([Vec::new()]);
    while let Some(path) = queue.pop_front() {
        for step in steps(&along(&path)) {
            let mut run = along(&path);
            let mut longer = path.clone();
            longer.push(step);
            if let Err(why) = apply(&mut run, step) {
                return Err((longer, why));
            }
            if known.insert(key(&run)) {
                queue.push_back(longer);
            }
            assert!(known.len() < STATES_MAX, "more states than expected");
        }
    }
    Ok(known.len())
}
