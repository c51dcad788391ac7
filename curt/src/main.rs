//! Curt: NFS that says less. One file per subcommand; this one only chooses.

mod bench;
mod demo;
mod logs;
mod mount;
mod serve;
mod stat;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// NFS that says less: an NFS client and server in user space.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, after_help = "Start with: curt demo")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Export a directory
    Serve(serve::ServeArguments),
    /// Replay a recorded workload with four sets of mount options and compare what was sent: about a minute
    Demo(demo::DemoArguments),
    /// Mount an export of an NFS server
    Mount(mount::MountArguments),
    /// Show what mounts did: requests per procedure, what was answered from memory, options in force
    Stat(stat::StatArguments),
    /// Measure what things cost, in requests and in time
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(helper) = helper_name(&arguments) {
        return mount::helper(&helper, arguments.into_iter().skip(1));
    }
    match Cli::parse_from(arguments).command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// The name by which mount(8) calls this program, if it was mount(8) who did: `mount.curt` or `mount.fuse.curt`.
fn helper_name(arguments: &[OsString]) -> Option<String> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    name.starts_with("mount.").then(|| name.to_owned())
}
