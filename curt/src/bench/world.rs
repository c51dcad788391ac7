//! A server and its mounts, for the length of a benchmark.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_mount::control::{self, MountReport};
use tempfile::TempDir;

use super::daemon::{Daemon, own_program, until};

/// How long a server or a mount may take to be there.
const START: Duration = Duration::from_secs(60);
/// For how long a mount sends nothing that has sent everything, and how long that is waited for at most.
const STILL: Duration = Duration::from_millis(200);
const STILL_WITHIN: Duration = Duration::from_secs(10);

/// Where the files are.
pub(crate) struct World {
    directory: TempDir,
    source: String,
    port: Option<u16>,
    /// Ends with it.
    server: Option<Daemon>,
    mounts_count: u32,
}

impl World {
    /// Starts `curt serve` of `export` on loopback as a second process, at `port` or at a free one.
    pub(crate) fn serving(export: &Path, port: Option<u16>) -> Result<Self> {
        let export = std::path::absolute(export)?;
        let directory = private_directory()?;
        let port = port.map_or_else(free_port, Ok)?;
        let mut command = own_program();
        command
            .arg("serve")
            .arg(&export)
            .arg("--bind")
            .arg(format!("127.0.0.1:{port}"));
        command
            .args([
                "--mount-port",
                &port.to_string(),
                "--insecure",
                "--no-rpcbind",
                "--state",
            ])
            .arg(directory.path().join("state"));
        let mut server = Daemon::start("curt serve", &mut command)?;
        server.until("curt serve accepts", START, || {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())
        })?;
        let source = format!("127.0.0.1:{}", export.display());
        Ok(Self {
            directory,
            source,
            port: Some(port),
            server: Some(server),
            mounts_count: 0,
        })
    }

    /// Uses a server that is there: `HOST:/PATH`.
    pub(crate) fn elsewhere(source: &str) -> Result<Self> {
        Ok(Self {
            directory: private_directory()?,
            source: source.to_owned(),
            port: None,
            server: None,
            mounts_count: 0,
        })
    }

    /// `HOST:/PATH`.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The port of a server that was started here.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// The process id of a server that was started here.
    pub(crate) fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().map(Daemon::pid)
    }

    /// Mount options, together with those that say where a server that was started here listens.
    pub(crate) fn options(&self, vers: &str, options: &str) -> String {
        let ports = self.port.map(|port| format!("port={port},mountport={port}"));
        let given = (!options.is_empty()).then(|| options.to_owned());
        // Whoever measures wants to be told at once that a server is not there.
        [Some(format!("vers={vers},retry=0")), ports, given]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Mounts it with `curt mount` at a directory of its own.
    pub(crate) fn mount(&mut self, vers: &str, options: &str) -> Result<Mounted> {
        self.mounts_count += 1;
        let directory = self.directory.path().join(format!("mount-{}", self.mounts_count));
        std::fs::create_dir(&directory)?;
        let mut command = own_program();
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
        Ok(Mounted { daemon, directory })
    }
}

/// A mount; it ends with this value.
pub(crate) struct Mounted {
    daemon: Daemon,
    directory: PathBuf,
}

impl Mounted {
    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the daemon says that it did.
    pub(crate) fn report(&self) -> Result<MountReport> {
        Ok(control::find(&control::directory(), &self.directory)?.1)
    }

    /// The same once nothing is sent any more: what a kernel reads ahead comes after the end of whoever it reads it for.
    pub(crate) fn report_at_rest(&self) -> Result<MountReport> {
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
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Ends it, and waits until it is gone.
    pub(crate) fn end(mut self) -> Result<()> {
        self.daemon.stop()?;
        let directory = self.directory.clone();
        until("the mount is gone", START, || {
            Ok((!is_mounted(&directory)?).then_some(()))
        })
    }
}

/// Whether something is mounted at `directory`. Asks the table of mounts: asking the directory could hang.
fn is_mounted(directory: &Path) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = directory.as_os_str().to_string_lossy().replace(' ', "\\040");
    Ok(table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|place| place == wanted))
}

/// A directory that everybody can pass through and nobody else can list.
fn private_directory() -> Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("curt-bench-").tempdir()?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711))?;
    Ok(directory)
}

/// A port that nobody listens on now.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Where things that are made once are kept: `$XDG_CACHE_HOME/curt` or `~/.cache/curt`.
pub(crate) fn cache_directory() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value: &OsString| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let cache = cache.context("neither XDG_CACHE_HOME nor HOME is set; say where with --tree")?;
    ensure!(
        cache.is_absolute(),
        "the cache directory {} is not absolute; say where with --tree",
        cache.display()
    );
    Ok(cache.join("curt"))
}
