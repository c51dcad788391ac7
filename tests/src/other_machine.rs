//! Another machine of a test's network: a network namespace with an address of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::network::Network;
use crate::process::RunningProcess;

/// Its address.
pub const OTHER_ADDRESS: &str = "10.77.0.100";

const MINUTE: Duration = Duration::from_secs(60);

/// Sets the machine up, and runs a program there.
const MACHINE: &str = r#"
address=$1 portmapper=$2
shift 2
mount -t tmpfs tmpfs /run
echo unshared
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip addr add $address/24 dev eth0
ip link set eth0 up
if [ $portmapper = yes ]; then
    rpcbind -f -w &
    until rpcinfo -p 127.0.0.1 >/dev/null 2>&1; do sleep 0.05; done
fi
exec "$@"
"#;

/// Whether it runs rpcbind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portmapper {
    /// Other hosts find programs there, and call them.
    Runs,
    /// Other hosts cannot call programs there.
    Missing,
}

/// A command that makes the machine and runs there what its further arguments say. To be started
/// by [`start`].
///
/// # Errors
/// A file cannot be written.
pub fn command(network: &Network, portmapper: Portmapper) -> Result<Command> {
    let script = network.directory().join("machine.sh");
    std::fs::write(&script, MACHINE)?;
    let mut command = network.command("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash"]);
    command.arg(script).arg(OTHER_ADDRESS);
    command.arg(if portmapper == Portmapper::Runs { "yes" } else { "no" });
    Ok(command)
}

/// Starts the machine, and connects it.
///
/// # Errors
/// It does not start.
pub fn start(network: &Network, command: &mut Command) -> Result<RunningProcess> {
    let machine = RunningProcess::start("another machine", command)?;
    machine.wait_for("unshared", MINUTE)?;
    let cable = format!(
        "ip link add other type veth peer name eth0 netns {}; ip link set other master br0 up",
        machine.pid()
    );
    network.shell(&cable, MINUTE)?;
    Ok(machine)
}
