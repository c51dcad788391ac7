//! The recorded workloads on a mount: limits of the counts, and their equality with those on the
//! wire and of the server.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::make;
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_proto::{Operation, nfs3::NfsProcedure};
use curt_tests::capture::Capture;
use curt_tests::curt::{CurtServe, image_of_trees, program, tree};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process;
use curt_tests::repeated_requests::create_probes;

/// Timeout of a run of page, which takes 7 s on an idle machine.
const RUN: Duration = Duration::from_secs(400);
/// Timeout of creating a tree through a mount, which takes half a minute.
const MAKING: Duration = Duration::from_secs(900);
/// Time limit of a kernel that serves them.
const KERNEL: Duration = Duration::from_secs(1800);

/// Lifetime of cached attributes of page's files in seconds: they expire once in a run,
const PAGE_SECONDS: f64 = 3.0;
/// and in a longer run once more in each such period, with this many requests.
const PAGE_EXPIRED: f64 = 1150.0;

/// LOOKUPs and READs of a run in which nothing expires more than once. Each file that is read has
/// an ACCESS.
const PAGE_LOOKUPS: u64 = 272;
const PAGE_READS: u64 = 1124;

/// Maximum number of additional requests of build in each second beyond 3, for expired attributes.
const BUILD_EXPIRED: f64 = 250.0;

/// Procedures whose number depends on the duration of a run.
const EXPIRING: [NfsProcedure; 3] = [NfsProcedure::Getattr, NfsProcedure::Lookup, NfsProcedure::ReaddirPlus];

/// Runs `curt bench WORKLOAD … --json` in a network, and returns its report.
fn bench(network: &Network, workload: Workload, arguments: &[&str]) -> Result<RunReport> {
    bench_within(RUN, network, workload, arguments)
}

/// Runs `curt bench` with a time limit.
fn bench_within(
    limit: Duration,
    network: &Network,
    workload: Workload,
    arguments: &[&str],
) -> Result<RunReport> {
    let mut command = network.command(program("curt")?);
    command.args(["bench", workload.name(), "--vers", "3", "--json"]).args(arguments);
    let output = process::run(&mut command, limit)?;
    println!("{}", output.trim_end());
    serde_json::from_str(&output).with_context(|| output.clone())
}

/// Runs `curt bench` with its own server, once for all tests.
fn embedded(workload: Workload, options: &str) -> Result<RunReport> {
    static RUNS: Mutex<BTreeMap<(&str, String), RunReport>> = Mutex::new(BTreeMap::new());
    let run = (workload.name(), options.to_owned());
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(report) = runs.get(&run) {
        return Ok(report.clone());
    }
    let report = captured(&Network::new()?, workload, options)?;
    runs.insert(run, report.clone());
    Ok(report)
}

/// Runs `curt bench` with a server at a captured port: the report must equal the calls on the wire.
fn captured(network: &Network, workload: Workload, options: &str) -> Result<RunReport> {
    const PORT: u16 = 2049;
    let capture = Capture::start(network, "run", PORT)?;
    let top = tree(workload)?.display().to_string();
    let report =
        bench(network, workload, &["--port", &PORT.to_string(), "--tree", &top, "--options", options])?;
    let captured = capture.stop()?;
    equal(&report, &captured.calls()?, "the capture")?;
    ensure!(
        captured.malformed(network)?.is_empty(),
        "tshark finds malformed packets: {:?}",
        captured.malformed(network)?
    );
    Ok(report)
}

fn equal(report: &RunReport, other: &BTreeMap<String, u64>, who: &str) -> Result<()> {
    // A server that is silent for some time, on a busy machine, gets NULL over another connection,
    // which is not a call of the mount.
    let null = Operation::from(NfsProcedure::Null);
    for (operation, count) in report.rpc.iter().filter(|(operation, _)| *operation != null) {
        let counted = other.get(operation.name()).copied().unwrap_or(0);
        ensure!(
            counted == count,
            "{operation}: curt says {count}, {who} {counted}\n{other:?}\n{:?}",
            report.rpc
        );
    }
    Ok(())
}

