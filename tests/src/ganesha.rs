//! NFS-Ganesha as server of a local directory, over NFSv3 and NFSv4.1.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use crate::network::{ADDRESS, Network};
use crate::process::RunningProcess;

/// Ganesha 4.3 numbers clients and sessions from the second in which it starts. One that starts in
/// the same second as its predecessor takes the sessions of that for its own.
const EPOCH: Duration = Duration::from_secs(1);

/// A Ganesha that exports one directory at its own path. rpcbind must run in its network before it
/// starts.
pub struct Ganesha {
    running: RunningProcess,
    export: PathBuf,
    /// When it served, which is after its start.
    serving_since: Instant,
}

impl Ganesha {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// The server does not start; includes its log.
    pub fn start(network: &Network, export: &Path) -> Result<Self> {
        Self::start_with(network, export, "Graceless = true", false)
    }

    /// Starts Ganesha with a grace period of so many seconds.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub fn start_with_grace(network: &Network, export: &Path, seconds: u32) -> Result<Self> {
        Self::start_with(network, export, &format!("Graceless = false; Grace_Period = {seconds}"), false)
    }

    /// As [`Self::start`], with the locks of NFSv3 (NLM). It grants none unless a status monitor
    /// runs ([`Network::status_monitor`]).
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub fn start_with_locks(network: &Network, export: &Path) -> Result<Self> {
        Self::start_with(network, export, "Graceless = true", true)
    }

    fn start_with(network: &Network, export: &Path, grace: &str, nlm: bool) -> Result<Self> {
        let own = network.make_directory("ganesha")?;
        let configuration = own.join("ganesha.conf");
        std::fs::write(&configuration, configuration_text(export, &own, grace, nlm))?;
        std::fs::create_dir_all(own.join("recovery"))?;
        let mut command = network.command("ganesha.nfsd");
        command
            .arg("-F")
            .arg("-f")
            .arg(&configuration)
            .arg("-L")
            .arg("STDERR")
            .arg("-p")
            .arg(own.join("pid"));
        let running = RunningProcess::start("Ganesha", command.args(["-N", "NIV_WARN"]))?;
        network.wait_for_port(ADDRESS, 2049).map_err(|error| error.context(running.output()))?;
        Ok(Self { running, export: export.to_owned(), serving_since: Instant::now() })
    }

    /// The source of a mount: `HOST:/PATH`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{ADDRESS}:{}", self.export.display())
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills it with SIGKILL; start another one to replace it.
    ///
    /// # Errors
    /// It had ended already.
    pub fn kill(mut self) -> Result<()> {
        self.running.signal(Signal::KILL)?;
        self.running.wait(Duration::from_secs(60))?;
        std::thread::sleep(EPOCH.saturating_sub(self.serving_since.elapsed()));
        Ok(())
    }

    /// Stops or continues it.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }
}

fn configuration_text(export: &Path, own: &Path, grace: &str, nlm: bool) -> String {
    let (export, own) = (export.display(), own.display());
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3,4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = {nlm}; Enable_RQUOTA = false; }}\n\
         NFSV4 {{ RecoveryRoot = \"{own}/recovery\"; {grace}; Lease_Lifetime = 10; Only_Numeric_Owners = true; Minor_Versions = 1,2; }}\n\
         EXPORT_DEFAULTS {{ Squash = None; SecType = sys; Access_Type = RW; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{export}\"; Pseudo = \"{export}\"; Protocols = 3,4; Transports = TCP; FSAL {{ Name = VFS; }} }}\n"
    )
}
