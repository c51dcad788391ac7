//! Read delegations of `curt mount` with `vers=4.1`: the requests of page and build, and what Curt
//! and Linux see of each other's changes, on `curt serve` and knfsd.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_tests::curt::{self, CurtMount, CurtServe, program, tree};
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions, image_of};
use curt_tests::linux_locker::LinuxLocker;
use curt_tests::network::Network;
use curt_tests::process;
use rustix::process::Signal;

const MINUTES: Duration = Duration::from_secs(300);

/// The files, which all contain `old`.
const FILES: &str = "written removed replaced moded truncated appended held kept last";

/// An action of another client, and the reader's next result; `$1` is the reader's directory.
const CHANGES: &[(&str, &str)] = &[
    ("echo new >written", "[[ $(cat written) == new ]]"),
    ("echo newer >written", "[[ $(cat written) == newer ]]"),
    ("rm removed", "! cat removed"),
    ("echo new >fresh; mv fresh replaced", "[[ $(cat replaced) == new ]]"),
    // The attributes are asked for again after the recall.
    ("chmod 640 moded", "[[ $(stat -c %a moded) == 640 ]]"),
    ("truncate -s 1 truncated", "[[ $(cat truncated) == o && $(stat -c %s truncated) == 1 ]]"),
    ("echo more >>appended", "[[ $(cat appended) == $'old\\nmore' ]]"),
];

/// Runs a script in a directory.
fn shell(network: &Network, directory: &Path, script: &str) -> Result<String> {
    network.shell(&format!("cd {} && {{ {script}; }}", directory.display()), MINUTES)
}

fn counter(network: &Network, mount: &CurtMount, name: &str) -> Result<u64> {
    curt::counter(network, Some(mount), name)
}

/// Waits until the server grants delegations: knfsd grants none in the grace period of its lock
/// manager.
fn await_delegations(network: &Network, mount: &CurtMount) -> Result<()> {
    let end = Instant::now() + MINUTES;
    shell(network, mount.directory(), "echo old >probe")?;
    while counter(network, mount, "delegation_granted")? == 0 {
        ensure!(Instant::now() < end, "no delegation is granted");
        std::thread::sleep(Duration::from_millis(200));
        shell(network, mount.directory(), "cat probe")?;
    }
    Ok(())
}

/// A mount reads files, another client changes them by `change`.
fn share(network: &Network, reader: &CurtMount, mut change: impl FnMut(&str) -> Result<()>) -> Result<()> {
    await_delegations(network, reader)?;
    change(&format!("for name in {FILES}; do echo old >$name; done"))?;
    // The server delegates no file that is open for writing elsewhere. The CLOSE of its writer may
    // be on its way: then a later open gets the delegation.
    let files = u64::try_from(FILES.split(' ').count())?;
    process::until("all files are delegated", MINUTES, || {
        let before = counter(network, reader, "open_delegated")?;
        shell(network, reader.directory(), &format!("for name in {FILES}; do cat $name; done"))?;
        Ok((counter(network, reader, "open_delegated")? - before >= files).then_some(()))
    })?;
    let recalled = counter(network, reader, "delegation_recalled")?;
    for (theirs, ours) in CHANGES {
        change(theirs)?;
        shell(network, reader.directory(), ours).with_context(|| format!("after {theirs}"))?;
    }
    let recalled = counter(network, reader, "delegation_recalled")? - recalled;
    ensure!(recalled >= 6, "{recalled} of {files} delegations were recalled");
    // A file that is open and delegated here is changed, renamed and removed elsewhere.
    let held = reader.directory().join("held");
    let script = format!("exec 5<{}; read -r line <&5; echo \"$line\"; cat {0}", held.display());
    ensure!(network.shell(&script, MINUTES)? == "old\nold\n");
    change("mv held moved; echo new >held; rm moved")?;
    shell(network, reader.directory(), "[[ $(cat held) == new ]]; ! cat moved 2>/dev/null")?;
    // This client changes what it has delegated.
    shell(network, reader.directory(), "cat kept; echo mine >kept; [[ $(cat kept) == mine ]]")?;
    change("[[ $(cat kept) == mine ]]")?;
    shell(network, reader.directory(), "cat kept; mv kept other; rm other; ! cat kept 2>/dev/null")?;
    change("! cat kept 2>/dev/null")?;
    ensure!(counter(network, reader, "delegation_lost")? == 0);
    Ok(())
}

