//! `curt mount` with `vers=4.1`: of `curt serve`, knfsd and Ganesha, which are killed meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_tests::curt::{self, CurtMount, CurtServe, program, tree};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions, image_of};
use curt_tests::locker;
use curt_tests::network::{ADDRESS, Network};
use curt_tests::process::{self, RunningProcess};
use curt_tests::repeated_requests::create_probes;
use rustix::process::Signal;

const MINUTES: Duration = Duration::from_secs(300);

/// Three times the lease of all servers here.
const THREE_LEASES: Duration = Duration::from_secs(30);

/// Programs that use files; `$1` is the mount.
const EVERYTHING: &str = r##"
cd "$1" || exit 1
fail() { echo "FAILED: $*"; exit 9; }
mkdir work && cd work
echo hello >a; echo more >>a; [[ $(cat a) == $'hello\nmore' ]] || fail append
mv a b; ln b c; ln -s b soft; [[ $(stat -c '%h %s %u' b) == '2 11 0' && $(readlink soft) == b ]] || fail names
chmod 640 b; touch -d '2001-01-01 UTC' b; [[ $(stat -c '%a %Y' b) == '640 978307200' ]] || fail attributes
cp -p b kept; [[ $(stat -c '%a %Y %s' kept) == '640 978307200 11' ]] && cmp b kept || fail kept
head -c 3000000 /dev/urandom >large; cp large copy; cmp large copy || fail large
truncate -s 1000 copy; [[ $(stat -c %s copy) == 1000 ]] || fail truncate
exec 5<>open; echo one >&5; rm open; echo two >&5; [[ $(cat /proc/self/fd/5) == $'one\ntwo' ]] || fail unlinked; exec 5>&-
for n in {1..100}; do echo $n >f$n; done; [[ $(ls f* | wc -l) == 100 && $(cat f* | wc -c) == 292 ]] || fail many
[[ $(ls -a | head -2 | tr '\n' ' ') == '. .. ' ]] || fail dots
mkfifo fifo && rmdir fifo 2>/dev/null && fail rmdir
flock large true || fail locks
cd .. && rm -r work && stat -f . >/dev/null || fail remove
echo "all as it should be"
"##;

fn everything(network: &Network, mount: &CurtMount) -> Result<()> {
    let script = network.directory().join("everything.sh");
    std::fs::write(&script, EVERYTHING)?;
    let output =
        network.shell(&format!("bash {} {}", script.display(), mount.directory().display()), MINUTES)?;
    ensure!(output.contains("all as it should be"), "{output}");
    Ok(())
}

/// A mounted export, and a file of it that is locked.
#[derive(Clone, Copy)]
struct Place<'p> {
    source: &'p str,
    options: &'p str,
    locked: &'p str,
}

impl<'p> Place<'p> {
    /// A mount that the random writer writes to.
    const fn to_write(source: &'p str, options: &'p str) -> Self {
        Self { source, options, locked: "locked" }
    }

    /// A mount of the tree of page, which does not read that file.
    const fn to_read(source: &'p str, options: &'p str) -> Self {
        Self { source, options, locked: "mw-config/images/bullet.gif" }
    }
}

/// A server that can be killed.
trait DisturbedServer {
    /// Kills it and starts it again.
    fn kill(&mut self, network: &Network) -> Result<()>;

    /// Whether it loses what was written and not committed when it is killed.
    fn is_forgetful(&self) -> bool {
        false
    }
}

impl DisturbedServer for CurtServe {
    fn kill(&mut self, network: &Network) -> Result<()> {
        Self::kill(self)?;
        self.restart(network)
    }
}

/// A Ganesha and its export.
struct RestartedGanesha(Option<Ganesha>, PathBuf);

impl RestartedGanesha {
    fn source(&self) -> String {
        format!("{ADDRESS}:{}", self.1.display())
    }

    fn start(network: &Network, export: &Path) -> Result<Self> {
        Ok(Self(Some(Ganesha::start(network, export)?), export.to_owned()))
    }
}

impl DisturbedServer for RestartedGanesha {
    fn kill(&mut self, network: &Network) -> Result<()> {
        self.0.take().context("no Ganesha")?.kill()?;
        self.0 = Some(Ganesha::start(network, &self.1)?);
        Ok(())
    }
}

/// A knfsd on a disk, which loses its power instead of being killed.
struct RestartedKnfsd(Option<Knfsd>, KnfsdOptions);

