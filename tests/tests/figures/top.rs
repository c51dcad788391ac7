//! `curt top`: a single sample, and a terminal that it changes and restores.

use anyhow::{Result, ensure};
use curt_tests::curt::program;
use curt_tests::process::{self, RunningProcess};

use serde_json::Value;

use super::world::{LIMIT, World};

#[test]
fn top_shows_which_processes_cause_requests_and_restores_the_terminal() -> Result<()> {
    let world = World::new("noac")?;
    world.network.shell(&format!("mkdir '{}/directory'", world.place().display()), LIMIT)?;
    let busy = format!(
        "import os\ni = 0\nwhile True:\n    os.path.exists('{}/directory/missing-%d' % i); i += 1",
        world.place().display()
    );
    let _busy =
        RunningProcess::start("a busy process", world.network.command("python3").args(["-c", &busy]))?;
    let asks = |one: &Value| one["requests_per_s"].as_f64() > Some(0.0);
    // The first sample starts the counting; the process may be slow to begin.
    process::until("top tells of the busy process", LIMIT, || {
        let top = world.json(&["top", "--once", "--json", "--interval", "1"])?;
        let rows = |table: &str| top[table].as_array().cloned().unwrap_or_default();
        let is_named = |one: &Value| one["process"].as_str().is_some_and(|name| name.ends_with(" python3"));
        let process = rows("processes").iter().any(|one| asks(one) && is_named(one));
        let path = rows("paths").iter().any(|one| asks(one) && one["path"] == "/directory");
        let mount = rows("mounts").iter().any(asks);
        Ok((process && path && mount).then_some(()))
    })?;
    let text = world.run(&["top", "--once", "--interval", "1"])?;
    ensure!(
        ["mounts:", "procedures:", "caches:", "processes:", "paths:"]
            .iter()
            .all(|table| text.contains(table)),
        "{text}"
    );
    let server = world.json(&["top", "--once", "--json", "--interval", "1", "--server"])?;
    ensure!(server["procedures"].as_array().is_some_and(|rows| rows.len() > 3), "{server}");
    let (ended, _, errors) = process::finish(&mut world.curt(&["top"])?, LIMIT)?;
    ensure!(!ended.success() && errors.contains("--once"), "{errors}");
    let curt = program("curt")?.display().to_string();
    let full = format!("{curt} top --once --interval 1 >/dev/full");
    let (ended, _, errors) = process::finish(world.network.command("sh").args(["-c", &full]), LIMIT)?;
    ensure!(ended.code() == Some(1) && errors.contains("curt top: No space left"), "{errors}");
    for end in ["q", "TERM"] {
        let script = format!("{IN_A_TERMINAL}\nrun('{curt}', '{end}')\n");
        let told = process::run(world.network.command("python3").args(["-c", &script]), LIMIT)?;
        ensure!(told.contains("status 0, screen left, terminal as before"), "{end}: {told}");
    }
    Ok(())
}

/// Runs `curt top` in a pseudo-terminal, ends it when it has drawn, and reports the state of the
/// terminal.
const IN_A_TERMINAL: &str = r"
import os, pty, select, signal, struct, fcntl, sys, termios, time
def run(curt, end):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 120, 0, 0))
    before = termios.tcgetattr(theirs)
    pid = os.fork()
    if pid == 0:
        os.setsid(); fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2): os.dup2(theirs, fd)
        os.execve(curt, [curt, 'top', '--interval', '1'], dict(os.environ, TERM='xterm', NO_COLOR='1'))
    shown, ended, deadline = b'', False, time.time() + 100
    while time.time() < deadline:
        if select.select([ours], [], [], 0.1)[0]: shown += os.read(ours, 65536)
        if not ended and b'procedures' in shown and b'pause' in shown:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 10, 40, 0, 0)); os.kill(pid, signal.SIGWINCH)
            time.sleep(0.3)
            if end == 'q': os.write(ours, b'2?q')
            else: os.kill(pid, signal.SIGTERM)
            ended = True
        done, status = os.waitpid(pid, os.WNOHANG)
        if done: break
    else:
        os.kill(pid, signal.SIGKILL); print('it did not end', shown); return
    while select.select([ours], [], [], 1)[0]: shown += os.read(ours, 65536)
    left = b'\x1b[?1049l' in shown and shown.rfind(b'\x1b[?1049l') > shown.rfind(b'\x1b[?1049h')
    colour = b'\x1b[38;5;6m' in shown or b'\x1b[36m' in shown
    same = termios.tcgetattr(theirs)[:4] == before[:4]
    print('status %d, screen %s, terminal %s%s' % (os.waitstatus_to_exitcode(status), 'left' if left else 'kept', 'as before' if same else 'changed', ', coloured' if colour else ''))
";
