//! A restart of the machine on which a mount locked: its processes and /run are gone, and the boot
//! has another id.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use curt_tests::curt::{self, CurtServe};
use curt_tests::locker::LOCKER;
use curt_tests::network::Network;
use curt_tests::other_machine::{self, Portmapper};
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

use super::{Locking, MINUTE, MINUTES};

/// Mounts in a boot of its own, and locks: process 1, /run/curt and the boot's id are its own;
/// /var/lib is kept between boots.
const BOOT: &str = r#"
directory=$1 boot=$2 program=$3 source=$4 words=$5
mkdir -p $directory/lib /run/curt $directory/booted
mount -t tmpfs -o mode=755 tmpfs /run/curt
mount --bind $directory/lib /var/lib
echo $boot > $directory/boot
mount --bind $directory/boot /proc/sys/kernel/random/boot_id
$program mount --foreground $source $directory/booted &
until mountpoint -q $directory/booted; do sleep 0.05; done
python3 $directory/locker.py $directory/booted/file $words
"#;

/// The command line of [`BOOT`].
fn add_boot(command: &mut Command, directory: &Path, id: &str, source: &str, words: &str) -> Result<()> {
    std::fs::write(directory.join("boot.sh"), BOOT)?;
    command.arg("bash").arg(directory.join("boot.sh")).arg(directory).arg(id);
    command.arg(curt::program("curt")?).arg(source).arg(words);
    Ok(())
}

/// A lock of a machine that has lost its power is free at the machine's next boot.
fn check_restart(directory: &Path, boot: impl Fn(&str, &str) -> Result<RunningProcess>) -> Result<()> {
    let first = boot("first", "fcntl-write")?;
    first.wait_for("locked", MINUTES)?;
    let stop = |mut boot: RunningProcess| -> Result<()> {
        boot.signal(Signal::KILL)?;
        boot.wait(MINUTE).map(drop)
    };
    stop(first)?;
    // The server has not heard of anything.
    let again = boot("first", "fcntl-write try=1")?;
    again.wait_for("refused EAGAIN", MINUTES)?;
    stop(again)?;
    // It waits until the server has been told, and without that for ever.
    let second = boot("second", "fcntl-write")?;
    second.wait_for("locked", MINUTES)?;
    // The reply to the notice may come after the lock.
    let state = directory.join("lib/curt/nsm/state");
    process::until("the state says that the server was told", MINUTE, || {
        let kept = std::fs::read_to_string(&state)?;
        ensure!(kept.starts_with("boot second "), "{kept}");
        Ok((!kept.contains("untold")).then_some(()))
    })?;
    stop(second)
}

// SEMANTICS: lock-18.
#[test]
fn a_server_is_told_of_the_restart_of_a_machine_without_a_status_monitor() -> Result<()> {
    let locking = Locking::new()?;
    let directory = locking.network.directory();
    let source = format!("{}:/export", locking.server.address());
    check_restart(directory, |id, words| {
        let mut command = locking.network.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        add_boot(&mut command, directory, id, &source, words)?;
        RunningProcess::start("a boot", &mut command)
    })
}

// SEMANTICS: lock-18, lockd-5.
#[test]
fn curt_serve_frees_the_locks_of_a_mount_whose_machine_restarts() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let directory = network.directory();
    std::fs::write(directory.join("locker.py"), LOCKER)?;
    let server = CurtServe::start(&network, &export, &[])?;
    check_restart(directory, |id, words| {
        // The cable of the machine before is removed with its namespace, or before.
        let _ = network.shell("ip link del other", MINUTE);
        let mut command = other_machine::command(&network, Portmapper::Runs)?;
        add_boot(&mut command, directory, id, &server.source(), words)?;
        other_machine::start(&network, &mut command)
    })?;
    ensure!(curt::counter(&network, None, "lock_hosts_restarted")? == 1, "the server was notified");
    Ok(())
}
