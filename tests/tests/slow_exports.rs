//! A slow file system of one export does not delay requests for another export on the same
//! connection.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::program;
use curt_tests::process::finish;
use serde_json::Value;

const MINUTES: Duration = Duration::from_secs(300);
/// Duration of a READ or a COMMIT of the slow file system in µs.
const SLOWNESS_US: f64 = 5000.0;

#[test]
fn a_quick_call_behind_a_slow_one_of_another_export_is_answered_long_before_it() -> Result<()> {
    let mut command = Command::new(program("curt-tools-bench")?);
    command.args(["slow-exports", "--pairs", "20", "--json"]);
    let (_, output, errors) = finish(&mut command, MINUTES)?;
    let report: Value = serde_json::from_str(&output).with_context(|| format!("{output}{errors}"))?;
    let rows = report["slow"].as_array().context("no rows")?;
    ensure!(rows.len() == 4, "COMMIT and READ, each with the quick call and before it: {report}");
    for row in rows {
        let number = |key: &str| row[key].as_f64().with_context(|| format!("no {key}: {row}"));
        let (slow, behind) = (number("slow_us")?, number("behind_us")?);
        ensure!(slow >= SLOWNESS_US, "nothing was slow: {row}");
        // If it waited for the slow one, it would take as long; the benchmark measures the actual
        // delay.
        ensure!(behind < slow / 2.0, "it waited for the slow one: {row}");
    }
    Ok(())
}