impl RestartedKnfsd {
    fn start(network: &Network, image: PathBuf) -> Result<Self> {
        let options = KnfsdOptions {
            image: Some(image),
            grace: Some(10),
            setup: "chmod 755 .".to_owned(),
            ..KnfsdOptions::default()
        };
        Ok(Self(Some(Knfsd::start(network, KernelNumber(1), 2 * MINUTES, &options)?), options))
    }

    fn source() -> String {
        format!("{}:/", KernelNumber(1).address())
    }
}

impl DisturbedServer for RestartedKnfsd {
    fn kill(&mut self, network: &Network) -> Result<()> {
        self.0.take().context("no knfsd")?.power_off(network)?;
        self.0 = Some(Knfsd::start(network, KernelNumber(1), 2 * MINUTES, &self.1)?);
        Ok(())
    }

    fn is_forgetful(&self) -> bool {
        true
    }
}

/// The random writer, which writes until it is told to end.
struct Writer {
    running: RunningProcess,
    end: PathBuf,
}

/// Options of the random writer: large enough for bytes that are sent and not yet committed.
const CHOICES: [&str; 8] =
    ["--seed", "5", "--files", "4", "--file-bytes", "8388608", "--operation-bytes", "1048576"];

/// Operations of the random writer between two lines of its progress.
const STEP: u64 = 20;

/// Kills of the server, until one of them loses something.
const KILLS_MAX: u32 = 6;

/// Files that page opens before and after something happens.
const OPENS: u64 = 50;

impl Writer {
    fn start(network: &Network, directory: &Path) -> Result<Self> {
        let end = network.directory().join("end");
        let mut command = network.command(program("random-writer")?);
        command.args(CHOICES).args(["--operations", "1000000", "--keep", "--progress"]);
        command.arg(STEP.to_string()).arg("--until").arg(&end).arg(directory);
        Ok(Self { running: RunningProcess::start("random-writer", &mut command)?, end })
    }

    /// The operations that it has done.
    fn operations(&self) -> u64 {
        self.running.output().lines().rev().find_map(|line| line.parse().ok()).unwrap_or(0)
    }

    /// Waits until it has done operations that began after this call.
    fn advance(&mut self) -> Result<()> {
        // The first line may have been on its way.
        let wanted = self.operations() + 2 * STEP;
        process::until("the random writer goes on", MINUTES, || {
            ensure!(self.running.is_running()?, "it has ended: {}", self.running.output());
            Ok((self.operations() >= wanted).then_some(()))
        })
    }

    /// Does something to the server or the connections while it writes, before and afterwards.
    fn outlives(&mut self, what: impl FnOnce() -> Result<()>) -> Result<()> {
        self.advance()?;
        what()?;
        self.advance()
    }

    /// Has it compare everything and end.
    fn end(mut self) -> Result<WrittenFiles> {
        std::fs::write(&self.end, "")?;
        let status = self.running.wait(MINUTES)?;
        let output = self.running.output();
        ensure!(status.success() && output.contains("all as it should be"), "{output}");
        std::fs::remove_file(&self.end)?;
        println!("{} operations", self.operations());
        Ok(WrittenFiles(self.operations()))
    }
}

/// The files of the random writer after so many operations.
struct WrittenFiles(u64);

impl WrittenFiles {
    /// Compares the files of another directory.
    fn verify(&self, network: &Network, directory: &Path) -> Result<()> {
        let mut command = network.command(program("random-writer")?);
        command.args(CHOICES).args(["--verify", "--operations", &self.0.to_string()]);
        process::run(command.arg(directory), MINUTES).map(drop)
    }
}

/// Cuts connections, is silent, and kills the server, each in the middle of the random writer.
fn write_through(
    network: &Network,
    place: Place<'_>,
    server: &mut dyn DisturbedServer,
) -> Result<WrittenFiles> {
    let mut mount = CurtMount::start(network, "mount", place.source, place.options)?;
    everything(network, &mount)?;
    network.shell(&format!("touch {}", mount.directory().join(place.locked).display()), MINUTES)?;
    let mut writer = Writer::start(network, mount.directory())?;
    for _ in 0..3 {
        writer.outlives(|| cut(network))?;
    }
    writer.outlives(|| silence(network, &mut mount, place))?;
    // The last: what it loses must not be written again before it is compared. At some moments
    // all is committed.
    for kills in 1..=KILLS_MAX {
        writer.outlives(|| server.kill(network))?;
        if kills > 1 && (!server.is_forgetful() || resent(network, &mount)? > 0) {
            break;
        }
    }
    let written = writer.end()?;
    ensure!(!server.is_forgetful() || resent(network, &mount)? > 0, "no kill came before a COMMIT");
    mount.unmount()?;
    Ok(written)
}

