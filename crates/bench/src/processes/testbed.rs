//! A server and its mounts, for the duration of a benchmark.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_observe::control::{self, MountReport};
use tempfile::TempDir;

use super::daemon::{Curt, Daemon, until};

/// Timeout of the start of a server or a mount.
const START: Duration = Duration::from_secs(60);
/// A mount counts as idle after this time without requests; below the maximum wait for this.
const STILL: Duration = Duration::from_millis(200);
const STILL_WITHIN: Duration = Duration::from_secs(10);

/// Curt's server, or an existing one, and its mounts.
#[derive(Debug)]
pub struct Testbed {
    curt: Curt,
    directory: TempDir,
    source: String,
    port: Option<u16>,
    /// Ends with this value.
    server: Option<Daemon>,
    mounts_count: u32,
}

impl Testbed {
    /// Starts `curt serve` of `export` on loopback as a second process, at `port` or at a free one.
    ///
    /// # Errors
    /// The server does not start.
    pub fn serving(curt: &Curt, export: &Path, port: Option<u16>) -> Result<Self> {
        let export = std::path::absolute(export)?;
        Self::serving_with(curt, &export, port, &[export.as_os_str(), "--insecure".as_ref()])
    }

    /// Starts a server with these arguments, which say what is exported; mounts are of `export`.
    ///
    /// # Errors
    /// The server does not start.
    pub fn serving_with(curt: &Curt, export: &Path, port: Option<u16>, arguments: &[&OsStr]) -> Result<Self> {
        let directory = private_directory()?;
        let port = port.map_or_else(free_port, Ok)?;
        let (bind, mount_port) = (format!("127.0.0.1:{port}"), port.to_string());
        let mut command = curt.command();
        command
            .arg("serve")
            .args(arguments)
            .args(["--bind", &bind, "--mount-port", &mount_port, "--no-rpcbind", "--state"])
            .arg(directory.path().join("state"));
        let mut server = Daemon::start("curt serve", &mut command)?;
        server.until("curt serve accepts", START, || {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        })?;
        let source = format!("127.0.0.1:{}", export.display());
        Ok(Self {
            curt: curt.clone(),
            directory,
            source,
            port: Some(port),
            server: Some(server),
            mounts_count: 0,
        })
    }

    /// Uses an existing server: `HOST:/PATH`.
    ///
    /// # Errors
    /// The temporary directory cannot be created.
    pub fn elsewhere(curt: &Curt, source: &str) -> Result<Self> {
        Ok(Self {
            curt: curt.clone(),
            directory: private_directory()?,
            source: source.to_owned(),
            port: None,
            server: None,
            mounts_count: 0,
        })
    }

    /// `HOST:/PATH`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The port of a server started here.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The process id of a server started here.
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().map(Daemon::pid)
    }

    /// Mount options, including the ports of a server started here.
    #[must_use]
    pub fn options(&self, vers: &str, options: &str) -> String {
        let ports = self.port.map(|port| format!("port={port},mountport={port},lockport={port}"));
        let given = (!options.is_empty()).then(|| options.to_owned());
        // A missing server is reported at once.
        [Some(format!("vers={vers},retry=0")), ports, given]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Mounts it with `curt mount` at a new directory.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn mount(&mut self, vers: &str, options: &str) -> Result<MountProcess> {
        self.mounts_count += 1;
        let directory = self.directory.path().join(format!("mount-{}", self.mounts_count));
        std::fs::create_dir(&directory)?;
        let mut command = self.curt.command();
        command
            .args(["mount", "--foreground", "--no-table"])
            .arg(&self.source)
            .arg(&directory)
            .arg("-o")
            .arg(self.options(vers, options));
        let mut daemon = Daemon::start("curt mount", &mut command)?;
        let sockets = control::directory();
        daemon.until("the mount is there", START, || {
            let listening = control::find(&sockets, &directory).is_ok();
            Ok((listening && is_mounted(&directory)?).then_some(()))
        })?;
        Ok(MountProcess { daemon, directory })
    }
}

/// A mount; it ends with this value.
#[derive(Debug)]
pub struct MountProcess {
    daemon: Daemon,
    directory: PathBuf,
}

impl MountProcess {
    /// The mount point.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The daemon's report.
    ///
    /// # Errors
    /// The daemon does not reply.
    pub fn report(&self) -> Result<MountReport> {
        Ok(control::find(&control::directory(), &self.directory)?.1)
    }

    /// The report once no requests are sent any more: the kernel's read-ahead continues after the
    /// end of the reading process.
    ///
    /// # Errors
    /// The daemon does not reply.
    /// The daemon prints nothing.
    pub fn report_at_rest(&self) -> Result<MountReport> {
        let deadline = Instant::now() + STILL_WITHIN;
        let mut last = self.report()?;
        loop {
            std::thread::sleep(STILL);
            let report = self.report()?;
            if report.counters.requests == last.counters.requests || Instant::now() >= deadline {
                return Ok(report);
            }
            last = report;
        }
    }

    /// The daemon's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Unmounts it, and waits for its end.
    ///
    /// # Errors
    /// The server does not end, or it fails.
    pub fn end(mut self) -> Result<()> {
        self.daemon.stop()?;
        let directory = self.directory.clone();
        until("the mount is gone", START, || Ok((!is_mounted(&directory)?).then_some(())))
    }
}

/// Whether something is mounted at `directory`, from the table of mounts: access to the directory
/// could block.
fn is_mounted(directory: &Path) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = directory.as_os_str().to_string_lossy().replace(' ', "\\040");
    Ok(table.lines().filter_map(|line| line.split(' ').nth(4)).any(|place| place == wanted))
}

/// A directory that all users can search and only its owner can list.
fn private_directory() -> Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("curt-bench-").tempdir()?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711))?;
    Ok(directory)
}

/// A free port.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The directory for generated trees: `$XDG_CACHE_HOME/curt` or `~/.cache/curt`.
///
/// # Errors
/// The home directory is unknown.
pub fn cache_directory() -> Result<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let cache = cache.context("neither XDG_CACHE_HOME nor HOME is set; say where with --tree")?;
    ensure!(
        cache.is_absolute(),
        "the cache directory {} is not absolute; say where with --tree",
        cache.display()
    );
    Ok(cache.join("curt"))
}
