//! The daemon of a mount: its process settings, its descriptors, its memory, its end.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::kernel::{KernelNumber, linux_client};
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess, until};
use curt_tests::requests::{GETATTR, STATFS, StraceSession, descriptors, requests_of};
use rustix::process::Signal;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(300);
/// A task flag after PR_SET_IO_FLUSHER: PF_MEMALLOC_NOIO (linux/sched.h).
const NO_IO: u64 = 0x0008_0000;
/// Number of processes that wait for the server.
const READERS: usize = 24;
/// Attributes remain fresh for the duration of a test.
const LASTING: &str = "actimeo=600";
/// Number of bytes of a writer's steps.
const STEP: u64 = 1 << 20;

struct Scene {
    mount: CurtMount,
    server: CurtServe,
    export: std::path::PathBuf,
    network: Network,
}

impl Scene {
    fn new(options: &str) -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        for number in 0..READERS {
            fs::write(export.join(format!("file-{number}")), b"text")?;
        }
        let server = CurtServe::start(&network, &export, &[])?;
        let options = format!("{},{options}", server.ports());
        let mount = CurtMount::start(&network, "mount", &server.source(), options.trim_end_matches(','))?;
        Ok(Self { mount, server, export, network })
    }

    /// The process id of the daemon, which replaces the started process by exec.
    fn pid(&mut self) -> u32 {
        self.mount.process().pid()
    }

    fn inside(&self, name: &str) -> String {
        self.mount.directory().join(name).display().to_string()
    }
}

