//! A Linux kernel as NFS client or server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::control::{CONTROL_LOOP, KernelControl};
use crate::network::Network;
use crate::process::{self, RunningProcess};

/// Timeout of a kernel's boot.
const BOOT: Duration = Duration::from_secs(60);

/// A kernel's number in its network, 0 to 9: its address is 10.77.0.(2 + number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNumber(pub u8);

impl KernelNumber {
    /// Its address in the network.
    #[must_use]
    pub fn address(self) -> String {
        format!("10.77.0.{}", 2 + u32::from(self.0))
    }
}

/// The result of a job in a kernel.
#[derive(Debug)]
pub struct JobResult {
    /// The script's exit status; 124: it was stopped at the time limit.
    pub status: Option<i32>,
    /// Its output.
    pub output: String,
}

/// A Linux client that runs a script.
pub struct ClientJob {
    running: RunningProcess,
    limit: Duration,
}

impl ClientJob {
    /// Boots a kernel and starts `script` in it, a bash script that runs as root. `$SERVER` is this
    /// machine, `/mnt/nfs` and `/mnt/nfs2` are mount points, and `ops` prints the requests of the
    /// mount at `/mnt/nfs`.
    ///
    /// # Errors
    /// The script cannot be written or the kernel cannot be started.
    pub fn start(network: &Network, number: KernelNumber, limit: Duration, script: &str) -> Result<Self> {
        let job = new_file(network, "job")?;
        std::fs::write(&job, script)?;
        let mut command = network.script();
        let seconds = limit.as_secs().to_string();
        command.args(["client", "-n", &number.0.to_string(), "-t", &seconds]).arg(&job);
        let running = RunningProcess::start(&format!("Linux client {}", number.0), &mut command)?;
        Ok(Self { running, limit })
    }

    /// Waits until the script has printed `text`.
    ///
    /// # Errors
    /// It has not within its time limit.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        self.running.wait_for(text, self.limit)
    }

    /// Waits for the script's end.
    ///
    /// # Errors
    /// The kernel does not end, even after the script's time limit.
    pub fn finish(mut self) -> Result<JobResult> {
        let status = self.running.wait(self.limit + BOOT)?;
        Ok(JobResult { status: status.code(), output: self.running.output() })
    }
}

/// Boots a kernel, runs `script` in it ([`ClientJob::start`]), and returns its output.
///
/// # Errors
/// The script fails or exceeds its time limit; includes its output.
pub fn linux_client(
    network: &Network,
    number: KernelNumber,
    limit: Duration,
    script: &str,
) -> Result<String> {
    let done = ClientJob::start(network, number, limit, script)?.finish()?;
    ensure!(
        done.status == Some(0),
        "the Linux client's script ended with {:?}:\n{}",
        done.status,
        done.output
    );
    Ok(done.output)
}

/// The counts in the output of `ops`: `GETATTR=3 LOOKUP=1 TOTAL=4`.
///
/// # Errors
/// There is no such line.
pub fn parse_ops(output: &str) -> Result<BTreeMap<String, u64>> {
    let line = output.lines().rev().find(|line| line.contains("TOTAL=")).context("ops printed nothing")?;
    let pair = |word: &str| {
        word.split_once('=').and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
    };
    line.split_whitespace().map(|word| pair(word).with_context(|| format!("{word} is no count"))).collect()
}

/// The file system of knfsd's export.
#[derive(Clone, Debug, Default)]
pub struct KnfsdOptions {
    /// An ext4 image that outlives the kernel, created if missing; a tmpfs without it.
    pub image: Option<PathBuf>,
    /// The tmpfs' size, such as `1G`.
    pub size: Option<String>,
    /// The lock manager's clients are recorded in the image, and told when it is booted again; its
    /// grace period is of this many seconds.
    pub grace: Option<u32>,
    /// The lease of NFSv4 in seconds, 10 without it.
    pub lease: Option<u32>,
    /// A bash script that runs in the export before it is exported.
    pub setup: String,
}

/// An ext4 image with this tree, for [`KnfsdOptions::image`].
///
/// # Errors
/// It cannot be made.
pub fn image_of(network: &Network, tree: &Path) -> Result<PathBuf> {
    let image = network.directory().join("tree.img");
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-N", "50000", "-d"]).arg(tree);
    process::run(make.arg(&image).arg("1G"), BOOT)?;
    Ok(image)
}

