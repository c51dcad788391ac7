//! `cargo xtask compare`: comparisons with other servers, and their tables and pictures in the
//! documents.

mod goals;
mod pictures;
mod tables;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{bench, packages};

/// Runs the benchmark of latencies with Ganesha as peer, and the options `more`. With `json` its
/// output is printed, otherwise the documents are written.
///
/// # Errors
/// Something cannot be installed, built, started or written, or the benchmark found a wrong reply.
pub(crate) fn latency(root: &Path, rounds: u16, json: bool, vers: &str, more: &[String]) -> Result<()> {
    packages::install()?;
    bench::build(root, &["curt", "curt-tools-bench", "curt-tests"])?;
    let programs = root.join("target/release");
    let mut command = Command::new(programs.join("compare-latency"));
    command
        .args(["--json", "--mount", "--vers", vers, "--rounds", &rounds.to_string()])
        .args(more)
        .env("CURT_PROGRAMS", &programs)
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("the benchmark cannot be started")?;
    ensure!(output.status.success(), "the benchmark: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    if json {
        print!("{text}");
        return Ok(());
    }
    write(root, &text)?;
    println!("BENCHMARKS.md and its pictures are written");
    Ok(())
}

/// Writes the tables of the documents from earlier JSON output of the benchmark.
///
/// # Errors
/// The file is not such output, or a document cannot be written.
pub(crate) fn write_documents(root: &Path, file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    write(root, &text)
}

fn write(root: &Path, text: &str) -> Result<()> {
    let mut report: Value = serde_json::from_str(text).context("what the benchmark printed")?;
    let document = root.join("BENCHMARKS.md");
    if report["vers"].as_str() == Some("4.1") {
        return replace(&document, "latency-4.1", &tables::of_sessions(&mut report)?);
    }
    replace(&document, "latency-summary", &tables::summary(&report)?)?;
    replace(&document, "latency", &tables::benchmarks(&report)?)?;
    pictures::write(root)
}

/// Draws the pictures from the tables of BENCHMARKS.md.
///
/// # Errors
/// A table is missing, or a picture cannot be written.
pub(crate) fn draw(root: &Path) -> Result<()> {
    pictures::write(root)
}

/// Replaces the text of a document between the markers with that name.
fn replace(document: &Path, name: &str, with: &str) -> Result<()> {
    let text = std::fs::read_to_string(document)?;
    let text = replaced(&text, name, with).with_context(|| document.display().to_string())?;
    Ok(std::fs::write(document, text)?)
}

fn replaced(text: &str, name: &str, with: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let (before, rest) = text.split_once(&begin).with_context(|| format!("there is no {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("there is no {end}"))?;
    Ok(format!("{before}{begin}\n{}\n{end}{after}", with.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n";
        let new = replaced(text, "x", "new\n").unwrap_or_default();
        assert_eq!(new, "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n");
        assert_eq!(replaced(&new, "x", "new").unwrap_or_default(), new);
        assert!(replaced(text, "y", "").is_err());
    }
}
