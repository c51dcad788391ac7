//! `curt bench list`: lists a directory of half a million names, while it changes and while it does
//! not, with attributes that always expire; compares with the former behaviour of clients, and with
//! programs that list.

mod listing_run;
mod tools;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use curt_bench::processes::{CountingRelay, Curt, Machine, Testbed, cache_directory, names, progress_bar};
use curt_bench::report::{lay_out, progress};
use serde::Serialize;

use self::listing_run::{ListingRun, ListingRunFigures, ListingRunPlan, ListingSetup};

/// Number of threads that create names.
const JOBS: u64 = 8;

/// Minimum delay of a reply: longer than the attribute timeout of directories.
const HOLD_MIN: Duration = Duration::from_secs(3);

/// Timeout of the former behaviour, as a multiple of the current one's time.
const GIVE_UP: f64 = 10.0;

/// The NFS port of an existing server.
const NFS_PORT: u16 = 2049;

/// Arguments of `curt bench list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each pass is `ls -f` on a mount of its own with acdirmin=1,acdirmax=2, through a relay that counts requests. 'changing': a second client makes one file per second.\n\
                        'expired': how often more than 2 s passed without a reply that carries the directory's attributes.\n\
                        JSON: {\"count\",\"vers\",\"server\",\"pass_seconds\",\"idle\":{\"readdir\",\"cookie_zero\",\"seconds\",\"created\",\"expired\",\"missing\",\"doubled\"},\"changing\":{same},\n\
                        \"restart\":{same,\"gave_up\"},\"full_speed\":{\"idle\":{same},\"changing\":{same}},\"tools\":{\"ls -l\":{\"rpc\",\"seconds\"},\"find\":{same},\"rm -r\":{same}}}\n\
                        Exit status: 0 if every name was listed once in every pass, 1 if not."
)]
pub(crate) struct ListArguments {
    /// The version of NFS
    #[arg(long, value_name = "VERSION", default_value = "3")]
    vers: String,
    /// Names in the directory
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Use this server instead of starting one; the directory is made by --make-tree, or by `curt
    /// bench list-tree` on the server
    #[arg(long, value_name = "HOST:/PATH")]
    server: Option<String>,
    /// Make the directory on that server first
    #[arg(long, requires = "server")]
    make_tree: bool,
    /// Where the started server's directory is kept [default: in ~/.cache/curt]
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    tree: Option<PathBuf>,
    /// Mount options of all passes besides acdirmin=1,acdirmax=2 [default: none]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Minimum duration of a pass with delayed replies
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pass_seconds: f64,
    /// Leave out readdir=restart
    #[arg(long)]
    no_restart: bool,
    /// Leave out ls -l, find and rm -r
    #[arg(long)]
    no_tools: bool,
    /// Write progress over time to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The result in JSON.
#[derive(Debug, Serialize)]
struct ListReport<'a> {
    count: u64,
    vers: &'a str,
    server: &'a str,
    pass_seconds: f64,
    idle: ListingRunFigures,
    changing: ListingRunFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<RestartFigures>,
    full_speed: FullSpeedFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<BTreeMap<&'static str, tools::ToolCost>>,
}

#[derive(Debug, Serialize)]
struct RestartFigures {
    #[serde(flatten)]
    figures: ListingRunFigures,
    gave_up: bool,
}

#[derive(Debug, Serialize)]
struct FullSpeedFigures {
    idle: ListingRunFigures,
    changing: ListingRunFigures,
}

/// The results of all passes.
struct ListingRuns {
    full_idle: ListingRun,
    full_changing: ListingRun,
    idle: ListingRun,
    changing: ListingRun,
    restart: Option<ListingRun>,
}

