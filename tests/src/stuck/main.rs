//! Processes that get stuck on a server that stopped answering, a fifth of them in each of five
//! system calls.
//!
//! `stuck-processes launch TREE CONTROL COUNT` starts COUNT processes on files of their own in
//! TREE. They get as far as they need the server for (files to be read or written are opened), then
//! it prints `prepared`. When CONTROL/go is there they make their call; `stuck` is printed once
//! every one waits in the kernel. When CONTROL/kill is there each is sent SIGKILL, and `dead N ms`
//! says how long it took until all were gone; when CONTROL/wait is there instead, `done` says that
//! all ended by themselves and well.
//!
//! `stuck-processes hold FILE CONTROL` opens a file and prints `opened`, writes to it when
//! CONTROL/write is there and prints `written`, and keeps it open.

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
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
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

/// One process: prepares, says so, waits for its standard input to end, makes its call.
fn one(kind: &str, file: &Path) -> Result<()> {
    let open = match kind {
        "read" => Some(File::open(file)?),
        "write" => Some(
            OpenOptions::new()
                .write(true)
                .custom_flags(SYNCHRONOUS)
                .open(file)?,
        ),
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
            // Kept here, for the server is not needed yet; the kernel closes what is open when the
            // process ends.
            open.write_all_at(b"written before the end", 0)?;
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
    prepared
        .read_exact(&mut vec![0; count])
        .context("a process could not prepare")?;
    println!("prepared");
    appears(&control.join("go"));
    let mut children: Vec<Child> = processes
        .into_iter()
        .map(|(child, go): (Child, Option<ChildStdin>)| {
            drop(go);
            child
        })
        .collect();
    all_wait(&mut children)?;
    println!("stuck");
    let next = either(control);
    if next.ends_with("kill") {
        kill(&mut children)
    } else {
        wait(&mut children)
    }
}

/// Waits until every process waits in the kernel. Who closes at its end may be gone already: after
/// a second of silence it is let go, and the mount writes for it.
fn all_wait(children: &mut [Child]) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(300);
    for (number, child) in children.iter_mut().enumerate() {
        let kind = KINDS[number % KINDS.len()];
        while !waits_in_kernel(child.id()) {
            if let Some(status) = child.try_wait()? {
                ensure!(
                    kind == "close" && status.success(),
                    "{kind} did not wait: {status}"
                );
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
        let kinds: Vec<_> = left
            .iter()
            .map(|index| KINDS[index % KINDS.len()])
            .take(20)
            .collect();
        ensure!(
            begun.elapsed() < Duration::from_secs(60),
            "{} live on after SIGKILL: {kinds:?}",
            left.len()
        );
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

/// Whether a process waits for a file system: for an answer of FUSE, for a page that is being read,
/// or to be let go at its end.
fn waits_in_kernel(process: u32) -> bool {
    let wchan = fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    ["fuse", "request_wait_answer", "folio_wait", "filemap"]
        .iter()
        .any(|place| wchan.contains(place))
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
