//! Locks of `curt serve` over NFSv3: mounts of its own host, Linux clients, and restarts of both
//! sides.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_tests::curt::{self, CurtMount, CurtServe};
use curt_tests::kernel::KernelNumber;
use curt_tests::linux_locker::LinuxLocker;
use curt_tests::lock_scenarios::try_pairs;
use curt_tests::lock_server::LockServer;
use curt_tests::locker::{self, tell};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::other_machine::{self, OTHER_ADDRESS, Portmapper};
use curt_tests::process;
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);

fn file(mount: &CurtMount) -> PathBuf {
    mount.directory().join("file")
}

// SEMANTICS: lockd-1, lockd-2, lockd-3, lockd-6.
#[test]
fn mounts_and_a_linux_client_exclude_each_other_and_are_called_back() -> Result<()> {
    let locking = LockServer::start(&[])?;
    let (one, other) = (locking.mount("one")?, locking.mount("other")?);
    let mut linux = locking.linux(0, "linux")?;
    let mut holder = locking.locker(&one, "fcntl-write first=10 length=10")?;
    holder.wait_for("locked", MINUTE)?;
    linux.ask("try 15 5", "try 15 error 11")?;
    linux.ask("try 20 5", "try 20 done")?;
    let refused = locking.locker(&other, "fcntl-read first=20 length=1 try=1")?;
    refused.wait_for("refused EAGAIN", MINUTE)?;
    let waits = locking.locker(&other, "ofd-write first=19 length=1")?;
    locking.wait_for(None, "locks_blocked", 1)?;
    linux.tell("lock 15 1")?;
    locking.wait_for(None, "locks_blocked", 2)?;
    let unlocked = Instant::now();
    tell(&mut holder, "unlock")?;
    waits.wait_for("locked", MINUTE)?;
    // Linux asks again after 30 s; a callback comes at once.
    linux.job.wait_for("lock 15 done")?;
    let waited = unlocked.elapsed();
    ensure!(waited < Duration::from_secs(25), "the Linux client polled: {waited:?}");
    ensure!(locking.counter(Some(&other), "lock_cb_wakeup")? > 0, "the mount was called back");
    // A mount waits for the Linux client.
    let waits = locking.locker(&one, "flock-write")?;
    locking.wait_for(None, "locks_blocked", 3)?;
    drop(locking.locker(&other, "fcntl-read first=0 length=1 try=1")?);
    linux.ask("unlock 15 1", "unlock 15 done")?;
    linux.ask("unlock 20 5", "unlock 20 done")?;
    drop(other);
    waits.wait_for("locked", MINUTE)?;
    ensure!(locking.counter(Some(&one), "lock_cb_wakeup")? > 0, "the mount was called back");
    // A waiter that is killed leaves nothing.
    linux.run("timeout -s KILL 2 flock /mnt/nfs/file true; [[ $? == 137 ]]")?;
    drop((waits, holder));
    linux.ask("lock 0 0", "lock 0 done")?;
    linux.end().map(drop)
}

// SEMANTICS: lock-16.
#[test]
fn pairs_of_locks_conflict_as_those_at_a_linux_server() -> Result<()> {
    let locking = LockServer::start(&[])?;
    try_pairs(&locking.network, [&locking.mount("one")?, &locking.mount("other")?])
}

