//! The measured stage times of all requests: a histogram for each procedure and stage.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use curt_proto::Operation;
use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::RequestStage;
use super::graph::CallGraph;
use super::measured::{MeasuredRequest, is_next};

/// The largest distinguishable time in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Significant decimal digits of a recorded time.
const DIGITS: u8 = 2;

/// Stage times of one server.
pub struct StageTimes {
    /// One request of this many is measured; 0: none.
    every: AtomicU32,
    /// As `every`, or 1 while a thread waits for a graph.
    in_force: AtomicU32,
    operations: [Mutex<Option<Box<OperationHistograms>>>; Operation::COUNT],
    wanted: Mutex<GraphWanted>,
    drawn: Condvar,
}

/// The graph for which a thread waits.
#[derive(Default)]
struct GraphWanted {
    /// Number of waiting threads.
    waiting: usize,
    operation: Option<Operation>,
    graph: Option<CallGraph>,
}

struct OperationHistograms {
    total: Histogram<u32>,
    stages: [Option<Histogram<u32>>; RequestStage::ALL.len()],
    /// The exact sum of the times in nanoseconds: the histograms record only two digits of each.
    total_sum: u64,
    stage_sums: [u64; RequestStage::ALL.len()],
}

/// The times of an operation, or of one of its stages, in buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketCounts {
    /// The operation.
    pub operation: Operation,
    /// The stage; `None`: the whole request.
    pub stage: Option<RequestStage>,
    /// The number of times in each bucket: above the previous bound and at most at its own. The
    /// last one has no bound.
    pub counts: Vec<u64>,
    /// The sum of the times, in nanoseconds.
    pub sum: u64,
}

/// The distribution of a time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of measured times.
    pub count: u64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

/// A procedure's times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationTimes {
    /// The number of measured requests.
    pub count: u64,
    /// All of a request's stages together.
    pub total: Percentiles,
    /// Each stage of the requests, by name. A stage that is skipped on a cache hit has fewer
    /// requests.
    pub stages: BTreeMap<String, Percentiles>,
}

/// A server's report of its stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// One request of this many is measured; 0: none.
    pub every: u32,
    /// The operations with measured requests, by [key](Operation::key).
    #[serde(rename = "procedures", with = "crate::operation_map")]
    pub operations: BTreeMap<Operation, OperationTimes>,
}

impl Default for StageTimes {
    fn default() -> Self {
        Self {
            every: AtomicU32::default(),
            in_force: AtomicU32::default(),
            operations: std::array::from_fn(|_| Mutex::default()),
            wanted: Mutex::default(),
            drawn: Condvar::default(),
        }
    }
}

impl StageTimes {
    /// Measures one request of `every` from now on; 0: none. Recorded times stay.
    pub fn set_every(&self, every: u32) {
        let wanted = self.wanted.lock();
        self.every.store(every, Ordering::Relaxed);
        self.apply(&wanted);
    }

    /// While a thread waits for a graph, every request is measured.
    fn apply(&self, wanted: &GraphWanted) {
        let every = self.every.load(Ordering::Relaxed);
        let now = if wanted.waiting > 0 { 1 } else { every };
        self.in_force.store(now, Ordering::Relaxed);
    }