/// The bytes that were sent again because the server had restarted before it committed them.
fn resent(network: &Network, mount: &CurtMount) -> Result<u64> {
    let events = events(network, mount)?;
    events[0]["counters"]["events"]["write_resent"].as_u64().context("no counter")
}

/// Does `disturb` in the middle of page, which reads as one process does, on a new mount.
fn read_through(
    network: &Network,
    place: Place<'_>,
    disturb: impl FnOnce(&mut CurtMount) -> Result<()>,
) -> Result<()> {
    let mut mount = CurtMount::start(network, "mount", place.source, place.options)?;
    let mut command = network.command(program("curt")?);
    command.args(["bench", "page", "--json", "--at"]).arg(mount.directory());
    let mut reader = RunningProcess::start("curt bench page", &mut command)?;
    for disturb in [Some(disturb), None] {
        let opened = opens(network, &mount)?;
        process::until("page goes on", MINUTES, || {
            ensure!(reader.is_running()?, "it has ended: {}", reader.output());
            Ok((opens(network, &mount)? >= opened + OPENS).then_some(()))
        })?;
        disturb.map_or(Ok(()), |disturb| disturb(&mut mount))?;
    }
    ensure!(reader.wait(MINUTES)?.success(), "{}", reader.output());
    let output = reader.output();
    let report = output.lines().find(|line| line.starts_with('{')).context("a report")?;
    let report: serde_json::Value = serde_json::from_str(report).with_context(|| output.clone())?;
    ensure!(report["operations"] == 24_387 && report["wrong"] == 0, "{output}");
    mount.unmount()
}

/// The files that programs have opened on a mount.
fn opens(network: &Network, mount: &CurtMount) -> Result<u64> {
    Ok(events(network, mount)?[0]["fuse"]["OPEN"].as_u64().unwrap_or(0))
}

/// Cuts the connections of a mount to port 2049.
fn cut(network: &Network) -> Result<()> {
    network.shell("ss --kill --no-header state established dport = :2049", MINUTES).map(drop)
}

/// Neither end hears of the other for three leases. Servers keep what a silent client has until
/// another wants it: the lock of a file that the client holds.
fn silence(network: &Network, mount: &mut CurtMount, place: Place<'_>) -> Result<()> {
    let lock = |mount: &CurtMount| -> Result<RunningProcess> {
        let holder = locker::start(network, &mount.directory().join(place.locked), "fcntl-write")?;
        holder.wait_for("locked", MINUTES)?;
        Ok(holder)
    };
    let _holder = lock(mount)?;
    mount.process().signal(Signal::STOP)?;
    std::thread::sleep(THREE_LEASES);
    let taken = CurtMount::start(network, "other", place.source, place.options)
        .and_then(|other| lock(&other).map(drop).and_then(|()| other.unmount()));
    mount.process().signal(Signal::CONT)?;
    taken
}

/// The events that a mount has counted.
fn events(network: &Network, mount: &CurtMount) -> Result<serde_json::Value> {
    let mut stat = network.command(program("curt")?);
    let text = process::run(stat.args(["stat", "--json"]).arg(mount.directory()), MINUTES)?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// A workload over NFSv4.1.
fn bench(network: &Network, workload: Workload, source: &str, options: &str) -> Result<RunReport> {
    let mut command = network.command(program("curt")?);
    command.args(["bench", workload.name(), "--vers", "4.1", "--json", "--no-check", "--server", source]);
    let output = process::run(command.args(["--options", options]), 2 * MINUTES)?;
    let report: RunReport = serde_json::from_str(&output).with_context(|| output.clone())?;
    ensure!(report.wrong == 0, "{output}");
    Ok(report)
}

// SEMANTICS: sessions-7.
#[test]
fn page_and_build_send_ganesha_few_requests_over_4_1() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let both = "noaccesscheck,sloppycto=3";
    for (workload, options, most) in
        [(Workload::Page, "", 7000), (Workload::Page, both, 1600), (Workload::Build, both, 1800)]
    {
        let server = Ganesha::start(&network, &tree(workload)?)?;
        let report = bench(&network, workload, &server.source(), options)?;
        // What expires in a run that takes longer than an idle machine's, as over NFSv3.
        let late = match workload {
            Workload::Page => {
                1150.0 * ((report.seconds / 3.0).floor() - 1.0).max(0.0)
                    + create_probes(report.seconds) as f64
            }
            Workload::Build => 250.0 * (report.seconds - 3.0).max(0.0),
        };
        let total = report.rpc.total() as f64;
        println!(
            "{} {options}: {total} requests, {late} of them late, {:.1} s",
            workload.name(),
            report.seconds
        );
        ensure!(total <= f64::from(most) + late, "{report:?}");
    }
    Ok(())
}

