//! Summaries of failures, for the end of a run's output.

/// Maximum number of lines of a failure, and of characters of a line.
const LINES: usize = 10;
const CHARACTERS: usize = 300;

/// A test, or another check, that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestFailure {
    name: String,
    reason: Vec<String>,
}

impl TestFailure {
    /// The failure of a check with this output.
    pub(super) fn of(name: &str, output_text: &str) -> Self {
        Self { name: name.to_owned(), reason: reason(output_text) }
    }

    /// The failed tests in a program's output; the program itself, if there are none.
    pub(super) fn all(program: &str, output_text: &str) -> Vec<Self> {
        let mut tests: Vec<(&str, String)> = Vec::new();
        let mut is_within = false;
        for line in output_text.lines() {
            if let Some(test) = test_of(line) {
                tests.push((test, String::new()));
                is_within = true;
            } else if line == "failures:" {
                is_within = false;
            } else if let (true, Some((_, text))) = (is_within, tests.last_mut()) {
                text.push_str(line);
                text.push('\n');
            }
        }
        if tests.is_empty() {
            return vec![Self::of(program, output_text)];
        }
        let failure = |(test, text): &(&str, String)| Self::of(&format!("{program}: {test}"), text);
        tests.iter().map(failure).collect()
    }
}

impl std::fmt::Display for TestFailure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.name)?;
        self.reason.iter().try_for_each(|line| write!(formatter, "\n    {line}"))
    }
}

/// The test whose output follows a line.
fn test_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The relevant lines: from the panic or error on, or the last lines.
fn reason(output_text: &str) -> Vec<String> {
    let is_worth = |line: &&str| !line.trim().is_empty() && !line.starts_with("note: ");
    let lines: Vec<&str> = output_text.lines().filter(is_worth).collect();
    let is_begin = |line: &&str| line.contains("panicked at ") || line.starts_with("Error: ");
    let last = lines.len().saturating_sub(LINES);
    let begin = lines.iter().position(is_begin).unwrap_or(last);
    let reasons = lines[begin..].iter().take(LINES);
    reasons.map(|line| line.chars().take(CHARACTERS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "test a ... FAILED

failures:

---- a stdout ----
what it printed
thread 'a' (7) panicked at x.rs:1:2:
assertion failed
  left: 1
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- b::c stdout ----
Error: not within 60 s

Caused by:
    nothing

failures:
    a
    b::c
";

    #[test]
    fn each_test_is_reported_with_its_panic_or_error() {
        let reasons: Vec<_> =
            TestFailure::all("client data", SAID).iter().map(TestFailure::to_string).collect();
        assert_eq!(
            reasons,
            [
                "client data: a\n    thread 'a' (7) panicked at x.rs:1:2:\n    assertion failed\n      left: 1",
                "client data: b::c\n    Error: not within 60 s\n    Caused by:\n        nothing",
            ]
        );
    }

    #[test]
    fn a_killed_program_is_reported_with_its_last_lines_and_long_output_is_cut() {
        let output_text = (0..30).map(|number| format!("{number} {}\n", "é".repeat(400)));
        let failures = TestFailure::all("x", &output_text.collect::<String>());
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].reason.len(), LINES);
        assert!(failures[0].reason[0].starts_with("20 é"));
        assert!(failures[0].reason.iter().all(|line| line.chars().count() == CHARACTERS));
    }
}
