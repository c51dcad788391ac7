//! Read delegations of `curt serve`: Linux clients that hold them, and others that change the
//! files.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{self, CurtMount, CurtServe};
use curt_tests::kernel::KernelNumber;
use curt_tests::linux_locker::LinuxLocker;
use curt_tests::network::Network;
use curt_tests::process;

const MINUTE: Duration = Duration::from_secs(60);
/// A counter of the server.
fn counter(network: &Network, name: &str) -> Result<u64> {
    curt::counter(network, None, name)
}

fn start<'n>(
    network: &'n Network,
    number: u8,
    minor: u32,
    name: &'static str,
    server: &CurtServe,
) -> Result<LinuxLocker<'n>> {
    let mounting = format!("vers=4.{minor},port={} {}", CurtServe::PORT, server.source());
    LinuxLocker::start(network, KernelNumber(number), &mounting, name)?.mounted()
}

/// Has a client read a file, which must contain this line.
fn reads(client: &mut LinuxLocker<'_>, name: &str, contents: &str) -> Result<()> {
    client.run(&format!("[[ $(</mnt/nfs/{name}) == {contents} ]]"))
}

/// The number of delegations that clients hold.
fn held(network: &Network) -> Result<u64> {
    let curt = curt::program("curt")?.display().to_string();
    let clients = network.shell(&format!("{curt} stat --server --clients --json"), MINUTE)?;
    let clients: serde_json::Value = serde_json::from_str(&clients)?;
    let held = clients.as_array().into_iter().flatten().filter_map(|client| client["delegations"].as_u64());
    Ok(held.sum())
}

// SEMANTICS: stateful-11.
#[test]
fn linux_clients_see_each_change_of_a_file_that_they_have_delegated() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    for name in ["file", "written", "removed", "replaced", "moded", "by3", "locally", "kept"] {
        fs::write(export.join(name), "old\n")?;
    }
    // The lease is long: Linux returns a delegation that it has not used for two thirds of it.
    let server = CurtServe::start(&network, &export, &[])?;
    let (mut one, mut two) = (start(&network, 0, 1, "one", &server)?, start(&network, 1, 2, "two", &server)?);
    let mount = CurtMount::start(&network, "mount", &server.source(), "")?;
    for name in ["written", "removed", "replaced", "moded", "by3", "locally", "kept"] {
        reads(&mut one, name, "old")?;
    }
    ensure!(counter(&network, "delegations_granted")? == 7 && held(&network)? == 7);

    two.run("echo new >/mnt/nfs/written")?;
    reads(&mut one, "written", "new")?;
    two.run("rm /mnt/nfs/removed")?;
    one.run("! cat /mnt/nfs/removed 2>/dev/null")?;
    two.run("echo new >/mnt/nfs/fresh; mv /mnt/nfs/fresh /mnt/nfs/replaced")?;
    reads(&mut one, "replaced", "new")?;
    two.run("chmod 640 /mnt/nfs/moded")?;
    // Attributes are fresh for some seconds, whatever the delegation was.
    one.run("until [[ $(stat -c %a /mnt/nfs/moded) == 640 ]]; do sleep 0.2; done")?;
    network.shell(&format!("echo new >{}", mount.directory().join("by3").display()), MINUTE)?;
    reads(&mut one, "by3", "new")?;
    // A process of the server's machine replaces a file.
    fs::write(export.join("fresh"), "new\n")?;
    fs::rename(export.join("fresh"), export.join("locally"))?;
    one.run("until [[ $(</mnt/nfs/locally) == new ]]; do sleep 0.1; done")?;
    ensure!(counter(&network, "delegations_recalled")? == 6, "one for each change");
    ensure!(counter(&network, "delegations_revoked")? == 0);
    drop(mount);
    one.end()?;
    two.end()?;
    Ok(())
}

/// The client has the files open all the time. Its delegation is in force again after the restart:
/// a process of the server's machine waits until it is back. That of a file which was changed while
/// no server ran is not.
// SEMANTICS: stateful-13.
#[test]
fn linux_takes_its_delegation_back_after_the_server_was_killed() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    for name in ["file", "kept", "changed"] {
        fs::write(export.join(name), "old\n")?;
    }
    let mut server = CurtServe::start(&network, &export, &["--lease", "60"])?;
    let mut one = start(&network, 0, 1, "one", &server)?;
    one.run("exec 5</mnt/nfs/kept 6</mnt/nfs/changed; cat /mnt/nfs/changed; sleep 600 >/dev/null 2>&1 &")?;
    process::until("both are delegated", MINUTE, || Ok((held(&network)? == 2).then_some(())))?;
    server.wait_for_known_changes(&network)?;
    server.kill()?;
    fs::write(export.join("changed"), "new\n")?;
    server.restart(&network)?;
    one.run("ls /mnt/nfs >/dev/null")?;
    server.process().wait_for("the grace period has ended", MINUTE)?;
    let (granted, kept) = (counter(&network, "delegations_granted")?, held(&network)?);
    ensure!(granted == 1 && kept == 1, "{granted} were granted, {kept} are held");
    fs::write(export.join("kept"), "new\n")?;
    ensure!(counter(&network, "delegations_recalled")? == 1);
    ensure!(counter(&network, "delegations_revoked")? == 0 && held(&network)? == 0);
    reads(&mut one, "kept", "new")?;
    reads(&mut one, "changed", "new")?;
    one.end()?;
    Ok(())
}
