//! `cargo xtask fuzz`: libFuzzer on the targets in `fuzz/`, with cargo-fuzz and a nightly compiler,
//! which are installed if missing. The short check of `cargo xtask test` needs neither.

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
    /// With AddressSanitizer, by cargo-fuzz and a nightly compiler.
    Sanitized,
    /// Without it, by the compiler of the workspace: faster to build, for a short check.
    Plain,
}

/// The instrumentation that libFuzzer needs of a program, as cargo-fuzz chooses it.
const INSTRUMENTED: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

impl FuzzBuild {
    /// The command that builds all targets.
    fn build(self) -> Command {
        match self {
            Self::Sanitized => cargo_fuzz("build", &[]),
            Self::Plain => cargo_plain("build", &["--bins"]),
        }
    }

    /// The command that runs a target; libFuzzer's arguments follow.
    fn run(self, target: &str) -> Command {
        match self {
            Self::Sanitized => cargo_fuzz("run", &[target, "--"]),
            Self::Plain => cargo_plain("run", &["--bin", target, "--"]),
        }
    }
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
    if build == FuzzBuild::Sanitized {
        install()?;
    }
    finish(&mut build.build()).context("building the targets")?;
    let seed = libfuzzer_seed(seed);
    for name in wanted {
        let start = Instant::now();
        let [found, failing] =
            ["target/corpus", "artifacts"].map(|directory| fuzz.join(directory).join(name));
        for directory in [&found, &failing] {
            std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        let mut command = build.run(name);
        command.args([&found, &fuzz.join("corpus").join(name)]);
        command.args([
            format!("-artifact_prefix={}/", failing.display()),
            format!("-max_total_time={seconds}"),
            format!("-max_len={INPUT_MAX}"),
            format!("-rss_limit_mb={MEMORY_MAX}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-seed={seed}"),
        ]);
        let output_text = finish(&mut command).with_context(|| name.to_owned())?;
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
        eprintln!("to install: a nightly toolchain (libFuzzer's instrumentation)");
        let mut command = Command::new("rustup");
        finish(command.args(["toolchain", "install", "nightly", "--profile", "minimal"]))?;
    }
    if !there(Command::new("cargo").args(["fuzz", "--version"])) {
        eprintln!("to install: cargo-fuzz (runs the targets)");
        let mut command = Command::new("cargo");
        finish(command.args(["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ]))?;
    }
    Ok(())
}

/// cargo-fuzz with AddressSanitizer.
fn cargo_fuzz(subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", subcommand, "--sanitizer=address"]).args(arguments);
    // Variables of this toolchain must not affect the other.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command
}

/// cargo for the package of the targets. With `--target` it does not instrument what runs while
/// building.
fn cargo_plain(subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([subcommand, "--manifest-path", "fuzz/Cargo.toml", "--target", "host-tuple"]);
    command.args(arguments).env("RUSTFLAGS", INSTRUMENTED);
    command
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
