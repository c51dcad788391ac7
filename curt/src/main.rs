//! The program `curt`: one module per subcommand; this file selects one.

#![warn(
    clippy::print_stdout,
    reason = "println! panics where standard output is full or closed; output::say! does not"
)]

mod bench;
mod demo;
mod errors;
mod explain;
mod exports;
mod journal;
mod locks;
mod logs;
mod mount;
mod output;
mod serve;
mod stat;
mod top;
mod trace;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An NFS client and server in user space that send fewer requests.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "For a first test: curt demo\n\nExit status: see the end of each command's help. Wrong arguments: 2; with 'curt mount' 1, as mount(8) requires."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Export a directory, or the exports listed in exports(5) files
    Serve(serve::ServeArguments),
    /// List the exports in exports(5) files, or the exports and options of a given client and the
    /// lines they come from
    Exports(exports::ExportsArguments),
    /// Replay a recorded workload with four sets of mount options and compare the requests sent
    /// (about a minute)
    Demo(demo::DemoArguments),
    /// Mount an export of an NFS server
    Mount(mount::MountArguments),
    /// Show the statistics of mounts, or of a server (`--server`): requests per procedure, cache
    /// hits, options in force
    Stat(stat::StatArguments),
    /// Show who holds locks of a mount's files, and who waits for them
    Locks(locks::LocksArguments),
    /// Show rates, cache hits, and the processes and paths that cause requests, of mounts or of a
    /// server (`--server`), continuously
    Top(top::TopArguments),
    /// Trace the events of a mount, or of a server (`--server`); record them; show recordings and
    /// the events before a crash
    Trace(trace::TraceArguments),
    /// Run a command and show the cause of each of its requests, the requests that caching saved,
    /// and those that Linux would have sent
    Explain(explain::ExplainArguments),
    /// Run benchmarks: requests, times and locks
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(helper) = helper_name(&arguments) {
        return mount::helper(&helper, arguments.into_iter().skip(1));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        // mount(8) has its own exit statuses: 1 is incorrect invocation; 2, clap's choice, would be
        // a system error.
        Err(error) if error.use_stderr() && arguments.get(1).is_some_and(|word| word == "mount") => {
            // Standard error may be closed.
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(error) => error.exit(),
    };
    match cli.command {
        CliCommand::Serve(arguments) => serve::run(&arguments),
        CliCommand::Exports(arguments) => exports::run(&arguments),
        CliCommand::Mount(arguments) => mount::run(arguments),
        CliCommand::Stat(arguments) => stat::run(&arguments),
        CliCommand::Locks(arguments) => locks::run(&arguments),
        CliCommand::Top(arguments) => top::run(&arguments),
        CliCommand::Trace(arguments) => trace::run(&arguments),
        CliCommand::Explain(arguments) => explain::run(&arguments),
        CliCommand::Demo(arguments) => demo::run(&arguments),
        CliCommand::Bench(arguments) => bench::run(&arguments),
    }
}

/// The name by which mount(8) calls this program: `mount.curt` or `mount.fuse.curt`; `None` for
/// other callers.
fn helper_name(arguments: &[OsString]) -> Option<String> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    name.starts_with("mount.").then(|| name.to_owned())
}
