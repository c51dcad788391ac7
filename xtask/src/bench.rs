//! `cargo xtask bench`: builds and runs the benchmarks.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The package and program of the benchmarks.
const PROGRAM: &str = "curt-tools-bench";

/// Runs the program of `tools/bench` with these arguments; returns whether it succeeded.
///
/// # Errors
/// It cannot be built or started.
pub(crate) fn run(root: &Path, arguments: &[OsString]) -> Result<bool> {
    build(root, &["curt", PROGRAM])?;
    let mut command = Command::new(root.join("target/release").join(PROGRAM));
    let status = command.args(arguments).status().context(PROGRAM)?;
    Ok(status.success())
}

/// Builds the programs of these packages, optimized. Cargo's output does not go to standard output.
///
/// # Errors
/// They do not build.
pub(crate) fn build(root: &Path, packages: &[&str]) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--bins"]);
    for package in packages {
        command.args(["-p", package]);
    }
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().context("cargo cannot be started")?;
    ensure!(status.success(), "it does not build");
    Ok(())
}
