//! Locks of a mount against knfsd: between processes, mounts and clients, over interrupts, and
//! after a restart of the server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{self, CurtMount};
use curt_tests::kernel::{ClientJob, KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);

/// Locks a file as its arguments say, prints what happened, and holds the lock until its standard
/// input says so.
const LOCKER: &str = r#"
import errno, fcntl, os, signal, struct, sys, time
path, how, *rest = sys.argv[1:]
kind, mode = how.split("-")
options = dict(word.split("=") for word in rest)
file = open(path, "rb" if mode == "read" and kind != "flock" else "r+b", buffering=0)
first, length = int(options.get("first", 0)), int(options.get("length", 0))
write = mode == "write"
def lock(wait, unlock=False):
    if kind == "flock":
        operation = fcntl.LOCK_UN if unlock else fcntl.LOCK_EX if write else fcntl.LOCK_SH
        return fcntl.flock(file, operation | (0 if wait else fcntl.LOCK_NB))
    command = {("fcntl", True): fcntl.F_SETLKW, ("fcntl", False): fcntl.F_SETLK,
               ("ofd", True): fcntl.F_OFD_SETLKW, ("ofd", False): fcntl.F_OFD_SETLK}[kind, wait]
    what = fcntl.F_UNLCK if unlock else fcntl.F_WRLCK if write else fcntl.F_RDLCK
    fcntl.fcntl(file, command, struct.pack("hhqqi4x", what, os.SEEK_SET, first, length, 0))
class Alarm(Exception): pass
def alarm(*_): raise Alarm()
signal.signal(signal.SIGALRM, alarm)
signal.alarm(int(options.get("alarm", 0)))
print("begins", flush=True)
try:
    lock("try" not in options)
    signal.alarm(0)
    print("locked", os.pread(file.fileno(), 100, 0), flush=True)
except Alarm:
    print("interrupted", flush=True)
    sys.exit()
except OSError as error:
    print("refused", errno.errorcode[error.errno], flush=True)
    sys.exit()
for line in sys.stdin:
    word = line.strip()
    if word == "unlock":
        lock(True, unlock=True)
    elif word.startswith("write "):
        os.pwrite(file.fileno(), word[6:].encode(), 0)
    elif word == "end":
        break
    print("done", word, flush=True)
"#;

/// Many processes that take turns, each holding the lock for a while; each checks that no other is
/// inside.
const TURNS: &str = r#"
import fcntl, os, sys, time
path, processes, hold, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
inside = os.open(sys.argv[5], os.O_RDWR)
readers = []
wait, go = os.pipe()
for number in range(processes):
    read, write = os.pipe()
    if os.fork() == 0:
        file = os.open(path, os.O_RDWR)
        os.close(go)
        # Until the last process is there.
        os.read(wait, 1)
        end = time.monotonic() + seconds
        grabs, wrong = 0, 0
        while time.monotonic() < end:
            fcntl.lockf(file, fcntl.LOCK_EX)
            before = os.pread(inside, 1, 0)
            os.pwrite(inside, b"1", 0)
            wrong += before == b"1"
            time.sleep(hold)
            os.pwrite(inside, b"0", 0)
            grabs += 1
            fcntl.lockf(file, fcntl.LOCK_UN)
            time.sleep(hold)
        os.write(write, f"{grabs} {wrong}".encode())
        os._exit(0)
    os.close(write)
    readers.append(read)
os.close(go)
counts = [tuple(map(int, os.read(read, 100).split())) for read in readers]
print("GRABS", sum(grabs for grabs, _ in counts), "WRONG", sum(wrong for _, wrong in counts),
      "LEAST", min(grabs for grabs, _ in counts), "MOST", max(grabs for grabs, _ in counts))
"#;

/// knfsd, and this machine as its client.
struct Locking {
    network: Network,
    server: Knfsd,
    _rpcbind: RunningProcess,
}

