//! The programs of this repository, and `curt serve` and `curt mount` as processes of a test.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use curt_bench::make;
use curt_bench::workload::Workload;
use indicatif::ProgressBar;
use rustix::process::Signal;

use crate::network::{ADDRESS, Network};
use crate::process::{self, RunningProcess};

/// Timeout of the start of a server or a mount.
const READY: Duration = Duration::from_secs(120);

/// The path of a program of this repository: `curt`, `curt-tools-bench`, `curt-replay` or
/// `random-writer`, in the directory `CURT_PROGRAMS` if set, otherwise built now.
///
/// # Errors
/// It cannot be built.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("CURT_PROGRAMS") {
        return Ok(Path::new(&directory).join(name));
    }
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    Ok(built.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?.join(name))
}

/// Builds all of them with the profile of the tests, and returns their directory.
fn build() -> Result<PathBuf> {
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe()?;
    let directory =
        test.parent().and_then(Path::parent).context("a test lies in target/PROFILE/deps")?.to_owned();
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

/// A workload's tree on this machine, created at first use and stored next to the build.
///
/// # Errors
/// The tree cannot be created.
pub fn tree(workload: Workload) -> Result<PathBuf> {
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/trees")).join(workload.name());
    make::make_once(&workload.tree(), &top, 4, &ProgressBar::hidden())?;
    Ok(std::fs::canonicalize(top)?)
}

/// Creates an ext4 image with the trees of all workloads, from this machine: creating them in the
/// test kernel would take minutes.
///
/// # Errors
/// The trees or the image cannot be created.
pub fn image_of_trees(image: &Path) -> Result<()> {
    let trees = Workload::ALL.into_iter().map(tree).collect::<Result<Vec<PathBuf>>>()?;
    let beside = trees[0].parent().context("they have a directory of their own")?;
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-N", "100000", "-d"]).arg(beside);
    process::run(make.arg(image).arg("2G"), READY).map(drop)
}

/// `curt serve` of one directory, at [`ADDRESS`] of its network, for NFS and MOUNT on one port.
pub struct CurtServe {
    running: RunningProcess,
    export: PathBuf,
    port: u16,
    arguments: Vec<String>,
}

impl CurtServe {
    /// Its port.
    pub const PORT: u16 = 2049;

    /// Starts it and waits until it serves; `arguments` follow its own. No user is squashed, unless
    /// they say so. Its state is in the network's directory.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start(network: &Network, export: &Path, arguments: &[&str]) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut command = network.command(program("curt")?);
        command.arg("serve").arg(export).arg("--bind").arg(format!("{ADDRESS}:{}", Self::PORT));
        command
            .arg("--mount-port")
            .arg(Self::PORT.to_string())
            .arg("--state")
            .arg(network.make_directory("state")?);
        // A system call that the filter does not allow ends the server, and fails the test.
        command.args(["--insecure", "--seccomp", "kill"]);
        if !arguments.iter().any(|argument| argument.starts_with("--squash")) {
            command.arg("--squash=none");
        }
        command.args(&arguments);
        let running = RunningProcess::start("curt serve", &mut command)?;
        // Its port accepts connections before it is registered with rpcbind.
        running.wait_for("listening on", READY)?;
        Ok(Self { running, export: export.to_owned(), port: Self::PORT, arguments })
    }

    /// The source of a mount: `HOST:/PATH`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{ADDRESS}:{}", self.export.display())
    }

    /// Mount options with its ports, for clients without a portmapper.
    #[must_use]
    pub fn ports(&self) -> String {
        format!("port={0},mountport={0}", self.port)
    }

    /// The process.
    pub fn process(&mut self) -> &mut RunningProcess {
        &mut self.running
    }

    /// Waits until it has recorded that clients know of all changes of delegated files so far: a
    /// delegation of a file that was changed later is not granted again after a kill.
    ///
    /// # Errors
    /// It does not within two minutes.
    pub fn wait_for_known_changes(&self, network: &Network) -> Result<()> {
        let (since, file) = (SystemTime::now(), network.directory().join("state/delegations"));
        let recorded = || std::fs::metadata(&file).and_then(|file| file.modified()).ok();
        process::until("changes of delegated files are known", READY, || {
            Ok(recorded().is_some_and(|time| time > since).then_some(()))
        })
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// It had ended already.
    pub fn kill(&mut self) -> Result<()> {
        self.running.signal(Signal::KILL)?;
        self.running.wait(Duration::from_secs(60)).map(drop)
    }

    /// Starts it again with the same arguments.
    ///
    /// # Errors
    /// The server does not start.
    pub fn restart(&mut self, network: &Network) -> Result<()> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        *self = Self::start(network, &self.export.clone(), &arguments)?;
        Ok(())
    }
}

