//! `curt serve` as a service: socket activation and notifications of systemd, its capabilities, and
//! the shipped units.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::{CurtMount, program};
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{RunningProcess, finish, until};
use rustix::process::Signal;

const SHORT: Duration = Duration::from_secs(60);
const PORT: u16 = 2049;

/// A network with an exported directory, which contains a file, and a state directory.
struct Place {
    network: Network,
    export: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        fs::write(export.join("file"), "text")?;
        Ok(Self { network, export })
    }

    /// The arguments of `curt` for this server.
    fn words(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let state = self.network.make_directory("state")?.display().to_string();
        let export = self.export.display().to_string();
        let own = ["serve", &export, "--state", &state, "--no-rpcbind", "--insecure"];
        Ok(own.iter().chain(arguments).map(|word| (*word).to_owned()).collect())
    }

    /// A server on port 2049 of the network.
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.network.command(program("curt")?);
        command.args(self.words(arguments)?);
        command.args(["--bind", &format!("{ADDRESS}:{PORT}"), "--mount-port", &PORT.to_string()]);
        Ok(command)
    }

    /// Lists the export with libnfs.
    fn list(&self, mount_port: u16) -> Result<String> {
        let ports = format!("version=3&nfsport={PORT}&mountport={mount_port}");
        let url = format!("nfs://{ADDRESS}{}?{ports}", self.export.display());
        self.network.shell(&format!("timeout 50 nfs-ls '{url}'"), SHORT)
    }
}

/// The socket of a service manager. Messages are read at once: a socket holds few, and others are
/// lost.
struct Manager {
    told: Receiver<String>,
    path: PathBuf,
}

