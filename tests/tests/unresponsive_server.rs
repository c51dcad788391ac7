//! A server that does not respond: waiting processes can be killed, cached data are served, and the
//! mount can be unmounted.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess, until};
use rustix::process::Signal;

const PROCESSES: usize = 1000;
const KINDS: [&str; 5] = ["read", "open", "write", "close", "stat"];
/// Far shorter than the daemon's attempt to write to a silent server after one signal.
const AT_ONCE: Duration = Duration::from_secs(25);
const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(400);
/// Cached state remains fresh for the duration of a test, and only requested names are cached.
const LASTING: &str = "actimeo=600,dirfill=off";

/// A server that can be stopped.
enum Server {
    Curt(CurtServe),
    Ganesha(
        Ganesha,
        #[expect(dead_code, reason = "Ganesha registers with it as long as it lives")] RunningProcess,
    ),
    Knfsd(
        Knfsd,
        #[expect(dead_code, reason = "clients ask it for knfsd's ports as long as that lives")]
        RunningProcess,
    ),
}

impl Server {
    fn curt(network: &Network, export: &Path) -> Result<Self> {
        CurtServe::start(network, export, &[]).map(Self::Curt)
    }

    fn ganesha(network: &Network, export: &Path) -> Result<Self> {
        let rpcbind = network.rpcbind()?;
        Ok(Self::Ganesha(Ganesha::start(network, export)?, rpcbind))
    }

    /// A Linux kernel, whose tmpfs gets the contents of the export.
    fn knfsd(network: &Network, export: &Path) -> Result<Self> {
        let rpcbind = network.rpcbind()?;
        let options =
            KnfsdOptions { setup: format!("cp -a {}/. .", export.display()), ..KnfsdOptions::default() };
        let server = Knfsd::start(network, KernelNumber(1), MINUTES, &options)?;
        Ok(Self::Knfsd(server, rpcbind))
    }

    /// Number of files that contain the data that a process wrote before it was killed.
    fn written_behind(&self, export: &Path) -> Result<usize> {
        const WRITTEN: &str = "grep -l '^written before the end' tree/close-* | wc -l";
        let count = match self {
            Self::Knfsd(server, _) => server.inside(&format!("cd /export; {WRITTEN}"), MINUTE)?,
            Self::Curt(_) | Self::Ganesha(..) => {
                let mut command = std::process::Command::new("bash");
                process::run(command.current_dir(export).args(["-c", WRITTEN]), MINUTE)?
            }
        };
        Ok(count.trim().parse()?)
    }

    fn source(&self) -> String {
        match self {
            Self::Knfsd(server, _) => format!("{}:/export", server.address()),
            Self::Curt(serve) => serve.source(),
            Self::Ganesha(ganesha, _) => ganesha.source(),
        }
    }

    fn ports(&self) -> String {
        match self {
            Self::Curt(serve) => serve.ports(),
            Self::Ganesha(..) | Self::Knfsd(..) => "port=2049".to_owned(),
        }
    }

    fn signal(&mut self, network: &Network, signal: Signal) -> Result<()> {
        match self {
            Self::Knfsd(server, _) => {
                server.signal(network, if signal == Signal::STOP { "STOP" } else { "CONT" })
            }
            Self::Curt(serve) => serve.process().signal(signal),
            Self::Ganesha(ganesha, _) => ganesha.signal(signal),
        }
    }
}

type Start = fn(&Network, &Path) -> Result<Server>;

/// A server with a file for each process, a mount of it, and a directory for control files.
struct Scene {
    network: Network,
    server: Server,
    mount: CurtMount,
    export: PathBuf,
    control: PathBuf,
}

impl Scene {
    fn new(start: Start, options: &str) -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        fs::create_dir(export.join("tree"))?;
        for number in 0..PROCESSES {
            let file = export.join("tree").join(format!("{}-{number}", KINDS[number % KINDS.len()]));
            fs::write(&file, [b'.'; 64])?;
        }
        fs::write(export.join("known"), b"known")?;
        let control = network.make_directory("control")?;
        let server = start(&network, &export)?;
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
        Ok(Self { network, server, mount, export, control })
    }

    fn mounted(&self, name: &str) -> String {
        self.mount.directory().join(name).display().to_string()
    }

    /// Starts the processes, stops the server once they are prepared, and waits until all are
    /// blocked.
    fn stick(&mut self) -> Result<RunningProcess> {
        let mut command = self.network.command(program("stuck-processes")?);
        command.arg("launch").arg(self.mounted("tree")).arg(&self.control).arg(PROCESSES.to_string());
        let processes = RunningProcess::start("stuck-processes", &mut command)?;
        processes.wait_for("prepared", MINUTES)?;
        self.run(&["stat", &self.mounted("known")])?;
        self.server.signal(&self.network, Signal::STOP)?;
        self.say("go")?;
        processes.wait_for("stuck", MINUTES)?;
        Ok(processes)
    }

    fn say(&self, word: &str) -> Result<()> {
        Ok(fs::write(self.control.join(word), "")?)
    }

    fn run(&self, command: &[&str]) -> Result<String> {
        let mut built = self.network.command(command[0]);
        process::run(built.args(&command[1..]), MINUTE)
    }

    fn go_on(&mut self) -> Result<()> {
        self.server.signal(&self.network, Signal::CONT)
    }

    fn is_mounted(&self) -> Result<bool> {
        let table = self.run(&["cat", "/proc/self/mountinfo"])?;
        Ok(table.contains(self.mount.directory().to_str().context("a plain name")?))
    }
}

