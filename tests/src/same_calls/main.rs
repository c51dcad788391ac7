//! `same-calls LOCAL MOUNT EXPORT`: makes the same random system calls in a local directory and on
//! a mount, and compares the results.
//!
//! EXPORT is the exported directory of the mount, on this machine, on the same type of file system
//! as LOCAL and empty like it. Expected differences are in `expected_differences`; times and inode
//! numbers are compared by `stats`. At the end all three trees are compared. A failure is printed
//! with the seed and the previous calls.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rustix::fs::Mode;

use crate::run::SameCallsRun;

mod actor;
mod call;
mod draw;
mod expected_differences;
mod names;
mod run;
mod stats;
mod test_directory;
mod tree;

#[derive(Parser)]
#[command(about = "Makes the same random system calls in two directories and compares what each says")]
struct SameCallsArguments {
    /// A local directory
    local: PathBuf,
    /// A mount
    mount: PathBuf,
    /// The exported directory
    export: PathBuf,
    /// Seed of all choices
    #[arg(long)]
    seed: u64,
    /// Number of calls
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Make the calls of files' locks
    #[arg(long)]
    locks: bool,
    /// Number of calls printed before a failure
    #[arg(long, default_value_t = 30)]
    history: usize,
}

fn main() -> ExitCode {
    let arguments = SameCallsArguments::parse();
    let (seed, operations) = (arguments.seed, arguments.operations);
    rustix::process::umask(Mode::empty());
    let mut run = SameCallsRun::new(arguments);
    match run.calls().and_then(|()| run.trees()) {
        Ok(()) => {
            println!(
                "same-calls: seed {seed}: {operations} calls, {} of them did something, all alike",
                run.succeeded
            );
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("same-calls: seed {seed}: {what}\nthe last calls:");
            run.history.iter().for_each(|call| println!("  {call}"));
            ExitCode::FAILURE
        }
    }
}
