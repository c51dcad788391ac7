//! A server that asks for time for ever (NFS3ERR_JUKEBOX, NFS4ERR_DELAY): a mount waits, also with
//! `soft` and `softerr`, and each process that waits can be killed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_proto::nfs3::NfsProcedure;
use curt_proto::nfs4::{Nfs4Operation, Nfs4Procedure, NfsStat4};
use curt_rpc::record;
use curt_tests::curt::CurtMount;
use curt_tests::process::{self, RunningProcess};
use curt_tests::relay::{RelayedServe, ReplyRewrite};
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);

/// More than three times the time after which a soft mount of these tests gives up a server that is
/// silent.
const LONG: Duration = Duration::from_secs(7);

/// The time within which most of the killed processes end. The kernel ends them at once; the bound
/// is for a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Processes that wait and are killed, one after the other.
const KILLED: usize = 7;

/// The position of the results in a record with its mark.
const RESULTS: usize = 28;

/// The position of the second result of a compound without a tag: behind status, tag, count, and
/// SEQUENCE's result.
const SECOND: usize = RESULTS + 12 + 44;

/// A process that waits for a lock. It prints the signal that has ended the wait, or what it got.
const LOCKER: &str = r#"
import fcntl, signal, sys
class Ended(Exception): pass
def end(*_): raise Ended
signal.signal(signal.SIGTERM, end)
with open(sys.argv[1], "r+") as file:
    print("opened", flush=True)
    sys.stdin.readline()
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
        print("locked", flush=True)
    except Ended:
        print("interrupted", flush=True)
        signal.pause()
"#;

fn word(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*record.get(at..)?.first_chunk()?))
}

/// The first `length` bytes of a record, with these words replaced.
fn shortened(mut record: Vec<u8>, length: usize, words: &[(usize, u32)]) -> Vec<u8> {
    record.truncate(length);
    for (at, word) in words {
        record[*at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    let mark = record::record_mark(record.len() - 4);
    record[..4].copy_from_slice(&mark);
    record
}

/// The reply to GETATTR of a server that asks for time.
fn delayed_v3(record: Vec<u8>) -> Vec<u8> {
    const JUKEBOX: u32 = 10_008;
    shortened(record, RESULTS + 4, &[(RESULTS, JUKEBOX)])
}

/// The reply to a compound whose second operation the server delays.
fn delayed_v4(record: Vec<u8>) -> Vec<u8> {
    let is_sequenced = word(&record, RESULTS + 12) == Some(Nfs4Operation::Sequence.number());
    if !is_sequenced || record.len() < SECOND + 8 {
        return record;
    }
    let delay = NfsStat4::Delay.number();
    shortened(record, SECOND + 8, &[(RESULTS, delay), (RESULTS + 8, 2), (SECOND + 4, delay)])
}

/// A mount through a relay, whose server can be made to ask for time.
struct Bed {
    mount: CurtMount,
    served: RelayedServe,
}

impl Bed {
    /// The attributes of a file are asked for each time.
    fn new(options: &str) -> Result<Self> {
        let served = RelayedServe::start(&[])?;
        std::fs::write(served.export.join("file"), "some text")?;
        let mount = served.mount(&format!(
            "acregmin=0,acregmax=0,acdirmin=600,acdirmax=600,nodelegations,timeo=20,retrans=0,{options}"
        ))?;
        let bed = Self { mount, served };
        ensure!(bed.size()? == "9\n");
        Ok(bed)
    }

    fn file(&self) -> std::path::PathBuf {
        self.mount.directory().join("file")
    }

    fn stat(&self) -> std::process::Command {
        let mut command = self.served.network.command("stat");
        command.args(["-c", "%s"]).arg(self.file());
        command
    }

    fn size(&self) -> Result<String> {
        process::run(&mut self.stat(), MINUTE)
    }
}

/// How long a process takes to end after this signal.
fn ends_after(signal: Signal, waiting: &mut RunningProcess) -> Result<Duration> {
    let begun = Instant::now();
    waiting.signal(signal)?;
    while waiting.is_running()? {
        ensure!(begun.elapsed() < MINUTE, "it lives on: {}", waiting.output());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(begun.elapsed())
}

fn processes_wait_and_can_be_killed(options: &str, procedure: u32, delayed: ReplyRewrite) -> Result<()> {
    let bed = Bed::new(options)?;
    bed.served.relay.rewrite_replies(procedure, delayed);
    let mut waiting = RunningProcess::start("stat", &mut bed.stat())?;
    std::thread::sleep(LONG);
    ensure!(waiting.is_running()?, "{options}: it does not wait: {}", waiting.output());
    let mut all = vec![ends_after(Signal::KILL, &mut waiting)?];
    for _ in 1..KILLED {
        let mut waiting = RunningProcess::start("stat", &mut bed.stat())?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(waiting.is_running()?, "{options}: it does not wait: {}", waiting.output());
        all.push(ends_after(Signal::KILL, &mut waiting)?);
    }
    // A busy machine may delay some of them.
    all.sort_unstable();
    ensure!(all[KILLED / 2] < AT_ONCE, "{options}: killed processes ended after {all:?}");
    bed.served.relay.end_rewriting();
    ensure!(bed.size()? == "9\n");
    bed.mount.unmount()
}

// SEMANTICS: rpc-1, rpc-15.
#[test]
fn processes_wait_for_a_server_that_delays_for_ever_and_can_be_killed() -> Result<()> {
    let (getattr, compound) = (NfsProcedure::Getattr.number(), Nfs4Procedure::Compound.number());
    for hardness in ["hard", "soft", "softerr"] {
        processes_wait_and_can_be_killed(&format!("vers=3,{hardness}"), getattr, delayed_v3)?;
        processes_wait_and_can_be_killed(&format!("vers=4.1,{hardness}"), compound, delayed_v4)?;
    }
    Ok(())
}

// SEMANTICS: rpc-15.
#[test]
fn a_signal_ends_the_wait_for_a_lock_that_the_server_delays_for_ever() -> Result<()> {
    let bed = Bed::new("vers=4.1,softerr")?;
    let script = bed.served.network.directory().join("locker.py");
    std::fs::write(&script, LOCKER)?;
    let mut command = bed.served.network.command("python3");
    let mut locker = RunningProcess::start("a locker", command.arg(&script).arg(bed.file()))?;
    locker.wait_for("opened", MINUTE)?;
    bed.served.relay.rewrite_replies(Nfs4Procedure::Compound.number(), delayed_v4);
    locker.say("\n")?;
    std::thread::sleep(LONG);
    ensure!(locker.is_running()? && !locker.output().contains("locked"), "{}", locker.output());
    locker.signal(Signal::TERM)?;
    locker.wait_for("interrupted", MINUTE)?;
    bed.served.relay.end_rewriting();
    ends_after(Signal::KILL, &mut locker)?;
    bed.mount.unmount()
}
