//! The trees of workloads on this machine, and how long they take to be made.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::testbed::cache_directory;
use crate::make;
use crate::workload::Workload;

/// A tree that was made just now is left alone for so long: servers whose times are coarse would
/// else have to be asked again for names that could have changed within one step of their clock.
pub const SETTLE: Duration = Duration::from_secs(3);

/// The directory that holds the workload's tree; made on first use.
///
/// # Errors
/// It cannot be made.
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

/// A bar on standard error, where somebody sees it.
#[must_use]
pub fn progress_bar(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{what}");
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(what.to_owned());
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}");
    bar.set_style(
        style
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> "),
    );
    bar
}
