//! Locks of a mount against knfsd: between processes, mounts and clients, over interrupts, and
//! after a restart of the server.

mod counters;
mod host_restart;
mod stopped;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{self, CurtMount};
use curt_tests::kernel::{ClientJob, KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::lock_scenarios::{restart_under_locks, try_pairs, write_database};
use curt_tests::lock_scripts::{PAIRS, PairClients, TURNS, check_pairs, is_full, number_behind};
use curt_tests::locker::{LOCKER, tell};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);

/// The setup of the export. A second boot must not change its files.
const SETUP: &str = "[[ -e file ]] || echo old > file; chmod 666 file; chmod 777 .";

/// The numbers of fcntl(2) and flock(2) on x86-64.
const LOCK_CALLS: [&str; 2] = ["72", "73"];

/// How long a killed process may stay, where nothing else runs on the machine.
const KILLED: Duration = Duration::from_millis(100);

/// knfsd, and this machine as its client.
struct Locking {
    network: Network,
    server: Knfsd,
    _rpcbind: RunningProcess,
}

impl Locking {
    fn new() -> Result<Self> {
        Self::with_setup(SETUP)
    }

    fn with_setup(setup: &str) -> Result<Self> {
        let network = Network::new()?;
        let rpcbind = network.rpcbind()?;
        let options = KnfsdOptions { setup: setup.into(), ..KnfsdOptions::default() };
        let server = Knfsd::start(&network, KernelNumber(0), MINUTES * 2, &options)?;
        for (name, text) in [
            ("locker", LOCKER),
            ("turns", TURNS),
            ("pairs", PAIRS),
            ("counter", counters::COUNTER),
            ("ranges", stopped::RANGES),
            ("writer", stopped::WRITER),
        ] {
            std::fs::write(network.directory().join(name).with_extension("py"), text)?;
        }
        Ok(Self { network, server, _rpcbind: rpcbind })
    }

    /// Starts one of the scripts.
    fn script(&self, name: &str, path: &Path, words: &[&str]) -> Result<RunningProcess> {
        let mut command = self.network.command("python3");
        command.arg(self.network.directory().join(name).with_extension("py"));
        RunningProcess::start(name, command.arg(path).args(words))
    }

    /// Waits until a process waits for a lock: until it is in fcntl(2) or flock(2).
    fn wait_until_it_waits(locker: &RunningProcess) -> Result<()> {
        let place = format!("/proc/{}/syscall", locker.pid());
        process::until("it waits for the lock", MINUTE, || {
            let number = std::fs::read_to_string(&place)?;
            Ok(LOCK_CALLS.contains(&number.split(' ').next().unwrap_or_default()).then_some(()))
        })
    }

    fn mount(&self, name: &str, options: &str) -> Result<CurtMount> {
        CurtMount::start(&self.network, name, &format!("{}:/export", self.server.address()), options)
    }

    /// A process that locks the file on a mount.
    fn locker(&self, mount: &CurtMount, words: &str) -> Result<RunningProcess> {
        let mut command = self.network.command("python3");
        command.arg(self.network.directory().join("locker.py")).arg(mount.directory().join("file"));
        let locker = RunningProcess::start("a locker", command.args(words.split(' ')))?;
        locker.wait_for("begins", MINUTE)?;
        Ok(locker)
    }

    /// A process that ends as soon as it has the lock.
    fn passer(&self, mount: &CurtMount) -> Result<RunningProcess> {
        let mut locker = self.locker(mount, "fcntl-write")?;
        locker.say("end\n")?;
        Ok(locker)
    }

    /// How a lock is refused that does not wait; `None` if it is granted.
    fn refusal(&self, mount: &CurtMount, words: &str) -> Result<Option<String>> {
        let mut locker = self.locker(mount, &format!("{words} try=1"))?;
        process::until("the lock is granted or refused", MINUTE, || {
            let has_ended = !locker.is_running()?;
            if has_ended {
                locker.wait(MINUTE)?;
            }
            let output = locker.output();
            if let Some(error) = output.split("refused ").nth(1) {
                return Ok(Some(Some(error.trim().to_owned())));
            }
            if output.contains("locked") {
                return Ok(Some(None));
            }
            ensure!(!has_ended, "{output}");
            Ok(None)
        })
    }

