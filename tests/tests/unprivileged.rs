//! `curt serve` started by somebody who is not root: handles by table, everybody works as that user.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{Mount, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::Running;
use rustix::process::Signal;

const USER: &str = "1000";
const PORT: u16 = 2049;
const SHORT: Duration = Duration::from_secs(30);

fn serve(network: &Network, export: &Path, arguments: &[&str]) -> Result<Running> {
    let mut command = network.command("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]);
    command.arg(program("curt")?).arg("serve").arg(export);
    command.args([
        "--bind",
        &format!("{ADDRESS}:{PORT}"),
        "--mount-port",
        &PORT.to_string(),
        "--insecure",
        "--seccomp",
        "kill",
        "--state",
    ]);
    command.arg(network.directory().join("state")).args(arguments);
    Running::start("curt serve", &mut command)
}

#[test]
fn a_server_without_roots_rights_serves_its_user_and_its_handles_survive_kill() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let state = network.make_directory("state")?;
    for directory in [&export, &state] {
        std::os::unix::fs::chown(directory, Some(1000), Some(1000))?;
    }
    let mut server = serve(&network, &export, &[])?;
    server.wait_for("everybody works as user 1000", SHORT)?;
    network.wait_for_port(ADDRESS, PORT)?;
    let source = format!("{ADDRESS}:{}", export.display());
    let mount = Mount::start(&network, "mount", &source, "port=2049,mountport=2049,noac")?;
    let inside = mount.directory().display();
    network.shell(
        &format!("mkdir -p {inside}/a/b; echo kept > {inside}/a/b/file; mv {inside}/a {inside}/c"),
        SHORT,
    )?;
    let owners = network.shell(&format!("stat -c %u {0}/c {0}/c/b/file", export.display()), SHORT)?;
    ensure!(owners == "1000\n1000\n", "{owners}");
    // A process that has the file open keeps using its handle.
    server.signal(Signal::KILL)?;
    server.wait(SHORT)?;
    let mut server = serve(&network, &export, &[])?;
    network.wait_for_port(ADDRESS, PORT)?;
    ensure!(network.shell(&format!("cat {inside}/c/b/file"), SHORT)? == "kept\n");
    network.shell(
        &format!("echo more >> {inside}/c/b/file; rm -r {inside}/c"),
        SHORT,
    )?;
    mount.unmount()?;
    server.stop()?;
    Ok(())
}

#[test]
fn what_only_root_can_do_is_refused_at_start() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let state = network.make_directory("state")?;
    std::os::unix::fs::chown(&state, Some(1000), Some(1000))?;
    for arguments in [["--squash", "none"], ["--anonuid", "5"]] {
        let mut server = serve(&network, &export, &arguments)?;
        let status = server.wait(SHORT)?;
        ensure!(!status.success(), "{arguments:?}");
        ensure!(server.output().contains("start as root"), "{}", server.output());
    }
    Ok(())
}
