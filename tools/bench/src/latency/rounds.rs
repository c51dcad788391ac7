//! The measurement: every subject in every round, so that other load of the machine affects all of
//! them equally; and the reported values.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::connection::{self, LatencyConnection};
use super::load::{LatencyOperation, LoadShape, Placement, ProcessorSets};
use super::mounted::LatencyMount;
use super::subject::{LatencySubject, SubjectRole};
use crate::statistics::{median, p50, p99, paired};

/// Operations that are measured together: REMOVE removes the names that CREATE has created.
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
/// Operations of each slot before each sample.
const WARM_UP: usize = 4;
/// Maximum number of operations in a sample, as a multiple of the minimum: a jump of the clock must
/// not make a run endless.
const SAMPLES_MAX: u128 = 100;

/// The amount of measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleSize {
    /// Rounds, each of every subject.
    pub(super) rounds: u16,
    /// Time of each sample of Curt's server.
    pub(super) sample: Duration,
    /// Minimum number of operations of a sample on one connection.
    pub(super) operations_min: usize,
}

/// The placement and shape in which a group is measured.
#[derive(Clone, Copy)]
pub(super) struct MeasurementCell {
    pub(super) operations: &'static [LatencyOperation],
    pub(super) shape: LoadShape,
    pub(super) placement: Placement,
    /// Differs between cells, and so do the written data.
    pub(super) generation: u64,
}

/// The measured values of one subject and operation.
#[derive(Clone, Default)]
struct SubjectSamples {
    /// Each round's median, in microseconds.
    medians: Vec<f64>,
    /// Each round's operations per second.
    rates: Vec<f64>,
    /// Every operation of every round, in nanoseconds.
    latencies: Vec<u32>,
    processor: Option<Duration>,
}

impl SubjectSamples {
    fn add(&mut self, mut latencies: Vec<u32>, took: Duration, processor: Option<Duration>) {
        self.rates.push(latencies.len() as f64 / took.as_secs_f64());
        self.medians.push(f64::from(p50(&mut latencies)) / 1000.0);
        self.latencies.append(&mut latencies);
        if let Some(processor) = processor {
            *self.processor.get_or_insert_default() += processor;
        }
    }

    fn processor_us(&self) -> Option<f64> {
        let operations = self.latencies.len().max(1) as f64;
        self.processor.map(|time| time.as_secs_f64() * 1e6 / operations)
    }
}

/// Measures a cell, and returns a row for each of its operations.
pub(super) fn measure(
    cell: MeasurementCell,
    effort: &SampleSize,
    subjects: &mut [LatencySubject],
    mounted: Option<&LatencyMount>,
    processors: &ProcessorSets,
) -> Result<Vec<Value>> {
    let mount_pid = mounted.map(|mount| mount.mounted.pid());
    let pids = subjects.iter().filter_map(|subject| subject.pid).chain(mount_pid);
    processors.place(cell.placement, &pids.collect::<Vec<_>>())?;
    let mut connections = Vec::new();
    for subject in subjects.iter_mut() {
        let made = cell.operations.iter();
        let made = made.map(|operation| subject.connections(*operation, cell.shape, cell.generation));
        connections.push(made.collect::<Result<Vec<_>>>().with_context(|| subject.name.clone())?);
    }
    let operations = calibrate(cell, effort, subjects, &mut connections)?;
    let mut through_mount = vec![SubjectSamples::default(); cell.operations.len()];
    let mut measured = vec![through_mount.clone(); subjects.len()];
    for round in 0..effort.rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        // Each subject follows each other one equally often.
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let subject = &subjects[at];
            processors.begin(cell.placement, subject.pid)?;
            sample(subject, cell, operations, &mut connections[at], &mut measured[at])
                .with_context(|| subject.name.clone())?;
        }
        let Some(mounted) = mounted.filter(|_| cell.shape.at_once() == 1) else {
            continue;
        };
        for (operation, measured) in cell.operations.iter().zip(&mut through_mount) {
            processors.begin(cell.placement, mount_pid)?;
            let mut latencies = Vec::new();
            let took = mounted.run(*operation, cell.generation, operations, &mut latencies);
            let took = took.with_context(|| format!("{} through the mount", operation.name()))?;
            measured.add(latencies, took, None);
        }
    }
    drop(connections);
    for subject in subjects.iter() {
        let verify = |operation: &LatencyOperation| subject.verify(*operation, cell.shape, cell.generation);
        let verified = cell.operations.iter().try_for_each(verify);
        verified.with_context(|| subject.name.clone())?;
    }
    let subjects = subjects.iter();
    let known = subjects.map(|subject| (subject.role, subject.name.as_str(), subject.pid.is_some()));
    let known: Vec<_> = known.collect();
    let rows = cell.operations.iter().enumerate().map(|(number, operation)| {
        let samples = measured.iter_mut().map(|all| std::mem::take(&mut all[number]));
        row(cell, *operation, &known, samples.collect(), &through_mount[number])
    });
    Ok(rows.collect())
}

/// The number of operations in a sample of the required length. They have been executed once then,
/// and the server is warm.
fn calibrate(
    cell: MeasurementCell,
    effort: &SampleSize,
    subjects: &[LatencySubject],
    connections: &mut [Vec<Vec<LatencyConnection>>],
) -> Result<usize> {
    let at_once = cell.shape.at_once();
    let few = effort.operations_min.next_multiple_of(at_once);
    let mut longest = Duration::ZERO;
    for (subject, of_subject) in subjects.iter().zip(connections) {
        for connections in of_subject.iter_mut() {
            let took = connection::run(connections, few, &mut Vec::new());
            let took = took.with_context(|| subject.name.clone())?;
            if subject.role == SubjectRole::Curt {
                longest = longest.max(took);
            }
        }
        rewind(of_subject);
    }
    let times = (effort.sample.as_nanos() / longest.as_nanos().max(1)).clamp(1, SAMPLES_MAX);
    Ok(few * usize::try_from(times)?)
}