impl Manager {
    fn new(network: &Network) -> Result<Self> {
        let path = network.directory().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        let (tell, told) = mpsc::channel();
        // It ends with the first message that has no receiver.
        std::thread::spawn(move || {
            let mut message = [0; 4096];
            while let Ok(length) = socket.recv(&mut message) {
                if tell.send(String::from_utf8_lossy(&message[..length]).into_owned()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { told, path })
    }

    fn next(&self) -> Result<String> {
        self.told.recv_timeout(SHORT).context("nothing was told")
    }

    /// The next message that contains `text`.
    fn wait_for(&self, text: &str) -> Result<String> {
        loop {
            let message = self.next()?;
            if message.lines().any(|line| line.starts_with(text)) {
                return Ok(message);
            }
        }
    }
}

#[test]
fn the_server_notifies_its_service_manager() -> Result<()> {
    let place = Place::new()?;
    let manager = Manager::new(&place.network)?;
    let mut command = place.command(&[])?;
    command.env("NOTIFY_SOCKET", &manager.path).env("WATCHDOG_USEC", "600000");
    let mut server = RunningProcess::start("curt serve", &mut command)?;
    let ready = manager.next()?;
    ensure!(ready.contains("READY=1") && ready.contains("STATUS="), "{ready}");
    ensure!(place.list(PORT)?.contains("file"), "it was not ready");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1")?;
    }
    server.signal(Signal::HUP)?;
    let reload = manager.wait_for("RELOADING=1")?;
    ensure!(reload.contains("MONOTONIC_USEC="), "{reload}");
    manager.wait_for("READY=1")?;
    ensure!(place.list(PORT)?.contains("file"), "SIGHUP ended it");
    server.signal(Signal::TERM)?;
    manager.wait_for("STOPPING=1")?;
    let status = server.wait(SHORT)?;
    ensure!(status.success(), "{status}: {}", server.output());
    Ok(())
}

#[test]
fn it_can_be_ended_while_a_reload_hangs() -> Result<()> {
    let place = Place::new()?;
    let exports = place.network.directory().join("exports");
    fs::write(&exports, format!("{} *(rw,insecure)\n", place.export.display()))?;
    let manager = Manager::new(&place.network)?;
    let mut command = place.network.command(program("curt")?);
    command.args(["serve", "--no-rpcbind", "-c"]).arg(&exports);
    command.arg("--state").arg(place.network.make_directory("state")?);
    let address = format!("{ADDRESS}:{PORT}");
    command.args(["--bind", &address, "--mount-port", &PORT.to_string()]);
    command.env("NOTIFY_SOCKET", &manager.path);
    let mut server = RunningProcess::start("curt serve", &mut command)?;
    manager.wait_for("READY=1")?;
    // An open of a pipe for reading waits for a writer, and there is none.
    fs::remove_file(&exports)?;
    let fifo = format!("mkfifo {}", exports.display());
    place.network.shell(&fifo, SHORT)?;
    server.signal(Signal::HUP)?;
    manager.wait_for("RELOADING=1")?;
    ensure!(place.list(PORT)?.contains("file"), "nothing is served meanwhile");
    server.signal(Signal::TERM)?;
    manager.wait_for("STOPPING=1")?;
    let status = server.wait(SHORT)?;
    ensure!(status.code() == Some(0), "{status}: {}", server.output());
    Ok(())
}

#[test]
fn a_watchdog_gets_no_notification_while_all_threads_are_stuck() -> Result<()> {
    let place = Place::new()?;
    // The export is on a mount of a server that will be stopped.
    let mut behind = place.network.command(program("curt")?);
    behind.args(place.words(&[])?);
    behind.args(["--bind", &format!("{ADDRESS}:3049"), "--mount-port", "3049"]);
    let mut behind = RunningProcess::start("the server behind", &mut behind)?;
    place.network.wait_for_port(ADDRESS, 3049)?;
    let source = format!("{ADDRESS}:{}", place.export.display());
    let mount = CurtMount::start(&place.network, "behind", &source, "port=3049,mountport=3049,noac")?;
    let manager = Manager::new(&place.network)?;
    let state = place.network.make_directory("other-state")?;
    let mut command = place.network.command(program("curt")?);
    command.arg("serve").arg(mount.directory()).arg("--state").arg(state);
    command.args(["--no-rpcbind", "--insecure", "--threads", "2", "--squash", "none"]);
    command.args(["--bind", &format!("{ADDRESS}:{PORT}"), "--mount-port", &PORT.to_string()]);
    command.env("NOTIFY_SOCKET", &manager.path).env("WATCHDOG_USEC", "600000");
    let server = RunningProcess::start("curt serve", &mut command)?;
    manager.wait_for("WATCHDOG=1")?;
    behind.signal(Signal::STOP)?;
    let url =
        format!("nfs://{ADDRESS}{}?version=3&nfsport={PORT}&mountport={PORT}", mount.directory().display());
    let clients = (0..4).map(|_| {
        let mut client = place.network.command("timeout");
        client.args(["50", "nfs-ls", &url]);
        RunningProcess::start("a client", &mut client)
    });
    let clients: Vec<_> = clients.collect::<Result<_>>()?;
    server.wait_for("the server no longer answers calls", SHORT)?;
    // After earlier notifications there are none for longer than the watchdog's timeout.
    let silence = until("the watchdog hears nothing", SHORT, || {
        let told = manager.told.recv_timeout(Duration::from_millis(900));
        Ok(told.is_err().then_some(()))
    });
    behind.signal(Signal::CONT)?;
    silence?;
    manager.wait_for("WATCHDOG=1")?;
    drop(clients);
    drop(server);
    mount.unmount()
}

#[test]
fn sockets_of_systemd_are_served_by_their_names() -> Result<()> {
    let place = Place::new()?;
    let activated = |listen: &[&str], arguments: &[&str]| -> Result<RunningProcess> {
        let mut command = place.network.command("systemd-socket-activate");
        command.args(listen).arg(program("curt")?).args(place.words(arguments)?);
        let running = RunningProcess::start("systemd-socket-activate", &mut command)?;
        running.wait_for("Listening on", SHORT)?;
        Ok(running)
    };
    let (nfs, mount) = (format!("--listen={ADDRESS}:{PORT}"), format!("--listen={ADDRESS}:3048"));
    let mut both = activated(&[&nfs, &mount, "--fdname=nfs:mount"], &[])?;
    // The first connection starts it and waits for it.
    ensure!(place.list(3048)?.contains("file"));
    both.wait_for(":3048 for MOUNT", SHORT)?;
    ensure!(place.list(PORT).is_err(), "MOUNT has a socket of its own");
    both.stop()?;
    // Without names: one socket for all.
    let mut one = activated(&[&nfs], &[])?;
    ensure!(place.list(PORT)?.contains("file"));
    one.stop()?;
    for (listen, arguments, transport, expected) in [
        (vec![nfs.as_str()], vec!["--bind", "127.0.0.1:2049"], "tcp", "leave out --bind"),
        (vec![nfs.as_str(), "--fdname=mount"], vec![], "tcp", "the service manager passed no socket for NFS"),
        (vec![nfs.as_str(), "--datagram"], vec![], "udp", "not a listening TCP socket"),
    ] {
        let mut refused = activated(&listen, &arguments)?;
        // It may have ended already.
        let _ = place.network.shell(&format!("echo >/dev/{transport}/{ADDRESS}/{PORT}"), SHORT);
        let status = refused.wait(SHORT)?;
        ensure!(!status.success() && refused.output().contains(expected), "{}", refused.output());
    }
    Ok(())
}

#[test]
fn lines_for_the_journal_carry_their_level() -> Result<()> {
    let place = Place::new()?;
    let log = place.network.directory().join("journal");
    fs::write(&log, "")?;
    let command = place.command(&[])?;
    let mut words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.by_ref().collect();
    let mut shell = Command::new(command.get_program());
    let at = words.iter().position(|word| word.ends_with("/curt")).context("no program")?;
    shell.args(&words[..at]).args(["bash", "-c"]);
    let script =
        format!("exec 2>{}; JOURNAL_STREAM=$(stat -Lc %d:%i /dev/stderr) exec \"$@\"", log.display());
    shell.arg(script).arg("-").args(&words[at..]);
    let mut server = RunningProcess::start("curt serve", &mut shell)?;
    // The line comes behind the socket.
    until("it says that it listens", Duration::from_secs(60), || {
        Ok(fs::read_to_string(&log)?.contains("<6>listening on").then_some(()))
    })?;
    server.stop()?;
    let text = fs::read_to_string(&log)?;
    ensure!(text.contains("<4>"), "an export that all may write deserves a warning: {text}");
    ensure!(text.lines().all(|line| line.starts_with('<')), "{text}");
    Ok(())
}

/// A number in a thread's status, in hexadecimal or decimal as it is there.
fn field<'a>(status: &'a str, name: &str) -> Result<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim).with_context(|| format!("no {name} in {status}"))
}

