//! Requests that a run of a workload repeats because of its duration.

use std::collections::HashSet;

use curt_bench::trace::{ExpectedResult, TraceOperation};
use curt_bench::workload::Workload;

/// A missing name whose look-ups are repeated may be about to be created: a LOOKUP is sent when it
/// is looked up after these times, in seconds.
const ASKED_AGAIN: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// Maximum number of repeated LOOKUPs of missing names in a run of this many seconds.
#[must_use]
pub fn repeated_lookups(workload: Workload, seconds: f64) -> usize {
    let trace = workload.trace();
    let missing = trace.operations().iter().filter_map(|operation| match operation {
        TraceOperation::Path { path, expected: ExpectedResult::NotFound, .. } => Some(*path),
        _ => None,
    });
    let missing: HashSet<_> = missing.collect();
    missing.len() * ASKED_AGAIN.iter().filter(|after| **after <= seconds).count()
}
