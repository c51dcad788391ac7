//! Tests side by side: programs of unit tests as they are, of whole-program tests each test by itself, in a network of its own.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::binaries::{Binary, Outcome};
use super::cargo::Sum;
use super::failures::Failure;

/// How many programs of unit tests run at a time: many of them keep one processor busy.
const UNITS: usize = 2;
/// How many tests of whole programs: they wait for their kernels and servers much of the time.
const LANES: usize = 3;
/// How many of those that replay workloads; one of them runs two of its tests at a time.
const REPLAY_LANES: usize = 2;
/// Whatever takes so long is told of by itself.
const LONG: Duration = Duration::from_secs(10);

/// The folder of whole-program tests.
const WHOLE_PROGRAMS: &str = "tests";
/// Its programs whose tests share what they measured, or each fill the machine with a thousand processes: they stay together, and so
/// many of them run at a time.
const TOGETHER: [(&str, &str); 2] = [("bench", "2"), ("silence", "1")];
/// Its programs that replay the recorded workloads in their own time: these few run side by side, with nothing else.
const REPLAYS: [&str; 3] = ["bench", "demo", "explain"];
/// Its programs that hold times against each other, or leave others no time: nothing else runs beside them.
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
struct Job {
    binary: Binary,
    /// All of them, or one.
    tests: Tests,
}

enum Tests {
    All,
    /// Those whose names contain the first, as many at a time as the second says.
    Named(String, &'static str),
    One(String),
}

impl Job {
    fn name(&self) -> String {
        let Binary { package, target, .. } = &self.binary;
        match &self.tests {
            Tests::All => format!("{package} {target}"),
            Tests::Named(..) => target.clone(),
            Tests::One(test) => format!("{target} {test}"),
        }
    }

    fn run(&self) -> Result<Outcome> {
        match &self.tests {
            Tests::All => self.binary.run(&[]),
            Tests::Named(name, threads) => self.binary.run(&["--test-threads", threads, name]),
            Tests::One(test) => self.binary.run(&["--exact", test]),
        }
    }

    /// Where it stands in [`LONGEST`].
    fn place(&self) -> usize {
        let is_it = |long: &&str| match &self.tests {
            Tests::One(test) => test == *long,
            Tests::All | Tests::Named(..) => self.binary.target == **long,
        };
        LONGEST.iter().position(is_it).unwrap_or(LONGEST.len())
    }
}

/// Runs all but the tests of whole programs.
pub(super) fn units(binaries: &[Binary]) -> Result<Sum> {
    let jobs = binaries
        .iter()
        .filter(|binary| binary.package != WHOLE_PROGRAMS)
        .map(|binary| Job {
            binary: binary.clone(),
            tests: Tests::All,
        })
        .collect();
    side_by_side(jobs, UNITS)
}

/// Runs the tests of whole programs whose names contain `name`.
pub(super) fn whole_programs(binaries: &[Binary], name: &str) -> Result<Sum> {
    let mut sum = Sum::default();
    let is_ours = |binary: &&Binary| binary.package == WHOLE_PROGRAMS;
    let binaries: Vec<Binary> = binaries.iter().filter(is_ours).cloned().collect();
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
            let tests = Tests::Named(name.to_owned(), threads);
            jobs.push(Job { binary, tests });
        } else {
            let tests = binary.tests(name)?.into_iter().map(Tests::One);
            jobs.extend(tests.map(|tests| Job {
                binary: binary.clone(),
                tests,
            }));
        }
    }
    for (jobs, lanes) in [(others, LANES), (replays, REPLAY_LANES), (alone, 1)] {
        sum = sum.and(side_by_side(jobs, lanes)?);
    }
    Ok(sum)
}

fn side_by_side(mut jobs: Vec<Job>, lanes: usize) -> Result<Sum> {
    jobs.sort_by_key(Job::place);
    let waiting = Mutex::new(VecDeque::from(jobs));
    let lane = || -> Result<Sum> {
        let mut sum = Sum::default();
        loop {
            let next = lock(&waiting).pop_front();
            let Some(job) = next else {
                return Ok(sum);
            };
            let mut outcome = job.run()?;
            tell(&job.name(), &outcome);
            if outcome.sum.failed > 0 {
                outcome.sum.failures = Failure::all(&job.name(), &outcome.said);
            }
            sum = sum.and(outcome.sum);
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut sum = Sum::default();
        for thread in running {
            let lane = thread.join().ok().context("a lane panicked")?;
            sum = sum.and(lane?);
        }
        Ok(sum)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints in one piece what there is to say of what took long or failed.
fn tell(name: &str, outcome: &Outcome) {
    let Outcome { sum, took, said, .. } = outcome;
    if sum.failed > 0 {
        println!("{:>7.1} s {name}: FAILED\n{said}", took.as_secs_f64());
    } else if *took >= LONG {
        println!("{:>7.1} s {name}", took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "program of tests": two of its five fail, and it notes that it was run.
    const PROGRAM: &str = "#!/bin/sh
echo run >>\"$0.runs\"
echo 'test shaky ... FAILED'
echo 'test bad ... FAILED'
echo 'test result: FAILED. 3 passed; 2 failed; 0 ignored'
exit 101
";

    #[test]
    fn what_failed_has_failed_and_is_not_run_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("program");
        std::fs::write(&program, PROGRAM).expect("a file");
        let runs = std::process::Command::new("chmod")
            .arg("+x")
            .arg(&program)
            .status();
        assert!(runs.expect("chmod").success());
        let programs = [
            Binary::at(&program, "crate"),
            Binary::at(&program, WHOLE_PROGRAMS),
        ];
        let sum = units(&programs).expect("it runs");
        assert_eq!((sum.passed, sum.failed, sum.failures.len()), (3, 2, 1));
        let runs = std::fs::read_to_string(program.with_extension("runs")).expect("its note");
        assert_eq!(runs, "run\n", "the one that is not of whole programs, once");
    }
}
