//! `curt mount` with `vers=4.1`: of `curt serve`, knfsd and Ganesha, which are killed meanwhile.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_tests::curt::{CurtMount, CurtServe, program, tree};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions, image_of};
use curt_tests::lock_scripts::is_full;
use curt_tests::network::Network;
use curt_tests::process::{self, RunningProcess};
use curt_tests::repeated_requests::repeated_lookups;
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

/// The random writer, which runs while `disturb` does something to the server.
fn write(network: &Network, directory: &Path, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut command = network.command(program("random-writer")?);
    command.args(["--seed", "5", "--operations", "2000"]).arg(directory);
    let mut writer = RunningProcess::start("random-writer", &mut command)?;
    std::thread::sleep(Duration::from_secs(1));
    disturb()?;
    let status = writer.wait(MINUTES)?;
    ensure!(status.success() && writer.output().contains("all as it should be"), "{}", writer.output());
    Ok(())
}

/// Runs page, which reads as one process does, while `disturb` does something to the server.
fn read(network: &Network, directory: &Path, disturb: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut command = network.command(program("curt")?);
    command.args(["bench", "page", "--json", "--at"]).arg(directory);
    let mut reader = RunningProcess::start("curt bench page", &mut command)?;
    std::thread::sleep(Duration::from_secs(1));
    disturb()?;
    ensure!(reader.wait(MINUTES)?.success(), "{}", reader.output());
    let output = reader.output();
    let report = output.lines().find(|line| line.starts_with('{')).context("a report")?;
    let report: serde_json::Value = serde_json::from_str(report).with_context(|| output.clone())?;
    ensure!(report["operations"] == 24_387 && report["wrong"] == 0, "{output}");
    Ok(())
}

/// Cuts the connections of a mount to port 2049.
fn cut(network: &Network) -> Result<()> {
    network.shell("ss --kill --no-header state established dport = :2049", MINUTES).map(drop)
}

