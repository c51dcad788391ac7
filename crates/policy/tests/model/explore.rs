//! Breadth-first search through the states of a world.

use std::{
    collections::{HashSet, VecDeque},
    fmt::{Debug, Write as _},
    hash::Hash,
};

use crate::time::Canon;

/// A world of states and steps, and the property to check.
pub(crate) trait World {
    /// One state of the world.
    type State: Clone + Hash;
    /// The step between two states.
    type Step: Copy + Debug;

    /// Whether the difference of the clocks matters.
    fn guarded(&self) -> bool;
    /// The initial state.
    fn start(&self) -> Self::State;
    /// Calls `each` with every possible step, the state it leads to, and the violation there, if
    /// any.
    fn steps(&self, state: &Self::State, each: &mut dyn FnMut(Self::Step, Self::State, Option<String>));
}

/// The result of a search.
#[derive(Debug)]
enum Outcome {
    /// No state violates the property.
    Holds { states: usize },
    /// The shortest trace to a violation.
    Broken { trace: Vec<String>, wrong: String, states: usize },
}

impl Outcome {
    /// The number of states of a search without a violation.
    fn holds(self) -> usize {
        match self {
            Self::Holds { states } => states,
            Self::Broken { trace, wrong, states } => panic!("{}", report(&trace, &wrong, states)),
        }
    }

    /// The length of the shortest trace to the violation, which is printed.
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

/// More states indicate an error in the model's bounds.
const MOST: usize = 1_000_000;

/// Searches until it finds a violation or no new state. More than `most` states indicate an error
/// in the model's bounds.
fn explore<W: World>(world: &W, most: usize) -> Outcome {
    let mut seen = HashSet::new();
    let mut parents: Vec<Option<(usize, W::Step)>> = vec![None];
    let start = world.start();
    let mut canon = Canon::new(world.guarded());
    seen.insert(canon.of(&start));
    let mut queue = VecDeque::from([(0_usize, start)]);
    let mut broken = None;
    while let Some((index, state)) = queue.pop_front() {
        world.steps(&state, &mut |step, next, wrong| {
            if broken.is_some() {
                return;
            }
            if let Some(wrong) = wrong {
                broken = Some((index, step, wrong));
            } else if seen.insert(canon.of(&next)) {
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

/// Searches worlds that must not have a violation.
#[track_caller]
pub(crate) fn hold<W: World + Debug>(worlds: impl IntoIterator<Item = W>) {
    for world in worlds {
        let states = explore(&world, MOST).holds();
        println!("{world:?}: {states} states");
    }
}

/// Searches a world with a planted fault, which must be found in at most this number of steps.
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
