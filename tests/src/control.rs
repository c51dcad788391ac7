//! Scripts for a running kernel: a loop inside waits for files with commands.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process;

/// The loop for a kernel, with the directory as `JOB_CONTROL` in its environment; it does not end.
pub(crate) const CONTROL_LOOP: &str =
    "while :; do for job in $JOB_CONTROL/*.job; do [[ -e $job ]] || continue
    mv $job $job.taken; bash $job.taken >$job.out 2>&1; echo $? >$job.new; mv $job.new $job.status
    done; sleep 0.1; done </dev/null >/dev/null 2>&1";

/// The directory with a kernel's commands.
pub(crate) struct KernelControl {
    directory: PathBuf,
    asked: AtomicU32,
}

impl KernelControl {
    /// Creates `directory`, which must be visible in the kernel.
    pub(crate) fn new(directory: PathBuf) -> Result<Self> {
        std::fs::create_dir(&directory)?;
        Ok(Self { directory, asked: AtomicU32::new(0) })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs a bash script in the kernel and returns its output. An error if it fails or takes
    /// longer than `limit`.
    pub(crate) fn run(&self, script: &str, limit: Duration) -> Result<String> {
        // Relaxed: only the numbers have to differ.
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let file = |ending: &str| self.directory.join(format!("{number}.{ending}"));
        std::fs::write(file("new"), script)?;
        std::fs::rename(file("new"), file("job"))?;
        let done = || Ok(std::fs::read_to_string(file("job.status")).ok());
        let status = process::until("the kernel has run a script", limit, done)?;
        let output = std::fs::read_to_string(file("job.out"))?;
        ensure!(status.trim() == "0", "inside the kernel: status {}:\n{output}", status.trim());
        Ok(output)
    }
}
