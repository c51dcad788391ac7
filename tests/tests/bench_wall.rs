//! `curt bench wall`: each work in each place, with the requests that it costs there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_tests::curt::program;
use curt_tests::network::Network;
use curt_tests::process;
use serde_json::Value;

const RUN: Duration = Duration::from_secs(300);

#[test]
fn each_work_is_right_in_each_place_and_costs_requests_on_mounts_alone() -> Result<()> {
    let network = Network::new()?;
    let picture = network.directory().join("wall.svg");
    let works = [
        "stat-first",
        "stat-missing-first",
        "stat-known",
        "stat-missing",
        "git-status",
        "find",
        "tar",
        "write-large",
        "read-small",
    ];
    let mut command = network.command(program("curt")?);
    command.args(["bench", "wall", "--rounds", "1", "--delays", "0", "--cpus", "all", "--json"]);
    command.args(["--only", &works.join(","), "--svg"]).arg(&picture);
    let output = process::run(&mut command, RUN)?;
    let report: Value = serde_json::from_str(&output).with_context(|| output.clone())?;
    let rows = report["rows"].as_array().context("no rows")?;
    // Local, loop, two mounts.
    ensure!(rows.len() == works.len() * 4, "{output}");
    for row in rows {
        let count = |name: &str| row[name].as_u64().with_context(|| row.to_string());
        let seconds = row["seconds"].as_f64().with_context(|| row.to_string())?;
        ensure!(seconds > 0.0 && count("wrong")? == 0, "{row}");
        let (is_local, is_mount) = (row["place"] == "local", row["place"] == "mount");
        // A name is asked for once; the kernel has it the second time, unless that is late.
        match row["work"].as_str() {
            Some("stat-known" | "stat-missing") => ensure!(count("fuse_requests")? < 2500, "{row}"),
            Some("stat-first" | "stat-missing-first") if !is_local => {
                ensure!(count("fuse_requests")? >= 1000, "{row}");
                ensure!(!is_mount || count("requests")? > 0, "{row}");
            }
            _ => ensure!(is_local == (count("fuse_requests")? == 0), "{row}"),
        }
        ensure!(!is_local || count("fuse_requests")? == 0, "{row}");
        ensure!(is_mount || count("requests")? == 0, "{row}");
        if is_local {
            ensure!(row["ratio_local"].as_f64() == Some(1.0), "{row}");
        }
    }
    // What is not known when a work begins has to be asked for, wherever the mount is.
    let asks = |row: &&Value| row["place"] == "mount" && row["work"] == "tar";
    ensure!(rows.iter().filter(asks).all(|row| row["requests"].as_u64() > Some(5000)), "{output}");
    let svg = std::fs::read_to_string(&picture)?;
    ensure!(works.iter().all(|work| svg.contains(work)), "a work is missing in the picture");
    Ok(())
}

#[test]
fn each_later_version_is_compared_with_the_first_in_the_same_round() -> Result<()> {
    let network = Network::new()?;
    let mut command = network.command(program("curt")?);
    command.args([
        "bench",
        "wall",
        "--rounds",
        "2",
        "--delays",
        "0,1",
        "--delayed-rounds",
        "3",
        "--cpus",
        "all",
    ]);
    command.args(["--vers", "3,4.1", "--only", "find", "--json"]);
    let output = process::run(&mut command, RUN)?;
    let report: Value = serde_json::from_str(&output).with_context(|| output.clone())?;
    let rows = report["rows"].as_array().context("no rows")?;
    // Local, loop, two mounts of each version; without and with a delay.
    ensure!(rows.len() == 2 * 6, "{output}");
    for row in rows {
        let ratio = &row["ratio_version"];
        ensure!(ratio.is_null() == (row["vers"] != "4.1"), "{row}");
        if let Some(median) = ratio["median"].as_f64() {
            let [low, high] = ["low", "high"].map(|end| ratio[end].as_f64().unwrap_or(f64::NAN));
            ensure!(0.0 < low && low <= median && median <= high, "{row}");
        }
        ensure!(row["wrong"] == 0, "{row}");
    }
    Ok(())
}
