//! The figures of one run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use curt_observe::control::MountReport;
use curt_observe::{ClientCounter, Operation, OperationFigure};
use serde::Serialize;

use super::acquisitions::{Acquisition, AcquisitionPlan, Acquisitions};

/// Points of a line in the picture.
const POINTS_MAX: usize = 500;

/// Requests, and the counters of mounts that count them.
const REQUESTS: [(&str, ClientCounter); 5] = [
    ("LOCK", ClientCounter::LockWire),
    ("UNLOCK", ClientCounter::LockUnlockWire),
    ("CANCEL", ClientCounter::LockCancelWire),
    ("TEST", ClientCounter::LockTestWire),
    ("GRANTED", ClientCounter::LockCallback),
];

/// The cost so far of Curt's mounts, and of a server that was started here.
#[derive(Clone, Debug)]
pub(super) struct LockCost {
    pub(super) mounts: Vec<MountReport>,
    /// Processor time of all mounts.
    pub(super) client: Duration,
    pub(super) server: Option<Duration>,
}

impl LockCost {
    fn counted(&self, counter: ClientCounter) -> u64 {
        self.mounts.iter().map(|mount| mount.counters.events.value(counter)).sum()
    }

    /// The sum of the round trips of some operations in nanoseconds.
    fn round_trips(&self, is_meant: fn(Operation) -> bool) -> u64 {
        let of = |mount: &MountReport| mount.operations.of_all(is_meant).value(OperationFigure::RoundTrip);
        self.mounts.iter().map(of).sum()
    }

    /// The cost since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> LockCostFigures {
        let counted = |counter| self.counted(counter).saturating_sub(earlier.counted(counter));
        let time = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64();
        let round_trips = |is_meant| {
            let all = |cost: &Self| cost.round_trips(is_meant);
            seconds(all(self).saturating_sub(all(earlier)))
        };
        LockCostFigures {
            server_times: [
                ("LOCK", round_trips(Operation::is_lock)),
                ("UNLOCK", round_trips(Operation::is_unlock)),
                ("GRANTED", seconds(counted(ClientCounter::LockCallbackWait))),
            ],
            requests: REQUESTS.map(|(name, counter)| (name, counted(counter))).into(),
            denied: counted(ClientCounter::LockDenied),
            client_cpu: time(self.client, earlier.client),
            server_cpu: self.server.zip(earlier.server).map(|(now, before)| time(now, before)),
        }
    }
}

/// The figures of one run. Times are in seconds.
#[derive(Debug, Serialize)]
pub(super) struct LockRun {
    /// `local`, `mount`, `floor` or `server-first`.
    pub(super) place: &'static str,
    pub(super) processes: usize,
    /// Grabs within the time, and those of a lock that is never free.
    pub(super) grabs: usize,
    pub(super) ideal_grabs: f64,
    /// The grabs of each client.
    pub(super) client_grabs: Vec<usize>,
    /// Grabs of processes that had begun to wait within the time, and how long they took.
    pub(super) drain_grabs: usize,
    pub(super) drain_seconds: f64,
    pub(super) ideal_drain_seconds: f64,
    /// Jain's index of the processes' grabs within the time, and that of a perfect FIFO.
    pub(super) jain: f64,
    pub(super) fifo_jain: f64,
    /// The most grabs that one process was ahead of another at any time since all had asked for
    /// the lock.
    pub(super) ahead: usize,
    /// The most that a process was ahead of another one of its client.
    pub(super) client_ahead: Vec<usize>,
    pub(super) wait_p50: f64,
    pub(super) wait_p99: f64,
    pub(super) wait_max: f64,
    /// Grabs while another process held the lock.
    pub(super) wrong: usize,
    /// Whether the processes were killed.
    pub(super) stopped: bool,
    /// The mean time of a turn beyond the hold.
    pub(super) turn: TurnTime,
    /// The cost of a turn, on mounts by Curt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<LockCostFigures>,
    /// Grabs over time.
    #[serde(skip)]
    pub(super) progress: Vec<(f64, u64)>,
}

/// The mean time for which the lock is not held though a process waits for it, in each turn, and
/// what it is spent on.
#[derive(Debug, Serialize)]
pub(super) struct TurnTime {
    /// From the end of a hold, or from the beginning of the wait if that is later, to the next
    /// grab.
    pub(super) beyond_hold: f64,
    /// The part of the server, as the mounts measured it: the round trips of LOCK and UNLOCK, and
    /// the wait between a LOCK that was blocked and its callback (GRANTED).
    #[serde(flatten)]
    pub(super) server: BTreeMap<&'static str, f64>,
    /// The rest: the mount, the kernel, and the processes until they run. Not of several
    /// clients: one's requests are on their way during the other's turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rest: Option<f64>,
}

