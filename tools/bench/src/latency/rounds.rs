//! The measuring itself: every subject in every round, so that what else the machine does falls on
//! all of them alike.

use std::time::Duration;

use anyhow::{Context, Result};

use super::client::{self, LatencyConnection};
use super::load::{LatencyOperation, LoadShape, Placement};
use super::mounted::LatencyMount;
use super::processors::ProcessorSets;
use super::report::{LatencyRow, PeerFigures};
use super::subject::{LatencySubject, SubjectRole};
use crate::statistics::{median, p50, p99, paired};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleSize {
    /// Rounds, each of every subject.
    pub(super) rounds: usize,
    /// How long our server is to be measured in each round.
    pub(super) sample: Duration,
    /// The fewest operations of a sample on one connection; the most are a hundred times as many.
    pub(super) operations_min: usize,
}

/// What is measured together: REMOVE takes away what CREATE made.
pub(super) const GROUPS: [&[LatencyOperation]; 8] = [
    &[LatencyOperation::Getattr],
    &[LatencyOperation::Access],
    &[LatencyOperation::Lookup],
    &[LatencyOperation::Read],
    &[LatencyOperation::WriteUnstable],
    &[LatencyOperation::WriteFileSync],
    &[LatencyOperation::Create, LatencyOperation::Remove],
    &[LatencyOperation::ReaddirPlus],
];

/// What is known of one subject and operation.
#[derive(Clone, Default)]
struct SubjectSamples {
    /// Each round's median, in microseconds.
    medians: Vec<f64>,
    /// Each round's operations per second.
    rates: Vec<f64>,
    /// Every operation of every round, in nanoseconds.
    latencies: Vec<u32>,
    processor: Option<Duration>,
    operations: usize,
}

impl SubjectSamples {
    fn add(&mut self, latencies: &mut Vec<u32>, took: Duration, processor: Option<Duration>) {
        let operations = latencies.len();
        self.rates.push(operations as f64 / took.as_secs_f64());
        self.medians.push(f64::from(p50(latencies)) / 1000.0);
        self.operations += operations;
        if let Some(processor) = processor {
            *self.processor.get_or_insert_default() += processor;
        }
        self.latencies.append(latencies);
    }

    fn microseconds(&self) -> f64 {
        median(&self.medians)
    }

    fn processor_us(&self) -> Option<f64> {
        let time = self.processor?;
        Some(time.as_secs_f64() * 1e6 / self.operations.max(1) as f64)
    }
}

/// Where and how a group is measured.
#[derive(Clone, Copy)]
pub(super) struct MeasurementCell {
    pub(super) operations: &'static [LatencyOperation],
    pub(super) shape: LoadShape,
    pub(super) placement: Placement,
    /// Differs from cell to cell: what is written does, too.
    pub(super) generation: u64,
}

/// Measures a cell, and returns a row for each of its operations.
pub(super) fn measure(
    cell: MeasurementCell,
    effort: &SampleSize,
    subjects: &mut [LatencySubject],
    mounted: Option<&LatencyMount>,
    processors: &ProcessorSets,
) -> Result<Vec<LatencyRow>> {
    let known: Vec<u32> = subjects.iter().filter_map(|subject| subject.pid).collect();
    let pids = known.iter().copied().chain(mounted.map(LatencyMount::pid));
    processors.place(cell.placement, &pids.collect::<Vec<_>>())?;
    let mut lanes = Vec::new();
    for subject in subjects.iter_mut() {
        let of_subject = cell
            .operations
            .iter()
            .map(|operation| subject.connections(*operation, cell.shape, cell.generation))
            .collect::<Result<Vec<_>>>()
            .with_context(|| subject.name.clone())?;
        lanes.push(of_subject);
    }
    let operations = calibrate(cell, effort, subjects, &mut lanes)?;
    let mut through_mount = vec![SubjectSamples::default(); cell.operations.len()];
    let mut measured = vec![through_mount.clone(); subjects.len()];
    for round in 0..effort.rounds {
        for at in 0..subjects.len() {
            // Everyone follows everyone else as often as the other way round.
            let at = if round % 2 == 0 {
                at
            } else {
                subjects.len() - 1 - at
            };
            let (subject, lanes) = (&subjects[at], &mut lanes[at]);
            processors.begin(cell.placement, subject.pid)?;
            sample(subject, cell, operations, lanes, &mut measured[at])
                .with_context(|| subject.name.clone())?;
        }
        if let Some(mounted) = mounted.filter(|_| cell.shape.is_single()) {
            for (operation, measured) in cell.operations.iter().zip(&mut through_mount) {
                processors.begin(cell.placement, Some(mounted.pid()))?;
                let mut latencies = Vec::new();
                let took = mounted.run(*operation, cell.generation, operations, &mut latencies)?;
                measured.add(&mut latencies, took, None);
            }
        }
    }
    drop(lanes);
    for subject in subjects.iter() {
        for operation in cell.operations {
            subject
                .verify(*operation, cell.shape, cell.generation)
                .with_context(|| subject.name.clone())?;
        }
    }
    let rows = cell.operations.iter().enumerate().map(|(number, operation)| {
        let of_operation: Vec<&mut SubjectSamples> =
            measured.iter_mut().map(|all| &mut all[number]).collect();
        row(cell, *operation, subjects, of_operation, &through_mount[number])
    });
    rows.collect()
}