    /// Waits until the file can be locked: what its last owners have left may be unlocked later.
    /// Returns the number of attempts.
    fn wait_until_free(&self, mount: &CurtMount) -> Result<u64> {
        let mut attempts = 0;
        process::until("the lock is free", MINUTE, || {
            attempts += 1;
            Ok(self.refusal(mount, "fcntl-write")?.is_none().then_some(()))
        })?;
        Ok(attempts)
    }

    /// A counter of a mount.
    fn counter(&self, mount: &CurtMount, name: &str) -> Result<u64> {
        curt::counter(&self.network, Some(mount), name)
    }
}

// SEMANTICS: lock-1, lock-3, lock-5, lock-6.
#[test]
fn locks_exclude_processes_of_a_mount_of_two_mounts_and_of_a_linux_client() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    for kind in ["fcntl", "ofd", "flock"] {
        let mut holder = locking.locker(&one, &format!("{kind}-write"))?;
        holder.wait_for("locked", MINUTE)?;
        for mount in [&one, &other] {
            for other_kind in ["fcntl", "ofd", "flock"] {
                let refused = locking.refusal(mount, &format!("{other_kind}-read"))?;
                ensure!(refused.as_deref() == Some("EAGAIN"), "{kind}, {other_kind}: {refused:?}");
            }
        }
        let waiters = [locking.passer(&one)?, locking.passer(&other)?];
        tell(&mut holder, &format!("write by-{kind}"))?;
        tell(&mut holder, "unlock")?;
        for waiter in waiters {
            waiter.wait_for(&format!("locked b'by-{kind}"), MINUTE)?;
        }
        holder.say("end\n")?;
    }
    let mut holder = locking.locker(&one, "fcntl-write first=10 length=10")?;
    holder.wait_for("locked", MINUTE)?;
    let script = "mount -t nfs -o vers=3 10.77.0.2:/export /mnt/nfs || exit 1
        python3 - <<'PY'
import fcntl, os
file = os.open('/mnt/nfs/file', os.O_RDWR)
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 15)
    print('WRONG')
except OSError as error:
    print('REFUSED', error.errno)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 20)
print('BESIDE', flush=True)
fcntl.lockf(file, fcntl.LOCK_EX, 5, 15)
print('GRANTED', flush=True)
PY";
    let linux = ClientJob::start(&locking.network, KernelNumber(1), MINUTES, script)?;
    linux.wait_for("BESIDE")?;
    let refused = locking.refusal(&one, "fcntl-read first=22 length=1")?;
    ensure!(refused.as_deref() == Some("EAGAIN"), "{refused:?}");
    tell(&mut holder, "unlock")?;
    linux.wait_for("GRANTED")?;
    let done = linux.finish()?;
    ensure!(done.output.contains("REFUSED 11") && !done.output.contains("WRONG"), "{}", done.output);
    Ok(())
}

/// Starts waiters on both mounts, which wait behind a process of their mount, or for the server.
fn waiters(locking: &Locking, mounts: [&CurtMount; 2]) -> Result<Vec<RunningProcess>> {
    let mut waiters = Vec::new();
    for words in ["fcntl-write", "flock-write", "ofd-write"] {
        for mount in mounts {
            waiters.push(locking.locker(mount, words)?);
        }
    }
    waiters.iter().try_for_each(Locking::wait_until_it_waits)?;
    Ok(waiters)
}

