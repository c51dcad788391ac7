//! The addresses of `curt serve`, its programs at each, and its messages if it cannot listen.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::program;
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};

const SOON: Duration = Duration::from_secs(60);

fn serve(network: &Network, arguments: &[&str]) -> Result<Command> {
    let mut command = network.command(program("curt")?);
    command.args(["serve", "--memory"]).args(arguments);
    Ok(command)
}

#[test]
fn both_families_are_served_and_each_port_answers_its_own_programs() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let mut server = RunningProcess::start("curt serve", &mut serve(&network, &["--mount-port", "20048"])?)?;
    for line in [
        "listening on 0.0.0.0:2049 for NFS",
        "listening on [::]:2049 for NFS",
        "listening on 0.0.0.0:20048 for MOUNT",
        "listening on [::]:20048 for MOUNT",
        "/memory is writable by every address that can connect",
    ] {
        server.wait_for(line, SOON)?;
    }
    let answers = |netid: &str, address: &str, program: &str| {
        network.shell(&format!("rpcinfo -a {address} -T {netid} {program} 3"), SOON)
    };
    ensure!(answers("tcp", "127.0.0.1.8.1", "100003")?.contains("ready"));
    ensure!(answers("tcp6", "::1.8.1", "100003")?.contains("ready"));
    ensure!(answers("tcp", "127.0.0.1.78.80", "100005")?.contains("ready"));
    ensure!(answers("tcp6", "::1.78.80", "100005")?.contains("ready"));
    ensure!(answers("tcp", "127.0.0.1.78.80", "100003").is_err(), "NFS is answered on MOUNT's port");
    ensure!(answers("tcp", "127.0.0.1.8.1", "100005").is_err(), "MOUNT is answered on NFS's port");
    ensure!(network.shell("rpcinfo", SOON)?.contains("::.8.1"), "IPv6 is not registered");
    ensure!(server.stop()?.success(), "{}", server.output());
    Ok(())
}

#[test]
fn a_machine_without_ipv6_is_a_warning() -> Result<()> {
    let network = Network::new()?;
    // The first socket queries the server, the second is for IPv4, the third for IPv6: strace makes
    // the last one fail as on a system without IPv6.
    let mut command = network.command("strace");
    command.args([
        "-D",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=socket",
        "-e",
        "inject=socket:error=EAFNOSUPPORT:when=3",
    ]);
    command.arg(program("curt")?).args(["serve", "--memory", "--no-rpcbind"]);
    let server = RunningProcess::start("curt serve", &mut command)?;
    server.wait_for("no IPv6 on this machine", SOON)?;
    server.wait_for("listening on 0.0.0.0:2049", SOON)?;
    network.wait_for_port(ADDRESS, 2049)?;
    ensure!(!server.output().contains("[::]"), "{}", server.output());
    Ok(())
}

#[test]
fn an_address_in_use_is_named_with_what_to_do() -> Result<()> {
    let network = Network::new()?;
    let _server = RunningProcess::start("curt serve", &mut serve(&network, &["--bind", ADDRESS])?)?;
    network.wait_for_port(ADDRESS, 2049)?;
    let (status, _, errors) = process::finish(&mut serve(&network, &["--bind", ADDRESS])?, SOON)?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(
        errors.contains("cannot listen on 10.77.0.1:2049") && errors.contains("--bind ADDR:PORT"),
        "{errors}"
    );
    let (status, _, errors) = process::finish(&mut serve(&network, &["--bind", "10.99.0.1"])?, SOON)?;
    ensure!(status.code() == Some(1) && errors.contains("not an address of this machine"), "{errors}");
    Ok(())
}

#[test]
fn loopback_and_read_only_exports_are_not_warned_of() -> Result<()> {
    let network = Network::new()?;
    for arguments in [&["--bind", "127.0.0.1"][..], &["--ro"]] {
        let mut server = RunningProcess::start("curt serve", &mut serve(&network, arguments)?)?;
        server.wait_for("listening on", SOON)?;
        ensure!(server.stop()?.success(), "{}", server.output());
        ensure!(!server.output().contains("writable by every address"), "{}", server.output());
    }
    Ok(())
}

#[test]
fn clients_on_high_ports_are_refused_unless_insecure() -> Result<()> {
    let network = Network::new()?;
    // As a user who may not use a port below 1024; libnfs as root would.
    let list = "setpriv --reuid=1000 --regid=1000 --clear-groups --bounding-set=-all --inh-caps=-all \
                nfs-ls 'nfs://127.0.0.1/memory?version=3&nfsport=2049&mountport=2049'";
    for (option, served) in [("--secure", false), ("--insecure", true)] {
        let mut server =
            RunningProcess::start("curt serve", &mut serve(&network, &["--bind", "127.0.0.1", option])?)?;
        server.wait_for("listening on", SOON)?;
        let listed = network.shell(list, SOON);
        ensure!(listed.is_ok() == served, "{option}: {listed:?}");
        ensure!(server.stop()?.success(), "{}", server.output());
    }
    Ok(())
}

#[test]
fn a_state_directory_that_cannot_be_used_is_named_with_what_to_do() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut command = network.command(program("curt")?);
    command.arg("serve").arg(&export).args(["--state", "/proc/none"]);
    let (status, _, errors) = process::finish(&mut command, SOON)?;
    ensure!(
        status.code() == Some(1) && errors.contains("--state DIR") && errors.contains("/proc/none"),
        "{errors}"
    );
    let mut command = network.command(program("curt")?);
    command.arg("serve").arg(export.join("missing"));
    let (status, _, errors) = process::finish(&mut command, SOON)?;
    ensure!(status.code() == Some(1) && errors.contains("missing: No such file"), "{errors}");
    Ok(())
}