/// Makes the files that [`read_a_thousand_files`] reads.
fn make_a_thousand_files(network: &Network) -> Result<PathBuf> {
    let export = network.make_directory("export")?;
    let script = format!("cd {}; for n in {{1..1000}}; do echo $n >f$n; done", export.display());
    network.shell(&script, MINUTES)?;
    Ok(export)
}

/// A program opens, reads and closes 1,000 small files on a new mount, with a request for each.
fn read_a_thousand_files(network: &Network, export: &Path, source: &str, options: &str) -> Result<()> {
    let mount = CurtMount::start(network, "mount", source, options)?;
    let read = |directory: &Path| {
        network.shell(&format!("cd {}; eval cat f{{1..1000}} | md5sum", directory.display()), MINUTES)
    };
    let found = read(mount.directory())?;
    ensure!(found == read(export)?, "{found}");
    let total = requests(network, &mount)?;
    println!("{total} requests");
    ensure!(total <= 1100, "{total} requests");
    mount.unmount()
}

// SEMANTICS: sessions-7.
#[test]
fn a_program_reads_a_thousand_small_files_with_a_request_each() -> Result<()> {
    let network = Network::new()?;
    let export = make_a_thousand_files(&network)?;
    let (server, options) = serve(&network, &export)?;
    read_a_thousand_files(&network, &export, &server.source(), &options)?;
    read_a_thousand_files(&network, &export, &server.source(), &format!("{options},nodelegations"))
}

// SEMANTICS: sessions-7.
#[test]
fn a_program_reads_a_thousand_small_files_of_ganesha_with_a_request_each() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = make_a_thousand_files(&network)?;
    let server = Ganesha::start(&network, &export)?;
    read_a_thousand_files(&network, &export, &server.source(), "vers=4.1")
}

/// Unpacks 1,000 files in 10 directories, and returns the number of requests.
fn unpack(network: &Network, unpack: &str) -> Result<u64> {
    let export = network.make_directory("export")?;
    let make = format!(
        "cd {0}; chmod 777 {1}; mkdir packed; for d in {{1..10}}; do mkdir packed/$d; for f in {{1..100}}; do \
         head -c $((f * 100)) /dev/zero >packed/$d/$f; done; done; chmod -R a+rX packed; touch -d '2001-01-01 UTC' packed/*/*; \
         tar -cf packed.tar packed",
        network.directory().display(),
        export.display(),
    );
    network.shell(&make, MINUTES)?;
    let server = CurtServe::start(network, &export, &[])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mount = CurtMount::start(network, "mount", &server.source(), &options)?;
    let before = requests(network, &mount)?;
    let archive = network.directory().join("packed.tar");
    let directory = mount.directory().display();
    network.shell(&format!("{unpack} tar -xf {} -C {directory}", archive.display()), MINUTES)?;
    let after = requests(network, &mount)?;
    let script = format!(
        "diff -r {}/packed {export}/packed && stat -c %Y {export}/packed/*/* | sort | uniq -c",
        network.directory().display(),
        export = export.display()
    );
    let times = network.shell(&script, MINUTES)?;
    ensure!(times.trim() == "1000 978307200", "{times}");
    mount.unmount()?;
    Ok(after - before)
}

/// The requests that a mount has sent.
fn requests(network: &Network, mount: &CurtMount) -> Result<u64> {
    let counted = events(network, mount)?;
    let requests = counted[0]["counters"]["requests"].as_object().with_context(|| counted.to_string())?;
    Ok(requests.values().filter_map(serde_json::Value::as_u64).sum())
}

// SEMANTICS: sessions-21.
#[test]
fn tar_creates_a_thousand_files_with_two_requests_each_and_with_four_as_root() -> Result<()> {
    for (user, most) in [("setpriv --reuid=65534 --regid=65534 --clear-groups", 2400), ("", 4400)] {
        let requests = unpack(&Network::new()?, user)?;
        println!("{requests} requests of tar {user}");
        ensure!((1000..=most).contains(&requests), "{requests} requests of tar {user}");
    }
    Ok(())
}