/// The duration of a call.
fn timed<T>(what: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let begun = Instant::now();
    what()?;
    Ok(begun.elapsed())
}

fn killed(processes: &mut RunningProcess) -> Result<()> {
    ensure!(processes.wait(MINUTES)?.success(), "{}", processes.output());
    let output = processes.output();
    let text =
        output.lines().find_map(|line| line.strip_prefix("dead ")?.strip_suffix(" ms")).context("a time")?;
    println!("{PROCESSES} processes were dead after {text} ms");
    Ok(())
}

// SEMANTICS: rpc-1.
#[test]
fn a_thousand_processes_stuck_on_a_stopped_server_die_on_sigkill_while_others_are_served() -> Result<()> {
    stuck_processes_die(Server::curt)
}

#[test]
fn a_thousand_processes_stuck_on_a_stopped_ganesha_die_on_sigkill_too() -> Result<()> {
    stuck_processes_die(Server::ganesha)
}

// SEMANTICS: rpc-1.
#[test]
fn a_thousand_processes_stuck_on_a_stopped_knfsd_die_on_sigkill_too() -> Result<()> {
    stuck_processes_die(Server::knfsd)
}

fn stuck_processes_die(start: Start) -> Result<()> {
    let mut scene = Scene::new(start, LASTING)?;
    let mut processes = scene.stick()?;
    let known = scene.mounted("known");
    // While the server is stopped.
    for _ in 0..10 {
        scene.run(&["stat", &known])?;
    }
    scene.say("kill")?;
    killed(&mut processes)?;
    scene.go_on()?;
    // Data written before the end reach the server, although the writers were killed.
    until("everything is written behind", MINUTE, || {
        let all = scene.server.written_behind(&scene.export)? == PROCESSES / KINDS.len();
        Ok(all.then_some(()))
    })?;
    ensure!(scene.run(&["cat", &known])? == "known");
    scene.mount.unmount()
}

// SEMANTICS: rpc-1.
#[test]
fn everything_goes_on_when_the_server_does() -> Result<()> {
    let mut scene = Scene::new(Server::curt, LASTING)?;
    let mut processes = scene.stick()?;
    scene.say("wait")?;
    scene.go_on()?;
    ensure!(processes.wait(MINUTE)?.success(), "{}", processes.output());
    ensure!(processes.output().contains("done"));
    let bytes = fs::read(scene.export.join("tree/write-2"))?;
    ensure!(bytes.starts_with(b"written") && bytes.len() == 64);
    scene.mount.unmount()
}

// SEMANTICS: rpc-3.
#[test]
fn an_outage_is_reported_once_and_so_is_its_end() -> Result<()> {
    let mut scene = Scene::new(Server::curt, "noac,timeo=10,retrans=1")?;
    // A file each: a process that waits inside the kernel for another's look-up cannot be killed.
    let files = ["read-0", "open-1", "write-2"].map(|name| scene.mounted(&format!("tree/{name}")));
    let other = scene.mounted("tree/close-3");
    for file in files.iter().chain([&other]) {
        scene.run(&["cat", file])?;
    }
    for outage in 1..=2 {
        scene.server.signal(&scene.network, Signal::STOP)?;
        let mut waiting = Vec::new();
        for file in &files {
            waiting.push(RunningProcess::start("cat", scene.network.command("cat").arg(file))?);
        }
        let count = |mount: &mut CurtMount, words: &str| mount.process().output().matches(words).count();
        until("the outage is told", MINUTE, || {
            Ok((count(&mut scene.mount, "not responding, still trying") == outage).then_some(()))
        })?;
        // Others wait for several more timeouts, and end.
        let mut command = scene.network.command("timeout");
        let (status, _, _) = process::finish(command.args(["-s", "KILL", "8", "cat", &other]), MINUTE)?;
        ensure!(!status.success(), "a stopped server answers nothing");
        scene.go_on()?;
        for mut process in waiting {
            ensure!(process.wait(MINUTE)?.success(), "{}", process.output());
        }
        let said = scene.mount.process().output();
        ensure!(said.matches("not responding, still trying").count() == outage, "{said}");
        until("its end is told", MINUTE, || Ok((count(&mut scene.mount, " OK\n") == outage).then_some(())))?;
    }
    scene.mount.unmount()
}

