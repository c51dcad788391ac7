//! The recorded workloads on a mount: bounds of the counts, and that they are what the wire and the server saw.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::report::Report;
use curt_bench::workload::Workload;
use curt_tests::capture::Capture;
use curt_tests::curt::{program, tree};
use curt_tests::ganesha::Ganesha;
use curt_tests::kernel::{KernelNumber, Knfsd, KnfsdOptions};
use curt_tests::network::Network;
use curt_tests::process;

/// A run of page takes 7 s; what is beyond is for machines that do something else, too.
const RUN: Duration = Duration::from_secs(120);
/// A kernel that makes a tree of 36,013 files first.
const KERNEL: Duration = Duration::from_secs(800);

/// The files of a view of page expire inside a run that is longer than this many seconds,
const PAGE_SECONDS: f64 = 8.0;
/// and are asked about again by so many requests.
const PAGE_EXPIRED: u64 = 1150;

/// `curt bench WORKLOAD … --json` in a network, and what it reported.
fn bench(network: &Network, workload: Workload, arguments: &[&str]) -> Result<Report> {
    let mut command = network.command(program("curt")?);
    command
        .args(["bench", workload.name(), "--vers", "3", "--json"])
        .args(arguments);
    let output = process::run(&mut command, RUN)?;
    serde_json::from_str(&output).with_context(|| output.clone())
}

/// The same with a server of its own at a port that is captured: its report has to equal what was on the wire.
fn captured(network: &Network, workload: Workload, options: &str) -> Result<Report> {
    const PORT: u16 = 2049;
    let capture = Capture::start(network, "run", PORT)?;
    let top = tree(workload)?.display().to_string();
    let report = bench(
        network,
        workload,
        &["--port", &PORT.to_string(), "--tree", &top, "--options", options],
    )?;
    let captured = capture.stop()?;
    equal(&report, &captured.calls()?, "the capture")?;
    ensure!(
        captured.malformed(network)?.is_empty(),
        "tshark finds malformed packets: {:?}",
        captured.malformed(network)?
    );
    Ok(report)
}

fn equal(report: &Report, other: &BTreeMap<String, u64>, who: &str) -> Result<()> {
    for (procedure, count) in report.rpc.iter() {
        let counted = other.get(procedure).copied().unwrap_or(0);
        ensure!(
            counted == count,
            "{procedure}: curt says {count}, {who} {counted}\n{other:?}\n{:?}",
            report.rpc
        );
    }
    Ok(())
}

/// What page may send: NFSv3 with these options, the run's time taken into account.
fn check_page(report: &Report) -> Result<()> {
    let (total, access) = (report.rpc.total(), report.rpc.value("ACCESS"));
    let late = if report.seconds > PAGE_SECONDS {
        PAGE_EXPIRED
    } else {
        0
    };
    ensure!(report.operations == 24_387 && report.wrong == 0, "{report:?}");
    match report.options.as_str() {
        "" => ensure!(total <= 9700, "{report:?}"),
        "noaccesscheck" => ensure!(access == 0, "{report:?}"),
        options if options.ends_with("noaccesscheck,sloppycto=3") => {
            ensure!(access == 0 && total <= 3750 + late, "{report:?}");
        }
        other => anyhow::bail!("no bound is known for {other}"),
    }
    Ok(())
}

/// What build may send with `noaccesscheck,sloppycto=3`.
fn check_build(report: &Report) -> Result<()> {
    let beyond = (report.seconds - 3.0).max(0.0);
    let bound = 3000.0 + 250.0 * beyond;
    ensure!(report.operations == 234_678 && report.wrong == 0, "{report:?}");
    ensure!(report.rpc.total() as f64 <= bound, "{report:?}");
    ensure!(
        report.rpc.value("ACCESS") == 0 && report.rpc.value("LOOKUP") <= 1200,
        "{report:?}"
    );
    Ok(())
}

#[test]
fn page_stays_within_its_bounds_and_equals_the_wire() -> Result<()> {
    let network = Network::new()?;
    for options in ["", "noaccesscheck", "noaccesscheck,sloppycto=3"] {
        check_page(&captured(&network, Workload::Page, options)?)?;
    }
    Ok(())
}

