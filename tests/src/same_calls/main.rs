//! `same-calls LOCAL MOUNT EXPORT`: makes the same random system calls in a local directory and on
//! a mount, and compares what each says.
//!
//! EXPORT is the directory whose mount it is, on this machine, of the same kind of file system as
//! LOCAL and as empty. What may differ is in `forced`; times and inode numbers are compared as
//! `stats` says. At the end all three trees are compared. Whatever fails is printed with the seed
//! and the calls before.

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
    /// A directory of this machine
    local: PathBuf,
    /// A mount
    mount: PathBuf,
    /// What is mounted there
    export: PathBuf,
    /// What all choices follow from
    #[arg(long)]
    seed: u64,
    /// How many calls
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// How many calls are printed before one that fails
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