/// A counter of a mount, or of the server, as `curt stat --json` prints it.
///
/// # Errors
/// There is none.
pub fn counter(network: &Network, mount: Option<&CurtMount>, name: &str) -> Result<u64> {
    fn find(printed: &serde_json::Value, name: &str) -> Option<u64> {
        use serde_json::Value;
        let within = |value: &Value| find(value, name);
        match printed {
            Value::Object(fields) => {
                fields.get(name).and_then(Value::as_u64).or_else(|| fields.values().find_map(within))
            }
            Value::Array(values) => values.iter().find_map(within),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
    let mut command = network.command(program("curt")?);
    command.args(["stat", "--json"]);
    match mount {
        Some(mount) => command.arg(mount.directory()),
        None => command.arg("--server"),
    };
    let printed = process::run(&mut command, Duration::from_secs(60))?;
    find(&serde_json::from_str(&printed)?, name).with_context(|| format!("no {name}: {printed}"))
}

/// `curt mount` at a directory of the test.
pub struct CurtMount {
    running: RunningProcess,
    directory: PathBuf,
    unmount: Command,
}

impl CurtMount {
    /// Mounts `source` with `options` (may be empty) and waits until it is mounted.
    ///
    /// # Errors
    /// The mount fails; includes its output.
    pub fn start(network: &Network, name: &str, source: &str, options: &str) -> Result<Self> {
        let directory = network.make_directory(name)?;
        let mut command = network.command(program("curt")?);
        command.arg("mount").arg("--foreground").arg(source).arg(&directory);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let running = RunningProcess::start("curt mount", &mut command)?;
        // The kernel has the mount before it can be used, signalled and found in tables.
        running.wait_for(" mounted source=", READY)?;
        let mut unmount = network.command("umount");
        unmount.arg(&directory);
        Ok(Self { running, directory, unmount })
    }

    /// The mount point.
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
    /// umount(8) fails, or the daemon does not end or fails.
    pub fn unmount(mut self) -> Result<()> {
        process::run(&mut self.unmount, Duration::from_secs(60))?;
        let status = self.running.wait(Duration::from_secs(60))?;
        ensure!(status.success(), "curt mount ended with {status}:\n{}", self.running.output());
        Ok(())
    }
}

/// A directory that `curt serve` exports and `curt mount` has mounted, in a network of its own.
pub struct MountedExport {
    /// The mount, at "mount".
    pub mount: CurtMount,
    /// The server.
    pub server: CurtServe,
    /// The directory.
    pub export: PathBuf,
    /// In which both run.
    pub network: Network,
}

impl MountedExport {
    /// Exports a new directory of this mode, with these arguments of the server, and mounts it with
    /// these options (may be empty).
    ///
    /// # Errors
    /// The server does not start, or the mount fails.
    pub fn start(mode: u32, arguments: &[&str], options: &str) -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        std::fs::set_permissions(&export, std::fs::Permissions::from_mode(mode))?;
        let server = CurtServe::start(&network, &export, arguments)?;
        let separator = if options.is_empty() { "" } else { "," };
        let options = format!("{}{separator}{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        Ok(Self { mount, server, export, network })
    }
}
