//! `cargo xtask bench latency` with Ganesha as peer: each operation is measured on each server and
//! no reply is wrong. Times are not checked here; `cargo xtask compare latency` measures them.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::time::Duration;

use anyhow::Result;
use curt_tests::curt::program;
use curt_tests::ganesha::Ganesha;
use curt_tests::network::Network;
use curt_tests::process;
use serde_json::Value;

/// Timeout of the benchmark with few operations.
const LIMIT: Duration = Duration::from_secs(400);

const OPERATIONS: [&str; 9] = [
    "GETATTR",
    "ACCESS",
    "LOOKUP",
    "READ",
    "WRITE UNSTABLE",
    "WRITE FILE_SYNC",
    "CREATE",
    "REMOVE",
    "READDIRPLUS",
];

fn bench(network: &Network, arguments: &[&str]) -> Result<Value> {
    let mut command = network.command(program("curt-tools-bench")?);
    command.args(["latency", "--quick", "--rounds", "2", "--json"]);
    let text = process::run(command.args(arguments), LIMIT)?;
    Ok(serde_json::from_str(&text)?)
}

/// Checks that a row is complete, and contains no unknown values.
fn is_whole(row: &Value) {
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(0.0);
    for key in ["echo_us", "floor_us", "curt_us", "ratio", "ops_per_s"] {
        assert!(number(row, key) > 0.0, "{key} of {row}");
    }
    assert!(number(row, "ratio_low") <= number(row, "ratio_high"), "{row}");
    assert_eq!(row["mount_us"].is_null(), row["outstanding"] != 1, "{row}");
    let (known, unknown) = (&row["peers"]["known"], &row["peers"]["unknown"]);
    assert!(number(known, "us") > 0.0, "{row}");
    // The processor time of a process without a pid is unknown, and it cannot be moved to the
    // others' processor.
    assert!(unknown["cpu_us"].is_null(), "{row}");
    assert_eq!(unknown["us"].is_null(), row["placement"] == "one-cpu", "{row}");
}

#[test]
fn latencies_are_measured_beside_a_peer_and_through_a_mount() {
    let network = Network::new().unwrap();
    let directory = network.make_directory("tree").unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let _rpcbind = network.rpcbind().unwrap();
    let ganesha = Ganesha::start(&network, &directory).unwrap();
    let place = format!("127.0.0.1:2049{}", directory.display());
    let (known, unknown) = (format!("known={place},pid={}", ganesha.pid()), format!("unknown={place}"));
    let report = bench(
        &network,
        &["--mount", "--peer", &known, "--peer", &unknown, "--directory", directory.to_str().unwrap()],
    )
    .unwrap();
    let rows = report["rows"].as_array().unwrap();
    for placement in ["any", "one-cpu"] {
        for outstanding in [1, 16] {
            let names = rows.iter().filter(|row| {
                row["placement"] == placement && row["outstanding"] == outstanding && row["connections"] == 1
            });
            let names: Vec<_> = names.filter_map(|row| row["op"].as_str()).collect();
            assert_eq!(names, OPERATIONS, "{placement}, {outstanding} outstanding");
        }
    }
    rows.iter().for_each(is_whole);
    // The kernel reports it in hundredths of a second, which so few calls may not take.
    for place in ["/cpu_us", "/peers/known/cpu_us"] {
        let told = rows.iter().map(|row| row.pointer(place).and_then(Value::as_f64));
        let sum: Option<f64> = told.sum();
        assert!(sum.is_some_and(|sum| sum > 0.0), "{place} of all: {sum:?}");
    }
    let sizes = report["sizes"].as_array().unwrap();
    let passes: Vec<_> = sizes.iter().take(4).filter_map(|row| row["pass"].as_str()).collect();
    assert_eq!(passes, ["write", "rewrite", "read", "reread"]);
    // Its files were removed.
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}