fn rewind(connections: &mut [Vec<LatencyConnection>]) {
    let all = connections.iter_mut().flatten();
    all.for_each(|connection| connection.calls.rewind());
}

fn sample(
    subject: &LatencySubject,
    cell: MeasurementCell,
    operations: usize,
    connections: &mut [Vec<LatencyConnection>],
    measured: &mut [SubjectSamples],
) -> Result<()> {
    let warm_up = (WARM_UP * cell.shape.at_once()).min(operations);
    for (connections, measured) in connections.iter_mut().zip(measured) {
        // The connection may have been idle: wake its thread and warm the caches.
        connection::run(connections, warm_up, &mut Vec::new())?;
        let mut latencies = Vec::with_capacity(operations);
        let before = subject.processor_time();
        let took = connection::run(connections, operations, &mut latencies)?;
        let used = subject.processor_time().zip(before);
        let used = used.map(|(after, before)| after.saturating_sub(before));
        measured.add(latencies, took, used);
    }
    rewind(connections);
    Ok(())
}

/// The reported values of an operation. Times are medians over the rounds, in microseconds; the
/// keys are an interface.
fn row(
    cell: MeasurementCell,
    operation: LatencyOperation,
    subjects: &[(SubjectRole, &str, bool)],
    mut measured: Vec<SubjectSamples>,
    mounted: &SubjectSamples,
) -> Value {
    let place = |role| subjects.iter().position(|subject| subject.0 == role);
    let at = |role| place(role).unwrap_or_default();
    let curt = at(SubjectRole::Curt);
    let p99 = f64::from(p99(&mut measured[curt].latencies)) / 1000.0;
    let us = |role| median(&measured[at(role)].medians);
    let ratio = paired(&measured[curt].medians, &measured[at(SubjectRole::Floor)].medians);
    let peers = subjects.iter().zip(&measured);
    let peers = peers.filter(|(subject, _)| subject.0 == SubjectRole::Peer);
    let peers = peers.map(|((_, name, is_known), samples)| {
        // A server that could not be moved to the same processor was not measured there.
        let is_comparable = cell.placement == Placement::Any || *is_known;
        let figures = json!({
            "us": is_comparable.then(|| median(&samples.medians)),
            "ops_per_s": is_comparable.then(|| median(&samples.rates)),
            "cpu_us": samples.processor_us(),
        });
        ((*name).to_owned(), figures)
    });
    let peers: Map<String, Value> = peers.collect();
    json!({
        "op": operation,
        "bytes": operation.bytes(),
        "outstanding": cell.shape.outstanding,
        "connections": cell.shape.connections,
        "placement": cell.placement,
        "echo_us": us(SubjectRole::Echo),
        "floor_us": us(SubjectRole::Floor),
        "curt_us": us(SubjectRole::Curt),
        "curt_p99_us": p99,
        // Curt by the floor, in the same round: the median, and its interval of 95 %.
        "ratio": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        // Of Curt's server.
        "ops_per_s": median(&measured[curt].rates),
        "cpu_us": measured[curt].processor_us(),
        "filecache_off_us": us(SubjectRole::Uncached),
        // The system call on a mount, for one operation at a time.
        "mount_us": (!mounted.medians.is_empty()).then(|| median(&mounted.medians)),
        "peers": peers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_exactly_the_keys_that_programs_read() {
        let cell = MeasurementCell {
            operations: GROUPS[5],
            shape: super::super::load::SHAPES[0],
            placement: Placement::OneCpu,
            generation: 1,
        };
        let subjects = [
            (SubjectRole::Echo, "echo", true),
            (SubjectRole::Floor, "floor", true),
            (SubjectRole::Curt, "curt", true),
            (SubjectRole::Uncached, "filecache-off", true),
            (SubjectRole::Peer, "ganesha", true),
            (SubjectRole::Peer, "unknown", false),
        ];
        let measured = [7_u64, 8, 9, 10, 32, 33].map(|us| {
            let mut samples = SubjectSamples::default();
            let processor = (us == 9).then_some(Duration::from_nanos(2500));
            samples.add(vec![u32::try_from(us * 1000).unwrap_or(0)], Duration::from_micros(us), processor);
            samples
        });
        let operation = LatencyOperation::WriteFileSync;
        let row = row(cell, operation, &subjects, measured.to_vec(), &SubjectSamples::default());
        let rate = |us: f64| 1.0 / (us / 1e6);
        assert_eq!(
            row,
            json!({
                "op": "WRITE FILE_SYNC", "bytes": 4096, "outstanding": 1, "connections": 1, "placement": "one-cpu",
                "echo_us": 7.0, "floor_us": 8.0, "curt_us": 9.0, "curt_p99_us": 9.0,
                "ratio": 1.125, "ratio_low": 1.125, "ratio_high": 1.125,
                "ops_per_s": rate(9.0), "cpu_us": 2.5, "filecache_off_us": 10.0, "mount_us": null,
                "peers": {
                    "ganesha": {"us": 32.0, "ops_per_s": rate(32.0), "cpu_us": null},
                    "unknown": {"us": null, "ops_per_s": null, "cpu_us": null},
                },
            })
        );
    }
}
