//! `cargo xtask bench names`: operations per second on cached existing names, and on cached missing
//! names. `cargo xtask bench memory`: the memory of a mount's daemon for many names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{Curt, Machine, MountProcess, Testbed, progress_bar, resident_mib};
use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::Errno;
use serde_json::json;

use crate::{print_rows, say};

/// The cases: search permission decided by mode bits, or by the server's reply.
const ROWS: [(&str, &str); 2] =
    [("judged by mode bits", "noaccesscheck"), ("judged by the server", "accesscheck,lookupcache=all")];

/// Names in one directory: fewer than the missing names that a mount caches for each.
const PER_DIRECTORY: usize = 1000;

/// Arguments of `cargo xtask bench names`.
#[derive(Debug, clap::Args)]
pub(crate) struct NamesArguments {
    /// How many names of each kind
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = super::at_least_one())]
    names: usize,
    /// How long each kind is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `cargo xtask bench memory`.
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

pub(super) fn run(arguments: &NamesArguments) -> Result<bool> {
    let files = tempfile::tempdir()?;
    make(files.path(), arguments.names)?;
    let limit = Duration::try_from_secs_f64(arguments.seconds).context("--seconds")?;
    let mut world = Testbed::serving(&Curt::in_same_directory()?, files.path(), None)?;
    let mut rows = Vec::new();
    for (what, options) in ROWS {
        let mounted = world.mount("3", options)?;
        for (kind, exists) in [("stat", true), ("stat of missing", false)] {
            let first = if exists { "name" } else { "missing" };
            let path = |number| mounted.directory().join(name(first, number));
            let paths: Vec<_> = (0..arguments.names).map(path).collect();
            let (per_second, daemon_percent, requests) = measure(&mounted, &paths, exists, limit)?;
            rows.push(json!({
                "what": format!("{kind}, {what}"), "options": options, "per_second": per_second,
                "daemon_percent": daemon_percent, "requests": requests,
            }));
        }
        mounted.end()?;
    }
    print_rows(arguments.json, &json!({ "machine": Machine::this(), "rows": rows }))?;
    Ok(true)
}

pub(super) fn run_memory(arguments: &MemoryArguments) -> Result<bool> {
    let files = match &arguments.directory {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    }?;
    make(files.path(), arguments.names)?;
    let mut world = Testbed::serving(&Curt::in_same_directory()?, files.path(), None)?;
    let mounted = world.mount("3", &arguments.options)?;
    let before = resident_mib(mounted.pid())?;
    let bar = progress_bar("looking at every name");
    bar.set_length(arguments.names as u64);
    for number in 0..arguments.names {
        mounted.directory().join(name("name", number)).symlink_metadata()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let after = resident_mib(mounted.pid())?;
    mounted.end()?;
    let (machine, names) = (Machine::this(), arguments.names);
    let bytes = (after - before) * 1_048_576.0 / names as f64;
    if arguments.json {
        let value = json!({
            "machine": machine, "names": names, "options": arguments.options,
            "before_mib": before, "after_mib": after, "bytes_per_name": bytes,
        });
        say(&value.to_string())?;
        return Ok(true);
    }
    say(&machine.line())?;
    say(&format!("{names} names: {before:.0} MiB before, {after:.0} MiB after, {bytes:.0} bytes a name"))?;
    Ok(true)
}

/// Creates so many names.
fn make(top: &Path, names: usize) -> Result<()> {
    let bar = progress_bar("making the files");
    bar.set_length(names as u64);
    for number in 0..names {
        let path = top.join(name("name", number));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir(path.parent().context("every name is in a directory")?)?;
        }
        std::fs::File::create(path)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// The path of a name.
fn name(first: &str, number: usize) -> PathBuf {
    Path::new(&format!("directory-{}", number / PER_DIRECTORY)).join(format!("{first}-{number}"))
}

fn measure(
    mounted: &MountProcess,
    paths: &[PathBuf],
    exists: bool,
    limit: Duration,
) -> Result<(f64, f64, u64)> {
    // One pass, so that all names are cached.
    paths.iter().try_for_each(|path| stat(path, exists))?;
    let before = mounted.report()?;
    let start = Instant::now();
    let mut operations = 0_u32;
    while start.elapsed() < limit {
        for path in paths {
            stat(path, exists)?;
            operations += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = mounted.report()?;
    let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
    let daemon = sum(&after.fuse).saturating_sub(sum(&before.fuse));
    let requests = after.counters.requests.since(&before.counters.requests).total();
    Ok((f64::from(operations) / seconds, 100.0 * daemon as f64 / f64::from(operations), requests))
}

fn stat(path: &Path, exists: bool) -> Result<()> {
    let result = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    let wanted = if exists { result.is_ok() } else { result.is_err_and(|error| error == Errno::NOENT) };
    ensure!(wanted, "{}: {result:?}", path.display());
    Ok(())
}
