//! Processes that wait for a server that does not respond, a fifth of them in each of five system
//! calls.
//!
//! `stuck-processes launch TREE CONTROL COUNT` starts COUNT processes on separate files in TREE.
//! They perform the steps that need the server (opening files), then it prints `prepared`. When
//! CONTROL/go exists they make their call; `stuck` is printed once all wait in the kernel. When
//! CONTROL/kill exists each gets SIGKILL, and `dead N ms` is the time until all have ended; when
//! CONTROL/wait exists instead, `done` means that all ended by themselves successfully.
//!
//! `stuck-processes hold FILE CONTROL` opens a file and prints `opened`, writes to it when
//! CONTROL/write exists and prints `written`, and keeps it open.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _, stdin};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const KINDS: [&str; 5] = ["read", "open", "write", "close", "stat"];
const POLL: Duration = Duration::from_millis(5);
/// O_SYNC: the write waits for the server.
const SYNCHRONOUS: i32 = 0o4_010_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, "launch", tree, control, count] => launch(Path::new(tree), Path::new(control), count.parse()?),
        [_, "hold", file, control] => hold(Path::new(file), Path::new(control)),
        [_, kind, file] => one(kind, Path::new(file)),
        _ => bail!("usage: stuck-processes launch TREE CONTROL COUNT"),
    }
}

fn hold(file: &Path, control: &Path) -> Result<()> {
    let open = OpenOptions::new().write(true).open(file)?;
    println!("opened");
    appears(&control.join("write"));
    open.write_all_at(b"precious", 0)?;
    println!("written");
    loop {
        sleep(Duration::from_secs(1));
    }
}

/// One process: prepares, prints this, waits for the end of its standard input, makes its call.
fn one(kind: &str, file: &Path) -> Result<()> {
    let open = match kind {
        "read" => Some(File::open(file)?),
        "write" => Some(OpenOptions::new().write(true).custom_flags(SYNCHRONOUS).open(file)?),
        "close" => Some(OpenOptions::new().write(true).open(file)?),
        _ => None,
    };
    std::io::stdout().write_all(b"p")?;
    std::io::stdout().flush()?;
    stdin().read_to_end(&mut Vec::new())?;
    match (kind, open) {
        ("read", Some(open)) => {
            let mut bytes = [0; 16];
            ensure!(open.read_at(&mut bytes, 0)? == 16, "a short read");
        }
        ("write", Some(open)) => open.write_all_at(b"written", 0)?,
        ("close", Some(open)) => {
            // Kept here, because the server is not needed yet; the kernel closes open files at the
            // process's end.
            open.write_all_at(b"written before the end", 0)?;
            std::io::stdout().write_all(b"w")?;
            std::io::stdout().flush()?;
            std::process::exit(0)
        }
        ("open", None) => {
            File::open(file)?;
        }
        ("stat", None) => {
            fs::metadata(file)?;
        }
        _ => bail!("what is {kind}?"),
    }
    Ok(())
}

fn launch(tree: &Path, control: &Path, count: usize) -> Result<()> {
    let own = std::env::current_exe()?;
    let (mut prepared, said) = std::io::pipe()?;
    let mut processes = Vec::with_capacity(count);
    for number in 0..count {
        let kind = KINDS[number % KINDS.len()];
        let mut command = Command::new(&own);
        command.arg(kind).arg(tree.join(format!("{kind}-{number}")));
        let child = command.stdin(Stdio::piped()).stdout(said.try_clone()?).spawn();
        let mut child = child.with_context(|| format!("starting process {number}"))?;
        let go = child.stdin.take();
        processes.push((child, go));
    }
    drop(said);
    prepared.read_exact(&mut vec![0; count]).context("a process could not prepare")?;
    println!("prepared");
    appears(&control.join("go"));
    let mut children: Vec<Child> = processes
        .into_iter()
        .map(|(child, go): (Child, Option<ChildStdin>)| {
            drop(go);
            child
        })
        .collect();
    // A write(2) that the mount has not yet taken ends with its process, and leaves nothing.
    let written = (0..count).filter(|number| KINDS[number % KINDS.len()] == "close").count();
    prepared.read_exact(&mut vec![0; written]).context("a process could not write")?;
    all_wait(&mut children)?;
    println!("stuck");
    let next = either(control);
    if next.ends_with("kill") { kill(&mut children) } else { wait(&mut children) }
}

/// Waits until all processes wait in the kernel. A process that closes at its end may have ended:
/// after a second of silence it is released, and the mount writes its data.
fn all_wait(children: &mut [Child]) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(300);
    for (number, child) in children.iter_mut().enumerate() {
        let kind = KINDS[number % KINDS.len()];
        while !waits_in_kernel(child.id()) {
            if let Some(status) = child.try_wait()? {
                ensure!(kind == "close" && status.success(), "{kind} did not wait: {status}");
                break;
            }
            ensure!(Instant::now() < end, "{kind} does not wait");
            sleep(POLL);
        }
    }
    Ok(())
}

fn kill(children: &mut [Child]) -> Result<()> {
    let begun = Instant::now();
    for child in &mut *children {
        child.kill()?;
    }
    let mut left: Vec<usize> = (0..children.len()).collect();
    while !left.is_empty() {
        left.retain(|&index| !matches!(children[index].try_wait(), Ok(Some(_))));
        let kinds: Vec<_> = left.iter().map(|index| KINDS[index % KINDS.len()]).take(20).collect();
        ensure!(begun.elapsed() < Duration::from_secs(60), "{} live on after SIGKILL: {kinds:?}", left.len());
        sleep(POLL);
    }
    println!("dead {} ms", begun.elapsed().as_millis());
    Ok(())
}

fn wait(children: &mut [Child]) -> Result<()> {
    for (number, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        ensure!(status.success(), "{}: {status}", KINDS[number % KINDS.len()]);
    }
    println!("done");
    Ok(())
}

/// Whether a process waits for a file system: for a FUSE reply, for a page that is being read, or
/// for its release at exit.
fn waits_in_kernel(process: u32) -> bool {
    let wchan = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    ["fuse", "request_wait_answer", "folio_wait", "filemap"].iter().any(|place| wchan.contains(place))
}

fn appears(path: &Path) {
    while !path.exists() {
        sleep(POLL);
    }
}

fn either(control: &Path) -> PathBuf {
    loop {
        for name in ["kill", "wait"] {
            let path = control.join(name);
            if path.exists() {
                return path;
            }
        }
        sleep(POLL);
    }
}
