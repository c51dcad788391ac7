//! Tests side by side: programs of unit tests as they are, of whole-program tests each test by
//! itself, in a network of its own.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::binaries::{TestBinary, TestRunOutcome};
use super::cargo::TestSummary;
use super::retry::{self, FailedRun, RetryPolicy};

/// How many programs of unit tests run at a time: many of them keep one processor busy.
const UNITS: usize = 2;
/// How many tests of whole programs: they wait for their kernels and servers much of the time.
const PARALLEL_TESTS: usize = 3;
/// How many of those that replay workloads; one of them runs two of its tests at a time.
const PARALLEL_REPLAYS: usize = 2;
/// Whatever takes so long is told of by itself.
const LONG: Duration = Duration::from_secs(10);

/// The folder of whole-program tests.
const WHOLE_PROGRAMS: &str = "tests";
/// Its programs whose tests share what they measured, or each fill the machine with a thousand
/// processes: they stay together, and so many of them run at a time.
const TOGETHER: [(&str, &str); 2] = [("bench", "2"), ("silence", "1")];
/// Its programs that replay the recorded workloads in their own time: these few run side by side,
/// with nothing else.
const REPLAYS: [&str; 3] = ["bench", "demo", "explain"];
/// Its programs that hold times against each other, or leave others no time: nothing else runs
/// beside them.
const ALONE: [&str; 3] = ["connections", "silence", "slow_exports"];
/// What takes longest begins first: whoever is alone at the end is done soon.
const LONGEST: [&str; 17] = [
    "million_names",
    "conformance",
    "listing",
    "replay",
    "data",
    "bench",
    "linux_writes_100_000_times_at_random",
    "random_writer_on_a_mount_of_knfsd_finds_nothing_wrong",
    "every_kind_of_line_is_served_to_the_linux_client_and_read_again",
    "curt_and_linux_see_each_others_changes_at_the_next_open",
    "linux_builds_a_c_project_in_an_export",
    "linux_replays_page_without_a_wrong_result",
    "two_linux_clients_see_each_others_changes_at_the_next_open",
    "sigterm_tries_for_30_s_to_write_to_a_silent_server_and_names_what_is_lost",
    "power_cut_of_knfsd_loses_nothing_that_was_synced",
    "killed_ganesha_loses_nothing_that_was_synced",
    "permissions_equal_those_of_a_local_file_system",
];

/// Something to run: a program, or one test of it.
struct TestJob {
    binary: TestBinary,
    /// All of them, or one.
    tests: TestSelection,
}

enum TestSelection {
    All,
    /// Those whose names contain the first, as many at a time as the second says.
    Named(String, &'static str),
    One(String),
}

impl TestJob {
    fn name(&self) -> String {
        let TestBinary { package, target, .. } = &self.binary;
        match &self.tests {
            TestSelection::All => format!("{package} {target}"),
            TestSelection::Named(..) => target.clone(),
            TestSelection::One(test) => format!("{target} {test}"),
        }
    }

    fn arguments(&self) -> Vec<&str> {
        match &self.tests {
            TestSelection::All => Vec::new(),
            TestSelection::Named(name, threads) => vec!["--test-threads", threads, name],
            TestSelection::One(test) => vec!["--exact", test],
        }
    }

    /// How it was run, and what came of it.
    fn failed(&self, outcome: TestRunOutcome) -> FailedRun {
        FailedRun {
            name: self.name(),
            binary: self.binary.clone(),
            arguments: self.arguments().into_iter().map(str::to_owned).collect(),
            outcome,
        }
    }

