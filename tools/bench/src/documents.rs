//! `cargo xtask bench documents`: the tables of the documents that proposed fewer NFS requests,
//! compared with Curt's.
//!
//! This module prints them; [`curt_bench::library::documents`] computes them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use curt_bench::library::documents::comparisons;
use curt_bench::report::comparison;

use crate::say;

/// Arguments of `cargo xtask bench documents`.
#[derive(Debug, Args)]
pub(super) struct DocumentsArguments {
    /// How long a request takes there and back, in milliseconds; several may be given, as 0.1,1,10
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0.2")]
    rtt: Vec<f64>,
}

/// Prints every table for each round-trip time.
pub(super) fn run(arguments: &DocumentsArguments) -> Result<bool> {
    for milliseconds in &arguments.rtt {
        let request = Duration::try_from_secs_f64(milliseconds / 1000.0).context("--rtt")?;
        for table in comparisons(request)? {
            say(&format!(
                "{} (requests take {milliseconds} ms)\n{}",
                table.title,
                comparison(&table.columns)
            ))?;
        }
    }
    say(
        "Synthetic workloads with the numbers of files and names of the documents, replayed by the client library with a scripted clock;\n\
         the documents' columns are what they printed. `curt bench page` and `build` are recorded from real programs.",
    )?;
    Ok(true)
}