#[test]
fn build_stays_within_its_bounds_and_equals_the_wire() -> Result<()> {
    let network = Network::new()?;
    check_build(&captured(&network, Workload::Build, "noaccesscheck,sloppycto=3")?)?;
    let asking = captured(&network, Workload::Build, "nonegnamecache")?;
    ensure!(
        asking.wrong == 0 && asking.rpc.value("LOOKUP") > 100_000,
        "{asking:?}"
    );
    Ok(())
}

#[test]
fn every_file_of_the_page_tree_is_the_same_through_the_mount() -> Result<()> {
    let network = Network::new()?;
    let top = tree(Workload::Page)?.display().to_string();
    // It fails where a byte differs.
    bench(
        &network,
        Workload::Page,
        &["--tree", &top, "--pause", "0", "--compare"],
    )
    .map(drop)
}

/// With which options the peers are measured.
const PEER_OPTIONS: [&str; 2] = ["", "noaccesscheck,sloppycto=3"];

/// Whether a total is within 5 % of the embedded one, or as much above as the longer run explains: attributes expire meanwhile.
fn near(report: &Report, embedded: &Report) -> Result<()> {
    let (theirs, ours) = (report.rpc.total() as f64, embedded.rpc.total() as f64);
    // Only GETATTR grows with time.
    let others = |report: &Report| (report.rpc.total() - report.rpc.value("GETATTR")) as f64;
    ensure!(
        (0.95 * others(embedded)..=1.05 * others(embedded)).contains(&others(report)),
        "other requests than GETATTR differ:\n{report:?}\n{embedded:?}"
    );
    let expired = match report.workload.as_str() {
        "build" => 250.0 * (report.seconds.max(3.0) - embedded.seconds.max(3.0)).max(0.0),
        // The files of a view expire inside a run that is longer than 8 s.
        _ if report.seconds > PAGE_SECONDS => PAGE_EXPIRED as f64,
        _ => 0.0,
    };
    // Our own run may have been the one that was held up.
    let late = report.workload == "page" && embedded.seconds > PAGE_SECONDS;
    let spared = if late { PAGE_EXPIRED as f64 } else { 0.0 };
    let near = (0.95 * ours - spared..=1.05 * ours + expired).contains(&theirs);
    ensure!(
        near,
        "{theirs} requests, {ours} with our own server:\n{report:?}\n{embedded:?}"
    );
    Ok(())
}

#[test]
fn page_and_build_send_knfsd_what_they_send_us_and_it_counts_the_same() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    let replay = program("curt-replay")?.display().to_string();
    let setup = format!("{replay} make page page && {replay} make build build");
    let server = Knfsd::start(
        &network,
        KernelNumber(1),
        KERNEL,
        &KnfsdOptions {
            setup,
            ..KnfsdOptions::default()
        },
    )?;
    for workload in Workload::ALL {
        let source = format!("{}:/export/{workload}", server.address());
        let top = tree(workload)?.display().to_string();
        for options in PEER_OPTIONS {
            let before = server.counts()?;
            let report = bench(
                &network,
                workload,
                &["--server", &source, "--no-check", "--options", options],
            )?;
            let after = server.counts()?;
            let served = after
                .iter()
                .map(|(name, count)| (name.clone(), count - before.get(name).copied().unwrap_or(0)));
            equal(&report, &served.collect(), "knfsd")?;
            ensure!(report.wrong == 0, "{report:?}");
            near(
                &report,
                &bench(&network, workload, &["--tree", &top, "--options", options])?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn page_and_build_send_ganesha_what_they_send_us() -> Result<()> {
    let network = Network::new()?;
    let _rpcbind = network.rpcbind()?;
    for workload in Workload::ALL {
        let top = tree(workload)?;
        let server = Ganesha::start(&network, &top)?;
        for options in PEER_OPTIONS {
            let report = bench(
                &network,
                workload,
                &["--server", &server.source(), "--no-check", "--options", options],
            )?;
            ensure!(report.wrong == 0, "{report:?}");
            near(
                &report,
                &bench(
                    &network,
                    workload,
                    &["--tree", &top.display().to_string(), "--options", options],
                )?,
            )?;
        }
    }
    Ok(())
}
