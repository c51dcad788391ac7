//! Processes that a benchmark starts, and their output if they fail.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::sys::end_with_parent;

/// Timeout of a process after SIGTERM: a mount may have to write data back.
const GRACE: Duration = Duration::from_secs(40);
/// Interval of polling a condition.
const POLL: Duration = Duration::from_millis(10);

/// The path of the program `curt`.
#[derive(Clone, Debug)]
pub struct Curt(PathBuf);

impl Curt {
    /// This program itself.
    #[must_use]
    pub fn this() -> Self {
        // Not by its path: the file may have been replaced, or be in a directory that another user
        // cannot access.
        Self("/proc/self/exe".into())
    }

    /// The program in the directory of this program.
    ///
    /// # Errors
    /// The program does not exist.
    pub fn in_same_directory() -> Result<Self> {
        let path = std::env::current_exe()?.with_file_name("curt");
        ensure!(path.exists(), "{} is not built", path.display());
        Ok(Self(path))
    }

    /// A command that starts the program.
    #[must_use]
    pub fn command(&self) -> Command {
        Command::new(&self.0)
    }
}

/// Waits until `condition` returns a value.
///
/// # Errors
/// It fails, or returns none within `limit`.
pub fn until<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("not within {} s: {what}", limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// A process that ends when this value is dropped, and also with the thread that started it.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    child: Child,
    log: File,
}

impl Daemon {
    /// Starts `command`; its output is kept in case it fails.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let log = tempfile::tempfile().context("a temporary file")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let child = end_with_parent(command).spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Waits until `condition` returns a value, or the process ends.
    ///
    /// # Errors
    /// The process ends, or those of [`until`].
    pub fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let waited = until(what, limit, || match self.child.try_wait()? {
            Some(status) => bail!("{} ended with {status}", self.name),
            None => condition(),
        });
        waited.map_err(|error| anyhow!("{error}; {}", self.output_text()))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM.
    ///
    /// # Errors
    /// The process does not end, or it fails.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        let status: ExitStatus =
            until(&format!("{} ends", self.name), GRACE, || Ok(self.child.try_wait()?))?;
        if !status.success() {
            let log = self.output_text();
            bail!("{} ended with {status}; {log}", self.name);
        }
        Ok(())
    }

    fn output_text(&mut self) -> String {
        let mut text = Vec::new();
        // Without the output the message is less useful.
        let _ = self.log.rewind().and_then(|()| self.log.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        if text.trim().is_empty() {
            "it said nothing".to_owned()
        } else {
            format!("it said:\n{}", text.trim_end())
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // Nothing else can be done if this fails.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The resident memory of a process, in MiB.
///
/// # Errors
/// There is no such process.
pub fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the process has no memory")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