/// The number of additional requests explained by the duration of a run of page.
fn page_expired(report: &RunReport) -> f64 {
    PAGE_EXPIRED * ((report.seconds / PAGE_SECONDS).floor() - 1.0).max(0.0)
}

/// The expired attributes of a run of build.
fn build_expired(report: &RunReport) -> f64 {
    BUILD_EXPIRED * (report.seconds - 3.0).max(0.0)
}

/// The limits of page: with these options and the run's duration.
fn check_page(report: &RunReport) -> Result<()> {
    let (total, access) = (report.rpc.total() as f64, report.rpc.value(NfsProcedure::Access));
    let late = explained_by_time(report);
    ensure!(report.operations == 24_387 && report.wrong == 0, "{report:?}");
    if report.seconds < 2.0 * PAGE_SECONDS {
        let lookups = PAGE_LOOKUPS + create_probes(report.seconds) as u64;
        ensure!(report.rpc.value(NfsProcedure::Lookup) <= lookups, "{report:?}");
        // The kernel's read-ahead depends on timing.
        let reads = report.rpc.value(NfsProcedure::Read);
        ensure!(reads.abs_diff(PAGE_READS) <= 10 && access <= PAGE_READS, "{report:?}");
    }
    match report.options.as_str() {
        "" => ensure!(total <= 9000.0 + late, "{report:?}"),
        "noaccesscheck" => ensure!(access == 0, "{report:?}"),
        options if options.ends_with("noaccesscheck,sloppycto=3") => {
            ensure!(access == 0 && total <= 1850.0 + late, "{report:?}");
        }
        other => anyhow::bail!("no bound is known for {other}"),
    }
    Ok(())
}

/// The limits of build with `noaccesscheck,sloppycto=3`.
fn check_build(report: &RunReport) -> Result<()> {
    let bound = 1850.0 + build_expired(report);
    ensure!(report.operations == 234_678 && report.wrong == 0, "{report:?}");
    ensure!(report.rpc.total() as f64 <= bound, "{report:?}");
    ensure!(
        report.rpc.value(NfsProcedure::Access) == 0 && report.rpc.value(NfsProcedure::Lookup) <= 1200,
        "{report:?}"
    );
    Ok(())
}

#[test]
fn page_stays_within_its_bounds_and_equals_the_wire() -> Result<()> {
    for options in peer_options(Workload::Page) {
        check_page(&embedded(Workload::Page, options)?)?;
    }
    Ok(())
}

#[test]
fn build_stays_within_its_bounds_and_equals_the_wire() -> Result<()> {
    check_build(&embedded(Workload::Build, "noaccesscheck,sloppycto=3")?)?;
    // The hundred thousand calls are counted only here: on the wire they are like the others.
    let top = tree(Workload::Build)?.display().to_string();
    let asking = bench(&Network::new()?, Workload::Build, &["--tree", &top, "--options", "nonegnamecache"])?;
    ensure!(asking.wrong == 0 && asking.rpc.value(NfsProcedure::Lookup) > 100_000, "{asking:?}");
    Ok(())
}

#[test]
fn every_file_of_the_page_tree_is_the_same_through_the_mount() -> Result<()> {
    let network = Network::new()?;
    let top = tree(Workload::Page)?.display().to_string();
    // It fails if a byte differs.
    bench(&network, Workload::Page, &["--tree", &top, "--pause", "0", "--compare"]).map(drop)
}

/// The options for the peers. Build with defaults takes a minute with each.
fn peer_options(workload: Workload) -> &'static [&'static str] {
    let is_full = std::env::var_os("CURT_FULL").is_some();
    match workload {
        Workload::Page => &["", "noaccesscheck", "noaccesscheck,sloppycto=3"],
        Workload::Build if is_full => &["", "noaccesscheck,sloppycto=3"],
        Workload::Build => &["noaccesscheck,sloppycto=3"],
    }
}

/// Maximum number of additional requests explained by the duration of a run: those for expired
/// cache entries.
fn explained_by_time(report: &RunReport) -> f64 {
    match report.workload.as_str() {
        "build" => build_expired(report),
        _ => page_expired(report) + create_probes(report.seconds) as f64,
    }
}