/// Runs it; returns whether each name was listed once.
pub(super) fn run(arguments: &ListArguments) -> Result<bool> {
    names::check(arguments.count)?;
    arguments.svg.as_deref().map_or(Ok(()), super::check_picture)?;
    let (mut world, own) = world(arguments)?;
    let source = world.source().to_owned();
    let (target, mut through) = match world.port() {
        Some(port) => ((Ipv4Addr::LOCALHOST, port).into(), String::new()),
        None => address_of(&source)?,
    };
    let relay = CountingRelay::start(target, Duration::ZERO)?;
    through.push_str(&format!("port={}", relay.port()));
    // The second client does not use the relay.
    let second = world.mount(&arguments.vers, "")?;
    let there = names::directory(second.directory(), arguments.count);
    if arguments.make_tree {
        let bar = progress_bar(&format!("making {} names at {source}", arguments.count));
        names::make(&there, arguments.count, JOBS, &bar)?;
    }
    if !there.is_dir() {
        bail!("{} has no directory list-{}: make it with --make-tree", source, arguments.count);
    }
    let mut place = ListingSetup {
        world: &mut world,
        relay: &relay,
        through: &through,
        vers: &arguments.vers,
        count: arguments.count,
    };
    let passes = passes(&mut place, arguments, &there)?;
    let top = own.as_deref().unwrap_or_else(|| second.directory());
    let costs = match arguments.no_tools {
        true => None,
        false => Some(tools::run(&mut place, top, own.is_some())?),
    };
    second.end()?;
    if let Some(path) = &arguments.svg {
        draw(&passes, path)?;
    }
    print(arguments, &source, &passes, costs)?;
    Ok(passes
        .all()
        .iter()
        .all(|(_, pass)| pass.gave_up || (pass.figures.missing, pass.figures.doubled) == (0, 0)))
}

/// The server, and the directory of its files if it is Curt's own.
fn world(arguments: &ListArguments) -> Result<(Testbed, Option<PathBuf>)> {
    if let Some(server) = &arguments.server {
        return Ok((Testbed::elsewhere(&Curt::this(), server)?, None));
    }
    let top = match &arguments.tree {
        Some(given) => given.clone(),
        None => cache_directory()?.join("list-tree"),
    };
    let bar = progress_bar(&format!("making {} names in {}", arguments.count, top.display()));
    names::make(&names::directory(&top, arguments.count), arguments.count, 1, &bar)?;
    Ok((Testbed::serving(&Curt::this(), &top, None)?, Some(top)))
}

/// The address of an existing server, and mount options with which MOUNT is sent to it while NFS
/// goes to the relay.
fn address_of(source: &str) -> Result<(SocketAddr, String)> {
    let (host, _) = source.rsplit_once(":/").context("a server is HOST:/PATH")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = (host, NFS_PORT).to_socket_addrs()?.next();
    let address = address.with_context(|| format!("{host} has no address"))?;
    Ok((address, format!("addr=127.0.0.1,mountaddr={},", address.ip())))
}

fn passes(place: &mut ListingSetup<'_>, arguments: &ListArguments, there: &Path) -> Result<ListingRuns> {
    let plan = ListingRunPlan { options: &arguments.options, hold: None, changing: None, limit: None };
    let changing = Some(there);
    eprintln!("at full speed");
    let full_idle = place.pass(&plan)?;
    let full_changing = place.pass(&ListingRunPlan { changing, ..plan.clone() })?;
    let delay = hold(arguments.pass_seconds, full_idle.figures.readdir)?;
    let hold = Some(delay);
    eprintln!("every third reply delayed by {:.1} s", delay.as_secs_f64());
    let idle = place.pass(&ListingRunPlan { hold, ..plan.clone() })?;
    let slow_changing = place.pass(&ListingRunPlan { hold, changing, ..plan.clone() })?;
    let restart = match arguments.no_restart {
        true => None,
        false => {
            let limit = Duration::try_from_secs_f64(idle.figures.seconds * GIVE_UP)?;
            eprintln!("readdir=restart, for at most {:.0} s", limit.as_secs_f64());
            let options = [arguments.options.as_str(), "readdir=restart"].join(",");
            let options = options.trim_start_matches(',');
            Some(place.pass(&ListingRunPlan { options, hold, changing, limit: Some(limit) })?)
        }
    };
    Ok(ListingRuns { full_idle, full_changing, idle, changing: slow_changing, restart })
}

