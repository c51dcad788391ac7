//! `curt serve --memory`: an empty tree that libnfs' tools and the Linux kernel fill and read.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::program;
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::RunningProcess;

const SECONDS: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(400);

fn serve(network: &Network) -> Result<RunningProcess> {
    let mut command = network.command(program("curt")?);
    command.args(["serve", "--memory=/tree", "--insecure", "--squash", "none", "--bind", ADDRESS]);
    let running = RunningProcess::start("curt serve --memory", &mut command)?;
    // Its port accepts connections before it is registered with rpcbind.
    running.wait_for("listening on", SECONDS)?;
    Ok(running)
}

#[test]
fn libnfs_and_linux_share_a_tree_in_memory() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let mut server = serve(&network)?;
    let copies = network.make_directory("copies")?;
    let large: Vec<u8> =
        (0..3_000_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(copies.join("large"), &large)?;
    let url = |path: &str| format!("nfs://{ADDRESS}/tree/{path}");
    network.shell(&format!("nfs-cp {}/large {}", copies.display(), url("large")), SECONDS)?;
    let listed = network.shell(&format!("nfs-ls {}", url("")), SECONDS)?;
    ensure!(listed.contains("large"), "{listed}");
    let script = format!(
        "mount -t nfs -o vers=3,nolock {ADDRESS}:/tree /mnt/nfs || exit 1\n\
         ls -l /mnt/nfs\n\
         cmp /mnt/nfs/large {copies}/large || exit 2\n\
         mkdir /mnt/nfs/folder && cp /mnt/nfs/large /mnt/nfs/folder/again || exit 3\n\
         mv /mnt/nfs/folder/again /mnt/nfs/again && ln -s again /mnt/nfs/link || exit 4\n\
         chmod 640 /mnt/nfs/link && echo more >> /mnt/nfs/again && truncate -s 5 /mnt/nfs/large || exit 5\n\
         rm /mnt/nfs/link && rmdir /mnt/nfs/folder || exit 6\n\
         cat /mnt/nfs/large | wc -c\n\
         umount /mnt/nfs && echo done\n",
        copies = copies.display()
    );
    let job = linux_client(&network, KernelNumber(1), MINUTES, &script)?;
    ensure!(job.contains("done"), "{job}");
    let again = copies.join("again");
    network.shell(&format!("nfs-cp {} {}", url("again"), again.display()), SECONDS)?;
    ensure!(std::fs::read(&again)? == [&large[..], b"more\n"].concat(), "the kernel's copy differs");
    let listed = network.shell(&format!("nfs-ls {}", url("")), SECONDS)?;
    ensure!(!listed.contains("folder") && !listed.contains("link"), "{listed}");
    let mounts = network.shell(&format!("showmount -e {ADDRESS}; showmount -a {ADDRESS}"), SECONDS)?;
    ensure!(mounts.contains("/tree (everyone)"), "{mounts}");
    let registered = network.shell("rpcinfo -p", SECONDS)?;
    for version in [3, 4] {
        ensure!(registered.contains(&format!("100003    {version}   tcp   2049")), "{registered}");
    }
    ensure!(server.stop()?.success(), "{}", server.output());
    let registered = network.shell("rpcinfo -p", SECONDS)?;
    ensure!(!registered.contains("100003"), "{registered}");
    Ok(())
}
