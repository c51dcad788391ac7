//! `curt bench`: requests and times of the user's own server. Curt's own benchmarks are in `cargo
//! xtask bench`.

mod list;
mod lock;
mod wall;
pub(crate) mod without_mount;
pub(crate) mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Subcommand, builder::RangedU64ValueParser};
use curt_bench::workload::Workload;
use rustix::fs::Access;

use crate::output;

/// Arguments of `curt bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status of each: 0; 1 if a result was wrong, a bound was exceeded, or nothing could be measured; 2 for wrong arguments."
)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    bench: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Five views of a web application's main page, one second apart: requests
    Page(workload::WorkloadArguments),
    /// The build of a C program: requests
    Build(workload::WorkloadArguments),
    /// List a directory of half a million names, idle and while it changes: requests and time
    List(list::ListArguments),
    /// Let many processes take turns with one lock: turns, fairness, waits and requests
    Lock(lock::BenchLockArguments),
    /// One of the processes of `curt bench lock`
    #[command(hide = true)]
    LockWork(lock::LockWork),
    /// Measure the time of common programs on a mount, in the exported directory and on a plain
    /// FUSE file system
    Wall(wall::WallArguments),
    /// Run one of the programs of `curt bench wall` below a directory; runs as the process that is
    /// measured
    #[command(hide = true)]
    TimedProgram { work: wall::TimedProgram, phase: wall::WorkPhase, part: u64, directory: PathBuf },
    /// Make the repository of `curt bench wall` below a directory
    #[command(hide = true)]
    WallRepository { directory: PathBuf },
    /// Make the directory of `curt bench list` on this machine
    #[command(hide = true)]
    ListTree {
        /// Where to make it
        directory: PathBuf,
        /// Names in it
        count: u64,
    },
    /// Perform a workload below a directory and report in JSON; runs as the process that is
    /// measured
    #[command(hide = true)]
    Perform {
        workload: Workload,
        directory: PathBuf,
        pause: f64,
        /// Pages at most
        #[arg(default_value_t = usize::MAX)]
        pages: usize,
    },
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

fn bench(bench: &BenchCommand) -> Result<bool> {
    match bench {
        BenchCommand::Page(arguments) => workload::run(Workload::Page, arguments),
        BenchCommand::Build(arguments) => workload::run(Workload::Build, arguments),
        BenchCommand::List(arguments) => list::run(arguments),
        BenchCommand::Lock(arguments) => lock::run(arguments),
        BenchCommand::LockWork(work) => lock::work(work).map(|()| true),
        BenchCommand::Wall(arguments) => wall::run(arguments),
        BenchCommand::TimedProgram { work, phase, part, directory } => {
            work.run(*phase, *part, directory).map(|()| true)
        }
        BenchCommand::WallRepository { directory } => wall::make_repository(directory).map(|()| true),
        BenchCommand::ListTree { directory, count } => list::make_tree(directory, *count),
        BenchCommand::Perform { workload, directory, pause, pages } => {
            let pause = Duration::try_from_secs_f64(*pause).context("--pause is not a time")?;
            // Wrong results are part of the output, not a failure of this process.
            let performed = curt_bench::child::perform(
                *workload,
                directory,
                pause,
                *pages,
                &mut std::io::stdout().lock(),
            );
            performed.with_context(|| directory.display().to_string())?;
            Ok(true)
        }
    }
}

/// Checks that a picture can be written, before the measurement.
pub(crate) fn check_picture(file: &Path) -> Result<()> {
    let parent = match file.parent() {
        Some(parent) if parent != "" => parent,
        Some(_) | None => Path::new("."),
    };
    let written = match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => anyhow::bail!("--svg {}: it is a directory", file.display()),
        // An existing file is overwritten; its directory does not matter.
        Ok(_) => file,
        Err(_) => parent,
    };
    rustix::fs::access(written, Access::WRITE_OK)
        .with_context(|| format!("--svg {}: {}", file.display(), written.display()))
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
