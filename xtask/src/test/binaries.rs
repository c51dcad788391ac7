//! Test binaries: their paths, their tests, and running them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cargo::{self, TestSummary};
use super::seed;
use crate::root;

/// A test binary.
#[derive(Clone, Debug)]
pub(super) struct TestBinary {
    /// The name of the crate's directory, and the target's.
    pub(super) package: String,
    pub(super) target: String,
    path: PathBuf,
    /// The working directory, as with cargo.
    directory: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct TestRunOutcome {
    pub(super) sum: TestSummary,
    pub(super) took: Duration,
    /// The output to show.
    pub(super) output_text: String,
}

/// Has cargo build the tests that `arguments` select, and returns their binaries; none, with a
/// failure, if the build fails.
pub(super) fn build(arguments: &[&str]) -> Result<(TestSummary, Vec<TestBinary>)> {
    const MESSAGES: &str = "--message-format=json-render-diagnostics";
    let mut binaries = Vec::new();
    let built = cargo::run(&[&["test", "--no-run", MESSAGES], arguments].concat(), |line| {
        binaries.extend(binary(line));
    })?;
    if built.failed > 0 {
        binaries.clear();
    }
    Ok((TestSummary { passed: 0, ..built }, binaries))
}

/// The test binary in a message of cargo.
fn binary(line: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    Some(TestBinary {
        package: directory.file_name()?.to_str()?.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
        directory,
    })
}

impl TestBinary {
    /// The tests whose names contain `name`.
    pub(super) fn tests(&self, name: &str) -> Result<Vec<String>> {
        let output = self.command(&["--list", "--format", "terse", name]).output()?;
        ensure!(output.status.success(), "{} lists no tests", self.path.display());
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let (variable, seed) = seed::variable();
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("CURT_PROGRAMS", root().join("target/release"))
            .env(variable, seed)
            .stdin(Stdio::null());
        command
    }

    /// Runs it with these arguments.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<TestRunOutcome> {
        let start = Instant::now();
        let mut output_text = String::new();
        let mut heard: Option<TestSummary> = None;
        let (mut reader, writer) = std::io::pipe().context("a pipe")?;
        let mut command = self.command(arguments);
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| self.path.display().to_string())?;
        // It keeps the pipe's other end open.
        drop(command);
        for line in BufReader::new(&mut reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            if let Some(results) = cargo::results(&line) {
                heard = Some(heard.unwrap_or_default().and(results));
            }
            if !cargo::is_usual(&line) {
                output_text.push_str(&line);
                output_text.push('\n');
            }
        }
        let well = child.wait()?.success();
        // Without test results this is one check; a killed process reports no failure.
        let mut sum = match (well, heard) {
            (true, None) => TestSummary::success(),
            (true | false, heard) => heard.unwrap_or_default(),
        };
        if !well {
            sum.failed = sum.failed.max(1);
        }
        Ok(TestRunOutcome { sum, took: start.elapsed(), output_text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_distinguished_from_other_artifacts() {
        let message = |profile: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/crates/client/Cargo.toml","target":{{"kind":["test"],"name":"data"}},"profile":{{"test":{profile}}},"executable":"/x/target/debug/deps/data-1"}}"#
            )
        };
        let found = binary(&message("true")).expect("a program of tests");
        assert_eq!((found.package.as_str(), found.target.as_str()), ("client", "data"));
        assert_eq!(found.directory, PathBuf::from("/x/crates/client"));
        assert!(binary(&message("false")).is_none());
        assert!(binary(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(binary("   Compiling x").is_none());
    }
}
