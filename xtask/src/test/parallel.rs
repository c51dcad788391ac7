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
const PARALLEL_TESTS: usize = 4;
/// Number of parallel replays; one of them runs two of its tests at a time.
const PARALLEL_REPLAYS: usize = 2;
/// Tests that take longer are reported separately.
const LONG: Duration = Duration::from_secs(10);

/// The directory of whole-program tests.
const WHOLE_PROGRAMS: &str = "tests";
/// A binary whose tests share measurements: they run in one process, with this many threads.
const TOGETHER: (&str, &str) = ("bench", "2");
/// Binaries that replay the recorded workloads in real time: these run in parallel with each other
/// only.
const REPLAYS: [&str; 3] = ["bench", "demo", "explain"];
/// Binaries and tests that compare times, or start thousands of connections or processes: these run
/// alone.
const ALONE: [&str; 6] = [
    "connections",
    "slow_exports",
    "a_thousand_processes_stuck_on_a_stopped_server_die_on_sigkill_while_others_are_served",
    "a_thousand_processes_stuck_on_a_stopped_ganesha_die_on_sigkill_too",
    "a_thousand_processes_stuck_on_a_stopped_knfsd_die_on_sigkill_too",
    "everything_goes_on_when_the_server_does",
];
/// The longest unit tests start first, so that the last one does not run alone for long.
const LONGEST_UNITS: [&str; 7] =
    ["model", "fill", "million_names", "conformance", "listing", "replay", "data"];
/// The longest whole-program tests, likewise.
const LONGEST: [&str; 12] = [
    "bench",
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

    /// Whether this is the name of its binary, or of its test. Names of tests in modules are known
    /// by their last part.
    fn is(&self, name: &str) -> bool {
        let is_test = match &self.tests {
            TestSelection::One(test) => test.rsplit("::").next() == Some(name),
            TestSelection::All | TestSelection::Named(..) => false,
        };
        is_test || self.binary.target == name
    }

    /// Its position in a list of names.
    fn position(&self, names: &[&str]) -> Option<usize> {
        names.iter().position(|name| self.is(name))
    }
}

/// Runs all except whole-program tests.
pub(super) fn units(binaries: &[TestBinary]) -> Result<TestSummary> {
    let jobs = binaries
        .iter()
        .filter(|binary| binary.package != WHOLE_PROGRAMS)
        .map(|binary| TestJob { binary: binary.clone(), tests: TestSelection::All })
        .collect();
    side_by_side(jobs, UNITS, &LONGEST_UNITS)
}

/// Runs the whole-program tests whose names contain `name`.
pub(super) fn whole_programs(binaries: &[TestBinary], name: &str) -> Result<TestSummary> {
    let is_ours = |binary: &&TestBinary| binary.package == WHOLE_PROGRAMS;
    let binaries: Vec<TestBinary> = binaries.iter().filter(is_ours).cloned().collect();
    let mut jobs = Vec::new();
    for binary in binaries {
        if binary.target == TOGETHER.0 {
            let tests = TestSelection::Named(name.to_owned(), TOGETHER.1);
            jobs.push(TestJob { binary, tests });
        } else {
            let tests = binary.tests(name)?.into_iter().map(TestSelection::One);
            jobs.extend(tests.map(|tests| TestJob { binary: binary.clone(), tests }));
        }
    }
    // Without a part of the name all tests are there.
    let mut expected =
        REPLAYS.iter().chain(&ALONE).chain(&LONGEST).filter(|_| name.is_empty() && !jobs.is_empty());
    let unknown = expected.find(|named| !jobs.iter().any(|job| job.is(named)));
    ensure!(unknown.is_none(), "there are no tests {unknown:?}");
    let (alone, jobs): (Vec<_>, _) = jobs.into_iter().partition(|job| job.position(&ALONE).is_some());
    let (replays, others) = jobs.into_iter().partition(|job| job.position(&REPLAYS).is_some());
    let groups = [(others, PARALLEL_TESTS), (replays, PARALLEL_REPLAYS), (alone, 1)];
    groups.into_iter().try_fold(TestSummary::default(), |sum, (jobs, workers)| {
        Ok(sum.and(side_by_side(jobs, workers, &LONGEST)?))
    })
}

/// Runs jobs on this many threads, beginning with the longest.
fn side_by_side(mut jobs: Vec<TestJob>, workers: usize, longest: &[&str]) -> Result<TestSummary> {
    jobs.sort_by_key(|job| job.position(longest).unwrap_or(longest.len()));
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
