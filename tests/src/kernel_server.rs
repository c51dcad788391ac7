//! `curt serve` in the test kernel, on an ext4 file system with quotas, which this machine's kernel
//! may not support.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::control::{CONTROL_LOOP, KernelControl};
use crate::curt::program;
use crate::kernel::{KernelNumber, new_file};
use crate::network::Network;
use crate::process::RunningProcess;

/// The export's path in the kernel.
pub const INSIDE: &str = "/mnt/disk";

/// The port of NFS and MOUNT.
pub const PORT: u16 = 2049;

/// Options of the disk and the server.
#[derive(Clone, Debug)]
pub struct InsideOptions {
    /// The disk's size, for truncate(1).
    pub size: String,
    /// The percentage of the disk reserved for root.
    pub reserved: u8,
    /// A bash script that runs after the disk is mounted at [`INSIDE`] and before the server
    /// starts.
    pub setup: String,
    /// Additional arguments of the server.
    pub arguments: String,
}

impl Default for InsideOptions {
    fn default() -> Self {
        Self { size: "64M".into(), reserved: 5, setup: String::new(), arguments: String::new() }
    }
}

/// A kernel with a `curt serve`. The disk is a loop device on the file `/mnt/disk.img`; quotas of
/// users are on. No user is squashed. Ends with this value.
pub struct ServeInside {
    running: RunningProcess,
    number: KernelNumber,
    control: KernelControl,
}

impl ServeInside {
    /// Boots the kernel and waits until the server accepts connections. It ends by itself after
    /// `limit`.
    ///
    /// # Errors
    /// The disk cannot be created, or the server does not start; includes the output.
    pub fn start(
        network: &Network,
        number: KernelNumber,
        limit: Duration,
        options: &InsideOptions,
    ) -> Result<Self> {
        let control = KernelControl::new(new_file(network, "control")?)?;
        let job = new_file(network, "job")?;
        std::fs::write(&job, script(&program("curt")?, options))?;
        let mut command = network.script();
        command
            .env("JOB_CONTROL", control.directory())
            .args(["client", "-n", &number.0.to_string()])
            .args(["-t", &limit.as_secs().to_string()])
            .arg(&job);
        let running = RunningProcess::start(&format!("curt serve in kernel {}", number.0), &mut command)?;
        running.wait_for("READY", limit)?;
        network.wait_for_port(&number.address(), PORT)?;
        Ok(Self { running, number, control })
    }

    /// The source of a mount: `HOST:/PATH`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{}:{INSIDE}", self.number.address())
    }

    /// Mount options with its ports, for clients without a portmapper.
    #[must_use]
    pub fn ports(&self) -> String {
        format!("port={PORT},mountport={PORT}")
    }

    /// Runs a bash script in the kernel and returns its output.
    ///
    /// # Errors
    /// It fails or takes longer than `limit`.
    pub fn inside(&self, script: &str, limit: Duration) -> Result<String> {
        self.control.run(script, limit)
    }

    /// The output of the kernel and the server.
    #[must_use]
    pub fn output(&self) -> String {
        self.running.output()
    }
}

/// The kernel's script: it ends at the kernel's time limit, or when the kernel is stopped.
fn script(curt: &Path, options: &InsideOptions) -> String {
    let InsideOptions { size, reserved, setup, arguments } = options;
    format!(
        r#"set -e
modprobe -a loop quota_v2
truncate -s {size} /mnt/disk.img
mkfs.ext4 -q -F -O quota -E quotatype=usrquota -m {reserved} /mnt/disk.img
mkdir {INSIDE}
mount -o loop,usrquota /mnt/disk.img {INSIDE}
(cd {INSIDE}; {setup}
)
{curt} serve {INSIDE} --bind 0.0.0.0:{PORT} --mount-port {PORT} --state /run/curt --no-rpcbind --squash none --insecure --seccomp kill {arguments} &
until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do kill -0 $! || exit 1; sleep 0.1; done
echo READY
{CONTROL_LOOP}
"#,
        curt = curt.display(),
    )
}
