//! Runs cargo and parses the output of tests.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::failures::TestFailure;
use crate::root;

/// Number of passed and failed tests or checks, and the failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TestSummary {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) failures: Vec<TestFailure>,
}

impl TestSummary {
    /// One successful check.
    pub(super) fn success() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// One failed check, and why.
    pub(super) fn failure(failure: TestFailure) -> Self {
        Self { failed: 1, failures: vec![failure], ..Self::default() }
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self.failures.extend(other.failures);
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed, ..self }
    }
}

/// Runs cargo, shows its output, and adds up the results of its tests. Without tests it counts as
/// one check.
pub(super) fn cargo(arguments: &[&str]) -> Result<TestSummary> {
    let mut output_text = String::new();
    let mut sum = run(arguments, |line| {
        if !is_usual(line) {
            println!("{line}");
            output_text.push_str(line);
            output_text.push('\n');
        }
    })?;
    if sum.failed > 0 {
        sum.failures = TestFailure::all(&format!("cargo {}", arguments.join(" ")), &output_text);
    }
    Ok(sum)
}

/// Lines of passed tests are not shown, because there are many.
pub(super) fn is_usual(line: &str) -> bool {
    line.is_empty()
        || passed(line).is_some()
        || line.starts_with("running ")
        || results(line).is_some_and(|sum| sum.failed == 0)
}

/// The name of the passed test of a line.
fn passed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... ok")
}

/// Runs cargo; `hear` gets each line.
pub(super) fn run(arguments: &[&str], mut hear: impl FnMut(&str)) -> Result<TestSummary> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut sum = TestSummary::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(results) = results(&line) {
            sum = sum.and(results);
        }
        hear(&line);
    }
    let well = child.wait()?.success();
    // A failure without a failed test: a compile error, or a killed test process.
    if !well && sum.failed == 0 {
        sum.failed = 1;
    }
    if well && sum.passed == 0 {
        sum.passed = 1;
    }
    Ok(sum)
}

/// `test result: ok. 3 passed; 0 failed; …`
pub(super) fn results(line: &str) -> Option<TestSummary> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| {
        let (before, _) = counts.split_once(name)?;
        before.trim_end().rsplit([' ', ';']).next()?.parse().ok()
    };
    Some(TestSummary { passed: count(" passed")?, failed: count(" failed")?, ..TestSummary::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_well_is_usual() {
        assert_eq!(passed("test a::b ... ok"), Some("a::b"));
        assert_eq!(passed("test a::b ... FAILED"), None);
        assert!(is_usual("test a::b ... ok") && is_usual("running 3 tests") && is_usual(""));
        for line in ["test a::b ... FAILED", "test result: ok. 1 passed", "thread panicked"] {
            assert!(!is_usual(line), "{line}");
        }
    }

    #[test]
    fn results_of_a_test_binary_are_understood() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(results(line), Some(TestSummary { passed: 12, failed: 3, ..TestSummary::default() }));
        assert_eq!(results("test a::b ... ok"), None);
    }
}
