//! `cargo xtask bench fill`: the costs and savings of directories that answer for their names
//! (`dirfill=auto`), compared with `dirfill=off`.
//!
//! This module owns the cases and their bounds. A relay counts requests and bytes; where time is
//! measured it also delays both directions equally.

mod cases;
mod tree;
mod views;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use curt_bench::processes::{CountingRelay, Curt, Machine, MountProcess, Testbed, cache_directory};
use serde_json::json;

use self::tree::FillTreeSizes;
use crate::print_rows;

/// Arguments of `cargo xtask bench fill`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each run is a mount of its own, through the relay. JSON: {\"machine\",\"options\",\"cases\":[{\"case\",\"off\":{\"requests\",\"received\",\"seconds\"},\"auto\":{same},\
                  \"requests_ratio\",\"received_ratio\",\"holds\"}],\"views\":[{\"delay_ms\",\"off\":[seconds],\"auto\":[seconds],\"requests\":{\"off\",\"auto\"},\"faster\":{\"median\",\"low\",\"high\"},\"holds\"}]}\n\
                  Exit status: 0 if every bound holds (at most 2 % more requests and 10 % more bytes, one request more in the huge directory; views never 5 % slower), 1 if not."
)]
pub(crate) struct FillArguments {
    /// The version of NFS
    #[arg(long, value_name = "VERSION", default_value = "3")]
    vers: String,
    /// Mount options of all runs besides dirfill
    #[arg(long, value_name = "OPTIONS", default_value = "noaccesscheck,sloppycto=3")]
    options: String,
    /// Number of directories in which one name each is looked up
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    directories: u32,
    /// Names in each
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    names: u32,
    /// Names in the huge directory
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..))]
    huge: u32,
    /// Files that tar makes and rm -r removes
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Where these trees are kept [default: in ~/.cache/curt]
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Leave out the cases that count requests
    #[arg(long)]
    no_cases: bool,
    /// Milliseconds that the relay adds to a round trip while page's first view is timed
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0,1,10")]
    delays: Vec<f64>,
    /// Timed views of each kind and delay, alternating; 0: none
    #[arg(long, value_name = "N", default_value_t = 6)]
    rounds: usize,
    /// Where the tree of page is kept [default: in ~/.cache/curt]
    #[arg(long, value_name = "DIR")]
    page_tree: Option<PathBuf>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The two compared settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirfillMode {
    Off,
    Auto,
}

impl DirfillMode {
    const BOTH: [Self; 2] = [Self::Off, Self::Auto];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

/// A server, its relay, and the mount options.
struct FillSetup<'a> {
    world: Testbed,
    relay: CountingRelay,
    vers: &'a str,
    options: &'a str,
}

impl FillSetup<'_> {
    /// Serves `export` behind a relay that adds so many milliseconds to a round trip.
    fn serving<'a>(
        export: &std::path::Path,
        delay_ms: f64,
        arguments: &'a FillArguments,
    ) -> Result<FillSetup<'a>> {
        let world = Testbed::serving(&Curt::in_same_directory()?, export, None)?;
        let port = world.port().context("an own server has a port")?;
        let delay = std::time::Duration::try_from_secs_f64(delay_ms / 1000.0).context("--delays")?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(FillSetup {
            world,
            relay: CountingRelay::start(server, delay)?,
            vers: &arguments.vers,
            options: &arguments.options,
        })
    }

    /// Mounts through the relay, which counts from then on.
    fn mount(&mut self, mode: DirfillMode) -> Result<MountProcess> {
        let own = format!("dirfill={},port={}", mode.name(), self.relay.port());
        let all = [self.options, &own].join(",");
        let mounted = self.world.mount(self.vers, all.trim_start_matches(','))?;
        self.relay.begin(None);
        Ok(mounted)
    }
}

/// Runs the benchmark. Returns whether every bound holds.
pub(super) fn run(arguments: &FillArguments) -> Result<bool> {
    let mut cases = Vec::new();
    if !arguments.no_cases {
        let top = match &arguments.tree {
            Some(given) => given.clone(),
            None => cache_directory()?.join("fill-tree"),
        };
        let shape = FillTreeSizes {
            directories: arguments.directories,
            names: arguments.names,
            huge: arguments.huge,
            files: arguments.files,
        };
        cases = cases::run(&mut FillSetup::serving(&shape.make(&top)?, 0.0, arguments)?, &shape, &top)?;
    }
    let mut views = Vec::new();
    if arguments.rounds > 0 {
        views = views::run(arguments)?;
    }
    let holds = cases.iter().chain(&views).all(|row| row["holds"] == true);
    let machine = Machine::this();
    let report = json!({ "machine": machine, "options": arguments.options, "cases": cases, "views": views });
    print_rows(arguments.json, &report)?;
    Ok(holds)
}