/// The delay of a reply with which a pass of this many requests takes long enough.
fn hold(pass_seconds: f64, requests: u64) -> Result<Duration> {
    let delay = requests / 3;
    if delay == 0 {
        bail!("{requests} requests are too few to hold every third reply; raise --count");
    }
    let hold = Duration::try_from_secs_f64(pass_seconds / delay as f64).context("--pass-seconds")?;
    Ok(hold.max(HOLD_MIN))
}

impl ListingRuns {
    fn all(&self) -> Vec<(&'static str, &ListingRun)> {
        let mut all = vec![
            ("full speed, idle", &self.full_idle),
            ("full speed, changing", &self.full_changing),
            ("delayed, idle", &self.idle),
            ("delayed, changing", &self.changing),
        ];
        all.extend(self.restart.as_ref().map(|restart| ("delayed, changing, readdir=restart", restart)));
        all
    }
}

fn print(
    arguments: &ListArguments,
    source: &str,
    passes: &ListingRuns,
    tools: Option<BTreeMap<&'static str, tools::ToolCost>>,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let restart = passes
            .restart
            .as_ref()
            .map(|pass| RestartFigures { figures: pass.figures.clone(), gave_up: pass.gave_up });
        let report = ListReport {
            count: arguments.count,
            vers: &arguments.vers,
            server: source,
            pass_seconds: arguments.pass_seconds,
            idle: passes.idle.figures.clone(),
            changing: passes.changing.figures.clone(),
            restart,
            full_speed: FullSpeedFigures {
                idle: passes.full_idle.figures.clone(),
                changing: passes.full_changing.figures.clone(),
            },
            tools,
        };
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    writeln!(out, "{}", Machine::this().line())?;
    writeln!(out, "{} names at {source}", arguments.count)?;
    write!(out, "{}", lay_out(&rows(passes)))?;
    if let Some(costs) = &tools {
        write!(out, "{}", tools::text(costs))?;
    }
    Ok(())
}

fn rows(passes: &ListingRuns) -> Vec<Vec<String>> {
    let head = [
        "pass",
        "requests",
        "from 0",
        "first names (ms)",
        "seconds",
        "created",
        "expired",
        "missing",
        "doubled",
        "MiB",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, pass) in passes.all() {
        let figures = &pass.figures;
        let seconds = match pass.gave_up {
            true => format!("given up at {:.1}", figures.seconds),
            false => format!("{:.1}", figures.seconds),
        };
        rows.push(vec![
            name.to_owned(),
            figures.readdir.to_string(),
            figures.cookie_zero.to_string(),
            format!("{:.1}", pass.first * 1000.0),
            seconds,
            figures.created.to_string(),
            figures.expired.to_string(),
            figures.missing.to_string(),
            figures.doubled.to_string(),
            format!("{:.0}", pass.memory_mib),
        ]);
    }
    rows
}

fn draw(passes: &ListingRuns, path: &Path) -> Result<()> {
    let all = passes.all();
    let lines: Vec<_> = all.iter().map(|(name, pass)| (*name, pass.progress.as_slice())).collect();
    let svg = progress::lines("names listed over time", "names", &lines)?;
    std::fs::write(path, svg).with_context(|| path.display().to_string())
}

/// Creates the directory on this machine, for a server that exports it.
pub(super) fn make_tree(top: &Path, count: u64) -> Result<bool> {
    names::check(count)?;
    let bar = progress_bar(&format!("making {count} names in {}", top.display()));
    names::make(&names::directory(top, count), count, 1, &bar)?;
    Ok(true)
}