fn share_with_all(network: &Network, source: &str, options: &str, linux: &str) -> Result<()> {
    let reader = CurtMount::start(network, "reader", source, options)?;
    {
        let writer = CurtMount::start(network, "writer", source, options)?;
        share(network, &reader, |script| shell(network, writer.directory(), script).map(drop))?;
        // The Linux client has a file of its own.
        shell(network, writer.directory(), "find . -mindepth 1 ! -name file -delete")?;
        writer.unmount()?;
    }
    let mut linux = LinuxLocker::start(network, KernelNumber(0), linux, "linux")?.mounted()?;
    let mut change = |script: &str| linux.run(&format!("cd /mnt/nfs && {{ {script}; }}"));
    share(network, &reader, &mut change)?;
    let delegated = counter(network, &reader, "open_delegated")?;
    process::until("a file is delegated", MINUTES, || {
        shell(network, reader.directory(), "cat last")?;
        Ok((counter(network, &reader, "open_delegated")? > delegated).then_some(()))
    })?;
    reader.unmount()?;
    // The server has discarded what the mount had: nobody waits for a lease, of a minute.
    let begun = Instant::now();
    change("echo new >last")?;
    ensure!(begun.elapsed() < Duration::from_secs(40), "the writer has waited {:?}", begun.elapsed());
    linux.end().map(drop)
}

