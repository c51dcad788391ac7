//! `curt demo`: its output and chart.

use std::time::Duration;

use anyhow::{Result, ensure};
use curt_bench::workload::Workload;
use curt_tests::curt::{program, tree};
use curt_tests::network::Network;
use curt_tests::process;

/// Timeout, including the creation of the tree.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs it by a shell script, in which `$DEMO` is the command, and returns its output and the
/// chart.
fn demo(network: &Network, script: &str, top: &str) -> Result<(String, String)> {
    let svg = network.directory().join("chart.svg");
    let command = format!("{} demo --svg {} --tree {top}", program("curt")?.display(), svg.display());
    let output = process::run(network.command("bash").args(["-euc", script]).env("DEMO", command), LIMIT)?;
    Ok((output, std::fs::read_to_string(svg)?))
}

/// The numbers of a row of its table.
fn row(output: &str, name: &str) -> Vec<u64> {
    let line = output.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn check(output: &str, chart: &str) -> Result<()> {
    let (calls, access) = (row(output, "calls"), row(output, "access"));
    // The first column is the recorded one of the Linux client.
    ensure!(
        calls.len() == 5 && calls[0] == Workload::Page.linux_requests().total() && calls[3] * 2 < calls[1],
        "{output}"
    );
    ensure!(access.len() == 5 && access[1] > 0 && access[2] == 0 && access[3] == 0, "{output}");
    ensure!(output.contains("Linux 6.1 (recorded): "), "{output}");
    ensure!(output.contains("curt mount 127.0.0.1"), "it does not say what to type next:\n{output}");
    ensure!(
        chart.contains("<svg") && calls.iter().all(|count| chart.contains(&format!("\n{count}\n"))),
        "the chart lacks a bar's number"
    );
    Ok(())
}

#[test]
fn demo_makes_its_tree_and_shows_what_is_saved() -> Result<()> {
    let network = Network::new()?;
    let top = network.directory().join("tree").display().to_string();
    // Mounts of the machine are visible here as well, as of the network's creation.
    let left = || {
        network
            .shell("grep -c fuse.curt /proc/self/mountinfo || true; ls /run/curt 2>/dev/null || true", LIMIT)
    };
    let before = left()?;
    let (output, chart) = demo(&network, "$DEMO", &top)?;
    ensure!(!output.contains("Cannot mount with FUSE"), "{output}");
    check(&output, &chart)?;
    ensure!(left()? == before, "it leaves something behind: {}", left()?);
    Ok(())
}

#[test]
fn demo_goes_through_the_library_where_no_mount_is_possible() -> Result<()> {
    let network = Network::new()?;
    let top = tree(Workload::Page)?.display().to_string();
    let (output, chart) =
        demo(&network, "exec unshare -m bash -euc 'mount --bind /dev/null /dev/fuse; $DEMO'", &top)?;
    ensure!(output.contains("Cannot mount with FUSE"), "{output}");
    check(&output, &chart)
}
