//! The binary `curt`: one file or folder per subcommand; this file only picks one.

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
    after_help = "To begin with, try: curt demo\n\nExit status: see the end of each command's help. Wrong arguments are 2, except with 'curt mount', where mount(8) requires 1."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Export a directory, or what exports(5) says
    Serve(serve::ServeArguments),
    /// Show what exports(5) files export, or what a given client would get, and by which line
    Exports(exports::ExportsArguments),
    /// Replay a recorded workload with four sets of mount options and compare the requests sent
    /// (about a minute)
    Demo(demo::DemoArguments),
    /// Mount an export of an NFS server
    Mount(mount::MountArguments),
    /// Show the figures of mounts, or of a server (`--server`): requests per procedure, cache hits,
    /// options in force
    Stat(stat::StatArguments),
    /// Watch mounts, or a server (`--server`), on a screen: rates, cache hits, the processes and
    /// paths that cause requests
    Top(top::TopArguments),
    /// Watch the events of a mount, or of a server (`--server`), live; record them; show recordings
    /// and what a crash left behind
    Trace(trace::TraceArguments),
    /// Run a command and explain why each of its requests was sent, what saved others, and what
    /// Linux would have sent
    Explain(explain::ExplainArguments),
    /// Measure costs, in requests and in time
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(helper) = helper_name(&arguments) {
        return mount::helper(&helper, arguments.into_iter().skip(1));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        // mount(8) has exit statuses of its own: 1 is a wrong invocation; 2, clap's choice, would
        // be a system error.
        Err(error) if error.use_stderr() && arguments.get(1).is_some_and(|word| word == "mount") => {
            // If standard error is closed, there is nobody to report that to.
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
        CliCommand::Top(arguments) => top::run(&arguments),
        CliCommand::Trace(arguments) => trace::run(&arguments),
        CliCommand::Explain(arguments) => explain::run(&arguments),
        CliCommand::Demo(arguments) => demo::run(&arguments),
        CliCommand::Bench(arguments) => bench::run(&arguments),
    }
}

/// The name by which mount(8) calls this program, if it was mount(8) who did: `mount.curt` or
/// `mount.fuse.curt`.
fn helper_name(arguments: &[OsString]) -> Option<String> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    name.starts_with("mount.").then(|| name.to_owned())
}
