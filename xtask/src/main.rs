//! Developer commands: `cargo xtask COMMAND`.

mod bench;
mod compare;
mod fuzz;
mod install;
mod packages;
mod size;
mod test;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "The project's chores")]
struct XtaskArguments {
    #[command(subcommand)]
    chore: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Install the tests' packages, then check and test everything; the last line is "N passed, N
    /// failed"
    Test {
        /// Skip the whole-program tests, which need root, boots of a kernel and most of the time
        #[arg(long)]
        quick: bool,
        /// Run only whole-program tests whose names contain this
        #[arg(long, conflicts_with = "quick")]
        only: Option<String>,
        /// The seed of all random choices: a number, or "random" for a new one each time [default:
        /// the same in each run]
        #[arg(long)]
        seed: Option<test::TestSeed>,
    },
    /// Check the rules of CONTRIBUTING.md for files, names and documents
    Tidy,
    /// Write docs/semantics-tests.md, which lists the tests of each statement of SEMANTICS.md
    Semantics,
    /// Fuzz code that parses bytes from peers and operators; installs cargo-fuzz and a nightly
    /// compiler if they are missing
    Fuzz {
        /// The target [default: all of them, one after another]
        target: Option<String>,
        /// Seconds per target
        #[arg(long, default_value_t = 600)]
        seconds: u32,
    },
    /// Install the packages that the tests need
    Packages,
    /// Count the lines of code outside tests, without comments and blank lines, by package
    Size {
        /// Show the difference to this revision
        #[arg(long, value_name = "REV")]
        base: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a benchmark: builds the program of tools/bench and runs it; `cargo xtask bench --help`
    /// lists the benchmarks
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark and its options
        #[arg(value_name = "NAME", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Compare with other servers, and write the tables and pictures of BENCHMARKS.md
    Compare {
        #[command(subcommand)]
        what: CompareCommand,
    },
    /// Build curt and install it with mount(8)'s helpers, as root: /usr/local/bin/curt,
    /// /sbin/mount.curt, /sbin/mount.fuse.curt
    Install {
        /// Remove them instead
        #[arg(long)]
        uninstall: bool,
        /// The program is installed in PREFIX/bin
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
        /// Prefix of all paths, for packages
        #[arg(long, default_value = "/")]
        root: PathBuf,
    },
}

#[derive(Subcommand)]
enum CompareCommand {
    /// Each NFS operation, compared with Ganesha on the same directory in memory (as root; some
    /// minutes)
    Latency {
        /// Number of rounds; each measures all servers and operations
        #[arg(long, default_value_t = 20)]
        rounds: u16,
        /// Print JSON, and do not change the documents
        #[arg(long)]
        json: bool,
        /// The version of NFS: 3, or 4.1 for its operations after SEQUENCE and PUTFH
        #[arg(long, default_value = "3")]
        vers: String,
        /// Write the documents from this file with the output of --json, without measuring
        #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "rounds", "vers"])]
        from: Option<PathBuf>,
        /// More options of `cargo xtask bench latency`, such as --only LOOKUP
        #[arg(last = true, requires = "json", value_name = "OPTIONS")]
        more: Vec<String>,
    },
    /// Draw the pictures of latencies from the tables of BENCHMARKS.md again
    Pictures,
}

fn main() -> ExitCode {
    let done = match XtaskArguments::parse().chore {
        XtaskCommand::Test { quick, only, seed } => {
            test::run(&test::TestScope::new(quick, only), seed.unwrap_or(test::TestSeed::Usual))
        }
        XtaskCommand::Tidy => tidy::run(&root()),
        XtaskCommand::Semantics => tidy::semantics::write(&root()).map(|()| true),
        XtaskCommand::Fuzz { target, seconds } => {
            fuzz::run(target.as_deref(), seconds, fuzz::FuzzBuild::Sanitized, None).map(|()| true)
        }
        XtaskCommand::Bench { arguments } => bench::run(&root(), &arguments),
        XtaskCommand::Packages => packages::install().map(|()| true),
        XtaskCommand::Size { base, json } => size::run(&root(), base.as_deref(), json).map(|()| true),
        XtaskCommand::Compare { what: CompareCommand::Pictures } => compare::draw(&root()).map(|()| true),
        XtaskCommand::Compare { what: CompareCommand::Latency { rounds, json, vers, from, more } } => {
            match from {
                Some(file) => compare::write_documents(&root(), &file),
                None => compare::latency(&root(), rounds, json, &vers, &more),
            }
            .map(|()| true)
        }
        XtaskCommand::Install { uninstall, prefix, root: below } => {
            let places = install::InstallPaths::new(&below, &prefix);
            let done =
                if uninstall { install::uninstall(&places) } else { install::install(&root(), &places) };
            done.map(|()| true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's top directory: the one in which cargo runs this program, else the one that
/// contains the working directory. Not the one in which the program was built, which may be a copy.
fn root() -> PathBuf {
    let start = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let start = start.or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| PathBuf::from("."));
    let mut above = start.ancestors();
    above.find(|directory| directory.join("xtask/Cargo.toml").is_file()).unwrap_or(&start).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_bench_is_the_benchmarks_own() {
        let words = ["xtask", "bench", "latency", "--only", "READ", "--help"];
        match XtaskArguments::try_parse_from(words).map(|parsed| parsed.chore) {
            Ok(XtaskCommand::Bench { arguments }) => assert_eq!(arguments, words[2..]),
            Ok(_) | Err(_) => panic!("it is not passed on"),
        }
        let help = XtaskArguments::try_parse_from(["xtask", "bench", "--help"]);
        assert!(
            matches!(help.map(|parsed| parsed.chore), Ok(XtaskCommand::Bench { arguments }) if arguments == ["--help"])
        );
    }
}
