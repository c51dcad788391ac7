//! A program that locks a file, for tests of locks.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::network::Network;
use crate::process::RunningProcess;

const MINUTE: Duration = Duration::from_secs(60);

/// Locks a file as its arguments say, prints what happened, and holds the lock until its standard
/// input says so.
pub const LOCKER: &str = r#"
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
    if word == "end":
        break
    try:
        if word == "unlock":
            lock(True, unlock=True)
        elif word.startswith("write "):
            os.pwrite(file.fileno(), word[6:].encode(), 0)
        print("done", word, flush=True)
    except OSError as error:
        print("failed", word, errno.errorcode[error.errno], flush=True)
"#;

/// Starts the program on a file: `fcntl-write`, `ofd-read` or the like, and options.
///
/// # Errors
/// The process does not start.
pub fn start(network: &Network, file: &Path, words: &str) -> Result<RunningProcess> {
    let script = network.directory().join("locker.py");
    std::fs::write(&script, LOCKER)?;
    let mut command = network.command("python3");
    let locker = RunningProcess::start("a locker", command.arg(script).arg(file).args(words.split(' ')))?;
    locker.wait_for("begins", MINUTE)?;
    Ok(locker)
}

/// Has the program do something, and waits until it is done.
///
/// # Errors
/// The process does not do it.
pub fn tell(locker: &mut RunningProcess, word: &str) -> Result<()> {
    locker.say(&format!("{word}\n"))?;
    locker.wait_for(&format!("done {word}"), MINUTE)
}
