//! `curt serve` of one file that clients lock.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::curt::{self, CurtMount, CurtServe};
use crate::kernel::KernelNumber;
use crate::linux_locker::LinuxLocker;
use crate::locker;
use crate::network::Network;
use crate::process::{self, RunningProcess};

/// Timeout of a counter.
const MINUTE: Duration = Duration::from_secs(60);

/// `curt serve` of a directory with `file`, and the rpcbind that lock managers ask, in a network of
/// their own.
pub struct LockServer {
    /// The server.
    pub server: CurtServe,
    /// Its portmapper.
    pub rpcbind: RunningProcess,
    /// The file on the server.
    pub file: PathBuf,
    /// In which both run.
    pub network: Network,
}

impl LockServer {
    /// Starts it with these arguments; the file contains "old".
    ///
    /// # Errors
    /// It does not start.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let network = Network::new()?;
        let rpcbind = network.rpcbind()?;
        let export = network.make_directory("export")?;
        let file = export.join("file");
        std::fs::write(&file, "old")?;
        let server = CurtServe::start(&network, &export, arguments)?;
        Ok(Self { server, rpcbind, file, network })
    }

    /// Mounts it by `curt mount`.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mount(&self, name: &str) -> Result<CurtMount> {
        self.mount_with(name, "")
    }

    /// As [`Self::mount`], but with options.
    ///
    /// # Errors
    /// The mount fails.
    pub fn mount_with(&self, name: &str, options: &str) -> Result<CurtMount> {
        CurtMount::start(&self.network, name, &self.server.source(), options)
    }

    /// Options and source of a mount by a Linux kernel.
    #[must_use]
    pub fn mounting(&self) -> String {
        format!("vers=3 {}", self.server.source())
    }

    /// A Linux client that has mounted it.
    ///
    /// # Errors
    /// The kernel does not start, or does not mount it.
    pub fn linux(&self, number: u8, name: &'static str) -> Result<LinuxLocker<'_>> {
        LinuxLocker::start(&self.network, KernelNumber(number), &self.mounting(), name)?.mounted()
    }

    /// A process that locks the file on a mount.
    ///
    /// # Errors
    /// It does not start.
    pub fn locker(&self, mount: &CurtMount, words: &str) -> Result<RunningProcess> {
        locker::start(&self.network, &mount.directory().join("file"), words)
    }

    /// A counter of a mount, or of the server.
    ///
    /// # Errors
    /// There is none.
    pub fn counter(&self, mount: Option<&CurtMount>, name: &str) -> Result<u64> {
        curt::counter(&self.network, mount, name)
    }

    /// Waits until a counter has at least this value.
    ///
    /// # Errors
    /// The timeout.
    pub fn wait_for(&self, mount: Option<&CurtMount>, name: &str, least: u64) -> Result<()> {
        process::until(&format!("{name} is {least}"), MINUTE, || {
            Ok((self.counter(mount, name)? >= least).then_some(()))
        })
    }
}
