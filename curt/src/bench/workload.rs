//! `curt bench page` and `curt bench build`: a recorded workload on a mount, checked and counted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use curt_bench::child::{self, UserIds};
use curt_bench::make;
use curt_bench::processes::{Curt, SETTLE, Testbed, progress_bar, tree_directory};
use curt_bench::replay::ReplayOutcome;
use curt_bench::report::RunReport;
use curt_bench::workload::Workload;
use curt_observe::control::MountReport;

mod at;

use crate::stat;

/// Default number of threads that create or compare a tree: they mostly wait.
const JOBS: usize = 8;
/// Arguments of `curt bench page` and `curt bench build`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "JSON: {\"workload\",\"vers\",\"options\",\"server\",\"operations\",\"wrong\",\"seconds\",\"rpc\":{\"LOOKUP\":n,...,\"total\":n}};\n\
                        with --at {\"workload\",\"at\",\"operations\",\"wrong\",\"seconds\"}, and with rpc if that is a Curt mount of this user\n\
                        Exit status: 0 if every result was right, 1 if not."
)]
pub(crate) struct WorkloadArguments {
    /// The version of NFS
    #[arg(long, value_name = "VERSION", default_value = "3")]
    vers: String,
    /// Mount options, such as noaccesscheck,sloppycto=3 [default: none]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Use this server instead of starting one; the tree must exist at HOST:/PATH
    #[arg(long, value_name = "HOST:/PATH")]
    server: Option<String>,
    /// Replay below this directory, on any file system (a mount by Curt or by a kernel); the tree
    /// must exist there
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "options", "vers", "port", "tree"])]
    at: Option<PathBuf>,
    /// First make the tree on that server or below that directory
    #[arg(long)]
    make_tree: bool,
    /// Do not check first, through a separate mount, that the tree exists
    #[arg(long, requires = "server", conflicts_with = "make_tree")]
    no_check: bool,
    /// Port of the server that is started [default: a free one]
    #[arg(long, value_name = "PORT", conflicts_with = "server")]
    port: Option<u16>,
    /// Where the started server's tree is kept [default: in ~/.cache/curt]
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    tree: Option<PathBuf>,
    /// Then compare every byte of every file through the mount
    #[arg(long)]
    compare: bool,
    /// Threads that make or compare the tree
    #[arg(long, value_name = "N", default_value_t = JOBS, value_parser = super::at_least_one())]
    jobs: usize,
    /// Seconds between two pages [default: 1 for page, 0 for build]
    #[arg(long, value_name = "SECONDS")]
    pause: Option<f64>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Runs it; returns whether all results were right.
pub(super) fn run(workload: Workload, arguments: &WorkloadArguments) -> Result<bool> {
    if arguments.make_tree && arguments.server.is_none() && arguments.at.is_none() {
        bail!("--make-tree needs --server or --at: an own server's tree is made anyway");
    }
    let pause = match arguments.pause {
        None => workload.pause(),
        Some(seconds) => Duration::try_from_secs_f64(seconds).context("--pause")?,
    };
    if let Some(directory) = &arguments.at {
        return at::run(workload, directory, pause, arguments);
    }
    let mut world = match &arguments.server {
        None => Testbed::serving(
            &Curt::this(),
            &tree_directory(workload, arguments.tree.as_deref(), arguments.jobs)?,
            arguments.port,
        )?,
        Some(server) => Testbed::elsewhere(&Curt::this(), server)?,
    };
    if arguments.server.is_some() && !arguments.no_check {
        prepare(&mut world, workload, arguments)?;
    }
    let run = WorkloadRun { workload, vers: &arguments.vers, options: &arguments.options, pause };
    let (done, differing) = run.on(&mut world, arguments.compare.then_some(arguments.jobs))?;
    for what in &done.outcome.described {
        eprintln!("unexpected result: {what}");
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&done.report)?)?;
    } else {
        write!(out, "{}", done.text())?;
    }
    if let Some(what) = &differing {
        eprintln!("unexpected result: {what}");
    }
    Ok(done.outcome.wrong == 0 && differing.is_none())
}