/// The capabilities of serving threads, and of the others.
const SERVE: u64 = 0x0800_00df;
const MANAGE: u64 = SERVE | 1 << 10 | 1 << 21;
/// Capabilities with which suid bits would survive, quotas could be exceeded and all files be read:
/// not effective between requests.
const WITHIN_REQUESTS: u64 = 1 << 4 | 1 << 24 | 1 << 2;

/// A capability set in a thread's status.
fn capabilities(status: &str, set: &str) -> Result<u64> {
    Ok(u64::from_str_radix(field(status, set)?, 16)?)
}

/// Waits until a thread neither starts, serves nor ends: its client gets the reply before that.
/// Returns whether it is a serving thread.
fn comes_to_rest(status: &Path, held: u64) -> Result<bool> {
    let mut last = anyhow::anyhow!("not looked at");
    let serves = until("a thread within its limits", SHORT, || {
        let Ok(status) = fs::read_to_string(status) else {
            return Ok(Some(false));
        };
        let serves = field(&status, "Name")? == "curt-serve";
        match hold_to_its_limits(&status, held) {
            Err(error) => last = error,
            Ok(()) if serves && capabilities(&status, "CapEff")? & WITHIN_REQUESTS != 0 => {
                last = anyhow::anyhow!("it has the rights of a request: {status}");
            }
            Ok(()) => return Ok(Some(serves)),
        }
        Ok(None)
    });
    serves.with_context(|| last)
}