    /// Whether this thread measures its next request.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        // Relaxed: a thread that misses a change for one request sees it for the next.
        let every = self.in_force.load(Ordering::Relaxed);
        every != 0 && is_next(every)
    }

    /// Whether a thread waits for a graph.
    #[must_use]
    pub(super) fn wants_graph(&self) -> bool {
        self.wanted.lock().waiting > 0
    }

    /// Drops the recorded times.
    pub fn clear(&self) {
        for histograms in &self.operations {
            *histograms.lock() = None;
        }
    }

    /// Waits up to `patience` until a request of this operation has been measured, and returns its
    /// graph.
    #[must_use]
    pub fn next_graph(&self, operation: Operation, patience: Duration) -> Option<CallGraph> {
        let deadline = Instant::now() + patience;
        let mut wanted = self.wanted.lock();
        // The latest caller gets the next graph; an earlier one continues to wait, and may time
        // out.
        wanted.operation = Some(operation);
        wanted.graph = None;
        wanted.waiting += 1;
        self.apply(&wanted);
        while wanted.graph.is_none() {
            if self.drawn.wait_until(&mut wanted, deadline).timed_out() {
                break;
            }
        }
        wanted.waiting -= 1;
        self.apply(&wanted);
        wanted.graph.take()
    }

    /// Passes a request's graph to the thread that waits for one of its operation.
    pub(super) fn offer(&self, operation: Operation, graph: impl FnOnce() -> CallGraph) {
        let mut wanted = self.wanted.lock();
        if wanted.waiting > 0 && wanted.operation == Some(operation) && wanted.graph.is_none() {
            wanted.graph = Some(graph());
            self.drawn.notify_all();
        }
    }

    pub(super) fn record(&self, operation: Operation, running: &MeasuredRequest) {
        let mut histograms = self.operations[operation.index()].lock();
        let histograms = histograms.get_or_insert_with(|| {
            Box::new(OperationHistograms {
                total: histogram(),
                stages: Default::default(),
                total_sum: 0,
                stage_sums: Default::default(),
            })
        });
        let mut total = 0;
        for (stage, spent) in running.stages() {
            total += spent;
            histograms.stages[stage.index()].get_or_insert_with(histogram).saturating_record(spent);
            histograms.stage_sums[stage.index()] += spent;
        }
        histograms.total.saturating_record(total);
        histograms.total_sum += total;
    }

    /// The recorded times, in buckets with these ascending bounds in nanoseconds.
    #[must_use]
    pub fn classes(&self, bounds: &[u64]) -> Vec<BucketCounts> {
        let mut all = Vec::new();
        for operation in Operation::nfs().chain(Operation::nfs4()) {
            let measured = self.operations[operation.index()].lock();
            let Some(measured) = &*measured else { continue };
            let mut add = |stage, histogram: &Histogram<u32>, sum| {
                all.push(BucketCounts { operation, stage, counts: sorted(histogram, bounds), sum });
            };
            add(None, &measured.total, measured.total_sum);
            for stage in RequestStage::ALL {
                if let Some(histogram) = &measured.stages[stage.index()] {
                    add(Some(stage), histogram, measured.stage_sums[stage.index()]);
                }
            }
        }
        all
    }

    /// The report of the recorded times.
    #[must_use]
    pub fn report(&self) -> StageReport {
        let mut operations = BTreeMap::new();
        for operation in Operation::nfs().chain(Operation::nfs4()) {
            let measured = self.operations[operation.index()].lock();
            let Some(measured) = &*measured else { continue };
            let stages = RequestStage::ALL.iter().zip(&measured.stages);
            let stages = stages.filter_map(|(stage, histogram)| {
                Some((stage.name().to_owned(), percentiles(histogram.as_ref()?)))
            });
            let times = OperationTimes {
                count: measured.total.len(),
                total: percentiles(&measured.total),
                stages: stages.collect(),
            };
            operations.insert(operation, times);
        }
        StageReport { every: self.every.load(Ordering::Relaxed), operations }
    }
}

fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("the bounds and digits are in hdrhistogram's range")
}

/// A time is in the bucket of the lowest time that the histogram does not distinguish from it.
fn sorted(histogram: &Histogram<u32>, bounds: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; bounds.len() + 1];
    for recorded in histogram.iter_recorded() {
        let lowest = histogram.lowest_equivalent(recorded.value_iterated_to());
        let class = bounds.partition_point(|bound| *bound < lowest);
        counts[class] += u64::from(recorded.count_at_value());
    }
    counts
}

fn percentiles(histogram: &Histogram<u32>) -> Percentiles {
    let at = |percent| histogram.value_at_percentile(percent) as f64 / 1000.0;
    Percentiles { count: histogram.len(), p50_us: at(50.0), p99_us: at(99.0) }
}

#[cfg(test)]
mod tests {
    use curt_proto::nfs3::NfsProcedure;

    use super::*;
    use crate::stages::{begin, finish, set_operation};

    const WRITE: Operation = Operation::Nfs3(NfsProcedure::Write);

    #[test]
    fn one_request_of_so_many_is_due_and_none_while_it_is_off() {
        let times = StageTimes::default();
        assert!((0..100).all(|_| !times.is_due()));
        times.set_every(4);
        assert_eq!((0..100).filter(|_| times.is_due()).count(), 25);
        times.set_every(0);
        assert!((0..100).all(|_| !times.is_due()));
    }

    #[test]
    fn a_waiting_reader_gets_the_next_graph_of_its_procedure() {
        let times = StageTimes::default();
        assert!(times.next_graph(WRITE, Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| times.next_graph(WRITE, Duration::from_secs(60)));
            while !waiting.is_finished() {
                for operation in [Operation::Nfs3(NfsProcedure::Getattr), WRITE] {
                    // Off, and yet due while a thread waits.
                    if times.is_due() {
                        begin(&times);
                        set_operation(operation);
                        finish(&times, || ());
                    }
                }
            }
            let graph = waiting.join().expect("it waits and returns").expect("it was measured");
            let names: Vec<_> = graph.spans.iter().map(|span| span.name.as_str()).collect();
            assert_eq!(names, ["receive", "send"]);
        });
        assert!(!times.wants_graph());
    }

    #[test]
    fn every_time_that_was_measured_is_in_one_class() {
        let times = StageTimes::default();
        for _ in 0..5 {
            begin(&times);
            set_operation(WRITE);
            std::thread::sleep(Duration::from_millis(2));
            finish(&times, || ());
        }
        let classes = times.classes(&[1_000_000, 60_000_000_000]);
        let total = &classes[0];
        assert_eq!((total.operation, total.stage), (WRITE, None));
        assert_eq!(total.counts, [0, 5, 0]);
        assert!(total.sum >= 10_000_000, "{total:?}");
        let stages: u64 = classes[1..].iter().map(|stage| stage.sum).sum();
        assert_eq!(stages, total.sum);
        let receive = classes.iter().find(|one| one.stage == Some(RequestStage::Receive));
        assert!(receive.is_some_and(|one| one.counts.iter().sum::<u64>() == 5), "{classes:?}");
    }
}