// SEMANTICS: sessions-13, sessions-14, sessions-22.
#[test]
fn curt_and_linux_see_each_change_of_what_curt_serve_has_delegated_to_curt() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    std::fs::write(export.join("file"), "locker\n")?;
    let server = CurtServe::start(&network, &export, &["--lease", "60"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    share_with_all(&network, &server.source(), &options, &format!("{options} {}", server.source()))
}

// SEMANTICS: sessions-13, sessions-14, sessions-22.
#[test]
fn curt_and_linux_see_each_change_of_what_knfsd_has_delegated_to_curt() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let setup = "touch file".to_owned();
    let options = KnfsdOptions { setup, lease: Some(60), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    share_with_all(&network, &source, "vers=4.1", &format!("vers=4.1 {source}"))
}

const NUMBERED: &str = "for number in {1..40}; do";

/// Two mounts of a server with 40 files, all delegated to the first.
struct Delegated<S> {
    server: S,
    reader: CurtMount,
    writer: CurtMount,
}

impl Delegated<CurtServe> {
    fn start(network: &Network) -> Result<Self> {
        Self::start_with(network, "")
    }

    fn start_with(network: &Network, options: &str) -> Result<Self> {
        let export = network.make_directory("export")?;
        let server = CurtServe::start(network, &export, &["--lease", "10"])?;
        let source = server.source();
        Self::of(network, server, &source, &format!("vers=4.1,port={}{options}", CurtServe::PORT))
    }
}

impl<S> Delegated<S> {
    fn of(network: &Network, server: S, source: &str, options: &str) -> Result<Self> {
        let reader = CurtMount::start(network, "reader", source, options)?;
        let writer = CurtMount::start(network, "writer", source, options)?;
        let delegated = Self { server, reader, writer };
        delegated.write(network, &format!("{NUMBERED} echo old $number >$number; done"))?;
        // Nobody else has them open for writing any more.
        let end = Instant::now() + MINUTES;
        while counter(network, &delegated.reader, "delegation_granted")? < 40 {
            ensure!(Instant::now() < end, "they are not delegated");
            delegated.read(network, "old")?;
        }
        Ok(delegated)
    }

    fn write(&self, network: &Network, script: &str) -> Result<()> {
        shell(network, self.writer.directory(), script).map(drop)
    }

    /// Reads all files, which begin with `word`.
    fn read(&self, network: &Network, word: &str) -> Result<()> {
        let script = format!("{NUMBERED} [[ $(cat $number) == \"{word} $number\" ]] || exit 9; done");
        shell(network, self.reader.directory(), &script).map(drop)
    }
}

// SEMANTICS: sessions-16.
#[test]
fn delegations_are_reclaimed_from_a_killed_curt_serve_and_recalled_by_it() -> Result<()> {
    let network = Network::new()?;
    let mut delegated = Delegated::start(&network)?;
    let granted = counter(&network, &delegated.reader, "delegation_granted")?;
    delegated.server.wait_for_known_changes(&network)?;
    delegated.server.kill()?;
    delegated.server.restart(&network)?;
    // The first request of the mount recovers its state.
    shell(&network, delegated.reader.directory(), "touch probe")?;
    let again = counter(&network, &delegated.reader, "delegation_granted")? - granted;
    ensure!(again == granted, "{again} of {granted} delegations were granted again");
    ensure!(counter(&network, &delegated.reader, "delegations")? == granted, "all are held");
    delegated.read(&network, "old")?;
    let opened = counter(&network, &delegated.reader, "open_delegated")?;
    delegated.read(&network, "old")?;
    ensure!(counter(&network, &delegated.reader, "open_delegated")? >= opened + 40);
    // The server recalls what it has granted again.
    delegated.write(&network, &format!("{NUMBERED} echo new $number >$number; done"))?;
    delegated.read(&network, "new")?;
    ensure!(counter(&network, &delegated.reader, "delegation_recalled")? >= 40);
    delegated.reader.unmount()?;
    delegated.writer.unmount()
}

// SEMANTICS: sessions-13, sessions-20.
#[test]
fn recalls_come_over_another_connection_when_the_first_is_lost() -> Result<()> {
    let network = Network::new()?;
    let delegated = Delegated::start_with(&network, ",nconnect=2")?;
    let reader = &delegated.reader;
    let parallel = "for number in {1..20}; do touch many$number & done; wait";
    process::until("both connections are used", MINUTES, || {
        shell(&network, reader.directory(), parallel)?;
        Ok((counter(&network, reader, "connections")? == 2).then_some(()))
    })?;
    let port = counter(&network, reader, "port")?;
    network.shell(&format!("ss --kill --no-header state established sport = :{port}"), MINUTES)?;
    // The server says that it cannot call; another connection is bound at once.
    shell(&network, reader.directory(), "touch probe")?;
    ensure!(counter(&network, reader, "NFSv4.BIND_CONN_TO_SESSION")? >= 1);
    delegated.write(&network, &format!("{NUMBERED} echo new $number >$number; done"))?;
    delegated.read(&network, "new")?;
    ensure!(counter(&network, reader, "delegation_recalled")? >= 40);
    ensure!(counter(&network, reader, "delegation_lost")? == 0, "none was revoked");
    ensure!(counter(&network, reader, "NFSv4.EXCHANGE_ID")? == 1, "all in one session");
    delegated.reader.unmount()?;
    delegated.writer.unmount()
}

/// knfsd need not delegate again: it recalls at once if it has not called the client yet.
// SEMANTICS: sessions-16.
#[test]
#[ignore = "CURT_FULL=1"]
fn what_knfsd_had_delegated_before_a_power_failure_is_read_and_its_changes_are_seen() -> Result<()> {
    let network = Network::new()?;
    let image = Some(network.directory().join("disk.img"));
    let options = KnfsdOptions { image, grace: Some(10), ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    let delegated = Delegated::of(&network, server, &source, "vers=4.1")?;
    let granted = counter(&network, &delegated.reader, "delegation_granted")?;
    let Delegated { server, reader, writer } = delegated;
    server.power_off(&network)?;
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let delegated = Delegated { server, reader, writer };
    shell(&network, delegated.reader.directory(), "touch probe")?;
    let again = counter(&network, &delegated.reader, "delegation_granted")? - granted;
    println!("{again} of {granted} delegations were granted again");
    delegated.read(&network, "old")?;
    delegated.write(&network, &format!("{NUMBERED} echo new $number >$number; done"))?;
    delegated.read(&network, "new")?;
    delegated.reader.unmount()?;
    delegated.writer.unmount()
}

// SEMANTICS: sessions-16, sessions-17.
#[test]
fn a_mount_that_does_not_answer_recalls_loses_its_delegations_and_then_sees_the_changes() -> Result<()> {
    let network = Network::new()?;
    let mut delegated = Delegated::start(&network)?;
    // It cannot answer; the server revokes after a lease.
    delegated.reader.process().signal(Signal::STOP)?;
    delegated.write(&network, &format!("{NUMBERED} echo new $number >$number; done"))?;
    delegated.reader.process().signal(Signal::CONT)?;
    delegated.read(&network, "new")?;
    ensure!(counter(&network, &delegated.reader, "delegation_lost")? >= 1);
    delegated.write(&network, &format!("{NUMBERED} echo newer $number >$number; done"))?;
    delegated.read(&network, "newer")?;
    delegated.reader.unmount()?;
    delegated.writer.unmount()
}

// SEMANTICS: sessions-17.
#[test]
fn a_mount_whose_client_is_removed_at_the_server_goes_on_with_the_present_data() -> Result<()> {
    let network = Network::new()?;
    let delegated = Delegated::start(&network)?;
    let of_server = |arguments: &[&str]| {
        let mut stat = network.command(program("curt")?);
        stat.args(["stat", "--server"]).arg(network.directory().join("state")).args(arguments);
        process::run(&mut stat, MINUTES)
    };
    let clients = of_server(&["--clients", "--json"])?;
    let parsed: Vec<serde_json::Value> = serde_json::from_str(&clients).with_context(|| clients.clone())?;
    let reader = parsed.iter().find(|client| client["delegations"].as_u64() >= Some(40));
    let id = reader.and_then(|client| client["id"].as_u64()).with_context(|| clients.clone())?;
    of_server(&["--expire", &format!("{id:#x}")])?;
    // Nothing is recalled: the server knows of no delegation. The mount learns of it with its next
    // request.
    delegated.write(&network, &format!("{NUMBERED} echo new $number >$number; done"))?;
    shell(&network, delegated.reader.directory(), "touch probe")?;
    delegated.read(&network, "new")?;
    ensure!(counter(&network, &delegated.reader, "delegation_lost")? >= 40);
    delegated.reader.unmount()?;
    delegated.writer.unmount()
}

/// A workload over NFSv4.1 with default options.
fn bench(network: &Network, workload: Workload, arguments: &[&str]) -> Result<RunReport> {
    let mut command = network.command(program("curt")?);
    command.args(["bench", workload.name(), "--vers", "4.1", "--json"]).args(arguments);
    let output = process::run(&mut command, 2 * MINUTES)?;
    let report: RunReport = serde_json::from_str(&output).with_context(|| output.clone())?;
    ensure!(report.wrong == 0, "{output}");
    println!("{}: {} requests in {:.1} s", workload.name(), report.rpc.total(), report.seconds);
    Ok(report)
}

/// The requests of a run that takes longer than on an idle machine, for expired attributes: those
/// of directories, which may expire each 25 s.
fn late(report: &RunReport) -> u64 {
    600 * (Duration::from_secs_f64(report.seconds).as_secs() / 25)
}

// SEMANTICS: sessions-11, sessions-18.
#[test]
fn page_asks_curt_serve_about_each_file_once() -> Result<()> {
    let network = Network::new()?;
    let page = bench(&network, Workload::Page, &[])?;
    ensure!(page.rpc.total() <= 1400 + late(&page), "{page:?}");
    let build = bench(&network, Workload::Build, &[])?;
    ensure!(build.rpc.total() <= 800 + late(&build), "{build:?}");
    Ok(())
}

/// A workload on knfsd, which delegates.
fn bench_knfsd(workload: Workload) -> Result<RunReport> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let image = image_of(&network, &tree(workload)?)?;
    // The image has whole seconds. A later time with all its digits shows a client the server's
    // clock and its granularity.
    let setup = "chmod 755 .".to_owned();
    let options = KnfsdOptions { image: Some(image), setup, ..KnfsdOptions::default() };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    {
        let probe = CurtMount::start(&network, "probe", &source, "vers=4.1")?;
        await_delegations(&network, &probe)?;
        shell(&network, probe.directory(), "rm probe")?;
        probe.unmount()?;
    }
    bench(&network, workload, &["--no-check", "--server", &source])
}

// SEMANTICS: sessions-11.
#[test]
fn page_asks_knfsd_about_each_file_once() -> Result<()> {
    let page = bench_knfsd(Workload::Page)?;
    ensure!(page.rpc.total() <= 1450 + late(&page), "{page:?}");
    Ok(())
}

// SEMANTICS: sessions-11, sessions-18.
#[test]
#[ignore = "CURT_FULL=1"]
fn build_asks_knfsd_about_each_file_once() -> Result<()> {
    let build = bench_knfsd(Workload::Build)?;
    ensure!(build.rpc.total() <= 1600 + late(&build), "{build:?}");
    Ok(())
}
