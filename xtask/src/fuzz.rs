//! `cargo xtask fuzz`: libFuzzer on the targets in `fuzz/`, with cargo-fuzz and a nightly compiler,
//! which are installed if missing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::root;

/// The version of cargo-fuzz to install.
const CARGO_FUZZ: &str = "^0.13";
/// Maximum size of an input in bytes: enough for several calls in one.
const INPUT_MAX: u32 = 2048;
/// Maximum memory of a target in MiB, including AddressSanitizer's: input must not cause unbounded
/// allocation.
const MEMORY_MAX: u32 = 2048;
/// Timeout of one input in seconds, on a busy machine.
const INPUT_SECONDS: u32 = 20;

/// How to build the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FuzzBuild {
    /// With AddressSanitizer.
    Sanitized,
    /// Without it: faster to build and run, for a short check.
    Plain,
}

/// Runs one target, or all of them, for `seconds` each; without a seed each run is different. New
/// inputs are stored outside the repository, in `fuzz/target/corpus`.
///
/// # Errors
/// There is no such target, a tool cannot be installed, or a target found a failing input (it is
/// named).
pub(crate) fn run(target: Option<&str>, seconds: u32, build: FuzzBuild, seed: Option<u64>) -> Result<()> {
    let fuzz = root().join("fuzz");
    let known = targets(&fuzz)?;
    let wanted: Vec<&str> = match target {
        None => known.iter().map(String::as_str).collect(),
        Some(name) if known.iter().any(|it| it == name) => vec![name],
        Some(name) => bail!("there is no target {name}; there are {}", known.join(", ")),
    };
    install()?;
    let sanitizer = match build {
        FuzzBuild::Sanitized => "--sanitizer=address",
        FuzzBuild::Plain => "--sanitizer=none",
    };
    cargo_fuzz(&["build", sanitizer], "building the targets")?;
    let seed = libfuzzer_seed(seed);
    for name in wanted {
        let start = Instant::now();
        let found = fuzz.join("target/corpus").join(name);
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let corpus = fuzz.join("corpus").join(name);
        let limits = [
            format!("-max_total_time={seconds}"),
            format!("-max_len={INPUT_MAX}"),
            format!("-rss_limit_mb={MEMORY_MAX}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-seed={seed}"),
        ];
        let directories = [&found, &corpus].map(|path| path.display().to_string());
        let mut arguments = vec!["run", sanitizer, name];
        arguments.extend(directories.iter().map(String::as_str));
        arguments.push("--");
        arguments.extend(limits.iter().map(String::as_str));
        let output_text = cargo_fuzz(&arguments, name)?;
        let done = output_text.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("done");
        println!("{name}: {done} ({:.0} s)", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The seed in libFuzzer's range, in which 0 means none.
fn libfuzzer_seed(seed: Option<u64>) -> u64 {
    seed.map_or(0, |seed| seed % u64::from(u32::MAX) + 1)
}

/// The targets: one file each.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(fuzz.join("targets"))? {
        if let Some(name) = entry?.path().file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Installs a nightly compiler and cargo-fuzz if they are missing.
fn install() -> Result<()> {
    let there = |command: &mut Command| {
        let exit = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        exit.is_ok_and(|status| status.success())
    };
    let nightly = there(Command::new("rustup").args(["run", "nightly", "rustc", "--version"]));
    if !nightly {
        println!("to install: a nightly toolchain (libFuzzer's instrumentation)");
        let mut command = Command::new("rustup");
        finish(command.args(["toolchain", "install", "nightly", "--profile", "minimal"]))?;
    }
    if !there(Command::new("cargo").args(["fuzz", "--version"])) {
        println!("to install: cargo-fuzz (runs the targets)");
        let mut command = Command::new("cargo");
        finish(command.args(["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ]))?;
    }
    Ok(())
}

fn cargo_fuzz(arguments: &[&str], what: &str) -> Result<String> {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).args(arguments);
    // Variables of this toolchain must not affect the other.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    finish(&mut command).with_context(|| what.to_owned())
}

/// Runs a command in the repository and returns its output; an error if it fails.
fn finish(command: &mut Command) -> Result<String> {
    let output = command
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{}\n{output_text}", output.status);
    Ok(output_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_corpus_and_a_binary() -> Result<()> {
        let fuzz = root().join("fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml"))?;
        let targets = targets(&fuzz)?;
        assert!(!targets.is_empty());
        for name in targets {
            assert!(manifest.contains(&format!("\"{name}\"")), "{name} is not in Cargo.toml");
            assert!(fuzz.join("corpus").join(&name).is_dir(), "{name} has no corpus");
        }
        Ok(())
    }

    #[test]
    fn an_unknown_target_is_refused_by_name() {
        let error = run(Some("nonsense"), 1, FuzzBuild::Plain, None).expect_err("no such target");
        assert!(error.to_string().contains("nonsense"));
    }
}
