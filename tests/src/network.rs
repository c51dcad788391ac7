//! A separate network, /run and mounts for a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process::{self, RunningProcess};

/// This machine's address in every test network.
pub const ADDRESS: &str = "10.77.0.1";

/// A test's network; its programs see each other's mounts, and other programs do not.
pub struct Network {
    name: String,
    holder: Option<RunningProcess>,
    directory: TempDir,
}

impl Network {
    /// Creates one.
    ///
    /// # Errors
    /// This user is not root, or a package is missing.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        ensure!(rustix::process::geteuid().is_root(), "these tests need root: they make networks and mounts");
        remove_abandoned()?;
        // Relaxed: only the numbers have to differ.
        let name = format!("curt-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = tempfile::Builder::new().prefix("curt-test-").tempdir()?;
        // Other users than root need access to the test's files.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut network = Self { name, holder: None, directory };
        let mut script = network.script();
        // cat ends when its standard input does: at the latest with the test's process.
        script.args(["exec", "sh", "-c", "echo ready; exec cat"]);
        let holder = RunningProcess::start("the network's holder", &mut script)?;
        holder.wait_for("ready", Duration::from_secs(60))?;
        network.holder = Some(holder);
        Ok(network)
    }

    /// Its name: that of its network namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A directory for files of the test, removed with the network. Kernels see it as well.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Creates a directory in it and returns its path.
    ///
    /// # Errors
    /// The namespace cannot be created.
    pub fn make_directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory().join(name);
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// A command that runs `program` in this network, with its /run and its mounts, and ends with
    /// the thread that started it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let holder = self.holder.as_ref().map_or(0, RunningProcess::pid);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{holder}/ns/net")).arg(format!("--mount=/proc/{holder}/ns/mnt"));
        command.args(["--", "setpriv", "--pdeathsig", "TERM", "--"]).arg(program);
        command
    }

    /// Runs a shell script in the network and returns its output.
    ///
    /// # Errors
    /// It fails or takes longer than `limit`.
    pub fn shell(&self, script: &str, limit: Duration) -> Result<String> {
        process::run(self.command("bash").args(["-euc", script]), limit)
    }

    /// The kernel script, with this network.
    pub(crate) fn script(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/kernel")]);
        command.env("KERNEL_NETWORK", &self.name);
        command
    }

    /// Starts rpcbind, for servers that register and clients that use it.
    ///
    /// # Errors
    /// The program does not start.
    pub fn rpcbind(&self) -> Result<RunningProcess> {
        let running = RunningProcess::start("rpcbind", self.command("rpcbind").args(["-f", "-w"]))?;
        let asks = "rpcinfo -p 127.0.0.1 >/dev/null 2>&1";
        process::until("rpcbind answers", Duration::from_secs(60), || {
            Ok(self.shell(asks, Duration::from_secs(20)).ok())
        })?;
        Ok(running)
    }

    /// Starts rpc.statd, which lock managers need that monitor their hosts. rpcbind must run.
    ///
    /// # Errors
    /// The program does not start.
    pub fn status_monitor(&self) -> Result<RunningProcess> {
        let directory = self.make_directory("statd")?;
        for name in ["sm", "sm.bak"] {
            std::fs::create_dir_all(directory.join(name))?;
        }
        let mut command = self.command("rpc.statd");
        let running = RunningProcess::start("rpc.statd", command.args(["-F", "-L", "-P"]).arg(directory))?;
        process::until("rpc.statd is registered", Duration::from_secs(60), || {
            Ok(self.shell("rpcinfo -t 127.0.0.1 100024 1 >/dev/null 2>&1", Duration::from_secs(20)).ok())
        })?;
        Ok(running)
    }

    /// Waits until `port` of `address` accepts connections.
    ///
    /// # Errors
    /// The port is not open within five minutes.
    pub fn wait_for_port(&self, address: &str, port: u16) -> Result<()> {
        let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
        process::until(&format!("{address}:{port} accepts"), Duration::from_secs(300), || {
            Ok(process::run(self.command("bash").args(["-c", &connect]), Duration::from_secs(20))
                .ok()
                .map(drop))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The mounts end with the last process in their namespace.
        self.holder = None;
        let _ = process::run(self.script().arg("down"), Duration::from_secs(20));
    }
}

/// Removes the networks of tests whose process was killed.
fn remove_abandoned() -> Result<()> {
    let Ok(names) = std::fs::read_dir("/run/netns") else {
        return Ok(());
    };
    for name in names {
        let name = name?.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("curt-test-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another test may be doing this, too.
            let _ = process::run(Command::new("ip").args(["netns", "del", &name]), Duration::from_secs(5));
            let _ = std::fs::remove_dir_all(Path::new("/tmp/curt-kernel").join(&name));
        }
    }
    Ok(())
}
