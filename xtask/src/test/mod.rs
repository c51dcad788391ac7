//! `cargo xtask test`: all checks and tests, each part with its time, and a summary line.

mod binaries;
mod cargo;
mod failures;
mod hang;
mod parallel;
mod seed;

use std::time::{Duration, Instant};

use anyhow::Result;
use cargo::{TestSummary, cargo};
use failures::TestFailure;
pub(crate) use seed::TestSeed;

use crate::{fuzz, packages, root, tidy};

/// Seconds per fuzz target: enough to check that it runs and that known inputs pass.
const FUZZ_SECONDS: u32 = 2;

/// The selected parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TestScope {
    All,
    WithoutWholePrograms,
    WholePrograms(String),
}

impl TestScope {
    pub(crate) fn new(quick: bool, only: Option<String>) -> Self {
        match (quick, only) {
            (_, Some(name)) => Self::WholePrograms(name),
            (true, None) => Self::WithoutWholePrograms,
            (false, None) => Self::All,
        }
    }
}

struct TestPart {
    name: &'static str,
    took: Duration,
    sum: TestSummary,
}

impl TestPart {
    fn panicked(name: &'static str) -> Self {
        let sum = TestSummary::failure(TestFailure::of(name, "it panicked"));
        Self { name, took: Duration::ZERO, sum }
    }
}

/// Runs the parts; returns whether all succeeded.
///
/// # Errors
/// cargo cannot be started.
pub(crate) fn run(scope: &TestScope, seed: TestSeed) -> Result<bool> {
    seed.choose()?;
    let start = Instant::now();
    let mut parts = Vec::new();
    // Only whole-program tests need them: they are installed while cargo builds.
    let packages = (*scope != TestScope::WithoutWholePrograms).then(|| std::thread::spawn(packages::install));
    if !matches!(scope, TestScope::WholePrograms(_)) {
        part(&mut parts, "format", || cargo(&["fmt", "--all", "--check"]));
        part(&mut parts, "tidy", || checked("tidy", tidy::run(&root())));
        if *scope == TestScope::WithoutWholePrograms {
            part(&mut parts, "clippy", clippy);
            part(&mut parts, "documentation", documentation);
        }
    }
    let mut programs = Vec::new();
    // Everything in one build, tests and the programs that they run: for some crates alone cargo
    // would choose other features of their dependencies, and rebuild most of them.
    let wanted: &[&str] = match scope {
        TestScope::All => &["--workspace", "--bins", "--tests"],
        TestScope::WithoutWholePrograms => &["--workspace", "--exclude", "curt-tests", "--tests"],
        TestScope::WholePrograms(_) => {
            &["-p", "curt", "-p", "curt-tools-bench", "-p", "curt-tests", "--bins", "--tests"]
        }
    };
    part(&mut parts, "build", || {
        let (sum, built) = binaries::build(wanted)?;
        programs = built;
        Ok(sum)
    });
    if let Some(packages) = packages {
        part(&mut parts, "packages", || {
            let installed = packages.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
            checked("packages", installed.map(|()| true))
        });
    }
    match scope {
        TestScope::WithoutWholePrograms => units(&mut parts, &programs),
        TestScope::All => std::thread::scope(|scope| {
            let aside = scope.spawn(|| aside(&programs));
            part(&mut parts, "whole programs", || parallel::whole_programs(&programs, ""));
            let start = Instant::now();
            let aside = aside.join().unwrap_or_else(|_| vec![TestPart::panicked("the parts aside")]);
            println!("== the parts aside ended {:.1} s later", start.elapsed().as_secs_f64());
            parts.extend(aside);
        }),
        TestScope::WholePrograms(name) => {
            part(&mut parts, "whole programs", || parallel::whole_programs(&programs, name));
        }
    }
    Ok(report(&parts, start.elapsed()))
}

fn clippy() -> Result<TestSummary> {
    cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

/// Links in documentation lead to items that a reader of it can open.
fn documentation() -> Result<TestSummary> {
    cargo(&["doc", "--quiet", "--no-deps", "--workspace"])
}

/// The parts that need no other program. They compute more than they wait; so they run beside the
/// whole-program tests, which wait more than they compute, with lower priority.
fn aside(programs: &[binaries::TestBinary]) -> Vec<TestPart> {
    /// Unit tests do not starve even if all processors are busy.
    const LOWER: i32 = 10;
    const LEAST: i32 = 19;
    let mut parts = Vec::new();
    lower_priority(LOWER);
    units(&mut parts, programs);
    lower_priority(LEAST - LOWER);
    part(&mut parts, "fuzzing", || {
        let fuzzed = fuzz::run(None, FUZZ_SECONDS, fuzz::FuzzBuild::Plain, Some(seed::chosen()));
        checked("fuzzing", fuzzed.map(|()| true))
    });
    part(&mut parts, "clippy", clippy);
    part(&mut parts, "documentation", documentation);
    parts
}

/// Lowers the priority of this thread and of the processes and threads that it starts.
fn lower_priority(by: i32) {
    if let Err(errno) = rustix::process::nice(by) {
        println!("the priority stays as it is: {errno}");
    }
}

/// Unit tests run even if something else failed, so that one run shows all failures. There are no
/// tests in documentation: for these cargo would build all crates once more.
fn units(parts: &mut Vec<TestPart>, programs: &[binaries::TestBinary]) {
    part(parts, "unit tests", || parallel::units(programs));
}

fn part(parts: &mut Vec<TestPart>, name: &'static str, work: impl FnOnce() -> Result<TestSummary>) {
    println!("== {name}");
    let start = Instant::now();
    let sum = work().unwrap_or_else(|error| failed(name, &error));
    let took = start.elapsed();
    println!("== {name}: {:.1} s, {}", took.as_secs_f64(), if sum.failed == 0 { "well" } else { "FAILED" });
    parts.push(TestPart { name, took, sum });
}

/// Prints the parts, some of which ran beside others, and the time of all.
fn report(parts: &[TestPart], took: Duration) -> bool {
    println!("\n{:<16} {:>8} {:>8} {:>8}", "part", "seconds", "passed", "failed");
    let mut all = TestSummary::default();
    for TestPart { name, took, sum } in parts {
        println!("{name:<16} {:>8.1} {:>8} {:>8}", took.as_secs_f64(), sum.passed, sum.failed);
        all = all.and(sum.clone());
    }
    println!("{:<16} {:>8.1}\n", "all", took.as_secs_f64());
    conclusion(&all)
}

/// Prints the failures at the end; returns whether all succeeded.
fn conclusion(all: &TestSummary) -> bool {
    let TestSummary { passed, failed, failures } = all;
    for failure in failures {
        println!("FAILED {failure}\n");
    }
    if *failed > 0 {
        println!("all choices at random followed from seed {}", seed::chosen());
    }
    println!("{passed} passed, {failed} failed");
    *failed == 0
}

fn checked(name: &str, well: Result<bool>) -> Result<TestSummary> {
    let failure = || TestSummary::failure(TestFailure::of(name, "see its output"));
    Ok(if well? { TestSummary::success() } else { failure() })
}

/// A part that could not run at all; prints the error.
fn failed(name: &str, error: &anyhow::Error) -> TestSummary {
    let output_text = format!("{error:#}");
    println!("{output_text}");
    TestSummary::failure(TestFailure::of(name, &output_text))
}
