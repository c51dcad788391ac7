//! The measurement: every subject in every round, so that other load of the machine affects all of
//! them equally; and the reported values.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connection::{self, LatencyConnection};
use super::mounted::LatencyMount;
use super::operations::{CONNECTIONS_MAX, LatencyOperation, OUTSTANDING_MAX};
use super::subject::{LatencySubject, SubjectRole};
use curt_bench::statistics::{median, p50, p99, paired};

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
/// The groups of NFSv4.1: CLOSE ends what OPEN has opened.
pub(super) const SESSION_GROUPS: [&[LatencyOperation]; 5] = [
    &[LatencyOperation::Getattr],
    &[LatencyOperation::Lookup],
    &[LatencyOperation::Read],
    &[LatencyOperation::WriteUnstable],
    &[LatencyOperation::Open, LatencyOperation::Close],
];
/// Operations of each slot before each sample.
const WARM_UP: usize = 4;
/// Maximum number of operations in a sample, as a multiple of the minimum: a jump of the clock must
/// not make a run endless.
const SAMPLES_MAX: u128 = 100;

/// The number of operations in progress at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadShape {
    /// On each connection.
    pub(super) outstanding: usize,
    pub(super) connections: usize,
}

/// The measured shapes.
pub(super) const SHAPES: [LoadShape; 4] = [
    LoadShape { outstanding: 1, connections: 1 },
    LoadShape { outstanding: 16, connections: 1 },
    LoadShape { outstanding: OUTSTANDING_MAX, connections: 1 },
    LoadShape { outstanding: 16, connections: CONNECTIONS_MAX },
];

impl LoadShape {
    /// Operations in progress on all connections.
    pub(super) const fn at_once(self) -> usize {
        self.outstanding * self.connections
    }
}

impl fmt::Display for LoadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, self.outstanding)
    }
}

/// The processors of client and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    /// The kernel places them.
    Any,
    /// All on one processor: without wake-ups across processors, only work is measured.
    OneCpu,
}

/// The processors that this program may use, and one of them.
pub(super) struct ProcessorSets {
    all: CpuSet,
    one: CpuSet,
}

impl ProcessorSets {
    pub(super) fn allowed() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
        let mut one = CpuSet::new();
        one.set(first.context("no processor is allowed")?);
        Ok(Self { all, one })
    }

    /// Moves this thread and all threads of these processes there; later threads inherit it.
    pub(super) fn place(&self, placement: Placement, pids: &[u32]) -> Result<()> {
        let set = match placement {
            Placement::Any => &self.all,
            Placement::OneCpu => &self.one,
        };
        sched_setaffinity(None, set).context("this program cannot choose its processor")?;
        for pid in pids {
            // Twice, because a thread that was not moved yet may have started another one.
            for _ in 0..2 {
                place_threads(*pid, set).with_context(|| format!("the processors of process {pid}"))?;
            }
        }
        Ok(())
    }

    /// Lets this thread and a server begin a sample on the same processor. With [`Placement::Any`]
    /// the kernel may move them from there. Otherwise a server would keep its random initial
    /// placement, which alone makes a difference of a factor of three.
    pub(super) fn begin(&self, placement: Placement, pid: Option<u32>) -> Result<()> {
        if let (Placement::Any, Some(pid)) = (placement, pid) {
            self.place(Placement::OneCpu, &[pid])?;
            self.place(Placement::Any, &[pid])?;
        }
        Ok(())
    }
}

fn place_threads(pid: u32, set: &CpuSet) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
        match sched_setaffinity(Pid::from_raw(thread), set) {
            // The thread has ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
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

    /// Makes so many calls, and adds their times.
    fn take(
        &mut self,
        subject: &LatencySubject,
        connections: &mut [LatencyConnection],
        warm_up: usize,
        count: usize,
    ) -> Result<()> {
        // The connection may have been idle: wake its thread and warm the caches.
        connection::run(connections, warm_up)?;
        let before = subject.processor_time();
        let (latencies, took) = connection::run(connections, count)?;
        let used = subject.processor_time().zip(before);
        self.add(latencies, took, used.map(|(after, before)| after.saturating_sub(before)));
        Ok(())
    }

    fn processor_us(&self) -> Option<f64> {
        let operations = self.latencies.len().max(1) as f64;
        self.processor.map(|time| time.as_secs_f64() * 1e6 / operations)
    }
}

/// The subject and the amount of a measurement.
pub(super) struct Measurement<'a> {
    pub(super) subjects: &'a [LatencySubject],
    pub(super) mounted: Option<&'a LatencyMount>,
    pub(super) processors: &'a ProcessorSets,
    /// Rounds, each of every subject.
    pub(super) rounds: u16,
    /// Time of each sample of Curt's server.
    pub(super) sample: Duration,
    /// Minimum number of operations of a sample on one connection.
    pub(super) operations_min: usize,
}

