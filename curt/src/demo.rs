//! `curt demo`: the page workload with four sets of options, compared with the recorded requests of
//! the Linux client.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use curt_bench::processes::{Curt, MountProcess, Testbed, tree_directory};
use curt_bench::report::{self, ComparisonColumn, chart};
use curt_bench::workload::Workload;

use crate::bench::workload::{WorkloadRun, title};
use crate::bench::{check_picture, without_mount};
use crate::output::{self, say};

/// The compared options.
const OPTIONS: [&str; 4] = ["", "noaccesscheck", "noaccesscheck,sloppycto=3", "nonegnamecache"];
/// Number of threads that create the tree.
const JOBS: usize = 8;
/// The caption of table and chart.
const CAPTION: &str = "NFSv3 requests of five page views of a web application, one second apart";
/// The title of the recorded column.
const RECORDED: &str = "Linux 6.1 (recorded)";

/// Arguments of `curt demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0, or 1 if a result was wrong or the workload could not be run.")]
pub(crate) struct DemoArguments {
    /// File for the bar chart
    #[arg(long, value_name = "FILE", default_value = "curt-demo.svg")]
    svg: PathBuf,
    /// Directory for the files of the workload [default: ~/.cache/curt/page-tree]
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
}

/// Runs `curt demo`.
pub(crate) fn run(arguments: &DemoArguments) -> ExitCode {
    match demo(arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("curt demo: {wrong} results were wrong");
            ExitCode::FAILURE
        }
        Err(error) => output::failed("curt demo", &error),
    }
}

/// Returns the number of wrong results.
fn demo(arguments: &DemoArguments) -> Result<u64> {
    check_picture(&arguments.svg)?;
    let workload = Workload::Page;
    let tree = tree_directory(workload, arguments.tree.as_deref(), JOBS)?;
    let mut world = Testbed::serving(&Curt::this(), &tree, None)?;
    let mountable = world.mount("3", "").and_then(MountProcess::end);
    if let Err(why) = &mountable {
        say!("Cannot mount with FUSE; the client library is used without a mount. Reason:\n{why:#}")?;
    }
    let mut columns = vec![ComparisonColumn {
        title: RECORDED.to_owned(),
        rpc: workload.linux_requests(),
        pages: Vec::new(),
    }];
    let mut wrong = 0;
    for options in OPTIONS {
        let run = WorkloadRun { workload, vers: "3", options, pause: workload.pause() };
        let done = match mountable {
            Ok(()) => run.on(&mut world, None)?.0,
            Err(_) => without_mount::replay(&run, &world)?,
        };
        done.outcome.described.iter().for_each(|what| eprintln!("unexpected result: {what}"));
        wrong += done.outcome.wrong;
        let pages = done.outcome.pages.iter().map(|page| page.seconds).collect();
        columns.push(ComparisonColumn { title: title(options).to_owned(), rpc: done.report.rpc, pages });
    }
    say!("\n{CAPTION}\n\n{}", report::comparison(&columns))?;
    say!(
        "{RECORDED}: the Linux client with default options on knfsd, counted by that kernel; not run now.\n"
    )?;
    let svg = chart::bars(CAPTION, &columns)?;
    std::fs::write(&arguments.svg, svg).with_context(|| arguments.svg.display().to_string())?;
    say!("Bar chart: {}\n", arguments.svg.display())?;
    output::print(what_next())?;
    Ok(wrong)
}

fn what_next() -> &'static str {
    "Next, with files of your own (as root, or with fuse3 installed):\n\
     \x20 curt serve /some/directory --bind 127.0.0.1:2049 --mount-port 2049 &\n\
     \x20 curt mount 127.0.0.1:/some/directory /mnt -o port=2049,mountport=2049,noaccesscheck,sloppycto=3\n\
     \x20 curt stat /mnt\n\
     Any NFSv3 server will do; curt bench page --server HOST:/PATH --make-tree counts on yours.\n"
}