/// A Linux NFS server. Its export is `/export` at [`Knfsd::address`].
pub struct Knfsd {
    running: RunningProcess,
    number: KernelNumber,
    control: KernelControl,
}

impl Knfsd {
    /// Boots it and waits until it serves. It ends by itself after `limit`.
    ///
    /// # Errors
    /// The kernel does not boot, or the setup script fails.
    pub fn start(
        network: &Network,
        number: KernelNumber,
        limit: Duration,
        options: &KnfsdOptions,
    ) -> Result<Self> {
        let control = KernelControl::new(new_file(network, "control")?)?;
        let setup = new_file(network, "setup")?;
        // The script that boots knfsd takes no later commands; so a loop inside waits for files
        // with commands.
        std::fs::write(&setup, format!("({CONTROL_LOOP}) &\n{}", options.setup))?;
        let mut command = network.script();
        command.env("JOB_CONTROL", control.directory());
        command
            .args(["server", "-n", &number.0.to_string(), "-t", &limit.as_secs().to_string()])
            .arg("-j")
            .arg(&setup);
        if let Some(lease) = options.lease {
            command.env("JOB_LEASE", lease.to_string());
        }
        if let Some(grace) = options.grace {
            command.env("JOB_STATE", "kept").env("JOB_GRACE", grace.to_string());
        }
        if let Some(image) = &options.image {
            command.arg("-i").arg(image);
        }
        if let Some(size) = &options.size {
            command.args(["-s", size]);
        }
        let running = RunningProcess::start(&format!("knfsd {}", number.0), &mut command)?;
        running.wait_for("READY", limit)?;
        network.wait_for_port(&number.address(), 2049)?;
        Ok(Self { running, number, control })
    }

    /// Its address in the network.
    #[must_use]
    pub fn address(&self) -> String {
        self.number.address()
    }

    /// Runs a bash script in the kernel and returns its output.
    ///
    /// # Errors
    /// It fails or takes longer than `limit`.
    pub fn inside(&self, script: &str, limit: Duration) -> Result<String> {
        self.control.run(script, limit)
    }

    /// The requests of each NFSv3 procedure that it has served, by names in upper case (`nfsstat
    /// -s`).
    ///
    /// # Errors
    /// nfsstat fails.
    pub fn counts(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.inside("nfsstat -s -3 -l", Duration::from_secs(60))?;
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            // "nfs v3 server        getattr: 12"
            let Some((name, count)) = line.split_once(':') else {
                continue;
            };
            let Some(name) = name.split_whitespace().last().filter(|name| *name != "total") else {
                continue;
            };
            counts.insert(name.to_uppercase(), count.trim().parse().with_context(|| line.to_owned())?);
        }
        if counts.is_empty() && !text.trim().is_empty() {
            bail!("nfsstat printed something else:\n{text}");
        }
        Ok(counts)
    }

    /// Ends it like a power failure: uncommitted data may be lost. The same image can be booted
    /// again.
    ///
    /// # Errors
    /// It has ended already.
    pub fn power_off(mut self, network: &Network) -> Result<()> {
        process::run(
            network.script().args(["kill", "-n", &self.number.0.to_string()]),
            Duration::from_secs(60),
        )?;
        self.running.wait(Duration::from_secs(60))?;
        Ok(())
    }

    /// Sends the kernel a signal that stops or continues it as a whole.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, network: &Network, signal: &str) -> Result<()> {
        // The script stores the kernel's process id where `kernel kill` finds it. Only that process
        // gets the signal: it traces its programs' processes, which stop without it and would treat
        // the signal as their own.
        let script = format!(
            "kill -{signal} $(<\"${{HOME:-/root}}/.uml/{}-kernel{}/pid\")",
            network.name(),
            self.number.0
        );
        network.shell(&script, Duration::from_secs(60)).map(drop)
    }
}

/// An unused path in the network's directory.
pub(crate) fn new_file(network: &Network, kind: &str) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the numbers have to differ.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory = network.make_directory("kernel")?;
    Ok(directory.join(format!("{kind}-{number}")))
}