/// Kills waiters, each of which has to end; returns how long they took.
fn kill(waiters: &mut [RunningProcess]) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for waiter in waiters {
        waiter.signal(Signal::KILL)?;
        let killed = Instant::now();
        while waiter.is_running()? {
            ensure!(killed.elapsed() < MINUTE, "a waiter does not end: {}", waiter.output());
            std::thread::sleep(Duration::from_millis(1));
        }
        times.push(killed.elapsed());
    }
    println!("waiters ended after SIGKILL in {times:?}");
    Ok(times)
}

/// Sets of waiters for [`kill_in_time`].
fn sets_of_waiters(locking: &Locking, mounts: [&CurtMount; 2]) -> Result<Vec<Vec<RunningProcess>>> {
    (0..3).map(|_| waiters(locking, mounts)).collect()
}

/// Kills sets of waiters, also those that have asked the server: all end, and most of them in time
/// where nothing else runs on the machine.
fn kill_in_time(sets: Vec<Vec<RunningProcess>>, server: &str) -> Result<()> {
    let mut times = Vec::new();
    for mut set in sets {
        times.extend(kill(&mut set)?);
    }
    times.sort_unstable();
    let is_in_time = times.get(times.len() / 2).is_some_and(|median| *median < KILLED);
    ensure!(is_in_time || !is_full(), "with a server that is {server}: {times:?}");
    Ok(())
}

/// Waits until a process has a lock whose owner was killed: within a second of its request, and on
/// a busy machine before it would ask the server again by itself (30 s).
fn wait_for_lock_of_killed(next: &RunningProcess) -> Result<()> {
    let tried = Instant::now();
    next.wait_for("locked", MINUTE)?;
    println!("the lock of a killed mount was free {:?} after the next request", tried.elapsed());
    let bound = Duration::from_secs(if is_full() { 1 } else { 25 });
    ensure!(tried.elapsed() < bound, "{:?}", tried.elapsed());
    Ok(())
}

