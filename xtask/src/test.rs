//! `cargo xtask test`: all checks and tests, each part with its time, and one line of sums at the end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{packages, root, tidy};

/// Which parts are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    WithoutWholePrograms,
    WholePrograms(String),
}

impl Scope {
    pub(crate) fn new(quick: bool, only: Option<String>) -> Self {
        match (quick, only) {
            (_, Some(name)) => Self::WholePrograms(name),
            (true, None) => Self::WithoutWholePrograms,
            (false, None) => Self::All,
        }
    }
}

/// How many passed and failed, of tests or of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: u64,
    failed: u64,
}

struct Part {
    name: &'static str,
    took: Duration,
    sum: Sum,
}

/// Runs the parts; whether all is well.
///
/// # Errors
/// cargo cannot be started.
pub(crate) fn run(scope: &Scope) -> Result<bool> {
    let mut parts = Vec::new();
    if *scope != Scope::WithoutWholePrograms {
        part(&mut parts, "packages", || {
            checked(packages::install().map(|()| true))
        });
    }
    if !matches!(scope, Scope::WholePrograms(_)) {
        part(&mut parts, "format", || cargo(&["fmt", "--all", "--check"]));
        part(&mut parts, "tidy", || checked(tidy::run(&root())));
        part(&mut parts, "clippy", || {
            cargo(&[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])
        });
        // What is there is tested although something else failed: one run says everything.
        part(&mut parts, "unit tests", || {
            cargo(&["test", "--workspace", "--exclude", "curt-tests", "--no-fail-fast"])
        });
    }
    match scope {
        Scope::WithoutWholePrograms => {}
        Scope::All => whole_programs(&mut parts, ""),
        Scope::WholePrograms(name) => whole_programs(&mut parts, name),
    }
    Ok(report(&parts))
}

fn whole_programs(parts: &mut Vec<Part>, name: &str) {
    let programs = [
        "build",
        "--release",
        "-p",
        "curt",
        "-p",
        "curt-bench",
        "-p",
        "curt-tests",
        "--bins",
    ];
    part(parts, "release build", || cargo(&programs));
    // One after the other: some hold a count against the time that a run took, and there may be two processors.
    part(parts, "whole programs", || {
        cargo(&[
            "test",
            "-p",
            "curt-tests",
            "--no-fail-fast",
            "--",
            "--test-threads",
            "1",
            name,
        ])
    });
}

fn part(parts: &mut Vec<Part>, name: &'static str, work: impl FnOnce() -> Result<Sum>) {
    println!("== {name}");
    let start = Instant::now();
    let sum = work().unwrap_or_else(|error| {
        println!("{error:#}");
        Sum { passed: 0, failed: 1 }
    });
    let took = start.elapsed();
    println!(
        "== {name}: {:.1} s, {}",
        took.as_secs_f64(),
        if sum.failed == 0 { "well" } else { "FAILED" }
    );
    parts.push(Part { name, took, sum });
}

fn report(parts: &[Part]) -> bool {
    println!(
        "\n{:<16} {:>8} {:>8} {:>8}",
        "part", "seconds", "passed", "failed"
    );
    let mut all = Sum::default();
    for Part { name, took, sum } in parts {
        println!(
            "{name:<16} {:>8.1} {:>8} {:>8}",
            took.as_secs_f64(),
            sum.passed,
            sum.failed
        );
        all = Sum {
            passed: all.passed + sum.passed,
            failed: all.failed + sum.failed,
        };
    }
    println!(
        "{:<16} {:>8.1}\n",
        "all",
        parts.iter().map(|part| part.took).sum::<Duration>().as_secs_f64()
    );
    println!("{} passed, {} failed", all.passed, all.failed);
    all.failed == 0
}

fn checked(well: Result<bool>) -> Result<Sum> {
    Ok(if well? {
        Sum { passed: 1, failed: 0 }
    } else {
        Sum { passed: 0, failed: 1 }
    })
}

/// Runs cargo, shows what it prints, and adds up the results of the tests that it runs. What runs no tests counts as one check.
fn cargo(arguments: &[&str]) -> Result<Sum> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.env("CURT_PROGRAMS", root().join("target/release"));
    let mut child = command.spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut sum = Sum::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(results) = results(&line) {
            sum = Sum {
                passed: sum.passed + results.passed,
                failed: sum.failed + results.failed,
            };
        }
        // Tests that went well are many, and the sums tell of them.
        if !(line.is_empty()
            || line.starts_with("test ") && line.ends_with(" ... ok")
            || line.starts_with("running "))
        {
            println!("{line}");
        }
    }
    let well = child.wait()?.success();
    // A failure that no test's result tells of: it did not compile, or a test's process died.
    if !well && sum.failed == 0 {
        sum.failed = 1;
    }
    if well && sum.passed == 0 {
        sum.passed = 1;
    }
    Ok(sum)
}

/// `test result: ok. 3 passed; 0 failed; …`
fn results(line: &str) -> Option<Sum> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| {
        let (before, _) = counts.split_once(name)?;
        before.trim_end().rsplit([' ', ';']).next()?.parse().ok()
    };
    Some(Sum {
        passed: count(" passed")?,
        failed: count(" failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_test_binary_are_understood() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(
            results(line),
            Some(Sum {
                passed: 12,
                failed: 3
            })
        );
        assert_eq!(results("test a::b ... ok"), None);
    }
}
