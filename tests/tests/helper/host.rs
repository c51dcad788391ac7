//! A machine with Curt's helpers installed, its own fstab and a server, without changes of the real
//! files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{CurtServe, program};
use curt_tests::network::Network;
use curt_tests::process;

/// Timeout of each command.
pub(crate) const SHORT: Duration = Duration::from_secs(120);

/// Uid and gid of a user other than root.
pub(crate) const USER: u32 = 1000;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: Option<i32>,
    /// Standard output, followed by standard error.
    pub(crate) text: String,
}

pub(crate) struct Host {
    pub(crate) network: Network,
    pub(crate) export: PathBuf,
    pub(crate) target: PathBuf,
}

impl Host {
    /// A machine without a server: see [`Host::serve`].
    pub(crate) fn new() -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        let target = network.make_directory("mnt")?;
        std::fs::write(export.join("hello"), "hello\n")?;
        std::os::unix::fs::chown(&target, Some(USER), Some(USER))?;
        let host = Self { network, export, target };
        let curt = program("curt")?;
        let directory = host.network.directory().display().to_string();
        // These mounts are visible only in this network; mount(8) looks for helpers in /sbin.
        host.shell(&format!(
            "cd {directory}; mkdir sbin work; : > fstab; cp /etc/fuse.conf fuse.conf
             ln -s {curt} sbin/mount.curt; ln -s {curt} sbin/mount.fuse.curt
             mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=$PWD/sbin,workdir=$PWD/work /usr/sbin
             mount --bind fstab /etc/fstab; mount --bind fuse.conf /etc/fuse.conf
             mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse",
            curt = curt.display()
        ))?;
        Ok(host)
    }

    /// Starts `curt serve` of the export.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Result<CurtServe> {
        CurtServe::start(&self.network, &self.export, arguments)
    }

    pub(crate) fn source(&self) -> String {
        format!("10.77.0.1:{}", self.export.display())
    }

    pub(crate) fn target(&self) -> &str {
        self.target.to_str().unwrap_or_default()
    }

    /// Replaces /etc/fstab.
    pub(crate) fn fstab(&self, options: &str) -> Result<()> {
        let line = format!("{} {} curt {options} 0 0\n", self.source(), self.target());
        Ok(std::fs::write(self.network.directory().join("fstab"), line)?)
    }

    pub(crate) fn empty_fstab(&self) -> Result<()> {
        Ok(std::fs::write(self.network.directory().join("fstab"), "")?)
    }

    pub(crate) fn fuse_conf(&self, text: &str) -> Result<()> {
        Ok(std::fs::write(self.network.directory().join("fuse.conf"), text)?)
    }

    /// Runs a shell script, which must succeed.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        self.network.shell(script, SHORT)
    }

    /// Runs a command, which may fail.
    pub(crate) fn run(&self, words: &[&str]) -> Result<Done> {
        let (name, arguments) = words.split_first().context("a command has a name")?;
        let (status, output, errors) = process::finish(self.network.command(name).args(arguments), SHORT)?;
        Ok(Done { status: status.code(), text: format!("{output}{errors}") })
    }

    /// Runs a command as [`USER`].
    pub(crate) fn run_as_user(&self, words: &[&str]) -> Result<Done> {
        let user = USER.to_string();
        let ids = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--"];
        self.run(&[&ids[..], words].concat())
    }

    /// `curt mount` of the export with the server's ports and `options`.
    pub(crate) fn mount(&self, options: &str) -> Result<Done> {
        let curt = program("curt")?.display().to_string();
        let options = with_ports(options);
        self.run(&[&curt, "mount", &self.source(), self.target(), "-o", &options])
    }

    /// Mounts, which must succeed.
    pub(crate) fn mounted(&self, options: &str) -> Result<()> {
        let done = self.mount(options)?;
        ensure!(done.status == Some(0), "{done:?}");
        ensure!(self.is_mounted()?, "it is not mounted");
        Ok(())
    }

    pub(crate) fn is_mounted(&self) -> Result<bool> {
        Ok(self.run(&["mountpoint", "-q", self.target()])?.status == Some(0))
    }

    /// Unmounts and waits for the daemon's end.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.shell(&format!("umount {}", self.target()))?;
        process::until("the daemon's control socket is gone", SHORT, || {
            let left = self.shell("ls /run/curt/*.socket 2>/dev/null | wc -l")?;
            Ok((left.trim() == "0").then_some(()))
        })
    }

    /// The mount's value of a `findmnt` column, from the kernel's table or libmount's (`-m`).
    pub(crate) fn column(&self, flags: &[&str], column: &str) -> Result<String> {
        let command = [&["findmnt", "-n", "-o", column, "-M", self.target()][..], flags].concat();
        let done = self.run(&command)?;
        ensure!(done.status == Some(0), "{done:?}");
        Ok(done.text.trim().to_owned())
    }

    /// Number of requests of a procedure that the mount has sent.
    pub(crate) fn sent(&self, procedure: &str) -> Result<u64> {
        let curt = program("curt")?.display().to_string();
        let done = self.run(&[&curt, "stat", "--json", self.target()])?;
        ensure!(done.status == Some(0), "{done:?}");
        let report: serde_json::Value = serde_json::from_str(&done.text)?;
        let requests = &report[0]["counters"]["requests"];
        requests[procedure].as_u64().with_context(|| format!("no count of {procedure} in {report}"))
    }

    /// A path in the mount.
    pub(crate) fn inside(&self, name: &str) -> String {
        self.target.join(name).display().to_string()
    }
}

impl Drop for Host {
    /// A remaining daemon would keep the machine's mounts.
    fn drop(&mut self) {
        let _left_by_a_failed_test = self.network.shell("umount -l -a -t fuse.curt 2>/dev/null; true", SHORT);
    }
}

/// The server's ports and these options.
pub(crate) fn with_ports(options: &str) -> String {
    let ports = format!("port={0},mountport={0}", CurtServe::PORT);
    if options.is_empty() { ports } else { format!("{ports},{options}") }
}

/// Whether a file system is read-only.
pub(crate) fn refuses_writes(host: &Host, directory: &Path) -> Result<bool> {
    let done = host.run(&["touch", directory.join("new").to_str().context("UTF-8")?])?;
    Ok(done.status != Some(0) && done.text.contains("Read-only file system"))
}
