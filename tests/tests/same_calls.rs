//! A mount and a local directory: the same calls, the same results.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process;

/// Timeout of the calls: twenty thousand take five seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Timeout of a script.
const SHORT: Duration = Duration::from_secs(60);

/// Makes random calls in a directory in memory and on a mount of another, with `options`; `all` of
/// them if CURT_FULL is set.
fn compare(options: &str, seed: u64, operations: u32, all: u32) -> Result<()> {
    let is_full = std::env::var_os("CURT_FULL").is_some();
    let operations = if is_full { all } else { operations };
    let network = Network::new()?;
    let [local, export] = ["local", "export"].map(|name| in_memory(&network, name));
    let (local, export) = (local?, export?);
    let _rpcbind = network.rpcbind()?;
    let server = CurtServe::start(&network, &export, &[])?;
    // Device nodes are opened, too. Hundreds of calls are made while a name is cached, and calls
    // that wait for its end do not take long.
    let options = format!("{},dev,kernelnames=0.1,{options}", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let mut command = network.command(program("same-calls")?);
    command.args([local.as_path(), mount.directory(), &export]);
    command.args(["--seed", &seed.to_string(), "--operations", &operations.to_string()]);
    process::run(&mut command, LIMIT)?;
    mount.unmount()
}

/// A new file system without access times, at a directory of the test that all users may write.
fn in_memory(network: &Network, name: &str) -> Result<PathBuf> {
    let directory = network.make_directory(name)?;
    let script = format!("mount -t tmpfs -o noatime,mode=777 none {}", directory.display());
    network.shell(&script, SHORT)?;
    Ok(directory)
}

// SEMANTICS: posix-1, posix-2, posix-8, posix-9, posix-10, posix-12.
#[test]
fn random_calls_on_a_mount_answer_as_in_a_local_directory() -> Result<()> {
    compare("accesscheck", 57, 20_000, 200_000)
}

// SEMANTICS: posix-1.
#[test]
fn random_calls_answer_so_with_noac_too() -> Result<()> {
    compare("noac", 17, 5_000, 50_000)
}

// SEMANTICS: posix-1.
#[test]
fn random_calls_answer_so_where_the_kernel_keeps_attributes() -> Result<()> {
    compare("noaccesscheck", 71, 10_000, 200_000)
}

/// Makes random calls of three files' locks in a directory in memory and on a mount.
fn compare_locks(network: &Network, source: &str, seed: &str) -> Result<()> {
    let is_full = std::env::var_os("CURT_FULL").is_some();
    let operations = if is_full { 100_000 } else { 4_000 };
    let local = in_memory(network, "local")?;
    let mount = CurtMount::start(network, "mount", source, "")?;
    let mut command = network.command(program("same-calls")?);
    // The exported directory may be elsewhere.
    command.args([local.as_path(), mount.directory(), mount.directory()]);
    command.args(["--locks", "--seed", seed, "--operations", &operations.to_string()]);
    process::run(&mut command, LIMIT)?;
    mount.unmount()
}

// SEMANTICS: lock-16.
#[test]
fn random_locks_at_knfsd_are_granted_and_refused_as_in_a_local_directory() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let options = KnfsdOptions {
        setup: "chmod 777 .; mount -o remount,bind,noatime /export".into(),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(0), LIMIT, &options)?;
    compare_locks(&network, &format!("{}:/export", server.address()), "11")
}

// SEMANTICS: lock-16.
#[test]
fn random_locks_at_curt_serve_are_granted_and_refused_as_in_a_local_directory() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let server = CurtServe::start(&network, &in_memory(&network, "export")?, &[])?;
    compare_locks(&network, &server.source(), "12")
}

// SEMANTICS: posix-10.
#[test]
fn what_a_last_close_changes_is_seen_although_the_kernel_keeps_attributes() -> Result<()> {
    let network = Network::new()?;
    let export = in_memory(&network, "export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("{},noaccesscheck,actimeo=600", server.ports());
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    // The file has another name, so that it remains.
    let script = format!(
        "there={} here={}
         seen() {{ stat -c '%h %s %y %z' $1/d $1/g; }}
         mkdir -m 777 $here/d; echo x >$here/d/f; ln $here/d/f $here/g; exec 3<$here/d/f; rm $here/d/f
         [[ $(seen $here) == $(seen $there) && $(ls -A $there/d) == .nfs* ]]
         exec 3<&-
         until [[ -z $(ls -A $there/d) && $(seen $here) == $(seen $there) ]]; do sleep 0.01; done",
        export.display(),
        mount.directory().display()
    );
    network.shell(&script, SHORT)?;
    mount.unmount()
}

// SEMANTICS: posix-9.
#[test]
fn devices_of_a_mount_cannot_be_opened_without_dev() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let server = CurtServe::start(&network, &export, &[])?;
    for (option, opens) in [("defaults", false), ("defaults,dev", true)] {
        let options = format!("{},{option}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        let node = mount.directory().join("null").display().to_string();
        let made = format!("[[ -c {node} ]] || mknod -m 600 {node} c 1 3");
        network.shell(&made, SHORT)?;
        // The mode forbids it for this user, but the kernel does not check this.
        let user = "setpriv --reuid 1000 --regid 1000 --clear-groups";
        for who in ["", user] {
            let opened = network.shell(&format!("{who} cat {node}"), SHORT);
            ensure!(opened.is_ok() == opens, "{option} {who}: {opened:?}");
        }
        mount.unmount()?;
    }
    Ok(())
}
