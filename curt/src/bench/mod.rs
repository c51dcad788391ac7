//! `curt bench`: measures costs, in requests and in time.

mod bare;
mod daemon;
mod documents;
mod fill;
mod floor;
mod fuse;
mod latency;
mod list;
mod memory;
mod names;
mod read;
mod relay;
mod spent;
mod sys;
mod times;
mod trace;
pub(crate) mod without_mount;
pub(crate) mod workload;
pub(crate) mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Subcommand, builder::RangedU64ValueParser};
use curt_bench::workload::Workload;
use rustix::fs::Access;
use serde_json::json;

use self::times::{Compared, Machine};

use crate::output::{self, say};

/// What `curt bench` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status of each: 0; 1 if a result was wrong, a bound was exceeded, or nothing could be measured; 2 for wrong arguments."
)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Five views of a web application's main page, one second apart: requests
    Page(workload::WorkloadArguments),
    /// The build of a C program: requests
    Build(workload::WorkloadArguments),
    /// GETATTR through a mount, beside a bare FUSE loop with an echo server behind it: time
    Fuse(fuse::FuseArguments),
    /// Read a large file with cold caches, and write and fsync one, beside libnfs's nfs-cat and nfs-cp: throughput
    Read(read::ReadArguments),
    /// stat(2) of names known to exist and known to be missing: operations per second
    Names(names::NamesArguments),
    /// Memory of a mount's daemon that knows a million names
    Memory(memory::MemoryArguments),
    /// List a directory of half a million names, idle and while it changes: requests and time
    List(list::ListArguments),
    /// Costs and savings of dirfill=auto compared with dirfill=off, through a relay: requests, bytes and time
    Fill(fill::FillArguments),
    /// The tables of the two documents that proposed to save requests, beside ours, with a scripted clock: requests
    Documents(documents::DocumentsArguments),
    /// The cost of an event that nobody wants, that is kept, or that is watched, and of 100,000 per second: processor time
    Trace(trace::TraceArguments),
    /// Make the directory of `curt bench list` on this machine
    #[command(hide = true)]
    ListTree {
        /// Where to make it
        directory: PathBuf,
        /// Names in it
        count: u64,
    },
    /// Perform a workload below a directory and report in JSON; runs as the process that is measured
    #[command(hide = true)]
    Perform {
        workload: Workload,
        directory: PathBuf,
        pause: f64,
        /// Pages at most
        #[arg(default_value_t = usize::MAX)]
        pages: usize,
    },
    /// Each operation beside the least it could cost, and beside other servers: time
    Latency(Box<latency::LatencyArguments>),
    /// Answer the calls of `bench latency` without serving anything
    #[command(hide = true)]
    LatencyEcho { port: u16 },
    /// Answer the bare FUSE loop's calls
    #[command(hide = true)]
    Echo { port: u16 },
    /// Mount the bare FUSE loop
    #[command(hide = true)]
    Floor { directory: PathBuf, port: u16 },
}

/// Parses a count of at least one.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Runs `curt bench`.
pub(crate) fn run(arguments: &BenchArguments) -> ExitCode {
    match bench(&arguments.bench) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => output::failed("curt bench", &error),
    }
}

fn bench(bench: &Bench) -> Result<bool> {
    match bench {
        Bench::Page(arguments) => workload::run(Workload::Page, arguments),
        Bench::Build(arguments) => workload::run(Workload::Build, arguments),
        Bench::Fuse(arguments) => fuse::run(arguments),
        Bench::Read(arguments) => read::run(arguments),
        Bench::Names(arguments) => names::run(arguments),
        Bench::List(arguments) => list::run(arguments),
        Bench::ListTree { directory, count } => list::make_tree(directory, *count),
        Bench::Memory(arguments) => memory::run(arguments),
        Bench::Fill(arguments) => fill::run(arguments),
        Bench::Trace(arguments) => trace::run(arguments),
        Bench::Documents(arguments) => documents::run(arguments),
        Bench::Latency(arguments) => latency::run(arguments),
        Bench::LatencyEcho { port } => latency::echo::serve(*port).map(|()| true),
        Bench::Echo { port } => floor::echo(*port).map(|()| true),
        Bench::Floor { directory, port } => floor::serve(directory, *port).map(|()| true),
        Bench::Perform {
            workload,
            directory,
            pause,
            pages,
        } => {
            let pause = Duration::try_from_secs_f64(*pause).context("the pause")?;
            // What was wrong is part of what is said, and no failure of this process.
            let performed = curt_bench::child::perform(
                *workload,
                directory,
                (pause, *pages),
                &mut std::io::stdout().lock(),
            );
            performed.with_context(|| directory.display().to_string())?;
            Ok(true)
        }
    }
}

/// Whether a picture could be written there, asked before what takes its time to be drawn.
pub(crate) fn check_picture(file: &Path) -> Result<()> {
    let parent = match file.parent() {
        Some(parent) if parent != "" => parent,
        Some(_) | None => Path::new("."),
    };
    let written = match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => anyhow::bail!("--svg {}: it is a directory", file.display()),
        // What is there is written over, and needs nothing of its directory.
        Ok(_) => file,
        Err(_) => parent,
    };
    rustix::fs::access(written, Access::WRITE_OK)
        .with_context(|| format!("--svg {}: {}", file.display(), written.display()))
}

/// Prints comparisons, and on which machine they were made.
fn print(as_json: bool, machine: &Machine, compared: &[Compared]) -> Result<()> {
    if as_json {
        return say!("{}", json!({ "machine": machine, "compared": compared }));
    }
    say!("{}", machine.line())?;
    compared
        .iter()
        .try_for_each(|compared| say!("{}", compared.line()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_refused_where_it_could_not_be_written() {
        let place = tempfile::tempdir().expect("a place");
        let at = |name: &str| check_picture(&place.path().join(name)).is_ok();
        assert!(at("new.svg") && !at("missing/new.svg") && !at(""));
        std::fs::write(place.path().join("old.svg"), "").expect("a file");
        assert!(at("old.svg"));
    }
}
