//! The trees of workloads on this machine, and progress bars.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::testbed::cache_directory;
use crate::make;
use crate::workload::Workload;

/// Pause after a tree is created: with servers whose times are coarse, names could otherwise have
/// changed within one step of their clock and would be looked up again.
pub const SETTLE: Duration = Duration::from_secs(3);

/// The directory with the workload's tree; created at first use.
///
/// # Errors
/// The tree cannot be created.
pub fn tree_directory(workload: Workload, given: Option<&std::path::Path>, jobs: usize) -> Result<PathBuf> {
    let top = match given {
        Some(given) => given.to_owned(),
        None => cache_directory()?.join(format!("{workload}-tree")),
    };
    let tree = workload.tree();
    if make::check(&tree, &top).is_err() {
        let bar = progress_bar(&format!("making the tree of {workload} in {}", top.display()));
        make::make_once(&tree, &top, jobs, &bar).context("the tree cannot be made")?;
        bar.finish_and_clear();
        std::thread::sleep(SETTLE);
    }
    Ok(top)
}

/// A progress bar on standard error, if it is a terminal.
#[must_use]
pub fn progress_bar(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{what}");
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(what.to_owned());
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar
}