// SEMANTICS: lock-4.
#[test]
fn a_waiter_is_interrupted_and_killed_whether_the_server_responds_or_not() -> Result<()> {
    let locking = Locking::new()?;
    let (mut one, mut other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let holder = locking.locker(&one, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    for is_stopped in [false, true] {
        let mut interrupted = waiters(&locking, [&one, &other])?;
        let killed = sets_of_waiters(&locking, [&one, &other])?;
        if is_stopped {
            locking.server.signal(&locking.network, "STOP")?;
        }
        for waiter in &mut interrupted {
            // SA_RESTART is not set.
            waiter.signal(Signal::ALARM)?;
            waiter.wait_for("interrupted", MINUTE)?;
        }
        kill_in_time(killed, if is_stopped { "stopped" } else { "alive" })?;
    }
    locking.server.signal(&locking.network, "CONT")?;
    let killed = sets_of_waiters(&locking, [&one, &other])?;
    // It is gone for ever, without closing its connections.
    let Locking { network, server, _rpcbind } = locking;
    server.power_off(&network)?;
    kill_in_time(killed, "gone")?;
    // They would try to unlock.
    [&mut one, &mut other].into_iter().try_for_each(|mount| mount.process().signal(Signal::KILL))
}

// SEMANTICS: lock-4.
#[test]
fn killed_waiters_leave_nothing() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let mut holder = locking.locker(&one, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let mut killed = waiters(&locking, [&one, &other])?;
    locking.server.signal(&locking.network, "STOP")?;
    kill(&mut killed)?;
    locking.server.signal(&locking.network, "CONT")?;
    tell(&mut holder, "unlock")?;
    // Their requests may be cancelled after that.
    locking.wait_until_free(&other).map(drop)
}

// SEMANTICS: lock-7.
#[test]
fn a_closed_file_is_not_locked_any_more() -> Result<()> {
    let locking = Locking::new()?;
    let mount = locking.mount("mount", "")?;
    let script = "
import fcntl, os, sys
for round in range(100):
    for lock in (fcntl.flock, fcntl.lockf):
        file = os.open(sys.argv[1], os.O_RDWR)
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
print('DONE')";
    let mut command = locking.network.command("python3");
    let output = process::run(command.args(["-c", script]).arg(mount.directory().join("file")), MINUTES)?;
    ensure!(output.contains("DONE"), "{output}");
    let text = process::run(
        locking.network.command(curt::program("curt")?).args(["locks"]).arg(mount.directory()),
        MINUTE,
    )?;
    ensure!(text.contains("no locks"), "{text}");
    Ok(())
}

/// Two mounts have a shared lock each, which neither can convert.
const CONVERSIONS: &str = r#"
import fcntl, os, sys
EX, SH, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
one, other, third = (os.open(path, os.O_RDWR) for path in sys.argv[1:3] + sys.argv[2:3])
def is_refused(file, lock):
    try:
        fcntl.flock(file, lock | NB)
        return False
    except BlockingIOError:
        return True
fcntl.flock(one, SH)
fcntl.flock(other, SH)
assert is_refused(one, EX) and is_refused(other, EX), "the other has a shared lock"
fcntl.flock(one, UN)
assert is_refused(third, EX), "a conversion that failed has left the shared lock"
assert not is_refused(other, EX), "nobody else has a lock"
assert is_refused(one, SH) and is_refused(third, SH), "it is exclusive"
fcntl.flock(other, SH)
assert not is_refused(one, SH), "it is shared again"
print("CONVERTED")
"#;

// SEMANTICS: lock-13.
#[test]
fn a_shared_lock_of_flock_stays_when_its_conversion_fails() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    // The grace period of the server ends first.
    ensure!(locking.refusal(&one, "fcntl-write")?.is_none(), "it is free");
    locking.wait_until_free(&other)?;
    let mut command = locking.network.command("python3");
    command.args(["-c", CONVERSIONS]);
    command.args([&one, &other].map(|mount| mount.directory().join("file")));
    let output = process::run(&mut command, MINUTES)?;
    ensure!(output.contains("CONVERTED"), "{output}");
    Ok(())
}

// SEMANTICS: lock-15.
#[test]
fn two_hundred_processes_take_turns_with_a_request_for_each_turn() -> Result<()> {
    let seconds = if is_full() { 60 } else { 10 };
    let locking = Locking::new()?;
    let mount = locking.mount("mount", "")?;
    let inside = locking.network.directory().join("inside");
    std::fs::write(&inside, "0")?;
    // The grace period of the server ends first.
    ensure!(locking.refusal(&mount, "fcntl-write")?.is_none(), "it is free");
    let before = locking.counter(&mount, "lock_wire")?;
    let polls_before = locking.counter(&mount, "lock_poll")?;
    let mut command = locking.network.command("python3");
    command.arg(locking.network.directory().join("turns.py")).arg(mount.directory().join("file"));
    command.args(["200", "0.02", &seconds.to_string()]).arg(&inside);
    let mut turns = RunningProcess::start("200 processes", &mut command)?;
    turns.wait_for("GRABS", MINUTES)?;
    turns.wait(MINUTE)?;
    let output = turns.output();
    let requests = locking.counter(&mount, "lock_wire")? - before;
    // The next one starts with the reply to UNLOCK, and with no timer.
    let polls = locking.counter(&mount, "lock_poll")?;
    ensure!(polls == polls_before, "{polls} polls, {polls_before} before: {output}");
    let (grabs, wrong) = (number_behind("GRABS", &output)?, number_behind("WRONG", &output)?);
    ensure!(wrong == 0, "two were inside: {output}");
    ensure!(requests <= grabs + grabs / 100 + 2, "{requests} LOCKs for {output}");
    ensure!(
        number_behind("MOST", &output)? - number_behind("LEAST", &output)? < 2,
        "it is not fair: {output}"
    );
    Ok(())
}

// SEMANTICS: lock-15.
#[test]
fn waiters_take_neither_threads_nor_much_memory() -> Result<()> {
    let count = if is_full() { 2000 } else { 200 };
    let locking = Locking::new()?;
    let mut mount = locking.mount("mount", "")?;
    let mut holder = locking.locker(&mount, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let pid = mount.process().pid();
    let threads = || -> Result<usize> { Ok(std::fs::read_dir(format!("/proc/{pid}/task"))?.count()) };
    let kilobytes = || -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    // What the daemon needs for its first requests is not that of the waiters.
    for _ in 0..10 {
        ensure!(locking.refusal(&mount, "fcntl-write")?.is_some(), "it is held");
    }
    let before = (threads()?, kilobytes()?);
    let script = "
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for number in range(int(sys.argv[2])):
    if os.fork() == 0:
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_UN)
        os._exit(0)
statuses = [os.wait()[1] for number in range(int(sys.argv[2]))]
print('ENDED', len(statuses), 'WRONG', sum(status != 0 for status in statuses))";
    let mut command = locking.network.command("python3");
    command.args(["-c", script]).arg(mount.directory().join("file")).arg(count.to_string());
    let waiters = RunningProcess::start("many waiters", &mut command)?;
    process::until("all wait", MINUTES, || {
        Ok((locking.counter(&mount, "lock_local_wait")? >= count).then_some(()))
    })?;
    // The burst of requests took threads, which end when they have been idle for a while.
    process::until("the threads end", MINUTE, || Ok((threads()? <= before.0 + 8).then_some(())))?;
    let after = kilobytes()?;
    println!("{} kB without waiters, {after} kB with {count}", before.1);
    // 16 MiB for 2,000.
    let allowed = (16 << 10) * count / 2000;
    ensure!(after <= before.1 + allowed, "{} kB before and {after} with waiters", before.1);
    tell(&mut holder, "unlock")?;
    waiters.wait_for(&format!("ENDED {count} WRONG 0"), MINUTES)
}

// SEMANTICS: lock-14.
#[test]
fn the_locks_of_a_killed_mount_are_unlocked_by_another_one() -> Result<()> {
    let locking = Locking::new()?;
    let (mut one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let mut kept = locking.locker(&other, "fcntl-write first=100 length=1")?;
    kept.wait_for("locked", MINUTE)?;
    let holder = locking.locker(&one, "fcntl-write first=0 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    // A LOCK of a part is blocked at the server. It must not be granted to nobody later.
    let mut in_the_way = locking.locker(&other, "fcntl-write first=30 length=10")?;
    in_the_way.wait_for("locked", MINUTE)?;
    let _blocked = locking.locker(&one, "fcntl-write first=35 length=1")?;
    process::until("a LOCK is blocked", MINUTE, || {
        Ok((locking.counter(&one, "lock_denied")? > 0).then_some(()))
    })?;
    one.process().signal(Signal::KILL)?;
    one.process().wait(MINUTE)?;
    let waiter = locking.locker(&other, "fcntl-write first=0 length=1")?;
    wait_for_lock_of_killed(&waiter)?;
    tell(&mut in_the_way, "unlock")?;
    locking.locker(&other, "fcntl-write first=35 length=1")?.wait_for("locked", MINUTE)?;
    let third = locking.mount("third", "")?;
    let refused = locking.refusal(&third, "fcntl-write first=100 length=1")?;
    ensure!(refused.as_deref() == Some("EAGAIN"), "those of other mounts stay: {refused:?}");
    tell(&mut kept, "unlock")
}

// SEMANTICS: lock-14.
#[test]
fn the_locks_of_a_killed_mount_are_unlocked_by_the_next_one() -> Result<()> {
    let locking = Locking::new()?;
    let mut killed = locking.mount("killed", "")?;
    let holders = [
        locking.locker(&killed, "fcntl-write first=0 length=1")?,
        locking.locker(&killed, "fcntl-write first=1 length=1")?,
    ];
    for holder in &holders {
        holder.wait_for("locked", MINUTE)?;
    }
    killed.process().signal(Signal::KILL)?;
    killed.process().wait(MINUTE)?;
    let next = locking.mount("next", "")?;
    // The new mount's first owner must not be the killed one's.
    let mut own = locking.locker(&next, "fcntl-write first=5 length=1")?;
    own.wait_for("locked", MINUTE)?;
    for range in ["first=0 length=1", "first=1 length=1"] {
        wait_for_lock_of_killed(&locking.locker(&next, &format!("fcntl-write {range}"))?)?;
    }
    let refused = locking.refusal(&next, "fcntl-write first=5 length=1")?;
    ensure!(refused.as_deref() == Some("EAGAIN"), "{refused:?}");
    tell(&mut own, "unlock")
}

/// The owners of a mount that has locked for many processes, one after the other.
const OWNERS: u32 = 1000;

// SEMANTICS: lock-14.
#[test]
fn a_lock_of_a_killed_mount_with_many_owners_is_free_as_soon() -> Result<()> {
    let locking = Locking::new()?;
    let (mut one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    // The file is locked all the time, so no owner is forgotten.
    let keeper = locking.locker(&one, "fcntl-write first=100 length=1")?;
    keeper.wait_for("locked", MINUTE)?;
    let script = "
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for number in range(int(sys.argv[2])):
    if os.fork() == 0:
        fcntl.lockf(file, fcntl.LOCK_EX, 1)
        os._exit(0)
    os.wait()
print('ENDED', flush=True)";
    let mut command = locking.network.command("python3");
    command.args(["-c", script]).arg(one.directory().join("file")).arg(OWNERS.to_string());
    RunningProcess::start("many owners", &mut command)?.wait_for("ENDED", MINUTES)?;
    ensure!(locking.counter(&one, "lock_wire")? > u64::from(OWNERS), "each has locked at the server");
    let holder = locking.locker(&one, "fcntl-write first=0 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    one.process().signal(Signal::KILL)?;
    one.process().wait(MINUTE)?;
    wait_for_lock_of_killed(&locking.locker(&other, "fcntl-write first=0 length=1")?)
}

// SEMANTICS: lock-14.
#[test]
fn the_locks_of_a_killed_mount_are_unlocked_with_the_groups_of_their_user() -> Result<()> {
    // Debian's mountd looks up the groups of users by itself, and knows none here.
    let plain = "[[ ! -e /etc/nfs.conf ]] || mount --bind /dev/null /etc/nfs.conf";
    let locking = Locking::with_setup(&format!("{SETUP}\n{plain}"))?;
    let (mut one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let file = |mount: &CurtMount| mount.directory().join("team");
    let create = format!("install -m 660 -g 4000 /dev/null {}", file(&one).display());
    locking.network.shell(&create, MINUTE)?;
    let locker = |mount: &CurtMount, user: &[&str]| -> Result<RunningProcess> {
        let mut command = locking.network.command("env");
        // Other users may not run what PATH finds.
        command.args(user).arg("/usr/bin/python3").arg(locking.network.directory().join("locker.py"));
        RunningProcess::start("a locker", command.arg(file(mount)).arg("fcntl-write"))
    };
    let holder = locker(&one, &["setpriv", "--reuid=2000", "--regid=2000", "--groups=3000,4000"])?;
    holder.wait_for("locked", MINUTE)?;
    one.process().signal(Signal::KILL)?;
    one.process().wait(MINUTE)?;
    wait_for_lock_of_killed(&locker(&other, &[])?)
}

// SEMANTICS: lock-3, lock-14.
#[test]
fn another_mount_receives_callbacks_when_the_first_one_is_killed() -> Result<()> {
    let locking = Locking::new()?;
    let mut first = locking.mount("first", "")?;
    let held = locking.locker(&first, "fcntl-write first=0 length=1")?;
    held.wait_for("locked", MINUTE)?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    for mount in [&one, &other] {
        ensure!(locking.refusal(mount, "fcntl-write first=1 length=1")?.is_none(), "it is free");
    }
    first.process().signal(Signal::KILL)?;
    first.process().wait(MINUTE)?;
    let mut holder = locking.locker(&one, "fcntl-write first=0 length=1")?;
    holder.wait_for("locked", MINUTE)?;
    process::until("a callback comes", MINUTES, || {
        let waiter = locking.passer(&other)?;
        process::until("the server is asked", MINUTE, || {
            Ok((locking.counter(&other, "lock_denied")? > 0).then_some(()))
        })?;
        tell(&mut holder, "unlock")?;
        waiter.wait_for("locked", MINUTES)?;
        let calls = locking.counter(&other, "lock_cb_wakeup")?;
        holder = locking.locker(&one, "fcntl-write first=0 length=1")?;
        holder.wait_for("locked", MINUTE)?;
        Ok((calls > 0).then_some(()))
    })
}

// SEMANTICS: lock-16.
#[test]
fn pairs_of_locks_conflict_as_those_of_a_linux_client() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let script = format!(
        "mount -t nfs -o vers=3 10.77.0.2:/export /mnt/nfs && python3 {} /mnt/nfs /mnt/nfs",
        locking.network.directory().join("pairs.py").display()
    );
    let linux = ClientJob::start(&locking.network, KernelNumber(1), MINUTES, &script)?;
    linux.wait_for("END")?;
    check_pairs(&linux.finish()?.output, PairClients::One)?;
    try_pairs(&locking.network, [&one, &other])
}

// SEMANTICS: lock-17.
#[test]
fn a_database_is_written_through_two_mounts_and_a_linux_client() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let linux = format!("vers=3 {}:/export", KernelNumber(0).address());
    write_database(&locking.network, [&one, &other], KernelNumber(1), &linux)
}

// SEMANTICS: lock-10.
#[test]
fn many_locks_and_waiters_outlive_a_power_failure_of_the_server() -> Result<()> {
    let (count, grace) = if is_full() { (1000, 30) } else { (100, 20) };
    let mut locking = Locking::new()?;
    let image = Some(locking.network.directory().join("disk.img"));
    let options = KnfsdOptions { image, grace: Some(grace), setup: SETUP.into(), ..KnfsdOptions::default() };
    let old = std::mem::replace(
        &mut locking.server,
        Knfsd::start(&locking.network, KernelNumber(1), MINUTES * 2, &options)?,
    );
    drop(old);
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let Locking { network, server, _rpcbind } = locking;
    let mut restarted = None;
    restart_under_locks(&network, [&one, &other], count, || {
        server.power_off(&network)?;
        restarted = Some(Knfsd::start(&network, KernelNumber(1), MINUTES * 2, &options)?);
        Ok(())
    })
}

// SEMANTICS: lock-10.
#[test]
fn locks_outlive_a_restart_of_the_server() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let mut holder = locking.locker(&one, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let waiters = [locking.passer(&one)?, locking.passer(&other)?];
    process::until("the other mount asks", MINUTE, || {
        Ok((locking.counter(&other, "lock_wire")? > 0).then_some(()))
    })?;
    // The restart of lockd ends all locks; the server's monitor tells its clients of it.
    locking.server.inside("rpc.nfsd 0; rpc.nfsd -V 4.0 -V 4.1 -V 4.2 4; sm-notify -f", MINUTE)?;
    process::until("the lock is reclaimed", MINUTE, || {
        Ok((locking.counter(&one, "lock_reclaimed")? == 1).then_some(()))
    })?;
    ensure!(locking.counter(&one, "lock_lost")? == 0, "nothing is lost");
    for waiter in &waiters {
        ensure!(!waiter.output().contains("locked"), "the lock is still held");
    }
    tell(&mut holder, "write after")?;
    tell(&mut holder, "unlock")?;
    for waiter in waiters {
        waiter.wait_for("locked b'after", MINUTES)?;
    }
    Ok(())
}
