//! Curt: NFS that says less. One file per subcommand; this one only chooses.

mod bench;
mod demo;
mod errors;
mod explain;
mod exports;
mod journal;
mod logs;
mod mount;
mod serve;
mod stat;
mod top;
mod trace;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// NFS that says less: an NFS client and server in user space.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Start with: curt demo\n\nExit status: what each command's own help ends with; wrong arguments are 2 everywhere but in 'curt mount', where mount(8) wants 1."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Export a directory, or what exports(5) says
    Serve(serve::ServeArguments),
    /// Show what exports(5) files export, or what a given client would get of it and by which line
    Exports(exports::ExportsArguments),
    /// Replay a recorded workload with four sets of mount options and compare what was sent: about a minute
    Demo(demo::DemoArguments),
    /// Mount an export of an NFS server
    Mount(mount::MountArguments),
    /// Show what mounts did, or a server (`--server`): requests per procedure, what was answered from memory, options in force
    Stat(stat::StatArguments),
    /// Watch mounts, or a server (`--server`), on a screen: rates, what caches spare, processes and paths that cause requests
    Top(top::TopArguments),
    /// Watch what happens in a mount, or a server (`--server`), as it happens; record it, and show recordings and what a crash left behind
    Trace(trace::TraceArguments),
    /// Run a command and say why each of its requests was sent, what spared others, and what Linux would have sent
    Explain(explain::ExplainArguments),
    /// Measure what things cost, in requests and in time
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(helper) = helper_name(&arguments) {
        return mount::helper(&helper, arguments.into_iter().skip(1));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        // mount(8) has statuses of its own: 1 is a wrong invocation, and 2 would be an error of the system.
        Err(error) if error.use_stderr() && arguments.get(1).is_some_and(|word| word == "mount") => {
            // Nobody is there to be told of a standard error that is closed.
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(error) => error.exit(),
    };
    match cli.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Exports(arguments) => exports::run(&arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// The name by which mount(8) calls this program, if it was mount(8) who did: `mount.curt` or `mount.fuse.curt`.
fn helper_name(arguments: &[OsString]) -> Option<String> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    name.starts_with("mount.").then(|| name.to_owned())
}