#[test]
fn a_mount_whose_log_nobody_reads_any_more_lives_through_an_outage() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fs::write(export.join("known"), b"known")?;
    let mut server = CurtServe::start(&network, &export, &[])?;
    let directory = network.make_directory("mount")?;
    let script = format!(
        "exec {} mount --foreground {} {} -o {},noac,timeo=5,retrans=1 2> >(true)",
        program("curt")?.display(),
        server.source(),
        directory.display(),
        server.ports(),
    );
    let mut daemon = RunningProcess::start("curt mount", network.command("bash").args(["-c", &script]))?;
    let known = directory.join("known").display().to_string();
    until("the mount is there", MINUTE, || {
        let (status, _, _) = process::finish(network.command("cat").arg(&known), MINUTE)?;
        Ok(status.success().then_some(()))
    })?;
    server.process().signal(Signal::STOP)?;
    let mut waiting = RunningProcess::start("cat", network.command("cat").arg(&known))?;
    // Longer than the time until the log line about the silent server.
    let mut command = network.command("timeout");
    let (status, _, _) = process::finish(command.args(["-s", "KILL", "4", "stat", &known]), MINUTE)?;
    ensure!(!status.success(), "a stopped server answers nothing");
    server.process().signal(Signal::CONT)?;
    ensure!(waiting.wait(MINUTE)?.success() && waiting.output() == "known");
    process::run(network.command("umount").arg(&directory), MINUTE)?;
    ensure!(daemon.wait(MINUTE)?.success());
    Ok(())
}

// SEMANTICS: rpc-14.
#[test]
fn an_idle_mount_of_a_stopped_server_can_be_unmounted() -> Result<()> {
    let mut scene = Scene::new(Server::curt, "actimeo=1")?;
    scene.run(&["ls", "-l", &scene.mounted("tree")])?;
    scene.server.signal(&scene.network, Signal::STOP)?;
    // The root's attributes expire, so umount(8) causes a request for them.
    until("the root's attributes are asked for", MINUTE, || {
        let took = timed(|| scene.run(&["stat", &scene.mounted("")]))?;
        Ok((took > Duration::from_millis(500)).then_some(()))
    })?;
    let target = scene.mounted("");
    scene.run(&["umount", target.trim_end_matches('/')])?;
    ensure!(!scene.is_mounted()?);
    scene.go_on()?;
    ensure!(scene.mount.process().wait(MINUTE)?.success());
    Ok(())
}

/// A process that has written to a cached file and keeps it open; `before_it_writes` is called once
/// the file is open.
fn writer(
    scene: &mut Scene,
    before_it_writes: impl FnOnce(&mut Scene) -> Result<()>,
) -> Result<RunningProcess> {
    let mut command = scene.network.command(program("stuck-processes")?);
    command.arg("hold").arg(scene.mounted("known")).arg(&scene.control);
    let writer = RunningProcess::start("a writer", &mut command)?;
    writer.wait_for("opened", MINUTE)?;
    before_it_writes(scene)?;
    scene.say("write")?;
    writer.wait_for("written", MINUTE)?;
    Ok(writer)
}

fn stop(scene: &mut Scene) -> Result<()> {
    scene.server.signal(&scene.network, Signal::STOP)
}

// SEMANTICS: rpc-14.
#[test]
fn forced_unmounting_of_a_busy_mount_leaves_nothing_at_once_and_names_what_is_lost() -> Result<()> {
    let mut scene = Scene::new(Server::curt, LASTING)?;
    let mut busy = writer(&mut scene, stop)?;
    let target = scene.mounted("");
    // It may print "busy": the abort comes before the detachment.
    let mut forced = scene.network.command("umount");
    let (status, _, errors) = process::finish(forced.args(["-f", target.trim_end_matches('/')]), MINUTE)?;
    ensure!(status.success() || status.code() == Some(32), "{status}: {errors}");
    until("the mount is gone", MINUTE, || Ok((!scene.is_mounted()?).then_some(())))?;
    // The daemon tries for 30 s to write the dirty data, and the unmount does not wait for this.
    ensure!(scene.mount.process().is_running()?, "{}", scene.mount.process().output());
    busy.stop()?;
    ensure!(scene.mount.process().wait(MINUTE)?.success());
    let said = scene.mount.process().output();
    ensure!(said.contains("not on the server's disk") && said.contains("/known"), "{said}");
    scene.go_on()
}

