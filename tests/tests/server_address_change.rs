//! A server that moves to another address: its name is resolved again, and the mount continues
//! there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

/// The server's new address.
const MOVED: &str = "10.77.0.11";
const NAME: &str = "server.test";
const PORT: u16 = 2049;
/// Far longer than any pause between two attempts to connect.
const LIMIT: Duration = Duration::from_secs(90);

/// `curt serve` at an address, with the same key each time.
fn serve(network: &Network, export: &Path, address: &str) -> Result<RunningProcess> {
    let mut command = network.command(program("curt")?);
    command.arg("serve").arg(export).arg("--state");
    command.arg(network.make_directory("state")?);
    command.args(["--bind", &format!("{address}:{PORT}")]);
    command.args(["--mount-port", &PORT.to_string()]);
    command.args(["--squash", "none", "--insecure", "--no-rpcbind"]);
    let server = RunningProcess::start("curt serve", &mut command)?;
    network.wait_for_port(address, PORT)?;
    Ok(server)
}

#[test]
fn a_server_that_comes_back_at_another_address_is_found_by_its_name() -> Result<()> {
    let network = Network::new()?;
    network.shell(&format!("ip addr add {MOVED}/24 dev br0"), LIMIT)?;
    let hosts = network.directory().join("hosts");
    let says = |address: &str| std::fs::write(&hosts, format!("{address} {NAME}\n"));
    says(ADDRESS)?;
    // Visible only in this network.
    network.shell(&format!("mount --bind {} /etc/hosts", hosts.display()), LIMIT)?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "first")?;
    let mut server = serve(&network, &export, ADDRESS)?;
    let source = format!("{NAME}:{}", export.display());
    // Attributes are requested each time.
    let mount = CurtMount::start(&network, "mount", &source, "port=2049,mountport=2049,proto=tcp,noac")?;
    let file = mount.directory().join("file").display().to_string();
    let read = || process::run(network.command("cat").arg(&file), LIMIT);
    ensure!(read()? == "first");

    server.signal(Signal::KILL)?;
    server.wait(LIMIT)?;
    std::fs::write(export.join("file"), "second, elsewhere")?;
    says(MOVED)?;
    let mut server = serve(&network, &export, MOVED)?;
    ensure!(read()? == "second, elsewhere");
    mount.unmount()?;
    ensure!(server.stop()?.success(), "{}", server.output());
    Ok(())
}