/// Checks that a run with a peer found nothing wrong and sent the same number of requests as with
/// Curt's server, within 5 %. Each run may have been delayed, and have sent as many additional
/// requests as its duration explains.
fn near(report: &RunReport, embedded: &RunReport) -> Result<()> {
    ensure!(report.wrong == 0, "{report:?}");
    ensure!(
        report.rpc.value(NfsProcedure::Access) == 0 || !report.options.contains("noaccesscheck"),
        "{report:?}"
    );
    let (theirs, ours) = (report.rpc.total() as f64, embedded.rpc.total() as f64);
    let others = |report: &RunReport| -> f64 {
        let again: u64 = EXPIRING.into_iter().map(|procedure| report.rpc.value(procedure)).sum();
        (report.rpc.total() - again) as f64
    };
    ensure!(
        (0.95 * others(embedded)..=1.05 * others(embedded)).contains(&others(report)),
        "other requests than {EXPIRING:?} differ:\n{report:?}\n{embedded:?}"
    );
    let least = 0.95 * (ours - explained_by_time(embedded));
    let most = 1.05 * ours + explained_by_time(report);
    ensure!(
        (least..=most).contains(&theirs),
        "{theirs} requests, {ours} with our own server, not in {least}..{most}:\n{report:?}\n{embedded:?}"
    );
    Ok(())
}

#[test]
fn page_and_build_send_knfsd_what_they_send_us_and_it_counts_the_same() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let image = network.directory().join("trees.img");
    image_of_trees(&image)?;
    let options = KnfsdOptions {
        image: Some(image),
        // The image has whole seconds. A later time with all its digits shows a client the server's
        // clock and its granularity.
        setup: "chmod 755 page build".to_owned(),
        ..KnfsdOptions::default()
    };
    let server = Knfsd::start(&network, KernelNumber(1), KERNEL, &options)?;
    for workload in Workload::ALL {
        let source = format!("{}:/export/{workload}", server.address());
        for options in peer_options(workload) {
            let before = server.counts()?;
            let report =
                bench(&network, workload, &["--server", &source, "--no-check", "--options", options])?;
            let after = server.counts()?;
            let served = after
                .iter()
                .map(|(name, count)| (name.clone(), count - before.get(name).copied().unwrap_or(0)));
            equal(&report, &served.collect(), "knfsd")?;
            near(&report, &embedded(workload, options)?)?;
        }
    }
    Ok(())
}

#[test]
fn page_and_build_send_ganesha_what_they_send_us() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    for workload in Workload::ALL {
        let server = Ganesha::start(&network, &tree(workload)?)?;
        for options in peer_options(workload) {
            let report = bench(
                &network,
                workload,
                &["--server", &server.source(), "--no-check", "--options", options],
            )?;
            near(&report, &embedded(workload, options)?)?;
        }
    }
    Ok(())
}

#[test]
fn make_tree_makes_the_tree_on_a_server_that_has_none() -> Result<()> {
    let network = Network::new()?;
    // In memory: on a disk each file would be synced, which takes minutes.
    let export = tempfile::Builder::new().prefix("curt-test-").tempdir_in("/dev/shm")?;
    let export = export.path();
    std::fs::set_permissions(export, std::fs::Permissions::from_mode(0o755))?;
    let server = CurtServe::start(&network, export, &[])?;
    let (source, ports) = (server.source(), server.ports());
    let page = |more: &[&str]| {
        let arguments = ["--server", &source, "--options", &ports, "--pause", "0"];
        bench_within(MAKING, &network, Workload::Page, &[&arguments, more].concat())
    };
    let Err(refused) = page(&[]) else {
        anyhow::bail!("page is replayed without a tree");
    };
    ensure!(format!("{refused:#}").contains("--make-tree makes it"), "{refused:#}");
    let report = page(&["--make-tree"])?;
    ensure!(report.operations == 24_387 && report.wrong == 0, "{report:?}");
    // All files exist, not only those that are read.
    make::check(&Workload::Page.tree(), export)?;
    Ok(())
}
