//! Runs tests in parallel: unit test binaries as a whole, whole-program tests one test per process,
//! each in its own network.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::binaries::{TestBinary, TestRunOutcome};
use super::cargo::TestSummary;
use super::failures::TestFailure;

/// Number of parallel unit test binaries: many of them use a whole processor.
const UNITS: usize = 2;
/// Number of parallel whole-program tests: they often wait for kernels and servers.
const PARALLEL_TESTS: usize = 3;
/// Number of parallel replays; one of them runs two of its tests at a time.
const PARALLEL_REPLAYS: usize = 2;
/// Tests that take longer are reported separately.
const LONG: Duration = Duration::from_secs(10);

/// The directory of whole-program tests.
const WHOLE_PROGRAMS: &str = "tests";
/// Binaries whose tests share measurements, or each start a thousand processes: they run in one
/// process, with this many threads.
const TOGETHER: [(&str, &str); 2] = [("bench", "2"), ("silence", "1")];
/// Binaries that replay the recorded workloads in real time: these run in parallel with each other
/// only.
const REPLAYS: [&str; 3] = ["bench", "demo", "explain"];
/// Binaries that compare times, or need the whole machine: these run alone.
const ALONE: [&str; 3] = ["connections", "silence", "slow_exports"];
/// The longest tests start first, so that the last one does not run alone for long.
const LONGEST: [&str; 20] = [
    "model",
    "fill",
    "million_names",
    "conformance",
    "listing",
    "replay",
    "data",
    "bench",
    "records_above_their_programs_limit_end_the_connection",
    "linux_writes_at_random",
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

/// A binary, or one of its tests.
struct TestJob {
    binary: TestBinary,
    /// All of its tests, or one.
    tests: TestSelection,
}

enum TestSelection {
    All,
    /// The tests whose names contain the first, with the second as number of threads.
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

    /// Runs it, and prints its output in one piece if it failed or was slow.
    fn run(&self) -> Result<TestSummary> {
        let TestRunOutcome { mut sum, took, output_text } = self.binary.run(&self.arguments())?;
        let (name, seconds) = (self.name(), took.as_secs_f64());
        if sum.failed > 0 {
            println!("{seconds:>7.1} s {name}: FAILED\n{output_text}");
            sum.failures = TestFailure::all(&name, &output_text);
        } else if took >= LONG {
            println!("{seconds:>7.1} s {name}");
        }
        Ok(sum)
    }

    /// Its position in [`LONGEST`].
    fn place(&self) -> usize {
        let is_it = |long: &&str| match &self.tests {
            TestSelection::One(test) => test == *long,
            TestSelection::All | TestSelection::Named(..) => self.binary.target == **long,
        };
        LONGEST.iter().position(is_it).unwrap_or(LONGEST.len())
    }
}

/// Runs all except whole-program tests.
pub(super) fn units(binaries: &[TestBinary]) -> Result<TestSummary> {
    let jobs = binaries
        .iter()
        .filter(|binary| binary.package != WHOLE_PROGRAMS)
        .map(|binary| TestJob { binary: binary.clone(), tests: TestSelection::All })
        .collect();
    side_by_side(jobs, UNITS)
}

/// Runs the whole-program tests whose names contain `name`.
pub(super) fn whole_programs(binaries: &[TestBinary], name: &str) -> Result<TestSummary> {
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
            jobs.extend(tests.map(|tests| TestJob { binary: binary.clone(), tests }));
        }
    }
    let groups = [(others, PARALLEL_TESTS), (replays, PARALLEL_REPLAYS), (alone, 1)];
    groups
        .into_iter()
        .try_fold(TestSummary::default(), |sum, (jobs, workers)| Ok(sum.and(side_by_side(jobs, workers)?)))
}

/// Runs jobs on this many threads.
fn side_by_side(mut jobs: Vec<TestJob>, workers: usize) -> Result<TestSummary> {
    jobs.sort_by_key(TestJob::place);
    let waiting = Mutex::new(VecDeque::from(jobs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || -> Result<TestSummary> {
        let mut sum = TestSummary::default();
        while let Some(job) = next() {
            sum = sum.and(job.run()?);
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        running.into_iter().try_fold(TestSummary::default(), |sum, thread| {
            Ok(sum.and(thread.join().ok().context("a worker panicked")??))
        })
    })
}