/// Mounts where everything is permitted and inspects the daemon: the flags follow the name in
/// parentheses, the state and five numbers (proc(5)).
const SPARED: &str = r#"
modprobe fuse
$CURT mount $SOURCE /mnt/nfs -o $PORTS || exit 1
cat /mnt/nfs/file-0 || exit 2
pid=$(pidof -s curt) threads=0
[[ $(</proc/$pid/oom_score_adj) == -900 ]] || exit 3
for task in /proc/$pid/task/*; do
	# One that has ended meanwhile is nobody's.
	rest=$(<$task/stat) 2>/dev/null && rest=${rest##*) } && set -- $rest || continue
	(( $7 & NO_IO )) || exit 5
	threads=$((threads + 1))
done
umount /mnt/nfs && echo " $threads threads are spared"
"#;

// SEMANTICS: exit-2.
#[test]
fn every_thread_of_the_daemon_is_spared_when_memory_is_short() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    fs::write(export.join("file-0"), b"text")?;
    let server = CurtServe::start(&network, &export, &[])?;
    // This machine may not permit it even for root; the test kernel does.
    let script = format!(
        "CURT={} SOURCE={} PORTS={} NO_IO={NO_IO}\n{SPARED}",
        program("curt")?.display(),
        server.source(),
        server.ports()
    );
    let said = linux_client(&network, KernelNumber(0), MINUTES, &script)?;
    let threads = said.split_once("text ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
    ensure!(threads.is_some_and(|count| count > 3), "{said}");
    Ok(())
}

#[test]
fn replies_go_to_the_descriptor_that_their_requests_came_from() -> Result<()> {
    let mut scene = Scene::new("")?;
    let pid = scene.pid();
    let tracing = StraceSession::start(&scene.network, pid)?;
    // Requests that wait for the server block threads, so that others read, each from its own
    // descriptor.
    scene.server.process().signal(Signal::STOP)?;
    let readers: Vec<RunningProcess> = (0..READERS)
        .map(|number| {
            let file = scene.inside(&format!("file-{number}"));
            RunningProcess::start("cat", scene.network.command("cat").arg(file))
        })
        .collect::<Result<_>>()?;
    until("all wait for the server", MINUTE, || {
        let waiting = readers.iter().filter(|reader| in_fuse(reader.pid()));
        Ok((waiting.count() == READERS).then_some(()))
    })?;
    scene.server.process().signal(Signal::CONT)?;
    for mut reader in readers {
        ensure!(reader.wait(MINUTE)?.success() && reader.output() == "text", "{}", reader.output());
    }
    let requests = tracing.stop()?;
    let used = descriptors(&requests);
    ensure!(used.len() > 2, "threads have no descriptors of their own: {used:?}");
    let wrong: Vec<_> = requests
        .iter()
        .filter(|request| request.answered.is_some_and(|to| to != request.descriptor))
        .collect();
    ensure!(wrong.is_empty(), "answered elsewhere: {wrong:?}");
    let answered = requests.iter().filter(|request| request.answered.is_some()).count();
    ensure!(answered >= 3 * READERS, "{answered} of {} requests were answered", requests.len());
    scene.mount.unmount()
}

/// Whether a process waits in the kernel for a FUSE request.
fn in_fuse(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/wchan"))
        .is_ok_and(|place| place.contains("fuse") || place.contains("request_wait"))
}

// SEMANTICS: rpc-13.
#[test]
fn umount_asks_for_the_file_system_only_without_a_line_in_utab_and_ends_either_way() -> Result<()> {
    for in_table in [true, false] {
        // Attributes are never fresh, so the kernel requests those of the root each time.
        let mut scene = Scene::new("actimeo=0")?;
        let pid = scene.pid();
        let target = scene.mount.directory().display().to_string();
        if !in_table {
            scene.network.shell("rm -f /run/mount/utab", MINUTE)?;
        }
        scene.server.process().signal(Signal::STOP)?;
        // It takes the time after which the daemon treats the server as silent.
        until("the root is asked for", MINUTE, || {
            let begun = Instant::now();
            scene.network.shell(&format!("stat {target}"), MINUTE)?;
            Ok((begun.elapsed() > Duration::from_millis(500)).then_some(()))
        })?;
        // It ends while the server is silent.
        let requests = requests_of(&scene.network, pid, &format!("umount {target}"))?;
        let asked = |operation| requests.iter().any(|request| request.operation == operation);
        ensure!(asked(GETATTR), "utab {in_table}: {requests:?}");
        ensure!(asked(STATFS) != in_table, "utab {in_table}: {requests:?}");
        scene.server.process().signal(Signal::CONT)?;
        ensure!(scene.mount.process().wait(MINUTE)?.success());
    }
    Ok(())
}

// SEMANTICS: write-8.
#[test]
fn by_default_unwritten_bytes_are_256_mib_or_a_tenth_of_memory_at_most() -> Result<()> {
    let mut scene = Scene::new(LASTING)?;
    let file = scene.inside("large");
    let memory = rustix::system::sysinfo();
    let bound = (256 << 20).min(memory.totalram * u64::from(memory.mem_unit) / 10);
    let mut command = scene.network.command("bash");
    // Opening needs the server; an open file can be written while it is silent.
    let script = format!("exec >{file} && read && exec dd if=/dev/zero bs=1M count=512");
    let mut writer = RunningProcess::start("dd", command.args(["-c", &script]))?;
    is_open(&writer, 1, "large")?;
    scene.server.process().signal(Signal::STOP)?;
    writer.say("\n")?;
    // Data in transit, and data that arrived before they were counted, are little.
    let slack = 16 * STEP;
    // It waits if its position has not changed in this many checks, after it has reached the limit.
    let (pid, mut last, mut looks) = (writer.pid(), 0, 0);
    let written = until("the writer has filled what it may and waits", MINUTES, || {
        let position = position(pid).unwrap_or(0);
        looks = if position == last { looks + 1 } else { 0 };
        last = position;
        Ok((position >= bound - slack && looks >= 100).then_some(position))
    })?;
    ensure!(written <= bound + slack, "{written} bytes were taken; the bound is {bound}");
    // It can be killed while the server is silent.
    writer.signal(Signal::KILL)?;
    writer.wait(MINUTE)?;
    scene.server.process().signal(Signal::CONT)?;
    scene.mount.unmount()?;
    let there = fs::metadata(scene.export.join("large"))?.len();
    ensure!(there >= written, "{there} of {written} bytes reached the server");
    Ok(())
}

/// Waits until a process has the file with this name open as `descriptor`.
fn is_open(process: &RunningProcess, descriptor: u32, name: &str) -> Result<()> {
    until("the file is open", MINUTE, || {
        let open = fs::read_link(format!("/proc/{}/fd/{descriptor}", process.pid()));
        Ok(open.is_ok_and(|path| path.ends_with(name)).then_some(()))
    })
}

/// The position of a process in its standard output's file, in bytes.
fn position(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/1")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("pos:"))?.trim().parse().ok()
}

// SEMANTICS: exit-1.
#[test]
fn sigterm_tries_for_30_s_to_write_to_a_silent_server_and_names_what_is_lost() -> Result<()> {
    let mut scene = Scene::new(LASTING)?;
    let control = scene.network.make_directory("control")?;
    // It keeps the file open: closing it would wait for the server.
    let mut command = scene.network.command(program("stuck-processes")?);
    command.arg("hold").arg(scene.inside("file-0")).arg(&control);
    let writer = RunningProcess::start("the writer", &mut command)?;
    writer.wait_for("opened", MINUTE)?;
    scene.server.process().signal(Signal::STOP)?;
    fs::write(control.join("write"), "")?;
    writer.wait_for("written", MINUTE)?;
    let begun = Instant::now();
    scene.mount.process().signal(Signal::TERM)?;
    scene.mount.process().wait(MINUTES)?;
    let took = begun.elapsed();
    ensure!(took > Duration::from_secs(29), "it ended after {took:?}");
    let said = scene.mount.process().output();
    ensure!(said.contains("not on the server's disk") && said.contains("/file-0"), "{said}");
    let (_, mounts, _) = process::finish(scene.network.command("cat").arg("/proc/self/mounts"), MINUTE)?;
    let place = scene.mount.directory().display().to_string();
    ensure!(!mounts.contains(&place), "{mounts}");
    scene.server.process().signal(Signal::CONT)
}

// SEMANTICS: write-2.
#[test]
fn what_a_program_leaves_to_sync_is_written_behind() -> Result<()> {
    let scene = Scene::new(LASTING)?;
    // The kernel does not pass syncfs(2) to a FUSE file system, and returns success. A shell would
    // close a copy of the descriptor after writing, and a close writes.
    let script = format!(
        "import ctypes, os; file = os.open('{}', os.O_CREAT | os.O_WRONLY); os.write(file, b'left open'); \
         assert ctypes.CDLL(None).syncfs(file) == 0; print('synced', flush=True); input()",
        scene.inside("open")
    );
    let mut writer =
        RunningProcess::start("a writer", scene.network.command("python3").args(["-c", &script]))?;
    writer.wait_for("synced", MINUTE)?;
    let there = scene.export.join("open");
    until("the bytes are at the server", MINUTE, || Ok((fs::read(&there)? == b"left open").then_some(())))?;
    // It has the file open all the time.
    ensure!(writer.is_running()?, "{}", writer.output());
    writer.say("\n")?;
    writer.wait(MINUTE)?;
    scene.mount.unmount()
}