/// Neither end hears of the other for three leases: the server drops what the client has.
fn silence(mount: &mut CurtMount) -> Result<()> {
    mount.process().signal(Signal::STOP)?;
    std::thread::sleep(THREE_LEASES);
    mount.process().signal(Signal::CONT)
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
                    + repeated_lookups(workload, report.seconds) as f64
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

// SEMANTICS: sessions-7.
#[test]
fn a_program_reads_a_thousand_small_files_with_a_request_each() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    network
        .shell(&format!("cd {}; for n in {{1..1000}}; do echo $n >f$n; done", export.display()), MINUTES)?;
    let server = CurtServe::start(&network, &export, &[])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let script = format!("cd {}; eval cat f{{1..1000}} | md5sum", mount.directory().display());
    let read = network.shell(&script, MINUTES)?;
    let script = format!("cd {}; eval cat f{{1..1000}} | md5sum", export.display());
    ensure!(read == network.shell(&script, MINUTES)?, "{read}");
    let total = requests(&network, &mount)?;
    ensure!(total >= 1000, "{total} requests");
    println!("{total} requests");
    ensure!(total <= 1100, "{total} requests");
    mount.unmount()
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

/// Connections are cut, the server is killed, and then client and server are silent for three
/// leases.
fn everything_fails(network: &Network, server: &mut CurtServe, mount: &mut CurtMount) -> Result<()> {
    for _ in 0..3 {
        cut(network)?;
        std::thread::sleep(Duration::from_millis(500));
    }
    server.kill()?;
    server.restart(network)?;
    std::thread::sleep(Duration::from_secs(1));
    silence(mount)
}

// SEMANTICS: sessions-2.
#[test]
fn writes_outlast_cut_connections_a_killed_server_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &["--lease", "10"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mut mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let directory = mount.directory().to_owned();
    write(&network, &directory, || everything_fails(&network, &mut server, &mut mount))?;
    mount.unmount()
}

// SEMANTICS: sessions-2.
#[test]
fn reads_outlast_cut_connections_a_killed_server_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let mut server = CurtServe::start(&network, &tree(Workload::Page)?, &["--lease", "10"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mut mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    let directory = mount.directory().to_owned();
    read(&network, &directory, || everything_fails(&network, &mut server, &mut mount))?;
    mount.unmount()
}

// SEMANTICS: sessions-2.
#[test]
fn reads_outlast_a_killed_ganesha_and_three_leases_of_silence() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = tree(Workload::Page)?;
    let server = Ganesha::start(&network, &export)?;
    let mut mount = CurtMount::start(&network, "mount", &server.source(), "vers=4.1")?;
    let directory = mount.directory().to_owned();
    let mut next = None;
    read(&network, &directory, || {
        server.kill()?;
        next = Some(Ganesha::start(&network, &export)?);
        cut(&network)?;
        silence(&mut mount)
    })?;
    mount.unmount()
}

/// With CURT_FULL=1.
// SEMANTICS: sessions-2.
#[test]
fn writes_outlast_cut_connections_to_ganesha_and_three_leases_of_silence() -> Result<()> {
    if !is_full() {
        return Ok(());
    }
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = Ganesha::start(&network, &export)?;
    let mut mount = CurtMount::start(&network, "mount", &server.source(), "vers=4.1")?;
    let directory = mount.directory().to_owned();
    write(&network, &directory, || {
        for _ in 0..3 {
            cut(&network)?;
            std::thread::sleep(Duration::from_millis(500));
        }
        silence(&mut mount)
    })?;
    mount.unmount()
}

/// With CURT_FULL=1.
// SEMANTICS: sessions-2.
#[test]
fn reads_outlast_cut_connections_to_knfsd_its_loss_of_power_and_three_leases_of_silence() -> Result<()> {
    if !is_full() {
        return Ok(());
    }
    let network = Network::new()?;
    let options = KnfsdOptions {
        image: Some(image_of(&network, &tree(Workload::Page)?)?),
        grace: Some(10),
        setup: "chmod 755 .".to_owned(),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    let mut mount = CurtMount::start(&network, "mount", &source, "vers=4.1")?;
    let directory = mount.directory().to_owned();
    let mut next = None;
    read(&network, &directory, || {
        for _ in 0..3 {
            cut(&network)?;
            std::thread::sleep(Duration::from_millis(500));
        }
        server.power_off(&network)?;
        next = Some(Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?);
        std::thread::sleep(Duration::from_secs(1));
        silence(&mut mount)
    })?;
    mount.unmount()
}

// SEMANTICS: sessions-2, sessions-3.
#[test]
fn curt_serve_is_used_over_4_1_and_killed() -> Result<()> {
    let network = Network::new()?;
    let export = network.make_directory("export")?;
    let mut server = CurtServe::start(&network, &export, &["--lease", "10"])?;
    let options = format!("vers=4.1,port={}", CurtServe::PORT);
    let mount = CurtMount::start(&network, "mount", &server.source(), &options)?;
    everything(&network, &mount)?;
    write(&network, mount.directory(), || {
        for _ in 0..3 {
            server.kill()?;
            server.restart(&network)?;
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    })?;
    mount.unmount()
}

#[test]
fn ganesha_is_used_over_4_1_and_killed() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let export = network.make_directory("export")?;
    let server = Ganesha::start(&network, &export)?;
    let mount = CurtMount::start(&network, "mount", &server.source(), "vers=4.1")?;
    everything(&network, &mount)?;
    let mut next = None;
    write(&network, mount.directory(), || {
        server.kill()?;
        next = Some(Ganesha::start(&network, &export)?);
        Ok(())
    })?;
    mount.unmount()
}

#[test]
fn knfsd_is_used_over_4_1_and_loses_power() -> Result<()> {
    let network = Network::new()?;
    let options = KnfsdOptions {
        image: Some(network.directory().join("disk.img")),
        grace: Some(10),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?;
    let source = format!("{}:/", server.address());
    let mount = CurtMount::start(&network, "mount", &source, "vers=4.1")?;
    everything(&network, &mount)?;
    let mut next = None;
    write(&network, mount.directory(), || {
        server.power_off(&network)?;
        next = Some(Knfsd::start(&network, KernelNumber(1), MINUTES, &options)?);
        Ok(())
    })?;
    mount.unmount()
}
