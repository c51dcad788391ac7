//! `cargo xtask bench memory`: what a mount's daemon needs to know many names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use curt_bench::processes::{Curt, Machine, Testbed, progress_bar, resident_mib};
use serde_json::json;

use crate::say;

/// Names in one directory.
const PER_DIRECTORY: usize = 1000;

/// What `cargo xtask bench memory` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArguments {
    /// How many names
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = super::at_least_one())]
    names: usize,
    /// Mount options [default: none]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Where the server keeps the files [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &MemoryArguments) -> Result<bool> {
    let own = match &arguments.directory {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    }?;
    let bar = progress_bar("making the files");
    bar.set_length(arguments.names as u64);
    for number in 0..arguments.names {
        let path = own.path().join(name(number));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir(path.parent().context("every name is in a directory")?)?;
        }
        std::fs::File::create(path)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut world = Testbed::serving(&Curt::beside()?, own.path(), None)?;
    let mounted = world.mount("3", &arguments.options)?;
    let before = resident_mib(mounted.pid())?;
    let bar = progress_bar("looking at every name");
    bar.set_length(arguments.names as u64);
    for number in 0..arguments.names {
        mounted.directory().join(name(number)).symlink_metadata()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let after = resident_mib(mounted.pid())?;
    mounted.end()?;
    let (machine, bytes) = (
        Machine::this(),
        (after - before) * 1_048_576.0 / arguments.names as f64,
    );
    if arguments.json {
        let (names, options) = (arguments.names, &arguments.options);
        let value = json!({ "machine": machine, "names": names, "options": options, "before_mib": before, "after_mib": after, "bytes_per_name": bytes });
        say(&format!("{value}"))?;
        return Ok(true);
    }
    say(&machine.line())?;
    say(&format!(
        "{} names: {before:.0} MiB before, {after:.0} MiB after, {bytes:.0} bytes a name",
        arguments.names
    ))?;
    Ok(true)
}

fn name(number: usize) -> PathBuf {
    Path::new(&format!("directory-{}", number / PER_DIRECTORY)).join(format!("name-{number}"))
}
