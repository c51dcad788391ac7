//! A server that is killed and restarted repeatedly: calls without a reply are executed again, and
//! its duplicate request cache is lost. No program may get an error because of this,
//! unless the step took more than a second: a server that is starved of processor ends its
//! connections late, and its client cannot tell a restart then.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe};
use curt_tests::network::Network;
use curt_tests::process::RunningProcess;

const MINUTES: Duration = Duration::from_secs(300);
/// Number of concurrent programs.
const PROGRAMS: usize = 12;

/// Creates, links, renames and removes its own names until it is stopped; each call must succeed.
/// Prints the number of successes, and failures.
const PROGRAM: &str = r#"
import os, select, sys, time
top, number = sys.argv[1], sys.argv[2]
os.umask(0o022)
path = lambda name: f"{top}/{number}-{name}"
steps = [
    ("mkdir", lambda: os.mkdir(path("d"), 0o755)),
    ("rename", lambda: os.rename(path("d"), path("e"))),
    ("symlink", lambda: os.symlink("to", path("e/s"))),
    ("unlink", lambda: os.unlink(path("e/s"))),
    ("rmdir", lambda: os.rmdir(path("e"))),
    ("create", lambda: os.close(os.open(path("f"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))),
    ("link", lambda: os.link(path("f"), path("l"))),
    ("mkfifo", lambda: os.mkfifo(path("p"), 0o600)),
    ("replace", lambda: os.rename(path("l"), path("p"))),
    ("unlink", lambda: os.unlink(path("f"))),
    ("silly", lambda: silly(path("p"))),
]
def silly(name):
    file = os.open(name, os.O_RDONLY)
    os.unlink(name)
    os.fstat(file)
    os.close(file)
done, wrong, slow = 0, 0, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for what, step in steps:
        began = time.monotonic()
        try:
            step()
            done += 1
        except OSError as error:
            took = time.monotonic() - began
            if took > 1:
                slow += 1
            else:
                wrong += 1
            print(f"WRONG {what} after {took:.3f} s: {error}", flush=True)
print(f"DONE {done} {wrong} {slow}", flush=True)
"#;

// SEMANTICS: rpc-12.
#[test]
fn a_server_that_is_killed_again_and_again_causes_no_wrong_error() -> Result<()> {
    let duration = match std::env::var_os("CURT_FULL") {
        Some(_) => Duration::from_secs(120),
        None => Duration::from_secs(10),
    };
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &[])?;
    let mount = CurtMount::start(&network, "mount", &server.source(), &server.ports())?;
    // The reply to a change shows the client the server's time.
    network.shell(&format!("mkdir {}/first", mount.directory().display()), MINUTES)?;
    let script = network.directory().join("program.py");
    std::fs::write(&script, PROGRAM)?;
    let mut programs = (0..PROGRAMS)
        .map(|number| {
            let mut command = network.command("python3");
            command.arg(&script).arg(mount.directory()).arg(number.to_string());
            RunningProcess::start("a program", &mut command)
        })
        .collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    let mut kills = 0;
    while began.elapsed() < duration {
        // It is killed while programs wait for it.
        std::thread::sleep(Duration::from_millis(300));
        server.kill()?;
        server.restart(&network)?;
        kills += 1;
    }
    let (mut done, mut wrong, mut slow, mut said) = (0, 0, 0, String::new());
    for program in &mut programs {
        program.say("stop\n")?;
    }
    for program in &mut programs {
        program.wait_for("DONE", MINUTES)?;
        let output = program.output();
        let words = output.lines().find_map(|line| line.strip_prefix("DONE "));
        let mut numbers = words.unwrap_or_default().split(' ').map(str::parse::<usize>);
        done += numbers.next().unwrap_or(Ok(0))?;
        wrong += numbers.next().unwrap_or(Ok(0))?;
        slow += numbers.next().unwrap_or(Ok(0))?;
        said.extend(output.lines().filter(|line| line.starts_with("WRONG")).map(|line| format!("{line}\n")));
    }
    println!("{done} operations, {kills} kills, {wrong} wrong, {slow} after more than a second");
    ensure!(
        done > 0 && wrong == 0 && slow * 100 <= done,
        "{wrong} of {done} operations were told of an error:\n{said}"
    );
    drop(programs);
    mount.unmount()
}