/// Checks a thread's capabilities and restrictions; `held` are those with which the server was
/// started.
fn hold_to_its_limits(status: &str, held: u64) -> Result<()> {
    let name = field(status, "Name")?;
    let (allowed, filter) = match name {
        "curt-accept" | "curt-serve" | "curt-datagrams" => (SERVE, "2"),
        _ => (MANAGE, "0"),
    };
    for (set, allowed) in [("CapEff", allowed), ("CapBnd", MANAGE), ("CapInh", 0), ("CapAmb", 0)] {
        let bits = capabilities(status, set)?;
        ensure!(bits & !allowed == 0, "{name}: {set} {bits:x}");
    }
    let permitted = capabilities(status, "CapPrm")?;
    ensure!(permitted == allowed & held, "{name}: {permitted:x}");
    ensure!(field(status, "NoNewPrivs")? == "1" && field(status, "Seccomp")? == filter, "{status}");
    Ok(())
}

#[test]
fn serving_threads_hold_eight_capabilities_and_a_filter() -> Result<()> {
    let place = Place::new()?;
    let server = RunningProcess::start("curt serve", &mut place.command(&[])?)?;
    place.network.wait_for_port(ADDRESS, PORT)?;
    ensure!(place.list(PORT)?.contains("file"));
    let held = capabilities(&fs::read_to_string("/proc/thread-self/status")?, "CapPrm")?;
    let mut serving = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        serving += usize::from(comes_to_rest(&thread?.path().join("status"), held)?);
    }
    ensure!(serving > 0, "nobody serves");
    Ok(())
}

#[test]
fn without_descriptors_old_connections_make_room_for_new_ones() -> Result<()> {
    let place = Place::new()?;
    let mut command = place.command(&[])?;
    command.args(["--log-level", "warn"]);
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|word| word == "--pdeathsig").context("no setpriv")?;
    // nsenter … -- setpriv --pdeathsig TERM -- prlimit … curt …
    let mut limited = Command::new(command.get_program());
    limited.args(&words[..at + 3]).args(["prlimit", "--nofile=64:64", "--"]).args(&words[at + 3..]);
    let server = RunningProcess::start("curt serve", &mut limited)?;
    place.network.wait_for_port(ADDRESS, PORT)?;
    let connections =
        format!("for fd in {{10..209}}; do eval \"exec $fd<>/dev/tcp/{ADDRESS}/{PORT}\"; done; ");
    let url = format!("nfs://{ADDRESS}{}?version=3&nfsport={PORT}&mountport={PORT}", place.export.display());
    let listed = place.network.shell(&format!("{connections} timeout 50 nfs-ls '{url}'"), SHORT)?;
    ensure!(listed.contains("file"), "{listed}");
    server.wait_for("cannot accept connections", SHORT)
}

#[test]
fn the_units_are_right() -> Result<()> {
    let units = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd"));
    let directory = tempfile::tempdir()?;
    let curt = program("curt")?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=yes"]);
    for name in ["curt.service", "curt.socket"] {
        let text = fs::read_to_string(units.join(name))?;
        // The installed program has another path on this machine.
        let text = text.replace("/usr/local/bin/curt ", &format!("{} ", curt.display()));
        let path = directory.path().join(name);
        fs::write(&path, text)?;
        verify.arg(path);
    }
    let (status, said, complaints) = finish(&mut verify, SHORT)?;
    let ours: Vec<_> = complaints.lines().filter(|line| line.contains("curt.")).collect();
    ensure!(status.success() && ours.is_empty(), "{status}: {said}{complaints}");
    // The program accepts the unit's arguments.
    let mut help = Command::new(curt);
    let (_, help, _) = finish(help.args(["serve", "--help"]), SHORT)?;
    ensure!(help.contains("-c, --config"), "{help}");
    Ok(())
}
