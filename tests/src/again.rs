//! What a run of a workload asks for again because it takes its time.

use std::collections::HashSet;

use curt_bench::trace::{ExpectedResult, TraceOperation};
use curt_bench::workload::Workload;

/// A missing name that nothing is done with may be about to be made: the server is asked again when
/// it is looked at after these times, in seconds.
const ASKED_AGAIN: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// How many look-ups of missing names at most a run repeats that takes so many seconds.
#[must_use]
pub fn repeated_lookups(workload: Workload, seconds: f64) -> usize {
    let trace = workload.trace();
    let missing = trace.operations().iter().filter_map(|operation| match operation {
        TraceOperation::Path {
            path,
            expected: ExpectedResult::NotFound,
            ..
        } => Some(*path),
        _ => None,
    });
    let missing: HashSet<_> = missing.collect();
    missing.len() * ASKED_AGAIN.iter().filter(|after| **after <= seconds).count()
}
