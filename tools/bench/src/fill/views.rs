//! The timed cases: the first view of page on a new mount, with round trips of different length,
//! both settings in alternation.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::child::{self, UserIds};
use curt_bench::processes::{Curt, tree_directory};
use curt_bench::workload::Workload;
use serde_json::{Value, json};

use super::{DirfillMode, FillArguments, FillSetup};
use curt_bench::statistics::{ConfidenceInterval, paired};

/// Number of threads that create the tree.
const JOBS: usize = 8;

/// Maximum permitted ratio of the times.
const SLOWER_MAX: f64 = 1.05;

/// The round-trip time in milliseconds from which on
const LONG_MS: f64 = 1.0;
/// views have to be faster by this factor.
const FASTER_MIN: f64 = 1.3;

/// Times all cases.
pub(super) fn run(arguments: &FillArguments) -> Result<Vec<Value>> {
    let top = tree_directory(Workload::Page, arguments.page_tree.as_deref(), JOBS)?;
    let mut all = Vec::new();
    for delay_ms in &arguments.delays {
        eprintln!("page's first view, {delay_ms} ms more a round trip");
        let mut place = FillSetup::serving(&top, *delay_ms, arguments)?;
        // The server reads the tree once before the measurement.
        view(&mut place, DirfillMode::Off)?;
        let (mut off, mut auto, mut requests) = (Vec::new(), Vec::new(), [0, 0]);
        for round in 0..arguments.rounds {
            let mut turns = DirfillMode::BOTH;
            // The order alternates.
            if round % 2 == 1 {
                turns.reverse();
            }
            for mode in turns {
                let (seconds, sent) = view(&mut place, mode)?;
                match mode {
                    DirfillMode::Off => (off.push(seconds), requests[0] = sent),
                    DirfillMode::Auto => (auto.push(seconds), requests[1] = sent),
                };
            }
        }
        let ConfidenceInterval { median, low, high } = paired(&off, &auto);
        all.push(json!({
            "delay_ms": delay_ms, "off": off, "auto": auto,
            "requests": { "off": requests[0], "auto": requests[1] },
            "faster": { "median": median, "low": low, "high": high },
            "holds": holds(*delay_ms, median),
        }));
    }
    Ok(all)
}

fn holds(delay_ms: f64, faster: f64) -> bool {
    faster >= 1.0 / SLOWER_MAX && (delay_ms < LONG_MS || faster >= FASTER_MIN)
}

/// Seconds and requests of one view on a new mount.
fn view(place: &mut FillSetup<'_>, mode: DirfillMode) -> Result<(f64, u64)> {
    let mounted = place.mount(mode)?;
    let mut command = Curt::in_same_directory()?.command();
    command.args(["bench", "perform", Workload::Page.name()]).arg(mounted.directory());
    command.args([Duration::ZERO.as_secs_f64().to_string(), 1.to_string()]);
    let user = rustix::process::geteuid().is_root().then_some(UserIds::NOBODY);
    let outcome = child::supervise(&mut command, user, |_| ())?;
    let sent = place.relay.counts().total;
    mounted.end()?;
    ensure!(outcome.wrong == 0, "wrong results: {:?}", outcome.described);
    let view = outcome.pages.first().context("page has a first view")?;
    Ok((view.seconds, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_may_be_a_twentieth_slower_and_have_to_be_faster_over_long_ways() {
        assert!(holds(0.0, 1.0 / 1.05) && !holds(0.0, 0.95));
        assert!(holds(1.0, 1.3) && !holds(1.0, 1.29) && !holds(10.0, 1.0));
    }
}