// SEMANTICS: exit-1.
#[test]
fn sigterm_flushes_and_a_second_one_ends_at_once_and_names_what_is_lost() -> Result<()> {
    let mut scene = Scene::new(Server::curt, LASTING)?;
    let mut writer = writer(&mut scene, stop)?;
    scene.mount.process().signal(Signal::TERM)?;
    scene.mount.process().wait_for("ending", MINUTE)?;
    let begun = Instant::now();
    scene.mount.process().signal(Signal::TERM)?;
    let _ = scene.mount.process().wait(MINUTE)?;
    ensure!(begun.elapsed() < AT_ONCE, "the second signal took {:?}", begun.elapsed());
    let said = scene.mount.process().output();
    ensure!(said.contains("lost") && said.contains("/known"), "{said}");
    ensure!(!scene.is_mounted()?);
    writer.stop()?;
    scene.go_on()
}

// SEMANTICS: exit-1.
#[test]
fn sigterm_with_a_living_server_writes_everything_and_unmounts() -> Result<()> {
    let mut scene = Scene::new(Server::curt, LASTING)?;
    let mut writer = writer(&mut scene, |_| Ok(()))?;
    scene.mount.process().signal(Signal::TERM)?;
    ensure!(scene.mount.process().wait(MINUTE)?.success(), "{}", scene.mount.process().output());
    ensure!(fs::read(scene.export.join("known"))? == b"precious");
    ensure!(!scene.is_mounted()?);
    writer.stop().map(drop)
}

// SEMANTICS: exit-3.
#[test]
fn after_sigkill_of_the_daemon_the_mount_returns_enotconn_and_synced_data_are_there() -> Result<()> {
    let mut scene = Scene::new(Server::curt, LASTING)?;
    let file = scene.mounted("synced");
    scene.run(&["dd", "if=/dev/zero", &format!("of={file}"), "bs=64K", "count=3", "conv=fsync"])?;
    scene.mount.process().signal(Signal::KILL)?;
    let _ = scene.mount.process().wait(MINUTE)?;
    let (status, _, errors) = process::finish(scene.network.command("cat").arg(&file), MINUTE)?;
    ensure!(!status.success() && errors.contains("Transport endpoint is not connected"), "{errors}");
    let target = scene.mounted("");
    let mut again = scene.network.command(program("curt")?);
    again.args(["mount", "10.77.0.1:/", target.trim_end_matches('/')]);
    let (_, _, errors) = process::finish(&mut again, MINUTE)?;
    ensure!(errors.contains("the daemon of an earlier mount is gone"), "{errors}");
    scene.run(&["umount", target.trim_end_matches('/')])?;
    ensure!(fs::metadata(scene.export.join("synced"))?.len() == 3 * 65_536);
    Ok(())
}

// SEMANTICS: cto-1.
#[test]
fn growth_and_shrinking_by_others_is_seen_at_open() -> Result<()> {
    for options in ["actimeo=60", "actimeo=60,noaccesscheck"] {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        fs::set_permissions(&export, fs::Permissions::from_mode(0o755))?;
        let file = export.join("file");
        fs::write(&file, vec![b'a'; 5000])?;
        let server = CurtServe::start(&network, &export, &[])?;
        let mount =
            CurtMount::start(&network, "mount", &server.source(), &format!("{},{options}", server.ports()))?;
        let seen = mount.directory().join("file");
        let read = || -> Result<String> { process::run(network.command("cat").arg(&seen), MINUTE) };
        let size = || -> Result<u64> {
            Ok(process::run(network.command("stat").args(["-c", "%s"]).arg(&seen), MINUTE)?.trim().parse()?)
        };
        ensure!(read()?.len() == 5000);
        for text in ["b".repeat(20_000), "c".repeat(70), String::new(), "d".repeat(4096), "e".repeat(4096)] {
            size()?;
            fs::write(&file, &text)?;
            let got = read()?;
            ensure!(
                got == text,
                "{options}: {} bytes of {:?}, not {} of {:?}",
                got.len(),
                got.chars().next(),
                text.len(),
                text.chars().next()
            );
            ensure!(size()? == u64::try_from(text.len())?, "stat after the open");
        }
        mount.unmount()?;
    }
    Ok(())
}
