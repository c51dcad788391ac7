//! `curt-replay WORKLOAD DIRECTORY [PAUSE_SECONDS]`: replays a workload below a directory on any
//! file system, checks all results, prints a line of JSON per page and one for the outcome. Exits
//! with 1 if a result was wrong. For clients other than Curt's, such as a kernel's mount.
//!
//! `curt-replay make WORKLOAD DIRECTORY`: creates the workload's tree. For servers inside a kernel.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use curt_bench::child::perform;
use curt_bench::make;
use curt_bench::workload::Workload;
use indicatif::ProgressBar;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [make, workload, directory] = arguments.as_slice()
        && make == "make"
        && let Ok(workload) = workload.parse::<Workload>()
    {
        return match make::make(&workload.tree(), Path::new(directory), 1, &ProgressBar::hidden()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("curt-replay: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let parsed = match arguments.as_slice() {
        [workload, directory] => {
            workload.parse().ok().map(|workload: Workload| (workload, directory, workload.pause()))
        }
        [workload, directory, pause] => {
            match (workload.parse(), pause.parse().map(Duration::try_from_secs_f64)) {
                (Ok(workload), Ok(Ok(pause))) => Some((workload, directory, pause)),
                _ => None,
            }
        }
        _ => None,
    };
    let Some((workload, directory, pause)) = parsed else {
        eprintln!("usage: curt-replay [make] page|build DIRECTORY [PAUSE_SECONDS]");
        return ExitCode::from(2);
    };
    match perform(workload, Path::new(directory), pause, usize::MAX, &mut std::io::stdout().lock()) {
        Ok(outcome) if outcome.wrong == 0 => ExitCode::SUCCESS,
        Ok(outcome) => {
            outcome.described.iter().for_each(|what| eprintln!("curt-replay: {what}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("curt-replay: {directory}: {error}");
            ExitCode::from(2)
        }
    }
}