/// Creates the tree on a server, or checks that it exists, through a separate mount that is not
/// counted.
fn prepare(world: &mut Testbed, workload: Workload, arguments: &WorkloadArguments) -> Result<()> {
    // The same options: they may contain the server's ports.
    let mounted = world.mount(&arguments.vers, &arguments.options)?;
    if arguments.make_tree {
        make_tree(workload, mounted.directory(), arguments.jobs, &format!("at {}", world.source()))?;
    } else if let Err(error) = make::check(&workload.tree(), mounted.directory()) {
        bail!("the tree of {workload} is not at {}: {error}\n--make-tree makes it", world.source());
    }
    mounted.end()
}

/// Creates the tree of `workload` in `directory`, which is shown as `place`.
fn make_tree(workload: Workload, directory: &Path, jobs: usize, place: &str) -> Result<()> {
    let bar = progress_bar(&format!("making the tree of {workload} {place}"));
    make::make(&workload.tree(), directory, jobs, &bar).context("the tree cannot be made")?;
    bar.finish_and_clear();
    std::thread::sleep(SETTLE);
    Ok(())
}

/// Replays `workload` below `directory` in a process of its own, not as root.
fn replay(workload: Workload, directory: &Path, pause: Duration, what: &str) -> Result<ReplayOutcome> {
    let mut command = Curt::this().command();
    command.args(["bench", "perform", workload.name()]).arg(directory).arg(pause.as_secs_f64().to_string());
    let bar = progress_bar(what);
    bar.set_length(workload.trace().operations_count());
    let user = rustix::process::geteuid().is_root().then_some(UserIds::NOBODY);
    let outcome = child::supervise(&mut command, user, |page| bar.inc(page.operations))?;
    bar.finish_and_clear();
    Ok(outcome)
}

/// The first difference between the files in `directory` and those of `workload`.
fn difference(workload: Workload, directory: &Path, jobs: usize) -> Option<String> {
    let bar = progress_bar("comparing every file");
    let differing = make::check_content(&workload.tree(), directory, jobs, &bar).err();
    bar.finish_and_clear();
    differing.map(|error| error.to_string())
}

/// One run of a workload.
pub(crate) struct WorkloadRun<'a> {
    pub(crate) workload: Workload,
    pub(crate) vers: &'a str,
    pub(crate) options: &'a str,
    pub(crate) pause: Duration,
}

/// The result of a run.
pub(crate) struct WorkloadResult {
    pub(crate) outcome: ReplayOutcome,
    pub(crate) report: RunReport,
    pub(crate) mount: MountReport,
}

impl WorkloadRun<'_> {
    /// Mounts, replays and counts. With `compare`, each file is compared afterwards by this many
    /// threads, without being counted; the first difference is returned, too.
    pub(crate) fn on(
        &self,
        world: &mut Testbed,
        compare: Option<usize>,
    ) -> Result<(WorkloadResult, Option<String>)> {
        let mounted = world.mount(self.vers, self.options)?;
        let what = format!("{} with {}", self.workload, title(self.options));
        let outcome = replay(self.workload, mounted.directory(), self.pause, &what)?;
        let mount = mounted.report_at_rest()?;
        let report = RunReport {
            workload: self.workload.name().to_owned(),
            vers: self.vers.to_owned(),
            options: self.options.to_owned(),
            server: world.source().to_owned(),
            operations: outcome.operations,
            wrong: outcome.wrong,
            seconds: outcome.seconds,
            rpc: mount.counters.requests.clone(),
        };
        let differing = compare.and_then(|jobs| difference(self.workload, mounted.directory(), jobs));
        mounted.end()?;
        Ok((WorkloadResult { outcome, report, mount }, differing))
    }
}

/// Options as a title.
pub(crate) fn title(options: &str) -> &str {
    if options.is_empty() { "defaults" } else { options }
}

impl WorkloadResult {
    fn text(&self) -> String {
        let RunReport { workload, options, server, operations, wrong, seconds, .. } = &self.report;
        let mut text = format!(
            "{workload} at {server} with {}: {operations} operations, {wrong} wrong, {seconds:.2} s\n",
            title(options)
        );
        for (number, page) in self.outcome.pages.iter().enumerate().filter(|_| self.outcome.pages.len() > 1) {
            text.push_str(&format!(
                "view {}: {:.3} s, {} operations\n",
                number + 1,
                page.seconds,
                page.operations
            ));
        }
        text.push('\n');
        text.push_str(&stat::requests(&self.mount.counters, &self.report.vers));
        text
    }
}