/// Cuts the connection, kills the server, and is silent, each in the middle of page.
fn read_through_everything(
    network: &Network,
    place: Place<'_>,
    server: &mut dyn DisturbedServer,
) -> Result<()> {
    read_through(network, place, |_| cut(network))?;
    read_through(network, place, |_| server.kill(network))?;
    read_through(network, place, |mount| silence(network, mount, place))
}

/// A `curt serve` of this directory with a lease of 10 s, and the options of its mounts.
fn serve(network: &Network, export: &Path) -> Result<(CurtServe, String)> {
    let server = CurtServe::start(network, export, &["--lease", "10"])?;
    Ok((server, format!("vers=4.1,port={}", CurtServe::PORT)))
}

// SEMANTICS: sessions-2.
#[test]
fn writes_outlast_cut_connections_a_killed_server_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let (mut server, options) = serve(&network, &export)?;
    let source = server.source();
    let written = write_through(&network, Place::to_write(&source, &options), &mut server)?;
    written.verify(&network, &export)
}

// SEMANTICS: sessions-2.
#[test]
fn reads_outlast_cut_connections_a_killed_server_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let (mut server, options) = serve(&network, &tree(Workload::Page)?)?;
    let source = server.source();
    read_through_everything(&network, Place::to_read(&source, &options), &mut server)
}

// SEMANTICS: sessions-2.
#[test]
fn writes_outlast_cut_connections_a_killed_ganesha_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let mut server = RestartedGanesha::start(&network, &export)?;
    let source = server.source();
    let written = write_through(&network, Place::to_write(&source, "vers=4.1"), &mut server)?;
    written.verify(&network, &export)
}

// SEMANTICS: sessions-2.
#[test]
fn reads_outlast_cut_connections_a_killed_ganesha_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let mut server = RestartedGanesha::start(&network, &tree(Workload::Page)?)?;
    let source = server.source();
    read_through_everything(&network, Place::to_read(&source, "vers=4.1"), &mut server)
}

// SEMANTICS: sessions-2, write-3.
#[test]
fn writes_outlast_cut_connections_to_knfsd_its_loss_of_power_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let mut server = RestartedKnfsd::start(&network, network.directory().join("disk.img"))?;
    let source = RestartedKnfsd::source();
    let written = write_through(&network, Place::to_write(&source, "vers=4.1"), &mut server)?;
    // Another power failure: the comparison is with the data on the disk.
    server.kill(&network)?;
    let again = CurtMount::start(&network, "again", &source, "vers=4.1")?;
    written.verify(&network, again.directory())?;
    again.unmount()
}

// SEMANTICS: sessions-2.
#[test]
#[ignore = "CURT_FULL=1"]
fn reads_outlast_cut_connections_to_knfsd_its_loss_of_power_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let image = image_of(&network, &tree(Workload::Page)?)?;
    let mut server = RestartedKnfsd::start(&network, image)?;
    read_through_everything(&network, Place::to_read(&RestartedKnfsd::source(), "vers=4.1"), &mut server)
}

/// Opens 1,000 files, and writes to each when a line comes.
const MANY_OPENS: &str = r#"
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
files = [open(f"{sys.argv[1]}/many{number}", "w") for number in range(1000)]
print("opened", flush=True)
sys.stdin.readline()
for file in files:
    file.write("x")
    file.close()
print("written", flush=True)
"#;

// SEMANTICS: sessions-2.
#[test]
fn a_thousand_opens_are_reclaimed_from_a_killed_curt_serve_in_few_requests() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &["--lease", "10"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let script = network.directory().join("opens.py");
    std::fs::write(&script, MANY_OPENS)?;
    let mut command = network.command("python3");
    let mut opener = RunningProcess::start("opens.py", command.arg(&script).arg(mount.directory()))?;
    opener.wait_for("opened", MINUTES)?;
    // The mount may begin to reclaim by itself.
    let opens = || curt::counter(&network, Some(&mount), "NFSv4.OPEN");
    let before = opens()?;
    server.kill()?;
    server.restart(&network)?;
    process::run(network.command("stat").arg("-f").arg(mount.directory()), MINUTES)?;
    let requests = opens()? - before;
    ensure!((63..=70).contains(&requests), "{requests} requests");
    opener.say("\n")?;
    opener.wait_for("written", MINUTES)?;
    ensure!(opens()? == before + requests, "none was opened again");
    for number in [0, 500, 999] {
        ensure!(std::fs::read(export.join(format!("many{number}")))? == b"x");
    }
    mount.unmount()
}