impl Locking {
    fn new() -> Result<Self> {
        let network = Network::new()?;
        let rpcbind = network.rpcbind()?;
        let options =
            KnfsdOptions { setup: "echo old > file; chmod 666 file".into(), ..KnfsdOptions::default() };
        let server = Knfsd::start(&network, KernelNumber(0), MINUTES * 2, &options)?;
        std::fs::write(network.directory().join("locker.py"), LOCKER)?;
        std::fs::write(network.directory().join("turns.py"), TURNS)?;
        Ok(Self { network, server, _rpcbind: rpcbind })
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
            let output = locker.output();
            if let Some(error) = output.split("refused ").nth(1) {
                return Ok(Some(Some(error.trim().to_owned())));
            }
            if output.contains("locked") {
                return Ok(Some(None));
            }
            ensure!(locker.is_running()?, "{output}");
            Ok(None)
        })
    }

    /// A counter of a mount.
    fn counter(&self, mount: &CurtMount, name: &str) -> Result<u64> {
        let text = process::run(
            self.network.command(curt::program("curt")?).args(["stat", "--json"]).arg(mount.directory()),
            MINUTE,
        )?;
        let value =
            text.split(&format!("\"{name}\": ")).nth(1).with_context(|| format!("no {name}: {text}"))?;
        Ok(value.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse()?)
    }
}

fn tell(locker: &mut RunningProcess, word: &str) -> Result<()> {
    locker.say(&format!("{word}\n"))?;
    locker.wait_for(&format!("done {word}"), MINUTE)
}

// SEMANTICS: lock-1, lock-3, lock-5, lock-6, lock-13.
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

// SEMANTICS: lock-4.
#[test]
fn a_waiter_is_interrupted_and_killed_whether_the_server_responds_or_not() -> Result<()> {
    let locking = Locking::new()?;
    let (one, other) = (locking.mount("one", "")?, locking.mount("other", "")?);
    let mut holder = locking.locker(&one, "fcntl-write")?;
    holder.wait_for("locked", MINUTE)?;
    let waits_here = locking.locker(&one, "fcntl-write alarm=1")?;
    let waits_there = locking.locker(&other, "flock-write alarm=1")?;
    waits_here.wait_for("interrupted", MINUTE)?;
    waits_there.wait_for("interrupted", MINUTE)?;
    for is_stopped in [false, true] {
        let mut waiters = [locking.locker(&one, "fcntl-write")?, locking.locker(&other, "fcntl-write")?];
        if is_stopped {
            locking.server.signal(&locking.network, "STOP")?;
        }
        for waiter in &mut waiters {
            waiter.signal(Signal::KILL)?;
            waiter.wait(MINUTE)?;
        }
    }
    locking.server.signal(&locking.network, "CONT")?;
    tell(&mut holder, "unlock")?;
    ensure!(locking.refusal(&other, "fcntl-write")?.is_none(), "the killed have left nothing");
    Ok(())
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

// SEMANTICS: lock-15.
#[test]
fn two_hundred_processes_take_turns_with_a_request_for_each_turn() -> Result<()> {
    let seconds = if std::env::var_os("CURT_FULL").is_some() { 60 } else { 10 };
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
    let word = |name: &str| -> Result<u64> {
        let value = output.split(&format!("{name} ")).nth(1).and_then(|rest| rest.split_whitespace().next());
        value.with_context(|| output.clone())?.parse().with_context(|| output.clone())
    };
    let requests = locking.counter(&mount, "lock_wire")? - before;
    // The next one starts with the reply to UNLOCK, and with no timer.
    let polls = locking.counter(&mount, "lock_poll")?;
    ensure!(polls == polls_before, "{polls} polls, {polls_before} before: {output}");
    let (grabs, wrong) = (word("GRABS")?, word("WRONG")?);
    ensure!(wrong == 0, "two were inside: {output}");
    ensure!(requests <= grabs + grabs / 100 + 2, "{requests} LOCKs for {output}");
    ensure!(word("MOST")? - word("LEAST")? < 2, "it is not fair: {output}");
    Ok(())
}

// SEMANTICS: lock-15.
#[test]
fn waiters_take_neither_threads_nor_much_memory() -> Result<()> {
    let count = if std::env::var_os("CURT_FULL").is_some() { 2000 } else { 200 };
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
    // 16 MiB for 2,000; and what the daemon needs at its first requests.
    let allowed = (16 << 10) * count / 2000 + (4 << 10);
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
    one.process().signal(Signal::KILL)?;
    one.process().wait(MINUTE)?;
    let waiter = locking.locker(&other, "fcntl-write first=0 length=1")?;
    waiter.wait_for("locked", MINUTE)?;
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
        locking.locker(&next, &format!("fcntl-write {range}"))?.wait_for("locked", MINUTE)?;
    }
    let refused = locking.refusal(&next, "fcntl-write first=5 length=1")?;
    ensure!(refused.as_deref() == Some("EAGAIN"), "{refused:?}");
    tell(&mut own, "unlock")
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
