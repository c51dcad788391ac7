//! The programs of this repository, and `curt serve` and `curt mount` as they run in a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::make;
use curt_bench::workload::Workload;
use indicatif::ProgressBar;
use rustix::process::Signal;

use crate::network::{ADDRESS, Network};
use crate::process::{self, RunningProcess};

/// How long a server or a mount may take to begin.
const READY: Duration = Duration::from_secs(120);

/// The path of a program of this repository: `curt`, `curt-tools-bench`, `curt-replay` or
/// `random-writer`, built beforehand where `CURT_PROGRAMS` names a directory, else now.
///
/// # Errors
/// It cannot be built.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("CURT_PROGRAMS") {
        return Ok(Path::new(&directory).join(name));
    }
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    Ok(built
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))?
        .join(name))
}

/// Builds all of them as the tests themselves were built, and returns where they are.
fn build() -> Result<PathBuf> {
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe()?;
    let directory = test
        .parent()
        .and_then(Path::parent)
        .context("a test lies in target/PROFILE/deps")?
        .to_owned();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command.args([
        "build",
        "--quiet",
        "-p",
        "curt",
        "-p",
        "curt-bench",
        "-p",
        "curt-tools-bench",
        "-p",
        "curt-tests",
        "--bins",
    ]);
    if directory.file_name().is_some_and(|profile| profile == "release") {
        command.arg("--release");
    }
    process::run(&mut command, Duration::from_secs(1200))?;
    Ok(directory)
}

/// A workload's tree on this machine, made on first use and kept beside the build.
///
/// # Errors
/// It cannot be made.
pub fn tree(workload: Workload) -> Result<PathBuf> {
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/trees")).join(workload.name());
    make::make_once(&workload.tree(), &top, 4, &ProgressBar::hidden())?;
    Ok(std::fs::canonicalize(top)?)
}

/// `curt serve` of one directory, at [`ADDRESS`] of its network, for NFS and MOUNT on one port.
pub struct CurtServe {
    running: RunningProcess,
    export: PathBuf,
    port: u16,
    arguments: Vec<String>,
}

impl CurtServe {
    /// The port that it listens on.
    pub const PORT: u16 = 2049;

    /// Starts it without squashing and waits until it serves; `arguments` come after those of its
    /// own. Its state is kept in the network's directory.
    ///
    /// # Errors
    /// It does not.
    pub fn start(network: &Network, export: &Path, arguments: &[&str]) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut command = network.command(program("curt")?);
        command
            .arg("serve")
            .arg(export)
            .arg("--bind")
            .arg(format!("{ADDRESS}:{}", Self::PORT));
        command
            .arg("--mount-port")
            .arg(Self::PORT.to_string())
            .arg("--state")
            .arg(network.make_directory("state")?);
        // A system call that the filter does not know ends the server, and so the test.
        command.args(["--squash", "none", "--insecure", "--seccomp", "kill"]);
        command.args(&arguments);
        let running = RunningProcess::start("curt serve", &mut command)?;
        // Its port accepts before it is registered with rpcbind.
        running.wait_for("listening on", READY)?;
        Ok(Self {
            running,
            export: export.to_owned(),
            port: Self::PORT,
            arguments,
        })
    }

    /// What to mount: `HOST:/PATH`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{ADDRESS}:{}", self.export.display())
    }

    /// The options that tell a Linux client or ours where to ask without a portmapper.
    #[must_use]
    pub fn ports(&self) -> String {
        format!("port={0},mountport={0}", self.port)
    }

    /// The process.
    pub fn process(&mut self) -> &mut RunningProcess {
        &mut self.running
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// It was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.running.signal(Signal::KILL)?;
        self.running.wait(Duration::from_secs(60)).map(drop)
    }

    /// Starts it again, as it was started first.
    ///
    /// # Errors
    /// It does not serve.
    pub fn restart(&mut self, network: &Network) -> Result<()> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        *self = Self::start(network, &self.export.clone(), &arguments)?;
        Ok(())
    }
}

/// `curt mount` at a directory of the test's own.
pub struct CurtMount {
    running: RunningProcess,
    directory: PathBuf,
    unmount: Command,
}

impl CurtMount {
    /// Mounts `source` with `options` (may be empty) and waits until it is there.
    ///
    /// # Errors
    /// The mount fails; says what it printed.
    pub fn start(network: &Network, name: &str, source: &str, options: &str) -> Result<Self> {
        let directory = network.make_directory(name)?;
        let mut command = network.command(program("curt")?);
        command
            .arg("mount")
            .arg("--foreground")
            .arg(source)
            .arg(&directory);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let running = RunningProcess::start("curt mount", &mut command)?;
        // The kernel has it before it can be asked, signalled and found in tables.
        running.wait_for(" mounted source=", READY)?;
        let mut unmount = network.command("umount");
        unmount.arg(&directory);
        Ok(Self {
            running,
            directory,
            unmount,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The daemon.
    pub fn process(&mut self) -> &mut RunningProcess {
        &mut self.running
    }

    /// Unmounts it and waits for the daemon's end.
    ///
    /// # Errors
    /// umount(8)'s, or the daemon stays or fails.
    pub fn unmount(mut self) -> Result<()> {
        process::run(&mut self.unmount, Duration::from_secs(60))?;
        let status = self.running.wait(Duration::from_secs(60))?;
        ensure!(
            status.success(),
            "curt mount ended with {status}:\n{}",
            self.running.output()
        );
        Ok(())
    }
}