impl Measurement<'_> {
    /// Measures a cell, and returns a row for each of its operations.
    pub(super) fn measure(&self, cell: MeasurementCell) -> Result<Vec<Value>> {
        let MeasurementCell { operations, shape, placement, generation } = cell;
        let mounted = self.mounted.filter(|_| shape.at_once() == 1);
        let mount_pid = mounted.map(|mount| mount.mounted.pid());
        let pids = self.subjects.iter().filter_map(|subject| subject.pid).chain(mount_pid);
        self.processors.place(placement, &pids.collect::<Vec<_>>())?;
        let (mut connections, mut empty) = (Vec::new(), Vec::new());
        for subject in self.subjects {
            let made = operations.iter().map(|operation| subject.connections(*operation, shape, generation));
            connections.push(made.collect::<Result<Vec<_>>>().with_context(|| subject.name.clone())?);
            let is_placed = placement == Placement::Any || subject.pid.is_some();
            empty.push(SubjectSamples::new(subject.role, &subject.name, is_placed));
        }
        empty.extend(mounted.map(|_| SubjectSamples::new(SubjectRole::Mount, "mount", true)));
        let count = self.calibrate(shape, &mut connections)?;
        let warm_up = (WARM_UP * shape.at_once()).min(count);
        let mut measured = vec![empty; operations.len()];
        for round in 0..self.rounds {
            let mut order: Vec<_> = self.subjects.iter().zip(&mut connections).enumerate().collect();
            // Each subject follows each other one equally often.
            if round % 2 == 1 {
                order.reverse();
            }
            for (at, (subject, connections)) in order {
                self.processors.begin(placement, subject.pid)?;
                for (connections, measured) in connections.iter_mut().zip(&mut measured) {
                    let samples = &mut measured[at];
                    samples
                        .take(subject, connections, warm_up, count)
                        .with_context(|| subject.name.clone())?;
                }
            }
            let Some(mounted) = mounted else { continue };
            for (operation, measured) in operations.iter().zip(&mut measured) {
                self.processors.begin(placement, mount_pid)?;
                let sample = mounted.run(*operation, generation, count);
                let (latencies, took) =
                    sample.with_context(|| format!("{} through the mount", operation.name()))?;
                measured[self.subjects.len()].add(latencies, took, None);
            }
        }
        drop(connections);
        let have_written = operations.iter().any(|operation| operation.writes());
        for subject in
            self.subjects.iter().filter(|subject| have_written && subject.role != SubjectRole::Echo)
        {
            subject.tree.verify(shape, generation).with_context(|| subject.name.clone())?;
        }
        let rows = operations.iter().zip(measured);
        Ok(rows.map(|(operation, measured)| row(cell, *operation, measured)).collect())
    }

    /// The number of operations in a sample of the required length. They have been executed once
    /// then, and the server is warm.
    fn calibrate(&self, shape: LoadShape, connections: &mut [Vec<Vec<LatencyConnection>>]) -> Result<usize> {
        let few = self.operations_min.next_multiple_of(shape.at_once());
        let mut longest = Duration::ZERO;
        for (subject, of_subject) in self.subjects.iter().zip(connections) {
            for connections in of_subject {
                let (_, took) = connection::run(connections, few).with_context(|| subject.name.clone())?;
                if subject.role == SubjectRole::Curt {
                    longest = longest.max(took);
                }
            }
        }
        let times = (self.sample.as_nanos() / longest.as_nanos().max(1)).clamp(1, SAMPLES_MAX);
        Ok(few * usize::try_from(times)?)
    }
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
        let placed = |values: &[f64]| peer.is_placed.then(|| median(values));
        let (us, rate) = (placed(&peer.medians), placed(&peer.rates));
        (peer.name.clone(), json!({ "us": us, "ops_per_s": rate, "cpu_us": peer.processor_us() }))
    });
    let peers: Map<String, Value> = peers.collect();
    json!({
        "op": operation.name(), "bytes": operation.bytes(), "outstanding": cell.shape.outstanding,
        "connections": cell.shape.connections, "placement": cell.placement,
        "echo_us": us(SubjectRole::Echo), "floor_us": us(SubjectRole::Floor),
        "curt_us": us(SubjectRole::Curt), "curt_p99_us": curt_p99_us,
        // Curt by the floor, in the same round: the median, and its interval of 95 %.
        "ratio": ratio.map(|ratio| ratio.median), "ratio_low": ratio.map(|ratio| ratio.low),
        "ratio_high": ratio.map(|ratio| ratio.high),
        // Of Curt's server.
        "ops_per_s": curt.map(|curt| median(&curt.rates)),
        "cpu_us": curt.and_then(SubjectSamples::processor_us),
        "filecache_off_us": us(SubjectRole::Uncached),
        // The system call on a mount, for one operation at a time.
        "mount_us": us(SubjectRole::Mount), "peers": peers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_exactly_the_keys_that_programs_read() {
        let cell = MeasurementCell {
            operations: GROUPS[5],
            shape: SHAPES[0],
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
