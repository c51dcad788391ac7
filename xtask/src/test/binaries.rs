//! Test binaries: their paths, their tests, and running them.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cargo::{self, TestSummary};
use super::{hang, seed};
use crate::root;

/// The time limit of a test binary, or of one of its tests: several times what the longest takes.
const LIMIT: Duration = Duration::from_mins(15);
/// The limit with `CURT_FULL=1`.
const LIMIT_FULL: Duration = Duration::from_hours(2);
/// How long the output of a killed binary is waited for: its children may keep the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

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

/// Has cargo build what `arguments` select, and returns the test binaries among it; none, with a
/// failure, if the build fails.
pub(super) fn build(arguments: &[&str]) -> Result<(TestSummary, Vec<TestBinary>)> {
    const MESSAGES: &str = "--message-format=json-render-diagnostics";
    let mut binaries = Vec::new();
    let built = cargo::run(&[&["build", MESSAGES], arguments].concat(), |line| {
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
        let mut command = self.isolated();
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env(variable, seed)
            .stdin(Stdio::null());
        // The programs of the same build, unless others are to be tested.
        if std::env::var_os("CURT_PROGRAMS").is_none() {
            command.env("CURT_PROGRAMS", root().join("target/debug"));
        }
        command
    }

    /// The binary, in a mount namespace of its own where root runs it. A test that makes a
    /// mount namespace copies each mount of its binary: in a common namespace also those of other
    /// binaries, whose sessions would not end when they unmount.
    fn isolated(&self) -> Command {
        if !rustix::process::geteuid().is_root() {
            return Command::new(&self.path);
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(&self.path);
        command
    }

    /// Runs it with these arguments, and with `CURT_FULL=1` its ignored tests too. It is killed,
    /// and has failed, if it exceeds the time limit.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<TestRunOutcome> {
        if std::env::var_os("CURT_FULL").is_some() {
            self.run_within(LIMIT_FULL, &[arguments, &["--include-ignored"]].concat())
        } else {
            self.run_within(LIMIT, arguments)
        }
    }

    fn run_within(&self, limit: Duration, arguments: &[&str]) -> Result<TestRunOutcome> {
        let start = Instant::now();
        let mut output = Output::default();
        let (reader, writer) = std::io::pipe().context("a pipe")?;
        let mut command = self.command(arguments);
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| self.path.display().to_string())?;
        // It keeps the pipe's other end open.
        drop(command);
        let lines = lines_of(reader);
        let well = if output.read(&lines, limit) {
            child.wait()?.success()
        } else {
            let report = hang::report(child.id());
            kill(&mut child)?;
            output.read(&lines, LAST_OUTPUT);
            output.text.push_str(&format!("Error: it did not end within {} s\n", limit.as_secs()));
            output.text.push_str(&report);
            false
        };
        // Without test results this is one check; a killed process reports no failure.
        let mut sum = match (well, output.results) {
            (true, None) => TestSummary::success(),
            (true | false, results) => results.unwrap_or_default(),
        };
        if !well {
            sum.failed = sum.failed.max(1);
        }
        Ok(TestRunOutcome { sum, took: start.elapsed(), output_text: output.text })
    }
}

fn kill(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// The output of a test binary.
#[derive(Default)]
struct Output {
    results: Option<TestSummary>,
    /// The lines to show.
    text: String,
}

impl Output {
    /// Reads lines until the end of the output; returns false if `limit` passes before.
    fn read(&mut self, lines: &Receiver<String>, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.add(&line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return true,
                Err(mpsc::RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    fn add(&mut self, line: &str) {
        if let Some(results) = cargo::results(line) {
            self.results = Some(self.results.take().unwrap_or_default().and(results));
        }
        if !cargo::is_usual(line) {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }
}

/// The lines of an output, from a thread that ends with the output.
fn lines_of(reader: PipeReader) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
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

    #[test]
    fn a_binary_that_hangs_is_killed_and_its_threads_are_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hangs");
        let script = "#!/bin/sh\necho test a has been running for over 60 seconds\nexec sleep 100\n";
        std::fs::write(&path, script).expect("a script");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("an executable");
        let (package, target) = ("x".to_owned(), "hangs".to_owned());
        let hanging = TestBinary { package, target, path, directory: directory.path().to_owned() };
        // Enough for the script to begin its sleep, also on a busy machine.
        let outcome = hanging.run_within(Duration::from_secs(15), &[]).expect("a run");
        assert_eq!(outcome.sum.failed, 1);
        for part in ["test a has been running", "did not end within", "sleep"] {
            assert!(outcome.output_text.contains(part), "{}", outcome.output_text);
        }
    }
}
