//! `curt serve` started by a user other than root: handle tables, and all callers are mapped to
//! that user.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::RunningProcess;
use rustix::process::Signal;

const USER: &str = "1000";
const PORT: u16 = 2049;
const SHORT: Duration = Duration::from_secs(60);

fn serve(network: &Network, export: &Path, arguments: &[&str]) -> Result<RunningProcess> {
    serve_what(network, &[export.as_os_str(), OsStr::new("--insecure")], arguments)
}

/// `what` are the arguments for the export.
fn serve_what(network: &Network, what: &[&OsStr], arguments: &[&str]) -> Result<RunningProcess> {
    let mut command = network.command("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]);
    command.arg(program("curt")?).arg("serve").args(what);
    command.args([
        "--bind",
        &format!("{ADDRESS}:{PORT}"),
        "--mount-port",
        &PORT.to_string(),
        "--seccomp",
        "kill",
        "--state",
    ]);
    command.arg(network.directory().join("state")).args(arguments);
    RunningProcess::start("curt serve", &mut command)
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
    server.wait_for("all clients act as uid 1000", SHORT)?;
    network.wait_for_port(ADDRESS, PORT)?;
    let source = format!("{ADDRESS}:{}", export.display());
    let mount = CurtMount::start(&network, "mount", &source, "port=2049,mountport=2049,noac")?;
    let inside = mount.directory().display();
    network.shell(
        &format!("mkdir -p {inside}/a/b; echo kept > {inside}/a/b/file; mv {inside}/a {inside}/c"),
        SHORT,
    )?;
    let owners = network.shell(&format!("stat -c %u {0}/c {0}/c/b/file", export.display()), SHORT)?;
    ensure!(owners == "1000\n1000\n", "{owners}");
    // A process that has the file open still uses its handle.
    server.signal(Signal::KILL)?;
    server.wait(SHORT)?;
    let mut server = serve(&network, &export, &[])?;
    network.wait_for_port(ADDRESS, PORT)?;
    ensure!(network.shell(&format!("cat {inside}/c/b/file"), SHORT)? == "kept\n");
    network.shell(&format!("echo more >> {inside}/c/b/file; rm -r {inside}/c"), SHORT)?;
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

/// Whatever a line's ids are, all callers are mapped to the only possible user.
#[test]
fn exports_5_is_served_without_root_as_the_servers_own_user() -> Result<()> {
    let network = Network::new()?;
    let state = network.make_directory("state")?;
    let mut line = String::new();
    for (name, options) in
        [("one", "rw,insecure,no_root_squash"), ("two", "ro,insecure,all_squash,anonuid=5")]
    {
        let export = network.make_directory(name)?;
        std::os::unix::fs::chown(&export, Some(1000), Some(1000))?;
        line += &format!("{} 10.77.0.0/24({options})\n", export.display());
    }
    std::os::unix::fs::chown(&state, Some(1000), Some(1000))?;
    let file = network.directory().join("exports");
    std::fs::write(&file, &line)?;
    let what = [OsStr::new("-c"), file.as_os_str()];
    let mut server = serve_what(&network, &what, &[])?;
    network.wait_for_port(ADDRESS, PORT)?;
    let export = |name: &str| network.directory().join(name);
    let mount = |name: &str| {
        let source = format!("{ADDRESS}:{}", export(name).display());
        CurtMount::start(&network, &format!("mount-{name}"), &source, "port=2049,mountport=2049,noac")
    };
    let (one, two) = (mount("one")?, mount("two")?);
    network.shell(&format!("mkdir {0}/d; echo kept > {0}/d/file", one.directory().display()), SHORT)?;
    let owners = network.shell(&format!("stat -c %u {0}/d {0}/d/file", export("one").display()), SHORT)?;
    ensure!(owners == "1000\n1000\n", "{owners}");
    let refused = network.shell(&format!("touch {}/file 2>&1 || true", two.directory().display()), SHORT)?;
    ensure!(refused.contains("Read-only file system"), "{refused}");
    // A reload without the second line, and a restart: open directories remain open.
    std::fs::write(&file, line.lines().next().unwrap_or_default().to_owned() + "\n")?;
    server.signal(Signal::HUP)?;
    server.wait_for(&format!("removed {}", export("two").display()), SHORT)?;
    server.signal(Signal::KILL)?;
    server.wait(SHORT)?;
    let mut server = serve_what(&network, &what, &[])?;
    network.wait_for_port(ADDRESS, PORT)?;
    let kept = network.shell(&format!("cat {}/d/file", one.directory().display()), SHORT)?;
    ensure!(kept == "kept\n", "{kept}");
    one.unmount()?;
    two.unmount()?;
    server.stop()?;
    Ok(())
}
