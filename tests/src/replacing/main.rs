//! Processes that continuously create, replace, read and remove one file.
//!
//! `replacing-processes DIRECTORY COUNT MILLISECONDS` starts COUNT processes. A third of them write
//! a file of their own and rename it to the common name, a third remove that name, a third open it
//! and read the opened file later. An opened file must be readable completely, even if its name was
//! replaced or removed. A second name is replaced in the same way and never removed: each open of
//! it must succeed. Prints the numbers of successes: `replaced N removed N read N`.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;

const KINDS: [&str; 3] = ["replaced", "removed", "read"];
const SHARED: &str = "shared";
/// The name that always exists.
const LASTING: &str = "lasting";
/// Number of lines of each version.
const LINES: usize = 100;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [directory, count, milliseconds] => launch(directory, count.parse()?, milliseconds),
        [kind, directory, number, milliseconds] => {
            let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
            println!("{}", one(kind, Path::new(directory), number, end)?);
            Ok(())
        }
        _ => bail!("usage: replacing-processes DIRECTORY COUNT MILLISECONDS"),
    }
}

fn launch(directory: &str, count: usize, milliseconds: &str) -> Result<()> {
    let own = std::env::current_exe()?;
    replace(&Path::new(directory).join(LASTING), "new", "first", 0)?;
    let mut processes = Vec::new();
    for number in 0..count {
        let kind = KINDS[number % KINDS.len()];
        let mut command = Command::new(&own);
        command.args([kind, directory, &number.to_string(), milliseconds]);
        processes.push((kind, command.stdout(Stdio::piped()).spawn()?));
    }
    let mut sums = KINDS.map(|kind| (kind, 0u64));
    for (kind, process) in processes {
        let output = process.wait_with_output()?;
        ensure!(output.status.success(), "one that {kind} ended: {}", output.status);
        let done: u64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
        for (_, sum) in sums.iter_mut().filter(|(name, _)| *name == kind) {
            *sum += done;
        }
    }
    let words = sums.map(|(kind, sum)| format!("{kind} {sum}"));
    println!("{}", words.join(" "));
    Ok(())
}

/// Runs one process; returns the number of successes.
fn one(kind: &str, directory: &Path, number: &str, end: Instant) -> Result<u64> {
    let (shared, lasting) = (directory.join(SHARED), directory.join(LASTING));
    let own = format!("new-{number}");
    let (mut round, mut done) = (0, 0);
    while Instant::now() < end {
        round += 1;
        let succeeded = match kind {
            "replaced" => {
                replace(&shared, &own, number, round)?;
                replace(&lasting, &own, number, round)?;
                true
            }
            "removed" => unless_gone(fs::remove_file(&shared)).context("removing")?.is_some(),
            "read" => {
                check(open(&lasting).context("opening what was never removed")?)?;
                match unless_gone(open(&shared)).context("opening")? {
                    Some(file) => {
                        check(file)?;
                        true
                    }
                    None => false,
                }
            }
            _ => bail!("what is {kind}?"),
        };
        done += u64::from(succeeded);
    }
    Ok(done)
}

/// Writes a file next to `name` and renames it to `name`.
fn replace(name: &Path, beside: &str, number: &str, round: u64) -> Result<()> {
    let own = name.with_file_name(beside);
    fs::write(&own, format!("{number:>5} {round:>8}\n").repeat(LINES)).context("writing")?;
    fs::rename(&own, name).context("replacing")
}

/// With O_DIRECT, so that the server must still have the file.
fn open(name: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(name)
}

/// Reads the opened file after other processes have run.
fn check(mut file: File) -> Result<()> {
    for _ in 0..20 {
        yield_now();
    }
    let mut text = String::new();
    file.read_to_string(&mut text).context("reading what was opened")?;
    let line = text.lines().next().unwrap_or_default();
    ensure!(
        line.len() == 14 && text == format!("{line}\n").repeat(LINES),
        "{} bytes of no version: {line:?}",
        text.len()
    );
    Ok(())
}

/// The name may be removed or replaced before its file is opened.
fn unless_gone<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::STALE.raw_os_error()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