/// How many operations make a sample of the wanted length; they have been made once then, and the
/// server is warm.
fn calibrate(
    cell: MeasurementCell,
    effort: &SampleSize,
    subjects: &[LatencySubject],
    lanes: &mut [Vec<Vec<LatencyConnection>>],
) -> Result<usize> {
    let at_once = cell.shape.outstanding * cell.shape.connections;
    let few = effort.operations_min.max(at_once).next_multiple_of(at_once);
    let mut longest = Duration::ZERO;
    for (subject, of_subject) in subjects.iter().zip(lanes) {
        for lanes in of_subject.iter_mut() {
            let took = client::run(lanes, few, &mut Vec::new()).with_context(|| subject.name.clone())?;
            if subject.role == SubjectRole::Curt {
                longest = longest.max(took);
            }
        }
        rewind(of_subject);
    }
    // At most a hundred: a clock that jumps must not make a run endless.
    let times = (effort.sample.as_nanos() / longest.as_nanos().max(1)).clamp(1, 100);
    let operations = few * usize::try_from(times)?;
    Ok(operations.next_multiple_of(at_once))
}

fn rewind(lanes: &mut [Vec<LatencyConnection>]) {
    lanes.iter_mut().flatten().for_each(|lane| lane.calls.rewind());
}

fn sample(
    subject: &LatencySubject,
    cell: MeasurementCell,
    operations: usize,
    lanes: &mut [Vec<LatencyConnection>],
    measured: &mut [SubjectSamples],
) -> Result<()> {
    let at_once = cell.shape.outstanding * cell.shape.connections;
    for (lanes, measured) in lanes.iter_mut().zip(measured) {
        // A connection that was left alone for a while is woken first, and its thread's memory is
        // in a cache again.
        client::run(lanes, (WARM_UP * at_once).min(operations), &mut Vec::new())?;
        let mut latencies = Vec::with_capacity(operations);
        let before = subject.processor_time();
        let took = client::run(lanes, operations, &mut latencies)?;
        let after = subject.processor_time();
        let processor = after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        measured.add(&mut latencies, took, processor);
    }
    rewind(lanes);
    Ok(())
}

/// Operations of each slot that are made before each sample.
const WARM_UP: usize = 4;

fn row(
    cell: MeasurementCell,
    operation: LatencyOperation,
    subjects: &[LatencySubject],
    mut measured: Vec<&mut SubjectSamples>,
    mounted: &SubjectSamples,
) -> Result<LatencyRow> {
    let position = |role| subjects.iter().position(|subject| subject.role == role);
    let curt = position(SubjectRole::Curt).context("our server is not measured")?;
    let floor = position(SubjectRole::Floor).context("the floor is not measured")?;
    let echo = position(SubjectRole::Echo).context("the echo is not measured")?;
    let p99 = f64::from(p99(&mut measured[curt].latencies)) / 1000.0;
    let ratio = paired(&measured[curt].medians, &measured[floor].medians);
    let peers = subjects.iter().zip(&measured);
    let peers = peers.filter(|(subject, _)| subject.role == SubjectRole::Peer);
    // One that cannot be moved to the others' processor was not measured on it.
    let comparable = |subject: &LatencySubject| cell.placement == Placement::Any || subject.pid.is_some();
    let peers = peers.map(|(subject, measured)| {
        let figures = PeerFigures {
            us: comparable(subject).then(|| measured.microseconds()),
            ops_per_s: comparable(subject).then(|| median(&measured.rates)),
            cpu_us: measured.processor_us(),
        };
        (subject.name.clone(), figures)
    });
    Ok(LatencyRow {
        op: operation,
        bytes: operation.bytes(),
        outstanding: cell.shape.outstanding,
        connections: cell.shape.connections,
        placement: cell.placement,
        echo_us: measured[echo].microseconds(),
        floor_us: measured[floor].microseconds(),
        curt_us: measured[curt].microseconds(),
        curt_p99_us: p99,
        ratio: ratio.median,
        ratio_low: ratio.low,
        ratio_high: ratio.high,
        ops_per_s: median(&measured[curt].rates),
        cpu_us: measured[curt].processor_us(),
        filecache_off_us: position(SubjectRole::Uncached).map(|at| measured[at].microseconds()),
        mount_us: (!mounted.medians.is_empty()).then(|| mounted.microseconds()),
        peers: peers.collect(),
    })
}
