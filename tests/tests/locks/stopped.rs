//! A server that stops or fails while locks are requested, unlocked or closed.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

use super::{Locking, MINUTE, MINUTES, SETUP, is_full, tell};

/// Processes that lock a range of their own each, after the first line of its standard input. Kills
/// them after the second.
pub(crate) const RANGES: &str = r#"
import fcntl, os, signal, sys
path, count = sys.argv[1], int(sys.argv[2])
ready, tells = os.pipe()
waits, go = os.pipe()
children = []
for number in range(count):
    child = os.fork()
    if child == 0:
        os.close(go)
        file = os.open(path, os.O_RDWR)
        os.write(tells, b"1")
        os.read(waits, 1)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, number)
        signal.pause()
    children.append(child)
for number in range(count):
    os.read(ready, 1)
print("READY", flush=True)
sys.stdin.readline()
os.close(go)
sys.stdin.readline()
for child in children:
    os.kill(child, signal.SIGKILL)
for child in children:
    os.wait()
print("ENDED", flush=True)
sys.stdin.readline()
"#;

/// Writes much under a lock, unlocks, and says so.
pub(crate) const WRITER: &str = r#"
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for round in range(2):
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.pwrite(file, sys.argv[2].encode() * (8 << 20), 0)
    if round == 0:
        fcntl.lockf(file, fcntl.LOCK_UN)
        print("UNLOCKED", flush=True)
        sys.stdin.readline()
    else:
        print("LOCKED", flush=True)
        sys.stdin.readline()
        os.close(file)
        print("CLOSED", flush=True)
"#;

fn threads(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

// SEMANTICS: lock-4, lock-15.
#[test]
fn many_requests_to_a_server_that_has_stopped_take_few_threads_and_die_at_once() -> Result<()> {
    let count: usize = if is_full() { 2000 } else { 200 };
    let locking = Locking::new()?;
    let mut mount = locking.mount("mount", "")?;
    // The connection and the grace period.
    ensure!(locking.refusal(&mount, "fcntl-write")?.is_none(), "it is free");
    let sent_before = locking.counter(&mount, "lock_wire")?;
    let pid = mount.process().pid();
    let before = threads(pid)?;
    let file = mount.directory().join("file");
    let mut ranges = locking.script("ranges", &file, &[&count.to_string()])?;
    ranges.wait_for("READY", MINUTES)?;
    locking.server.signal(&locking.network, "STOP")?;
    ranges.say("lock\n")?;
    process::until("all are queued", MINUTES, || {
        let mut command = locking.network.command(curt::program("curt")?);
        let text = process::run(command.arg("locks").arg(mount.directory()), MINUTE)?;
        Ok((text.matches("waits").count() >= count).then_some(()))
    })?;
    // The burst of requests took threads, which end when they have been idle for a while.
    process::until("the threads end", MINUTE, || Ok((threads(pid)? <= before + 8).then_some(())))?;
    println!("{count} requests hold {} threads", threads(pid)?.saturating_sub(before));
    let killed = Instant::now();
    ranges.say("end\n")?;
    ranges.wait_for("ENDED", MINUTE)?;
    println!("{count} processes ended {:?} after SIGKILL", killed.elapsed());
    locking.server.signal(&locking.network, "CONT")?;
    // The killed leave nothing. What they have sent may be cancelled later.
    let attempts = locking.wait_until_free(&mount)?;
    // What was not sent before they were killed was never sent.
    let sent = locking.counter(&mount, "lock_wire")? - sent_before;
    ensure!(sent < 19 + attempts, "{sent} LOCKs, {attempts} of them ours");
    Ok(())
}

// SEMANTICS: lock-7.
#[test]
fn a_process_that_is_killed_in_close_ends_while_the_lock_manager_does_not_reply() -> Result<()> {
    let locking = Locking::new()?;
    let mount = locking.mount("mount", "")?;
    let mut closer = locking.locker(&mount, "fcntl-write")?;
    closer.wait_for("locked", MINUTE)?;
    locking.server.signal(&locking.network, "STOP")?;
    // It leaves its loop and exits, which closes the file.
    closer.say("end\n")?;
    process::until("it is in close(2)", MINUTE, || {
        Ok((locking.counter(&mount, "lock_unlock_wire")? > 0).then_some(()))
    })?;
    closer.signal(Signal::KILL)?;
    let killed = Instant::now();
    closer.wait(MINUTE)?;
    println!("a process in close(2) ended {:?} after SIGKILL", killed.elapsed());
    // An exiting process gets no interruption: its close ends when the server is silent for 1 s.
    ensure!(killed.elapsed() < MINUTE / 2, "{:?}", killed.elapsed());
    locking.server.signal(&locking.network, "CONT")?;
    locking.wait_until_free(&mount).map(drop)
}

// SEMANTICS: lock-6.
#[test]
fn what_was_written_under_a_lock_outlives_a_power_failure_after_the_unlock_and_hides_nothing() -> Result<()> {
    let mut locking = Locking::new()?;
    let image = Some(locking.network.directory().join("disk.img"));
    let options = KnfsdOptions { image, grace: Some(9), setup: SETUP.into(), ..KnfsdOptions::default() };
    let start = |network: &Network| Knfsd::start(network, KernelNumber(1), MINUTES * 2, &options);
    let old = std::mem::replace(&mut locking.server, start(&locking.network)?);
    drop(old);
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let write = |mount: &curt::CurtMount, letter: &str| -> Result<RunningProcess> {
        let writer = locking.script("writer", &mount.directory().join("file"), &[letter])?;
        writer.wait_for("UNLOCKED", MINUTES)?;
        Ok(writer)
    };
    let mut writers = [write(&one, "a")?, write(&other, "b")?];
    let Locking { network, server, _rpcbind } = locking;
    server.power_off(&network)?;
    let server = start(&network)?;
    let locking = Locking { network, server, _rpcbind };
    let mut reader = locking.locker(&one, "fcntl-read")?;
    // The last owner's bytes are there, and are not overwritten by those of the one before.
    reader.wait_for(&format!("locked b'{}'", "b".repeat(100)), MINUTES)?;
    tell(&mut reader, "unlock")?;
    let size = locking.server.inside("head -c 8388608 /export/file | tr -d b | wc -c", MINUTE)?;
    ensure!(size.trim() == "0", "{size} bytes of the first owner");
    // The same at close(2).
    for writer in &mut writers {
        writer.say("lock\n")?;
        writer.wait_for("LOCKED", MINUTES)?;
        writer.say("close\n")?;
        writer.wait_for("CLOSED", MINUTES)?;
    }
    let counted = locking.server.inside("head -c 8388608 /export/file | tr -d b | wc -c", MINUTE)?;
    counted.trim().parse::<u64>().context("a count").and_then(|count| {
        ensure!(count == 0, "{count} bytes of the first owner");
        Ok(())
    })
}
