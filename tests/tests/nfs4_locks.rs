//! Locks of `curt serve` over NFSv4: Linux clients with 4.1 and 4.2, beside a Linux client and a
//! mount of its own host with NFSv3 and NLM.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    [[ ! -e /run/failed ]] && seq 150 | cmp - /mnt/nfs/log";

/// Increments a number in a file, each time with the file locked, until it is stopped. It asks for
/// the lock again and again: a process that waits is called back, and asks for nothing in the grace
/// period. While it is held up, it has the lock and has read the number. Without the page cache,
/// because two changes within a tick of the server's clock may look like one.
const COUNTER: &str = r#"
import fcntl, os, time
file = os.open("/mnt/nfs/counter", os.O_RDWR | os.O_DIRECT)
count = 0
while not os.path.exists("/run/stop"):
    time.sleep(0.02)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        continue
    number = int(os.pread(file, 20, 0))
    while os.path.exists("/run/hold"):
        open("/run/holds", "w").close()
        time.sleep(0.02)
    os.pwrite(file, b"%10d" % (number + 1), 0)
    fcntl.lockf(file, fcntl.LOCK_UN)
    count += 1
print("COUNTED", count)
"#;
/// Has the counter stop where it has the lock.
const HOLD: &str = "touch /run/hold; until [[ -e /run/holds ]]; do sleep 0.02; done";
/// Waits until the client has sent a LOCK. Those that reclaim are sent before `stat -f` returns.
const ASKS: &str = "locks() { sed -n 's/^.*\\bLOCK: \\([0-9]*\\) .*/\\1/p' /proc/self/mountstats; }; \
    before=$(locks); until (( $(locks) > before )); do sleep 0.05; done";
/// Ends the counter, and prints how often it has counted.
const COUNTED: &str = "touch /run/stop; until [[ -s /run/counted ]]; do sleep 0.1; done; \
    cat /run/counted; grep -q COUNTED /run/counted";

/// A counter of the server.
fn counter(network: &Network, name: &str) -> Result<u64> {
    curt::counter(network, None, name)
}

fn wait_for(network: &Network, name: &str, least: u64) -> Result<()> {
    process::until(&format!("{name} is {least}"), MINUTE, || {
        Ok((counter(network, name)? >= least).then_some(()))
    })
}

/// Has two clients count. The second stops where it has the lock.
fn start_counting(network: &Network, number: &Path, clients: [&mut LinuxLocker<'_>; 2]) -> Result<()> {
    fs::write(number, format!("{:10}", 0))?;
    let script = network.make_directory("commands")?.join("counter.py");
    fs::write(&script, COUNTER)?;
    let [first, second] = clients;
    first.run(&format!("python3 {} >/run/counted 2>&1 &", script.display()))?;
    second.run(&format!("python3 {} >/run/counted 2>&1 &", script.display()))?;
    second.run(HOLD)
}

/// Checks that the number is what the clients have counted, and that each has.
fn check_sum(number: &Path, counts: [u64; 2]) -> Result<()> {
    let counter = fs::read_to_string(number)?;
    let is_sum = counter.trim().parse() == Ok(counts.iter().sum::<u64>());
    ensure!(is_sum && !counts.contains(&0), "{counts:?} make {counter}");
    Ok(())
}

/// How often a client has counted, by its output.
fn counted(output: &str) -> Result<u64> {
    let rest = output.split("COUNTED ").nth(1).context("no count")?;
    Ok(rest.split_whitespace().next().context("no count")?.parse()?)
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
    let number = export.join("counter");
    start_counting(&network, &number, [&mut one, &mut two])?;
    process::until("lines are appended", MINUTE, || Ok(export.join("log").exists().then_some(())))?;
    server.kill()?;
    let restarted = Instant::now();
    server.restart(&network)?;
    one.run("stat -f /mnt/nfs >/dev/null")?;
    // Two has the counter locked, and has not reclaimed that yet.
    one.run(ASKS)?;
    two.run("stat -f /mnt/nfs >/dev/null && rm /run/hold")?;
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
    one.run(COUNTED)?;
    two.run(COUNTED)?;
    let (of_one, of_two, _) = (one.end()?, two.end()?, old.end()?);
    check_sum(&number, [counted(&of_one)?, counted(&of_two)?])?;
    Ok(())
}
