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
#[derive(Clone)]
struct SubjectSamples {
    role: SubjectRole,
    name: String,
    /// Whether it could be placed: a server of unknown process cannot be moved to one processor.
    is_placed: bool,
    /// Each round's median, in microseconds.
    medians: Vec<f64>,
    /// Each round's operations per second.
    rates: Vec<f64>,
    /// Every operation of every round, in nanoseconds.
    latencies: Vec<u32>,
    processor: Option<Duration>,
}

impl SubjectSamples {
    fn new(role: SubjectRole, name: &str, is_placed: bool) -> Self {
        let (medians, rates, latencies) = (Vec::new(), Vec::new(), Vec::new());
        Self { role, name: name.to_owned(), is_placed, medians, rates, latencies, processor: None }
    }

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
    subjects: &[LatencySubject],
    mounted: Option<&LatencyMount>,
    processors: &ProcessorSets,
) -> Result<Vec<Value>> {
    let mounted = mounted.filter(|_| cell.shape.at_once() == 1);
    let mount_pid = mounted.map(|mount| mount.mounted.pid());
    let pids = subjects.iter().filter_map(|subject| subject.pid).chain(mount_pid);
    processors.place(cell.placement, &pids.collect::<Vec<_>>())?;
    let mut connections = Vec::new();
    let mut empty = Vec::new();
    for subject in subjects {
        let made = cell.operations.iter();
        let made = made.map(|operation| subject.connections(*operation, cell.shape, cell.generation));
        connections.push(made.collect::<Result<Vec<_>>>().with_context(|| subject.name.clone())?);
        let is_placed = cell.placement == Placement::Any || subject.pid.is_some();
        empty.push(SubjectSamples::new(subject.role, &subject.name, is_placed));
    }
    empty.extend(mounted.map(|_| SubjectSamples::new(SubjectRole::Mount, "mount", true)));
    let operations = calibrate(cell, effort, subjects, &mut connections)?;
    let mut measured = vec![empty; cell.operations.len()];
    for round in 0..effort.rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        // Each subject follows each other one equally often.
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (subject, measured) = (&subjects[at], measured.iter_mut().map(|all| &mut all[at]));
            processors.begin(cell.placement, subject.pid)?;
            sample(subject, cell, operations, &mut connections[at], measured)
                .with_context(|| subject.name.clone())?;
        }
        let Some(mounted) = mounted else { continue };
        for (operation, measured) in cell.operations.iter().zip(&mut measured) {
            processors.begin(cell.placement, mount_pid)?;
            let sample = mounted.run(*operation, cell.generation, operations);
            let (latencies, took) =
                sample.with_context(|| format!("{} through the mount", operation.name()))?;
            measured[subjects.len()].add(latencies, took, None);
        }
    }
    drop(connections);
    let have_written = cell.operations.iter().any(|operation| operation.writes());
    for subject in subjects.iter().filter(|subject| have_written && subject.role != SubjectRole::Echo) {
        let LoadShape { connections, outstanding } = cell.shape;
        let mut connections = 0..connections;
        connections
            .try_for_each(|connection| subject.tree.verify(connection, outstanding, cell.generation))
            .with_context(|| subject.name.clone())?;
    }
    let rows = cell.operations.iter().zip(measured);
    Ok(rows.map(|(operation, measured)| row(cell, *operation, measured)).collect())
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
            let (_, took) = connection::run(connections, few).with_context(|| subject.name.clone())?;
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

fn sample<'a>(
    subject: &LatencySubject,
    cell: MeasurementCell,
    operations: usize,
    connections: &mut [Vec<LatencyConnection>],
    measured: impl Iterator<Item = &'a mut SubjectSamples>,
) -> Result<()> {
    let warm_up = (WARM_UP * cell.shape.at_once()).min(operations);
    for (connections, measured) in connections.iter_mut().zip(measured) {
        // The connection may have been idle: wake its thread and warm the caches.
        connection::run(connections, warm_up)?;
        let before = subject.processor_time();
        let (latencies, took) = connection::run(connections, operations)?;
        let used = subject.processor_time().zip(before);
        let used = used.map(|(after, before)| after.saturating_sub(before));
        measured.add(latencies, took, used);
    }
    rewind(connections);
    Ok(())
}

/// The reported values of an operation. Times are medians over the rounds, in microseconds; the
/// keys are an interface.
fn row(cell: MeasurementCell, operation: LatencyOperation, mut measured: Vec<SubjectSamples>) -> Value {
    let curt = measured.iter_mut().find(|samples| samples.role == SubjectRole::Curt);
    let curt_p99_us = curt.map(|curt| f64::from(p99(&mut curt.latencies)) / 1000.0);
    let of = |role| measured.iter().find(|samples| samples.role == role);
    let us = |role| of(role).map(|samples| median(&samples.medians));
    let curt = of(SubjectRole::Curt);
    let ratio = curt.zip(of(SubjectRole::Floor)).map(|(curt, floor)| paired(&curt.medians, &floor.medians));
    let peers = measured.iter().filter(|samples| samples.role == SubjectRole::Peer);
    let peers = peers.map(|peer| {
        let figures = json!({
            "us": peer.is_placed.then(|| median(&peer.medians)),
            "ops_per_s": peer.is_placed.then(|| median(&peer.rates)),
            "cpu_us": peer.processor_us(),
        });
        (peer.name.clone(), figures)
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
        "curt_p99_us": curt_p99_us,
        // Curt by the floor, in the same round: the median, and its interval of 95 %.
        "ratio": ratio.map(|ratio| ratio.median),
        "ratio_low": ratio.map(|ratio| ratio.low),
        "ratio_high": ratio.map(|ratio| ratio.high),
        // Of Curt's server.
        "ops_per_s": curt.map(|curt| median(&curt.rates)),
        "cpu_us": curt.and_then(SubjectSamples::processor_us),
        "filecache_off_us": us(SubjectRole::Uncached),
        // The system call on a mount, for one operation at a time.
        "mount_us": us(SubjectRole::Mount),
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
        let measured = [
            (SubjectRole::Echo, "echo", 7),
            (SubjectRole::Floor, "floor", 8),
            (SubjectRole::Curt, "curt", 9),
            (SubjectRole::Uncached, "filecache-off", 10),
            (SubjectRole::Peer, "ganesha", 32),
            (SubjectRole::Peer, "unknown", 33),
        ];
        let measured = measured.map(|(role, name, us)| {
            let mut samples = SubjectSamples::new(role, name, name != "unknown");
            let processor = (us == 9).then_some(Duration::from_nanos(2500));
            samples.add(vec![us * 1000], Duration::from_micros(us.into()), processor);
            samples
        });
        let row = row(cell, LatencyOperation::WriteFileSync, measured.to_vec());
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