    /// Where it stands in [`LONGEST`].
    fn place(&self) -> usize {
        let is_it = |long: &&str| match &self.tests {
            TestSelection::One(test) => test == *long,
            TestSelection::All | TestSelection::Named(..) => self.binary.target == **long,
        };
        LONGEST.iter().position(is_it).unwrap_or(LONGEST.len())
    }
}

/// Runs all but the tests of whole programs.
pub(super) fn units(binaries: &[TestBinary], tries: RetryPolicy) -> Result<TestSummary> {
    let jobs = binaries
        .iter()
        .filter(|binary| binary.package != WHOLE_PROGRAMS)
        .map(|binary| TestJob {
            binary: binary.clone(),
            tests: TestSelection::All,
        })
        .collect();
    let (sum, failed) = side_by_side(jobs, UNITS)?;
    Ok(sum.and(retry::judge(failed, tries)?))
}

/// Runs the tests of whole programs whose names contain `name`.
pub(super) fn whole_programs(binaries: &[TestBinary], name: &str, tries: RetryPolicy) -> Result<TestSummary> {
    let is_ours = |binary: &&TestBinary| binary.package == WHOLE_PROGRAMS;
    let binaries: Vec<TestBinary> = binaries.iter().filter(is_ours).cloned().collect();
    let together = TOGETHER.map(|(named, _)| named);
    for named in together.iter().chain(&REPLAYS).chain(&ALONE) {
        let is_there = binaries.is_empty() || binaries.iter().any(|binary| binary.target == **named);
        ensure!(is_there, "there are no tests {named}");
    }
    let (mut others, mut replays, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for binary in binaries {
        let is_in = |list: &[&str]| list.contains(&binary.target.as_str());
        let jobs = if is_in(&REPLAYS) {
            &mut replays
        } else if is_in(&ALONE) {
            &mut alone
        } else {
            &mut others
        };
        let threads = TOGETHER.iter().find(|(named, _)| *named == binary.target);
        if let Some((_, threads)) = threads {
            let tests = TestSelection::Named(name.to_owned(), threads);
            jobs.push(TestJob { binary, tests });
        } else {
            let tests = binary.tests(name)?.into_iter().map(TestSelection::One);
            jobs.extend(tests.map(|tests| TestJob {
                binary: binary.clone(),
                tests,
            }));
        }
    }
    let (mut sum, mut failed) = (TestSummary::default(), Vec::new());
    for (jobs, lanes) in [(others, PARALLEL_TESTS), (replays, PARALLEL_REPLAYS), (alone, 1)] {
        let (well, others) = side_by_side(jobs, lanes)?;
        sum = sum.and(well);
        failed.extend(others);
    }
    Ok(sum.and(retry::judge(failed, tries)?))
}

/// The sum of what went well, and what failed.
fn side_by_side(mut jobs: Vec<TestJob>, lanes: usize) -> Result<(TestSummary, Vec<FailedRun>)> {
    jobs.sort_by_key(TestJob::place);
    let waiting = Mutex::new(VecDeque::from(jobs));
    let failed = Mutex::new(Vec::new());
    let lane = || -> Result<TestSummary> {
        let mut sum = TestSummary::default();
        loop {
            let next = lock(&waiting).pop_front();
            let Some(job) = next else {
                return Ok(sum);
            };
            let outcome = job.binary.run(&job.arguments())?;
            report(&job.name(), &outcome);
            if outcome.sum.failed > 0 {
                lock(&failed).push(job.failed(outcome));
            } else {
                sum = sum.and(outcome.sum);
            }
        }
    };
    let sum = std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        running
            .into_iter()
            .try_fold(TestSummary::default(), |sum, thread| {
                anyhow::Ok(sum.and(thread.join().ok().context("a lane panicked")??))
            })
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((sum, failed))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints in one piece what there is to say of what took long or failed.
fn report(name: &str, outcome: &TestRunOutcome) {
    let TestRunOutcome { sum, took, said, .. } = outcome;
    if sum.failed > 0 {
        println!("{:>7.1} s {name}: FAILED\n{said}", took.as_secs_f64());
    } else if *took >= LONG {
        println!("{:>7.1} s {name}", took.as_secs_f64());
    }
}
