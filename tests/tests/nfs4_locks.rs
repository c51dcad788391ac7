//! Locks of `curt serve` over NFSv4: Linux clients with 4.1 and 4.2, beside a Linux client and a
//! mount of its own host with NFSv3 and NLM.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_tests::curt::{self, CurtMount, CurtServe};
use curt_tests::kernel::KernelNumber;
use curt_tests::linux_locker::LinuxLocker;
use curt_tests::locker;
use curt_tests::network::Network;
use curt_tests::process;

const MINUTE: Duration = Duration::from_secs(60);
/// The lease, and the grace period of NLM.
const LEASE: u64 = 20;
/// A Linux client asks again for a lock after 30 s at the latest, if nobody calls it back.
const CALLED_BACK: Duration = Duration::from_secs(25);

/// Appends lines to a file in the background, while the server is killed.
const APPEND: &str = "(for n in $(seq 150); do echo $n >>/mnt/nfs/log || touch /run/failed; sleep 0.02; done; \
    touch /run/appended) >/dev/null 2>&1 &";
const APPENDED: &str = "until [[ -e /run/appended ]]; do sleep 0.1; done; \
    [[ ! -e /run/failed && $(wc -l </mnt/nfs/log) == 150 ]]";

/// A counter of the server.
fn counter(network: &Network, name: &str) -> Result<u64> {
    curt::counter(network, None, name)
}

fn wait_for(network: &Network, name: &str, least: u64) -> Result<()> {
    process::until(&format!("{name} is {least}"), MINUTE, || {
        Ok((counter(network, name)? >= least).then_some(()))
    })
}

// SEMANTICS: stateful-8, stateful-9, stateful-10.
#[test]
fn linux_clients_of_all_versions_exclude_each_other_and_reclaim_after_a_kill() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    fs::write(export.join("file"), "old")?;
    let mut server = CurtServe::start(&network, &export, &["--lease", &LEASE.to_string()])?;
    let source = server.source();
    let options = |version: &str| format!("vers={version},port={} {source}", CurtServe::PORT);
    let (for_4_1, for_4_2, for_3) = (options("4.1"), options("4.2"), format!("vers=3 {source}"));
    let start = |number: u8, mounting: &str, name: &'static str| {
        LinuxLocker::start(&network, KernelNumber(number), mounting, name)
    };
    let (one, two, old) = (start(0, &for_4_1, "one")?, start(1, &for_4_2, "two")?, start(2, &for_3, "old")?);
    let (mut one, mut two, mut old) = (one.mounted()?, two.mounted()?, old.mounted()?);
    let mount = CurtMount::start(&network, "mount", &source, "")?;
    let file = mount.directory().join("file");

    // All see the lock of one. Those who wait get it in turn.
    one.ask("lock 10 10", "lock 10 done")?;
    two.ask("try 15 5", "try 15 error 11")?;
    two.ask("try 20 5", "try 20 done")?;
    old.ask("try 19 1", "try 19 error 11")?;
    locker::start(&network, &file, "fcntl-read first=20 length=1 try=1")?
        .wait_for("refused EAGAIN", MINUTE)?;
    two.tell("lock 11 1")?;
    wait_for(&network, "locks_blocked", 1)?;
    old.tell("lock 12 1")?;
    wait_for(&network, "locks_blocked", 2)?;
    let waits = locker::start(&network, &file, "fcntl-write first=13 length=1")?;
    wait_for(&network, "locks_blocked", 3)?;
    let unlocked = Instant::now();
    one.ask("unlock 10 10", "unlock 10 done")?;
    two.job.wait_for("lock 11 done")?;
    let two_waited = unlocked.elapsed();
    old.job.wait_for("lock 12 done")?;
    waits.wait_for("locked", MINUTE)?;
    one.tell("lock 13 1")?;
    wait_for(&network, "locks_blocked", 4)?;
    let unlocked = Instant::now();
    drop(waits);
    one.job.wait_for("lock 13 done")?;
    let times = [unlocked.elapsed(), two_waited];
    ensure!(times.iter().all(|time| *time < CALLED_BACK), "the Linux clients polled: {times:?}");

    let mut kept = locker::start(&network, &file, "fcntl-write first=30 length=2")?;
    kept.wait_for("locked", MINUTE)?;

    // One holds 13, two 11 and 20 to 24, old 12, the mount 30 and 31.
    one.run(APPEND)?;
    process::until("lines are appended", MINUTE, || Ok(export.join("log").exists().then_some(())))?;
    server.kill()?;
    let restarted = Instant::now();
    server.restart(&network)?;
    for client in [&mut one, &mut two] {
        client.run("stat -f /mnt/nfs >/dev/null")?;
    }
    // What nobody had is granted after the grace period only.
    two.ask("lock 90 1", "lock 90 done")?;
    let grace = restarted.elapsed();
    ensure!(grace >= Duration::from_secs(LEASE), "a lock after {grace:?}");
    one.ask("try 11 1", "try 11 error 11")?;
    one.ask("try 24 1", "try 24 error 11")?;
    two.ask("try 13 1", "try 13 error 11")?;
    one.ask("try 12 1", "try 12 error 11")?;
    old.ask("try 90 1", "try 90 error 11")?;
    for client in [&mut one, &mut two, &mut old] {
        client.ask("try 31 1", "try 31 error 11")?;
    }
    kept.say("unlock\n")?;
    kept.wait_for("done unlock", MINUTE)?;
    one.ask("unlock 13 1", "unlock 13 done")?;
    two.ask("unlock 0 0", "unlock 0 done")?;
    old.ask("unlock 12 1", "unlock 12 done")?;
    one.ask("try 0 0", "try 0 done")?;
    one.run(APPENDED)?;
    for client in [one, two, old] {
        client.end()?;
    }
    Ok(())
}