// SEMANTICS: lockd-4, lockd-5.
#[test]
fn locks_outlive_a_killed_server_and_end_with_a_restart_of_their_client() -> Result<()> {
    let mut locking = LockServer::start(&["--grace", "20"])?;
    let mount = locking.mount("mount")?;
    let holder = locking.locker(&mount, "fcntl-write first=0 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    let mounting = locking.mounting();
    let mut linux = LinuxLocker::start(&locking.network, KernelNumber(0), &mounting, "linux")?.mounted()?;
    linux.ask("lock 5 1", "lock 5 done")?;
    locking.server.kill()?;
    locking.server.restart(&locking.network)?;
    // What nobody had is not granted before the grace period is over.
    linux.ask("lock 9 1", "lock 9 done")?;
    linux.ask("try 0 1", "try 0 error 11")?;
    let refused = locking.locker(&mount, "fcntl-write first=5 length=1 try=1")?;
    refused.wait_for("refused EAGAIN", MINUTE)?;
    // Its monitor says that the client has restarted.
    linux.run("sm-notify -f")?;
    let gets = locking.locker(&mount, "fcntl-write first=5 length=5")?;
    gets.wait_for("locked", MINUTE)?;
    ensure!(locking.counter(None, "lock_hosts_restarted")? == 1, "the server was notified");
    linux.end().map(drop)
}

/// The second address of the server, and the name that has both.
const SECOND: &str = "10.77.0.11";
const NAME: &str = "server.test";

// SEMANTICS: lock-10, lock-20.
#[test]
fn locks_are_reclaimed_at_their_address_from_a_server_that_tells_nobody_of_its_restart() -> Result<()> {
    let network = Network::new()?;
    network.shell(&format!("ip addr add {SECOND}/24 dev br0"), MINUTE)?;
    let hosts = network.directory().join("hosts");
    let says = |addresses: [&str; 2]| {
        std::fs::write(&hosts, addresses.map(|address| format!("{address} {NAME}\n")).concat())
    };
    says([ADDRESS, SECOND])?;
    // Visible only in this network.
    network.shell(&format!("mount --bind {} /etc/hosts", hosts.display()), MINUTE)?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let bind = format!("{SECOND}:{}", CurtServe::PORT);
    let mut server =
        CurtServe::start(&network, &export, &["--no-rpcbind", "--grace", "60", "--bind", &bind])?;
    let options = format!("{},lockport={}", server.ports(), CurtServe::PORT);
    let mount = CurtMount::start(&network, "mount", &format!("{NAME}:{}", export.display()), &options)?;
    let mut holder = locker::start(&network, &file(&mount), "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let records = "cat /run/curt/locks/[0-9]*";
    ensure!(
        network.shell(records, MINUTE)?.starts_with(&format!("{ADDRESS} ")),
        "another address is recorded"
    );
    // A server knows this host by the address that it connects from, and that is another one here.
    says([SECOND, ADDRESS])?;
    server.kill()?;
    server.restart(&network)?;
    process::until("the lock is reclaimed", MINUTE, || {
        Ok((curt::counter(&network, Some(&mount), "lock_reclaimed")? == 1).then_some(()))
    })?;
    ensure!(curt::counter(&network, Some(&mount), "lock_lost")? == 0, "nothing is lost");
    tell(&mut holder, "write after")?;
    tell(&mut holder, "unlock")
}

/// `curt serve` on another machine without a portmapper, killed and started again when a file
/// appears.
const SERVER: &str = r#"
program=$1 directory=$2 address=$3 port=$4
serve() {
    $program serve $directory/export --bind $address:$port --mount-port $port --state $directory/state \
        --squash none --insecure --no-rpcbind --grace 60 &
    server=$!
}
serve
until [[ -e $directory/restart ]]; do sleep 0.05; done
kill -9 $server
wait $server
serve
wait $server
"#;

// SEMANTICS: lock-3, lock-10.
#[test]
fn the_status_monitor_of_a_mounts_host_reports_restarts_and_is_replaced_when_it_ends() -> Result<()> {
    let network = Network::new()?;
    let (mut rpcbind, mut statd) = (network.rpcbind()?, network.status_monitor()?);
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    // Nothing but the mount asks the monitor of this machine.
    let (directory, port) = (network.directory(), CurtServe::PORT.to_string());
    let mut command = other_machine::command(&network, Portmapper::Missing)?;
    command.args(["bash", "-c", SERVER, "server"]).arg(curt::program("curt")?).arg(directory);
    let server = other_machine::start(&network, command.args([OTHER_ADDRESS, &port]))?;
    server.wait_for("listening on", MINUTE)?;
    let source = format!("{OTHER_ADDRESS}:{}", export.display());
    let options = format!("port={port},mountport={port},lockport={port}");
    let mut mount = CurtMount::start(&network, "mount", &source, &options)?;
    let mut holder = locker::start(&network, &file(&mount), "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let monitored = directory.join("statd/sm").join(OTHER_ADDRESS);
    ensure!(monitored.exists(), "rpc.statd does not monitor the server");
    std::fs::write(directory.join("restart"), "")?;
    // rpc.statd gets SM_NOTIFY, and calls procedure 16.
    mount.process().wait_for("the server is said to have restarted", MINUTE)?;
    process::until("the lock is reclaimed", MINUTE, || {
        Ok((curt::counter(&network, Some(&mount), "lock_reclaimed")? == 1).then_some(()))
    })?;
    for process in [&mut statd, &mut rpcbind] {
        process.signal(Signal::KILL)?;
        process.wait(MINUTE)?;
    }
    let _rpcbind = network.rpcbind()?;
    wait_for_programs(&network, &["100021 4", "100024 1"])?;
    tell(&mut holder, "unlock")
}

// SEMANTICS: lockd-5.
#[test]
fn the_status_monitor_of_a_servers_host_reports_a_client_that_has_restarted() -> Result<()> {
    let network = Network::new()?;
    let (_rpcbind, _statd) = (network.rpcbind()?, network.status_monitor()?);
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let server = CurtServe::start(&network, &export, &[])?;
    let mounting = format!("vers=3 {}", server.source());
    let mut linux = LinuxLocker::start(&network, KernelNumber(0), &mounting, "linux")?.mounted()?;
    linux.ask("lock 5 1", "lock 5 done")?;
    let monitored = network.directory().join("statd/sm").join(KernelNumber(0).address());
    process::until("rpc.statd monitors the client", MINUTE, || Ok(monitored.exists().then_some(())))?;
    let mount = CurtMount::start(&network, "mount", &server.source(), "")?;
    let gets = locker::start(&network, &file(&mount), "fcntl-write first=5 length=1")?;
    process::until("the mount waits", MINUTE, || {
        Ok((curt::counter(&network, None, "locks_blocked")? > 0).then_some(()))
    })?;
    linux.run("sm-notify -f")?;
    gets.wait_for("locked", MINUTE)?;
    ensure!(curt::counter(&network, None, "lock_hosts_restarted")? == 1, "the server was notified");
    linux.end().map(drop)
}

/// Waits until programs are registered, and answer over UDP.
fn wait_for_programs(network: &Network, programs: &[&str]) -> Result<()> {
    for program in programs {
        process::until(&format!("{program} is registered"), MINUTE, || {
            Ok(network.shell(&format!("rpcinfo -u {ADDRESS} {program}"), MINUTE).ok())
        })?;
    }
    Ok(())
}

// SEMANTICS: lock-3.
#[test]
fn a_mount_that_locks_before_the_portmapper_runs_is_called_back_once_it_does() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "old")?;
    let server = CurtServe::start(&network, &export, &["--no-rpcbind"])?;
    let options = format!("{},lockport={}", server.ports(), CurtServe::PORT);
    let one = CurtMount::start(&network, "one", &server.source(), &options)?;
    let mut holder = locker::start(&network, &file(&one), "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let _rpcbind = network.rpcbind()?;
    wait_for_programs(&network, &["100021 4", "100024 1"])?;
    let other = CurtMount::start(&network, "other", &server.source(), &options)?;
    let waits = locker::start(&network, &file(&other), "fcntl-write")?;
    process::until("the other mount waits", MINUTE, || {
        Ok((curt::counter(&network, None, "locks_blocked")? > 0).then_some(()))
    })?;
    tell(&mut holder, "unlock")?;
    waits.wait_for("locked", MINUTE)?;
    ensure!(curt::counter(&network, Some(&other), "lock_cb_wakeup")? > 0, "the mount polled");
    Ok(())
}

/// Waits until the lock manager and the status monitor are registered at these ports alone.
fn wait_for_ports(network: &Network, lock_manager: &str, monitor: &str) -> Result<()> {
    let expected = [("100021", lock_manager), ("100024", monitor)]
        .into_iter()
        .flat_map(|(program, port)| ["tcp", "udp"].map(|transport| format!("{program} {transport} {port}")));
    let expected: BTreeSet<String> = expected.collect();
    process::until(&format!("the ports are {lock_manager} and {monitor}"), MINUTE, || {
        let registered = network.shell("rpcinfo -p", MINUTE)?;
        let words = registered.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = words.filter_map(|words| match words[..] {
            [program @ ("100021" | "100024"), _, transport, port, ..] => {
                Some(format!("{program} {transport} {port}"))
            }
            _ => None,
        });
        Ok((found.collect::<BTreeSet<_>>() == expected).then_some(()))
    })
}

// SEMANTICS: lock-21.
#[test]
fn servers_call_at_the_ports_of_the_mount_that_receives_callbacks() -> Result<()> {
    let locking = LockServer::start(&["--no-rpcbind"])?;
    let mount = |name: &str, ports: &str| {
        let options = format!("{},lockport={},{ports}", locking.server.ports(), CurtServe::PORT);
        locking.mount_with(name, &options)
    };
    let mut one = mount("one", "lockcallbackport=4045,statdport=4046")?;
    let holder = locking.locker(&one, "fcntl-write first=0 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    wait_for_ports(&locking.network, "4045", "4046")?;
    let (other, third) = (mount("other", "lockcallbackport=4047")?, mount("third", "lockcallbackport=4047")?);
    for mount in [&other, &third] {
        locking.locker(mount, "fcntl-read first=9 length=1")?.wait_for("locked", MINUTE)?;
    }
    one.process().signal(Signal::KILL)?;
    one.process().wait(MINUTE)?;
    // Both programs are at one port by default.
    wait_for_ports(&locking.network, "4047", "4047")?;
    let mut holder = locking.locker(&other, "fcntl-write first=20 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    let waits = locking.locker(&third, "fcntl-write first=20 length=1")?;
    process::until("the third mount waits", MINUTE, || {
        Ok((locking.counter(None, "locks_blocked")? > 0).then_some(()))
    })?;
    tell(&mut holder, "unlock")?;
    waits.wait_for("locked", MINUTE)?;
    ensure!(locking.counter(Some(&third), "lock_cb_wakeup")? > 0, "it polled");
    Ok(())
}

// SEMANTICS: lockd-1.
#[test]
fn a_server_registers_again_after_a_restart_of_the_portmapper() -> Result<()> {
    let mut locking = LockServer::start(&[])?;
    let programs = ["100021 4", "100024 1"];
    wait_for_programs(&locking.network, &programs)?;
    locking.rpcbind.signal(Signal::KILL)?;
    locking.rpcbind.wait(MINUTE)?;
    locking.rpcbind = locking.network.rpcbind()?;
    wait_for_programs(&locking.network, &programs)?;
    locking.network.shell(&format!("rpcinfo -t {ADDRESS} 100003 3"), MINUTE).map(drop)
}