impl TurnTime {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn new(turns: &[Acquisition], hold: u64, clients: usize, cost: Option<&LockCostFigures>) -> Self {
        let mut free_since = 0;
        let mut beyond_hold = 0;
        for turn in turns {
            beyond_hold += turn.grab.saturating_sub(turn.wait.max(free_since));
            free_since = turn.grab + hold;
        }
        let each = |total: f64| total / turns.len().max(1) as f64;
        let beyond_hold = each(seconds(beyond_hold));
        let server_times = cost.map(|cost| cost.server_times).into_iter().flatten();
        let server: BTreeMap<_, _> = server_times.map(|(name, total)| (name, each(total))).collect();
        let is_serial = cost.is_some() && clients == 1;
        let rest = is_serial.then(|| beyond_hold - server.values().sum::<f64>());
        Self { beyond_hold, server, rest }
    }
}

/// The cost of a run, as printed in JSON.
#[derive(Debug, Serialize)]
pub(super) struct LockCostFigures {
    /// See [`TurnTime::server`]; of all turns.
    #[serde(skip)]
    server_times: [(&'static str, f64); 3],
    /// Requests by procedure; `GRANTED`: those of the server that gave a waiter its lock.
    pub(super) requests: BTreeMap<&'static str, u64>,
    pub(super) denied: u64,
    pub(super) client_cpu: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_cpu: Option<f64>,
}

impl LockRun {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(super) fn new(
        place: &'static str,
        clients: usize,
        plan: &AcquisitionPlan,
        turns: &Acquisitions,
        cost: Option<LockCostFigures>,
    ) -> Self {
        let Acquisitions { turns, is_stopped } = turns;
        let (hold, time) = (nanoseconds(plan.hold), nanoseconds(plan.time));
        let per_client = plan.processes as usize;
        let processes = per_client * clients;
        let (grabs, drain) = turns.split_at(turns.partition_point(|turn| turn.grab < time));
        let mut counts = vec![0; processes];
        grabs.iter().for_each(|turn| counts[turn.process as usize] += 1);
        let mut waits: Vec<u64> = turns.iter().map(|turn| turn.grab - turn.wait).collect();
        waits.sort_unstable();
        let until_free =
            |turn: Option<&Acquisition>| turn.map_or(0, |turn| (turn.grab + hold).saturating_sub(time));
        let ideal_drain = until_free(grabs.last()) + drain.len() as u64 * hold;
        let round = plan.hold + plan.rest;
        let fifo: Vec<_> =
            (0..processes).map(|number| (grabs.len() + processes - 1 - number) / processes).collect();
        Self {
            place,
            processes,
            grabs: grabs.len(),
            ideal_grabs: plan.time.as_secs_f64()
                / plan.hold.as_secs_f64().max(round.as_secs_f64() / processes as f64),
            client_grabs: counts.chunks(per_client).map(|counts| counts.iter().sum()).collect(),
            drain_grabs: drain.len(),
            drain_seconds: seconds(until_free(turns.last())),
            ideal_drain_seconds: seconds(ideal_drain),
            jain: jain(&counts),
            fifo_jain: jain(&fifo),
            ahead: most_ahead(turns, time, &(0..processes)),
            client_ahead: (0..clients)
                .map(|client| most_ahead(turns, time, &(client * per_client..(client + 1) * per_client)))
                .collect(),
            wait_p50: quantile(&waits, 50),
            wait_p99: quantile(&waits, 99),
            wait_max: quantile(&waits, 100),
            wrong: turns.array_windows().filter(|[one, next]| next.grab < one.grab + hold).count(),
            stopped: *is_stopped,
            turn: TurnTime::new(turns, hold, clients, cost.as_ref()),
            cost,
            progress: progress(turns),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// The value that so many of a hundred do not exceed.
fn quantile(sorted: &[u64], percent: usize) -> f64 {
    let index = sorted.len().saturating_sub(1) * percent / 100;
    sorted.get(index).map_or(0.0, |value| seconds(*value))
}

/// Jain's index: 1 if all are equal, 1/n if one has everything.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn jain(counts: &[usize]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (counts.len() as f64 * squares) }
}

/// The most grabs that one of these processes is ahead of another at any time within the run's
/// time, since each of them had begun to wait: who begins late is behind without any fault of the
/// lock.
fn most_ahead(turns: &[Acquisition], time: u64, processes: &Range<usize>) -> usize {
    let index = |turn: &Acquisition| Some(turn.process as usize).filter(|number| processes.contains(number));
    let mut first_waits = BTreeMap::new();
    for turn in turns {
        index(turn).map(|process| first_waits.entry(process).or_insert(turn.wait));
    }
    let since = first_waits.values().copied().max().unwrap_or(0);
    let mut counts = vec![0; processes.len()];
    // How many processes have so many grabs.
    let mut having = BTreeMap::from([(0, processes.len())]);
    let mut most = 0;
    for process in turns.iter().filter(|turn| (since..time).contains(&turn.grab)).filter_map(index) {
        let count = &mut counts[process - processes.start];
        if let Some(left) = having.get_mut(count) {
            *left -= 1;
            if *left == 0 {
                having.remove(count);
            }
        }
        *count += 1;
        *having.entry(*count).or_default() += 1;
        let ends = having.first_key_value().zip(having.last_key_value());
        most = ends.map_or(most, |((least, _), (greatest, _))| most.max(greatest - least));
    }
    most
}

fn progress(turns: &[Acquisition]) -> Vec<(f64, u64)> {
    let step = turns.len().div_ceil(POINTS_MAX).max(1);
    let counted = (1_u64..).zip(turns).map(|(count, turn)| (seconds(turn.grab), count));
    let mut points: Vec<_> = counted.clone().step_by(step).collect();
    points.extend(counted.last());
    points
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    const MS: u64 = 1_000_000;

    fn plan() -> AcquisitionPlan {
        let ms = Duration::from_millis;
        AcquisitionPlan {
            processes: 1,
            hold: ms(100),
            rest: ms(100),
            time: ms(1000),
            first_lock: ms(1000),
            limit: None,
        }
    }

    fn turns(turns: &[(u32, u64, u64)]) -> Acquisitions {
        let turn = |(process, wait, grab)| Acquisition { process, wait: wait * MS, grab: grab * MS };
        Acquisitions { turns: turns.iter().copied().map(turn).collect(), is_stopped: false }
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn figures_are_those_of_the_turns() {
        let taken = turns(&[(0, 0, 0), (1, 0, 250), (0, 200, 950), (1, 500, 1100)]);
        let run = LockRun::new("local", 2, &plan(), &taken, None);
        assert_eq!((run.grabs, run.drain_grabs, run.ahead, run.wrong), (3, 1, 1, 0));
        assert_eq!(run.client_grabs, [2, 1]);
        assert!(near(run.ideal_grabs, 10.0) && near(run.drain_seconds, 0.2));
        assert!(near(run.ideal_drain_seconds, 0.15), "the last holder, and one more");
        assert!(near(run.jain, 0.9) && near(run.fifo_jain, 0.9));
        assert!(near(run.wait_max, 0.75) && near(run.wait_p50, 0.25));
        assert_eq!(run.progress.len(), 5);
        let alone = LockRun::new("local", 1, &plan(), &turns(&[]), None);
        assert!(near(alone.ideal_grabs, 5.0), "one process rests half of the time");
        let both = turns(&[(0, 0, 0), (1, 0, 99)]);
        assert_eq!(LockRun::new("local", 2, &plan(), &both, None).wrong, 1);
    }

    #[test]
    fn the_time_of_a_turn_beyond_the_hold_is_that_of_the_server_and_a_rest() {
        let cost = || LockCostFigures {
            server_times: [("LOCK", 0.06), ("UNLOCK", 0.03), ("GRANTED", 0.0)],
            requests: BTreeMap::new(),
            denied: 0,
            client_cpu: 0.0,
            server_cpu: None,
        };
        // Free for 40, 30 and 50 ms while a process waits; nobody waits between 270 and 500.
        let taken = turns(&[(0, 0, 40), (1, 10, 170), (0, 500, 550)]).turns;
        let turn =
            |clients, cost: Option<LockCostFigures>| TurnTime::new(&taken, 100 * MS, clients, cost.as_ref());
        let alone = turn(1, Some(cost()));
        assert!(near(alone.beyond_hold, 0.04));
        assert!(near(alone.server["LOCK"], 0.02) && near(alone.server["UNLOCK"], 0.01));
        let sum: f64 = alone.server.values().sum();
        assert!(alone.rest.is_some_and(|rest| near(sum + rest, alone.beyond_hold) && near(rest, 0.01)));
        assert_eq!(turn(2, Some(cost())).rest, None);
        let local = turn(1, None);
        assert!(near(local.beyond_hold, 0.04) && local.server.is_empty() && local.rest.is_none());
    }

    #[test]
    fn who_is_ahead_counts_within_a_client_and_once_all_have_asked() {
        let taken = turns(&[(0, 0, 0), (0, 30, 100), (1, 50, 200), (0, 130, 300), (2, 40, 400)]).turns;
        assert_eq!(most_ahead(&taken, 1000 * MS, &(0..2)), 1);
        assert_eq!(most_ahead(&taken, 1000 * MS, &(0..3)), 2, "the third is behind both");
        let run = LockRun::new("local", 3, &plan(), &Acquisitions { turns: taken, is_stopped: false }, None);
        assert_eq!((run.ahead, run.client_ahead), (2, vec![0, 0, 0]));
    }

    #[test]
    fn the_help_names_each_figure_of_a_run() {
        let run = LockRun::new("local", 3, &plan(), &turns(&[(0, 0, 0), (1, 0, 100)]), None);
        let figures = serde_json::to_value(&run).expect("JSON");
        let command = super::super::BenchLockArguments::augment_args(clap::Command::new("lock"));
        let help = command.get_after_help().expect("a help").to_string();
        for figure in figures.as_object().expect("an object").keys() {
            assert!(help.contains(&format!("\"{figure}\"")), "{figure}");
        }
    }

    #[test]
    fn who_is_ahead_for_a_moment_counts() {
        let taken = turns(&[(0, 0, 0), (0, 0, 100), (1, 0, 200), (1, 0, 300)]).turns;
        assert_eq!(most_ahead(&taken, 300 * MS, &(0..2)), 2);
        assert_eq!(most_ahead(&taken, 100 * MS, &(0..2)), 1);
        assert!(near(jain(&[5, 0]), 0.5) && near(jain(&[0, 0]), 1.0));
    }
}
