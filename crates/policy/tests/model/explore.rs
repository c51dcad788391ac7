//! Breadth-first search through the states of a world.

use std::{
    collections::{HashSet, VecDeque},
    fmt::{Debug, Write as _},
    hash::Hash,
};

use crate::time::Canon;

/// A world of states and steps, and what must never be.
pub(crate) trait World {
    /// One state of everything.
    type State: Clone + Hash;
    /// What happened between two states.
    type Step: Copy + Debug;

    /// Whether the difference of the clocks matters.
    fn guarded(&self) -> bool;
    /// Where all begins.
    fn start(&self) -> Self::State;
    /// Calls `each` with every step that can be taken and where it leads, and with what is wrong
    /// there, if anything.
    fn steps(&self, state: &Self::State, each: &mut dyn FnMut(Self::Step, Self::State, Option<String>));
}

/// What a search came to.
#[derive(Debug)]
enum Outcome {
    /// Nothing is wrong in any state.
    Holds { states: usize },
    /// The shortest way to something wrong.
    Broken { trace: Vec<String>, wrong: String, states: usize },
}

impl Outcome {
    /// The number of states, having found nothing wrong.
    fn holds(self) -> usize {
        match self {
            Self::Holds { states } => states,
            Self::Broken { trace, wrong, states } => panic!("{}", report(&trace, &wrong, states)),
        }
    }

    /// The number of steps of the shortest trace to what is wrong, which is printed.
    fn broken(self, planted: &str) -> usize {
        match self {
            Self::Holds { states } => panic!("{planted}: not found in {states} states"),
            Self::Broken { trace, wrong, states } => {
                println!("planted: {planted}\n{}", report(&trace, &wrong, states));
                trace.len()
            }
        }
    }
}

fn report(trace: &[String], wrong: &str, states: usize) -> String {
    let mut text = format!("wrong after {} steps ({states} states seen): {wrong}\n", trace.len());
    for (number, step) in trace.iter().enumerate() {
        let _ = writeln!(text, "  {:2}. {step}", number + 1);
    }
    text
}

/// More states than this are a failure of a model's bounds.
const MOST: usize = 1_000_000;

/// Searches until something is wrong or no state is new; more states than `most` is a failure of
/// the model's bounds.
fn explore<W: World>(world: &W, most: usize) -> Outcome {
    let mut seen = HashSet::new();
    let mut parents: Vec<Option<(usize, W::Step)>> = vec![None];
    let start = world.start();
    let guarded = world.guarded();
    seen.insert(Canon::of(&start, guarded));
    let mut queue = VecDeque::from([(0_usize, start)]);
    let mut broken = None;
    while let Some((index, state)) = queue.pop_front() {
        world.steps(&state, &mut |step, next, wrong| {
            if broken.is_some() {
                return;
            }
            if let Some(wrong) = wrong {
                broken = Some((index, step, wrong));
            } else if seen.insert(Canon::of(&next, guarded)) {
                parents.push(Some((index, step)));
                queue.push_back((parents.len() - 1, next));
            }
        });
        assert!(seen.len() <= most, "the model has more than {most} states: bound it");
        if let Some((index, step, wrong)) = broken {
            return Outcome::Broken { trace: trace(&parents, index, step), wrong, states: seen.len() };
        }
    }
    Outcome::Holds { states: seen.len() }
}

/// Searches worlds in which nothing may be wrong.
#[track_caller]
pub(crate) fn hold<W: World + Debug>(worlds: impl IntoIterator<Item = W>) {
    for world in worlds {
        let states = explore(&world, MOST).holds();
        println!("{world:?}: {states} states");
    }
}

/// Searches a world in which something is wrong on purpose, and which is found in at most so many
/// steps.
#[track_caller]
pub(crate) fn find_planted<W: World + Debug>(world: &W, steps_max: usize) {
    let steps = explore(world, MOST).broken(&format!("{world:?}"));
    assert!(steps <= steps_max, "{world:?}: a trace of {steps} steps is not the shortest");
}

fn trace<S: Copy + Debug>(parents: &[Option<(usize, S)>], mut index: usize, last: S) -> Vec<String> {
    let mut steps = vec![format!("{last:?}")];
    while let Some((parent, step)) = parents[index] {
        steps.push(format!("{step:?}"));
        index = parent;
    }
    steps.reverse();
    steps
}
