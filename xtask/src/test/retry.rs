//! Failed tests run once more, alone, so that one unsteady test does not hide the other results of
//! a run. Some 1,500 tests share two processors with kernels, servers and each other; a permanent
//! fault fails twice. A test that passes only alone is reported by name with its failure, as
//! UNSTEADY: a defect of the test or of the code, which has to be fixed (CONTRIBUTING.md).

use anyhow::Result;

use super::binaries::{TestBinary, TestRunOutcome};
use super::cargo::{self, TestSummary};
use super::failures::TestFailure;

/// Maximum number of unsteady tests of one run. If more fail, something is broken, and nothing is
/// run again.
pub(super) const UNSTEADY_MAX: usize = 3;

/// How often a failed test is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    One,
    Two,
}

/// A failed binary, and its output.
pub(super) struct FailedRun {
    /// Its name in reports.
    pub(super) name: String,
    pub(super) binary: TestBinary,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    pub(super) outcome: TestRunOutcome,
}

/// The result of failed binaries, after running failed tests again.
///
/// # Errors
/// A binary cannot be started.
pub(super) fn judge(failed: Vec<FailedRun>, tries: RetryPolicy) -> Result<TestSummary> {
    let tests: u64 = failed.iter().map(|program| program.outcome.sum.failed).sum();
    let is_tried = tries == RetryPolicy::Two && tests <= UNSTEADY_MAX as u64;
    failed.into_iter().try_fold(TestSummary::default(), |sum, program| {
        Ok(sum.and(if is_tried { program.again()? } else { program.sum() }))
    })
}

impl FailedRun {
    /// The result without running again.
    fn sum(self) -> TestSummary {
        TestSummary { failures: TestFailure::all(&self.name, &self.outcome.output_text), ..self.outcome.sum }
    }

    /// Runs each failed test alone, or all if the binary died without naming one.
    fn again(self) -> Result<TestSummary> {
        let names: Vec<&str> = self.outcome.output_text.lines().filter_map(cargo::failed).collect();
        let mut trials: Vec<Vec<&str>> = names.iter().map(|name| vec!["--exact", *name]).collect();
        if trials.is_empty() {
            trials.push(self.arguments.iter().map(String::as_str).collect());
        }
        let mut steady = true;
        for arguments in trials {
            println!("{}: once more, by itself: {}", self.name, arguments.join(" "));
            let TestRunOutcome { sum, output_text, .. } = self.binary.run(&arguments)?;
            if sum.failed > 0 {
                println!("it failed again:\n{output_text}");
                steady = false;
            }
        }
        let sum = self.sum();
        Ok(if steady { sum.made_unsteady() } else { sum })
    }
}

impl TestSummary {
    /// All failed tests have passed since.
    fn made_unsteady(self) -> Self {
        Self { passed: self.passed + self.failed, failed: 0, failures: Vec::new(), unsteady: self.failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A binary with five tests: `shaky` fails in parallel, `bad` always. It records how it was
    /// run.
    const PROGRAM: &str = "#!/bin/sh
echo \"run $*\" >>\"$0.runs\"
passed=3 failed=0
fails() { failed=$((failed + 1)); echo \"test $1 ... FAILED\"; }
case \"$*\" in *bad* | '') fails bad ;; esac
case \"$*\" in '') fails shaky ;; esac
[ $failed = 0 ] && echo 'test result: ok. 1 passed; 0 failed; 0 ignored' && exit
echo \"test result: FAILED. $passed passed; $failed failed; 0 ignored\"
exit 101
";

    /// Runs the modified binary and judges it; returns the result and its record.
    fn judged(program: &str, tries: RetryPolicy) -> (TestSummary, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("program");
        // Another process writes it: a file that this process has open for writing could not be
        // executed by a child of another test.
        let made = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" >\"$2\" && chmod +x \"$2\"", "sh", program])
            .arg(&path)
            .status();
        assert!(made.expect("sh").success());
        let binary = TestBinary::at(&path, "crate");
        let failed = FailedRun {
            name: "crate none".to_owned(),
            outcome: binary.run(&[]).expect("it runs"),
            binary,
            arguments: Vec::new(),
        };
        let sum = judge(vec![failed], tries).expect("it runs");
        let noted = std::fs::read_to_string(path.with_extension("runs")).expect("its notes");
        (sum, noted)
    }

    #[test]
    fn what_fails_twice_has_failed_and_what_failed_beside_it_too() {
        let (sum, noted) = judged(PROGRAM, RetryPolicy::Two);
        assert_eq!((sum.passed, sum.failed, sum.unsteady.len()), (3, 2, 0));
        assert_eq!(noted, "run \nrun --exact bad\nrun --exact shaky\n");
    }

    #[test]
    fn what_passes_by_itself_is_unsteady() {
        let (sum, noted) = judged(&PROGRAM.replace("'') fails bad", "'') true"), RetryPolicy::Two);
        assert_eq!((sum.passed, sum.failed), (4, 0));
        assert_eq!(sum.unsteady.len(), 1);
        assert_eq!(noted, "run \nrun --exact shaky\n");
    }

    #[test]
    fn a_program_that_dies_is_run_again_as_it_was() {
        let dying = "#!/bin/sh\necho run >>\"$0.runs\"\n[ $(wc -l <\"$0.runs\") = 2 ] || kill -9 $$\n";
        let (sum, noted) = judged(dying, RetryPolicy::Two);
        assert_eq!((sum.failed, sum.unsteady.len()), (0, 1));
        assert_eq!(noted, "run\nrun\n");
    }

    #[test]
    fn nothing_is_tried_again_where_much_fails_or_where_nobody_wants_it() {
        let (sum, noted) = judged(PROGRAM, RetryPolicy::One);
        assert_eq!((sum.failed, noted.as_str()), (2, "run \n"));
        let much = PROGRAM.replace("failed=0", "failed=3");
        let (sum, noted) = judged(&much, RetryPolicy::Two);
        assert_eq!((sum.failed, noted.as_str()), (5, "run \n"));
    }
}
